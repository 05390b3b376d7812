//! Finds the user of the other end of a connection on this machine.
//!
//! Every user can connect to a port of the loopback interface, and from a port number of their
//! choice at another loopback address. The kernel's table tells users apart.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};

/// Tables of the kernel's TCP sockets (proc(5)), without and with IPv6.
const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];

/// Returns true if the other end of `stream` is a socket of this user or root, or if the kernel
/// shows no table of its sockets.
///
/// # Errors
/// The connection has no addresses any more.
pub(super) fn is_ours(stream: &TcpStream) -> io::Result<bool> {
    let (peer, here) = (stream.peer_addr()?, stream.local_addr()?);
    let tables: Vec<_> = TABLES
        .iter()
        .filter_map(|t| fs::read_to_string(t).ok())
        .collect();
    let mut owners = tables.iter().filter_map(|table| owner(table, peer, here));
    let own = rustix::process::geteuid().as_raw();
    let is_ours = owners.next().is_some_and(|user| user == own || user == 0);
    Ok(is_ours || tables.is_empty())
}

/// Returns the user ID of the socket at `end` that is connected to `other`. `None` if the table has
/// no such socket, or no process has it open: the kernel shows user 0 then.
fn owner(table: &str, end: SocketAddr, other: SocketAddr) -> Option<u32> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let ends = (address(fields.next()?)?, address(fields.next()?)?);
        let is_it = ends == (plain(end), plain(other));
        // State, queues, timer and retransmissions come before, and a timeout after.
        let user = fields.nth(4)?.parse().ok()?;
        let inode: u64 = fields.nth(1)?.parse().ok()?;
        (is_it && inode != 0).then_some(user)
    })
}

/// Parses an address of the table: 32-bit words in the machine's byte order, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let text = ip.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(text, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(plain(SocketAddr::new(ip, port)))
}

/// The address without a scope, and as IPv4 if it is mapped to IPv6.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{Ipv6Addr, TcpListener};

    use super::*;

    #[test]
    fn a_connection_of_this_user_is_ours_over_both_families() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        for to in [IpAddr::from(Ipv4Addr::LOCALHOST), mapped.into()] {
            let program = TcpStream::connect((to, port)).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            assert!(is_ours(&accepted).unwrap(), "{to}");
            drop(program);
            // A process that another test starts may have the socket until it runs its program.
            assert_eq!(accepted.read(&mut [0]).unwrap(), 0);
            // A closed socket is shown with user 0.
            assert!(!is_ours(&accepted).unwrap_or(false), "{to}");
        }
    }

    /// Bug: the user nobody, who was connected from 127.0.0.2 and the port that the program had at
    /// 127.0.0.1, got the program's connection.
    #[test]
    #[cfg(target_endian = "little")]
    fn equal_ports_of_different_addresses_and_users_are_told_apart() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  \
                    timeout inode\n";
        let line = |own: &str, uid: u32, inode: u32| {
            format!(
                "   3: {own}:C350 0100007F:01BB 01 00000000:00000000 00:00000000 00000000 {uid:>5} \
                 0 {inode} 1 ffff 20 4 30 10 -1\n"
            )
        };
        let at = |last: u8| SocketAddr::from(([127, 0, 0, last], 50_000));
        let here = SocketAddr::from(([127, 0, 0, 1], 443));
        let table = [
            head.to_owned(),
            line("0200007F", 65_534, 7),
            line("0100007F", 1000, 8),
        ]
        .concat();
        assert_eq!(owner(&table, at(2), here), Some(65_534));
        assert_eq!(owner(&table, at(1), here), Some(1000));
        assert_eq!(owner(&table, at(3), here), None);
        assert_eq!(owner(&table, here, at(1)), None);
        let orphan = [head.to_owned(), line("0100007F", 0, 0)].concat();
        assert_eq!(owner(&orphan, at(1), here), None);
        let six = "0000000000000000FFFF00000100007F:C350";
        assert_eq!(address(six), Some(at(1)));
        let one = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 1);
        assert_eq!(address("00000000000000000000000001000000:0001"), Some(one));
        assert_eq!(address("0100007F"), None);
    }
}
