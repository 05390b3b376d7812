//! What is set on a TCP socket, in one place for every part that opens one.
//!
//! Buffers are left alone unless somebody insists: SO_SNDBUF and SO_RCVBUF switch the kernel's
//! autotuning off.

mod foreign;
mod options;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use self::foreign::make_transparent;
pub use self::foreign::{may_mark, original_destination, steer_newcomers};
#[cfg(target_os = "linux")]
use self::options::set_int;
pub use self::options::{connect_with_data, may_control_congestion, set_congestion_control};
use self::options::{
    do_not_pace, limit_pacing, open_receive_window, pace, set_notsent_lowat, try_congestion_control,
};
use crate::distance::NOTSENT_LOWAT;

/// What to set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// DSCP, 0 to 63; 0 is best effort. Set once, before connect (a mark that changes in a running
    /// flow reorders it).
    pub dscp: u8,
    /// Ask the kernel to probe an idle connection (TCPKeepAlive).
    pub keepalive: bool,
    /// The congestion control; the system's own if not set.
    pub congestion: Option<String>,
    /// When the kernel probes an idle connection, if it does; its own times if not set.
    pub probes: Option<Probes>,
    /// SO_SNDBUF and SO_RCVBUF, in bytes of data.
    pub buffers: Buffers,
    /// Unsent bytes that the kernel takes (TCP_NOTSENT_LOWAT); 1 MiB if not set.
    pub notsent_lowat: Option<u32>,
    /// Bytes a second at most that the kernel sends (SO_MAX_PACING_RATE).
    pub pacing: Option<u64>,
    /// Ask for Multipath TCP (RFC 8684); plain TCP where the system or the peer has none.
    pub mptcp: bool,
    /// Listen for data in SYN (RFC 7413).
    pub fastopen: bool,
    /// The largest segment that the peer is asked to send (TCP_MAXSEG, RFC 9293 section 3.7.1), 88 to 32,767 bytes;
    /// what we send may be larger once [`Tuning::connecting`] was called.
    pub mss: Option<u16>,
    /// The address of ours that connections come from.
    pub bind: Option<IpAddr>,
    /// The interface of ours that connections leave by (SO_BINDTODEVICE).
    pub interface: Option<String>,
    /// The mark of what is sent, for the rules of this machine (SO_MARK); none where it is not ours to
    /// set.
    pub mark: Option<u32>,
    /// The address that connections come from, or that is listened at, need not be this machine's
    /// (IP_TRANSPARENT).
    pub transparent: bool,
    /// An end that nobody has prepared is a reset and not an end of file: SO_LINGER of no time,
    /// until [`close_orderly`].
    pub abrupt: bool,
}

/// When the kernel probes an idle connection (tcp(7), TCP_KEEPIDLE and its siblings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probes {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Between probes.
    pub interval: Duration,
    /// So many without an answer end the connection.
    pub count: u32,
}

/// Socket buffers that are set rather than tuned by the kernel, in bytes of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffers {
    /// SO_SNDBUF.
    pub send: Option<usize>,
    /// SO_RCVBUF.
    pub receive: Option<usize>,
}

/// A congestion control that every system has and lets everybody use, and that does not pace.
const UNPACED: &str = "reno";

/// From this round trip on a window is paced. Below it slow start is over in no time, and the
/// kernel's timers cost more than bursts do.
const LONG: Duration = Duration::from_millis(20);

impl Tuning {
    /// A TCP socket for connecting to `to`, marked and tuned, not yet connected.
    ///
    /// # Errors
    /// The address to come from or the interface are not this machine's, or something that was
    /// asked for is more than we may.
    pub fn socket(&self, to: &SocketAddr) -> io::Result<Socket> {
        let socket = self.marked(*to)?;
        self.tune(&SockRef::from(&socket))?;
        if let Some(mss) = self.mss {
            // Without it nothing is wrong.
            let _ = socket.set_tcp_mss(mss.into());
        }
        #[cfg(target_os = "linux")]
        if let Some(mark) = self.mark {
            // Whoever may not is told elsewhere.
            let _ = socket.set_mark(mark);
        }
        if let Some(ip) = self.bind {
            socket.bind(&SocketAddr::new(ip, 0).into())?;
        }
        Ok(socket)
    }

    /// The SYN of a socket of [`Self::socket`] is on its way: what it has told the peer need not hold for us.
    pub fn connecting(&self, socket: &Socket) {
        if self.mss.is_some() {
            // 0 is what the path takes (tcp(7), TCP_MAXSEG).
            let _ = socket.set_tcp_mss(0);
        }
    }

    /// A TCP socket that listens at `at`, if need be beside others that do (`share`). What is
    /// accepted there has what the listener has; the rest is for [`Self::connected`].
    ///
    /// # Errors
    /// The address is in use, or not ours.
    pub fn listener(&self, at: SocketAddr, share: bool, backlog: i32) -> io::Result<Socket> {
        let socket = self.marked(at)?;
        if at.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(true)?;
        if share {
            socket.set_reuse_port(true)?;
        }
        self.tune(&SockRef::from(&socket))?;
        #[cfg(target_os = "linux")]
        if self.fastopen {
            set_int(&socket, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, backlog);
        }
        socket.bind(&at.into())?;
        socket.listen(backlog)?;
        Ok(socket)
    }

