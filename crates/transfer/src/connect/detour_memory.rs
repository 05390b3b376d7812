//! Stores the choices of `--via auto` in the host memory.

use std::time::{Duration, SystemTime};

use tracing::debug;

use super::host_auth_handler::{memory_name, remembered};
use crate::config::HostConfig;
use crate::memory::HostMemoryStore;
use crate::memory::detours::DetourRecord;

/// Returns the stored choice for a direction with its age, if it holds for these candidates.
pub fn remembered_detour(
    config: &HostConfig,
    memories: &HostMemoryStore,
    up: bool,
    candidates: &[String],
) -> Option<(DetourRecord, Duration)> {
    let now = SystemTime::now();
    let detours = remembered(config, Some(memories))?.detours;
    let aged = |detour: DetourRecord| {
        let age = detour.age(up, candidates, now)?;
        Some((detour, age))
    };
    detours.into_iter().find_map(aged)
}

/// Stores a choice in place of the one for the same direction.
pub fn remember_detour(config: &HostConfig, memories: &HostMemoryStore, detour: DetourRecord) {
    change(config, memories, |detours| {
        detours.retain(|other| other.up != detour.up);
        detours.insert(0, detour);
        detours.truncate(2);
    });
}

/// Removes the choices for a host, because the chosen way has failed.
pub fn forget_detour(config: &HostConfig, memories: &HostMemoryStore) {
    change(config, memories, Vec::clear);
}

fn change(
    config: &HostConfig,
    memories: &HostMemoryStore,
    change: impl FnOnce(&mut Vec<DetourRecord>),
) {
    let now = SystemTime::now();
    let changed = memories.change(memory_name(config), now, |host| change(&mut host.detours));
    if let Err(e) = changed {
        debug!("{}: cannot save the host memory: {e}", config.host);
    }
}
