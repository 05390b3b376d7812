//! The rate at which a local file is read from its disk.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::command_error::CommandError;
use rustix::fs::{Advice, fadvise};

/// Bytes and time that are enough.
const ENOUGH: u64 = 512 << 20;
const LONG: Duration = Duration::from_secs(2);
/// Smaller files tell nothing about a disk.
const LEAST: u64 = 1 << 20;

/// Reads the file, without the part that is in memory, and returns bytes per second.
///
/// # Errors
/// One sentence with the file's name.
pub(super) fn read_rate(path: &Path) -> Result<f64, CommandError> {
    let named = |why: String| format!("{}: {why}", path.display());
    let failed = |e: std::io::Error| named(e.to_string());
    let meta = path.metadata().map_err(failed)?;
    if !meta.is_file() || meta.len() < LEAST {
        return Err(named(
            "the second argument must be a file on this machine of at least 1 MiB, to measure its \
             disk; only one host is measured at a time"
                .to_owned(),
        )
        .into());
    }
    let mut file = File::open(path).map_err(failed)?;
    // Without effect where the file is still being written.
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    let mut block = vec![0; 1 << 20];
    let (mut read, start) = (0_u64, Instant::now());
    while read < ENOUGH && start.elapsed() < LONG {
        match file.read(&mut block).map_err(failed)? {
            0 => break,
            n => read += n as u64,
        }
    }
    Ok(read as f64 / start.elapsed().as_secs_f64().max(1e-9))
}
