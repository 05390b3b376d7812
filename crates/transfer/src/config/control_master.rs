//! Finds an open connection of OpenSSH (ControlMaster).

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::{EvaluatedConfig, HostConfig};

/// Returns the expanded ControlPath if an ssh process with an open connection to the host listens
/// there.
pub(super) fn open(evaluated: &EvaluatedConfig, config: &HostConfig) -> Option<PathBuf> {
    let path = evaluated.values("controlpath").next()?;
    if path.eq_ignore_ascii_case("none") {
        return None;
    }
    let path = config.tokens.path("ControlPath", Path::new(path)).ok()?;
    // The socket of a dead ssh process refuses connections.
    UnixStream::connect(&path).ok()?;
    Some(path)
}
