//! Warns about an open OpenSSH connection (ControlMaster) that longhaul does not use.

use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{EvaluatedConfig, HostConfig};
use crate::escape;

/// Returns a warning if OpenSSH has an open connection to the host that ssh would share
/// (ControlPath): longhaul logs in separately, which may need a second factor again.
pub(super) fn unused(evaluated: &EvaluatedConfig, config: &HostConfig) -> Option<String> {
    let path = evaluated.values("controlpath").next()?;
    if path.eq_ignore_ascii_case("none") {
        return None;
    }
    let path = config.tokens.path("ControlPath", Path::new(path)).ok()?;
    // The socket of a dead ssh process refuses connections.
    UnixStream::connect(&path).ok()?;
    Some(format!(
        "{}: ControlMaster is not supported: logging in separately, not through {}; -S ssh \
         would use it",
        escape::name(config.host.as_bytes()),
        escape::path(&path)
    ))
}
