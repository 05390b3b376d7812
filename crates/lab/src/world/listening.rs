//! Finds listening ports without connecting: a server that limits unauthenticated connections must
//! not see one before the command's own.

use std::collections::BTreeSet;
use std::fs;

/// TCP or UDP port that a server on the far side has to open before the command runs.
#[derive(Clone, Debug)]
pub(super) enum AwaitedPort {
    /// This port.
    Number(u16),
    /// Any port except these.
    Other(BTreeSet<u16>),
}

impl AwaitedPort {
    /// Returns true if the port is listened on, in this thread's network namespace.
    pub(super) fn listens(&self) -> bool {
        let now = ports();
        match self {
            Self::Number(port) => now.contains(port),
            Self::Other(before) => now.difference(before).next().is_some(),
        }
    }
}

/// All ports that TCP listens on or UDP is bound to.
pub(super) fn ports() -> BTreeSet<u16> {
    ["tcp", "tcp6", "udp", "udp6"]
        .into_iter()
        .flat_map(|table| {
            let path = format!("/proc/thread-self/net/{table}");
            let text = fs::read_to_string(path).unwrap_or_default();
            text.lines().filter_map(port).collect::<Vec<_>>()
        })
        .collect()
}

/// Parses a line of /proc/net/tcp or udp (proc(5)). Returns the port in state 0A, TCP's LISTEN, or
/// 07, the state of UDP sockets without a peer.
fn port(line: &str) -> Option<u16> {
    let mut columns = line.split_ascii_whitespace().skip(1);
    let (_, port) = columns.next()?.rsplit_once(':')?;
    let state = columns.nth(1)?;
    ["0A", "07"]
        .contains(&state)
        .then(|| u16::from_str_radix(port, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_table() {
        let listens = "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000";
        assert_eq!(port(listens), Some(22));
        assert_eq!(port(&listens.replace("0A", "01")), None);
        assert_eq!(port("  sl  local_address rem_address   st tx_queue"), None);
    }
}
