//! Finds an open connection of OpenSSH (ControlMaster).

use std::path::{Path, PathBuf};

use super::{EvaluatedConfig, HostConfig};

/// Returns the expanded ControlPath if an ssh process of this user with an open connection to the
/// host listens there. Another user's would see the data, and could be any program.
pub(super) fn open(evaluated: &EvaluatedConfig, config: &HostConfig) -> Option<PathBuf> {
    let path = evaluated.values("controlpath").next()?;
    if path.eq_ignore_ascii_case("none") {
        return None;
    }
    let path = config.tokens.path("ControlPath", Path::new(path)).ok()?;
    // The socket of a dead ssh process refuses connections.
    match sys::connect_own_unix(&path) {
        Ok(_) => Some(path),
        Err(error) => {
            tracing::debug!("ControlPath {}: {error}", crate::escape::path(&path));
            None
        }
    }
}