    /// A socket with what has to be there before anything is sent.
    fn marked(&self, address: SocketAddr) -> io::Result<Socket> {
        let domain = Domain::for_address(address);
        let plain = || Socket::new(domain, Type::STREAM, Some(Protocol::TCP));
        #[cfg(target_os = "linux")]
        let socket = match self.mptcp {
            true => {
                Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP)).or_else(|_| plain())?
            }
            false => plain()?,
        };
        #[cfg(not(target_os = "linux"))]
        let socket = plain()?;
        self.mark(&socket, address)?;
        Ok(socket)
    }

    /// Gives a socket that listens already, at `at`, what [`Self::listener`] gives one: somebody
    /// has handed it on.
    ///
    /// # Errors
    /// It is no TCP socket, or something that was asked for is more than we may.
    pub fn adopt(&self, socket: &Socket, at: SocketAddr) -> io::Result<()> {
        self.mark(socket, at)?;
        self.tune(socket)
    }

    /// What has to be there before anything is sent.
    fn mark(&self, socket: &Socket, address: SocketAddr) -> io::Result<()> {
        // RFC 2474: DSCP is the upper six bits of the TOS byte. A mark of 0 is the default, and
        // so needs no call that a sandbox might refuse.
        if self.dscp != 0 {
            let tos = u32::from(self.dscp) << 2;
            match address {
                SocketAddr::V4(_) => socket.set_tos_v4(tos)?,
                SocketAddr::V6(_) => socket.set_tclass_v6(tos)?,
            }
        }
        match &self.congestion {
            Some(name) => try_congestion_control(socket, name)?,
            // With IP_TRANSPARENT who comes to an address may come from elsewhere.
            None if address.ip().to_canonical().is_loopback() && !self.transparent => {
                do_not_pace(socket);
            }
            None => {}
        }
        // The window of a connection is scaled as its buffer is when it begins.
        self.buffers.set(socket)?;
        if self.transparent {
            make_transparent(socket, address)?;
        }
        #[cfg(target_os = "linux")]
        if let Some(name) = &self.interface {
            socket.bind_device(Some(name.as_bytes()))?;
        }
        Ok(())
    }

    fn tune(&self, socket: &Socket) -> io::Result<()> {
        socket.set_tcp_nodelay(true)?;
        if self.keepalive {
            let keepalive = TcpKeepalive::new();
            socket.set_tcp_keepalive(&match self.probes {
                None => keepalive,
                Some(probes) => keepalive
                    .with_time(probes.idle)
                    .with_interval(probes.interval)
                    .with_retries(probes.count),
            })?;
        }
        set_notsent_lowat(socket, self.notsent_lowat.unwrap_or(NOTSENT_LOWAT));
        if self.buffers.receive.is_none() {
            open_receive_window(socket);
        }
        if let Some(rate) = self.pacing {
            limit_pacing(socket, rate);
        }
        if self.abrupt {
            socket.set_linger(Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// The same for a connection that was accepted.
    ///
    /// # Errors
    /// The connection is gone already.
    pub fn accepted(&self, socket: impl AsFd) -> io::Result<()> {
        self.tune(&SockRef::from(&socket))?;
        self.connected(&socket);
        Ok(())
    }

    /// Sets again what connect() may have replaced: where a route names a congestion control
    /// (ip-route(8), congctl), a socket takes that one as it connects, whatever it was given.
    pub fn connected(&self, socket: impl AsFd) {
        if let Some(name) = &self.congestion {
            // A route that locks its own keeps it.
            let _ = try_congestion_control(&socket, name);
        }
        if self.pacing.is_some() {
            return;
        }
        let long = crate::tcp_info(&socket).is_some_and(|tcp| tcp.rtt >= LONG);
        if long {
            pace(&socket);
        }
    }
}

impl Buffers {
    /// Sets what is to be set. Linux takes the value twice, and uses half of that for data
    /// (socket(7)); more than net.core.wmem_max or rmem_max is cut to that without a word.
    ///
    /// # Errors
    /// The socket is none.
    pub fn set(&self, socket: impl AsFd) -> io::Result<()> {
        let socket = SockRef::from(&socket);
        if let Some(size) = self.send {
            socket.set_send_buffer_size(size)?;
        }
        if let Some(size) = self.receive {
            socket.set_recv_buffer_size(size)?;
        }
        Ok(())
    }
}

/// Takes back what [`Tuning::abrupt`] set: what is still to be sent is, and then an end of file.
/// Best effort: a connection that is gone needs it no more.
pub fn close_orderly(socket: impl AsFd) {
    let _ = SockRef::from(&socket).set_linger(None);
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_congestion_control_is_on_the_socket_before_it_connects() -> io::Result<()> {
        let tuning = Tuning {
            congestion: Some("reno".to_owned()),
            ..Tuning::default()
        };
        let socket = tuning.socket(&SocketAddr::from(([127, 0, 0, 1], 9)))?;
        let name = socket.tcp_congestion()?;
        assert_eq!(name.split(|b| *b == 0).next(), Some(&b"reno"[..]));
        Ok(())
    }

    #[test]
    fn connections_within_the_machine_are_not_paced_and_others_are_as_the_system_says()
    -> io::Result<()> {
        let name = |socket: &Socket| -> io::Result<Vec<u8>> {
            let name = socket.tcp_congestion()?;
            Ok(name.into_iter().take_while(|b| *b != 0).collect())
        };
        let plain = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        let usual = name(&plain)?;
        let here = match usual.starts_with(b"bbr") {
            true => UNPACED.as_bytes().to_vec(),
            false => usual.clone(),
        };
        let tuning = Tuning::default();
        let to = |ip| SocketAddr::from((ip, 0));
        let listener = tuning.listener(to([127, 0, 0, 1]), false, 1)?;
        let at = listener.local_addr()?.as_socket().expect("an address");
        let client = tuning.socket(&at)?;
        client.connect(&at.into())?;
        let (accepted, _) = listener.accept()?;
        assert_eq!((name(&client)?, name(&accepted)?), (here.clone(), here));
        assert_eq!(name(&tuning.socket(&to([192, 0, 2, 1]))?)?, usual);
        assert_eq!(name(&tuning.listener(to([0, 0, 0, 0]), false, 1)?)?, usual);
        Ok(())
    }

    #[test]
    fn the_receive_window_is_open_and_nobody_waits_for_it_to_fill() -> io::Result<()> {
        let plain = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        let tuned = Tuning::default().socket(&SocketAddr::from(([127, 0, 0, 1], 9)))?;
        let before = plain.recv_buffer_size()?;
        assert!(tuned.recv_buffer_size()? >= before.max(1 << 20));

        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let to = listener.local_addr()?;
        let tuned = Tuning::default().socket(&to)?;
        tuned.connect(&to.into())?;
        io::Write::write_all(&mut listener.accept()?.0, b"1")?;
        tuned.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut byte = [0];
        io::Read::read_exact(&mut &tuned, &mut byte)?;
        assert_eq!(byte, *b"1");
        Ok(())
    }

    #[test]
    fn buffers_that_were_set_are_there_on_what_is_accepted_too() -> io::Result<()> {
        let tuning = Tuning {
            buffers: Buffers {
                send: Some(100_000),
                receive: Some(50_000),
            },
            abrupt: true,
            ..Tuning::default()
        };
        let listener = tuning.listener(SocketAddr::from(([127, 0, 0, 1], 0)), false, 1)?;
        let to = listener.local_addr()?;
        let connected = tuning.socket(&to.as_socket().expect("IPv4"))?;
        connected.connect(&to)?;
        let (accepted, _) = listener.accept()?;
        for socket in [&connected, &accepted] {
            // Linux tells twice what it was given.
            assert_eq!(socket.send_buffer_size()?, 200_000);
            assert_eq!(socket.recv_buffer_size()?, 100_000);
            assert_eq!(socket.linger()?, Some(Duration::ZERO));
            assert!(socket.tcp_nodelay()?);
        }
        close_orderly(&accepted);
        assert_eq!(accepted.linger()?, None);
        Ok(())
    }

    #[test]
    fn newcomers_come_to_the_one_that_was_chosen() -> io::Result<()> {
        let tuning = Tuning::default();
        let first = tuning.listener(SocketAddr::from(([127, 0, 0, 1], 0)), true, 64)?;
        let at = first.local_addr()?.as_socket().expect("IPv4");
        let second = tuning.listener(at, true, 64)?;
        first.set_nonblocking(true)?;
        second.set_nonblocking(true)?;
        for (nth, chosen, other) in [(0, &first, &second), (1, &second, &first)] {
            steer_newcomers(&first, nth)?;
            for _ in 0..32 {
                let _client = std::net::TcpStream::connect(at)?;
                chosen.accept()?;
                let none = other.accept().expect_err("nobody is here");
                assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
            }
        }
        // The second has the first's place then, and is where the kernel finds nobody else.
        drop(first);
        let _client = std::net::TcpStream::connect(at)?;
        second.accept()?;
        steer_newcomers(&second, 0)?;
        let _client = std::net::TcpStream::connect(at)?;
        second.accept()?;
        let alone = tuning.listener(SocketAddr::from(([127, 0, 0, 1], 0)), false, 1)?;
        assert!(steer_newcomers(&alone, 0).is_err());
        Ok(())
    }

    #[test]
    fn what_the_kernel_lacks_is_refused() {
        assert!(may_control_congestion("reno").is_ok());
        for name in [
            "none-such",
            "",
            "a-name-that-is-longer-than-the-kernel-takes",
        ] {
            assert!(may_control_congestion(name).is_err(), "{name}");
        }
    }
}
