//! `--via`: relays the connections to a host through other hosts.

use std::sync::PoisonError;

use transfer::config::{HostConfig, Proxy};
use transfer::operand::Destination;

use super::Hosts;
use crate::flags::low::Via;

impl Hosts {
    /// Replaces the way to a host by the one through the relaying hosts.
    pub(super) fn take_detour(&self, destination: &Destination, config: &mut HostConfig) {
        let through = match &self.flags.via {
            None => return,
            Some(Via::Through(hosts)) => hosts.clone(),
            Some(Via::Auto) => {
                let detours = self.detours.lock().unwrap_or_else(PoisonError::into_inner);
                detours.get(destination).cloned().unwrap_or_default()
            }
        };
        if !through.is_empty() {
            config.proxy = Proxy::Via(through);
        }
    }
}
