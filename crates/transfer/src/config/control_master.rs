use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{Evaluated, HostConfig};
use crate::escape;

/// Warns of a connection of OpenSSH's that is open to the host and would be shared (ControlPath):
/// a copy logs in anew, which may take a second factor once more.
pub(super) fn unused(evaluated: &Evaluated, config: &HostConfig) -> Option<String> {
    let path = evaluated.values("controlpath").next()?;
    if path.eq_ignore_ascii_case("none") {
        return None;
    }
    let path = config.tokens.path("ControlPath", Path::new(path)).ok()?;
    // A socket that a dead ssh has left refuses.
    UnixStream::connect(&path).ok()?;
    Some(format!(
        "{}: the open connection of ssh (ControlPath {}) is not used, and this is a login of its \
         own; -S ssh uses it",
        escape::name(config.host.as_bytes()),
        escape::path(&path)
    ))
}
