//! Options of TCP sockets, in one place for every part that opens one.
//!
//! Buffer sizes stay unset unless the user asks: SO_SNDBUF and SO_RCVBUF switch the kernel's
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

/// Options for a TCP socket that connects ([`SocketTuning::socket`]), listens
/// ([`SocketTuning::listener`]) or was accepted ([`SocketTuning::accepted`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketTuning {
    /// DSCP, 0 to 63; 0 is best effort. Set once before connect, since a change in a running flow
    /// reorders its packets.
    pub dscp: u8,
    /// Keepalive probes on an idle connection (TCPKeepAlive).
    pub keepalive: Keepalive,
    /// Congestion control; `None` keeps the system default.
    pub congestion: Option<String>,
    /// SO_SNDBUF and SO_RCVBUF, in bytes of data.
    pub buffers: SocketBufferSizes,
    /// Limit of unsent bytes in the send buffer (TCP_NOTSENT_LOWAT); `None` is 1 MiB.
    pub notsent_lowat: Option<u32>,
    /// Maximum send rate in bytes per second (SO_MAX_PACING_RATE).
    pub pacing: Option<u64>,
    /// Requests Multipath TCP (RFC 8684); plain TCP if the system or the peer does not support it.
    pub mptcp: bool,
    /// Accepts data in SYN on a listener (TCP Fast Open, RFC 7413).
    pub fastopen: bool,
    /// Largest segment that the peer is asked to send (TCP_MAXSEG, RFC 9293 section 3.7.1), 88 to
    /// 32,767 bytes. Our own segments may be larger after [`SocketTuning::connecting`].
    pub mss: Option<u16>,
    /// Local address of outgoing connections.
    pub bind: Option<IpAddr>,
    /// Network interface of the socket (SO_BINDTODEVICE).
    pub interface: Option<String>,
    /// Firewall mark of outgoing packets (SO_MARK); ignored without the privilege to set it.
    pub mark: Option<u32>,
    /// Permits local addresses that are not this machine's (IP_TRANSPARENT).
    pub transparent: bool,
    /// Closes with a reset unless [`close_orderly`] was called (SO_LINGER with zero time), so that
    /// the peer cannot take a crash for an end of file.
    pub abrupt: bool,
}

/// Mode of TCP keepalive probes on an idle connection (SO_KEEPALIVE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keepalive {
    /// No probes.
    #[default]
    Off,
    /// Probes at the kernel's times.
    KernelTimes,
    /// Probes at these times.
    Probes(KeepaliveProbes),
}

impl Keepalive {
    /// Returns probes at the kernel's times if `on`, else none.
    pub fn with_kernel_times(on: bool) -> Self {
        match on {
            true => Self::KernelTimes,
            false => Self::Off,
        }
    }
}

/// Times of keepalive probes on an idle connection (tcp(7), TCP_KEEPIDLE and its siblings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepaliveProbes {
    /// Idle time before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes that end the connection.
    pub count: u32,
}

/// Fixed socket buffer sizes in bytes of data; `None` leaves them to the kernel's autotuning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketBufferSizes {
    /// SO_SNDBUF.
    pub send: Option<usize>,
    /// SO_RCVBUF.
    pub receive: Option<usize>,
}

/// A congestion control that every system has, every user may set, and that does not pace.
const UNPACED: &str = "reno";

/// Round trip from which sending is paced. Below it slow start is short, and the kernel's timers
/// cost more than bursts do.
const LONG: Duration = Duration::from_millis(20);

impl SocketTuning {
    /// Creates a TCP socket for connecting to `to`, with all options set, not yet connected.
    ///
    /// # Errors
    /// The local address or interface is not this machine's, or an option needs a privilege.
    pub fn socket(&self, to: &SocketAddr) -> io::Result<Socket> {
        let socket = self.marked(*to)?;
        self.tune(&SockRef::from(&socket))?;
        if let Some(mss) = self.mss {
            // Best effort: the connection works without it.
            let _ = socket.set_tcp_mss(mss.into());
        }
        #[cfg(target_os = "linux")]
        if let Some(mark) = self.mark {
            // The caller checks the privilege with `may_mark`.
            let _ = socket.set_mark(mark);
        }
        if let Some(ip) = self.bind {
            socket.bind(&SocketAddr::new(ip, 0).into())?;
        }
        Ok(socket)
    }

    /// Restores the full segment size of a socket of [`Self::socket`] once its SYN is on its way:
    /// the MSS told to the peer need not limit our own segments.
    pub fn connecting(&self, socket: &Socket) {
        if self.mss.is_some() {
            // 0 selects the path's own segment size (tcp(7), TCP_MAXSEG).
            let _ = socket.set_tcp_mss(0);
        }
    }

    /// Creates a TCP socket that listens at `at`, beside other listeners if `share` is set
    /// (SO_REUSEPORT). Accepted sockets inherit its options; [`Self::connected`] sets the rest.
    ///
    /// # Errors
    /// The address is in use, or not this machine's.
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

    /// Creates a socket with the options that must be set before the first packet.
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

    /// Sets on an inherited listener at `at` the options that [`Self::listener`] sets.
    ///
    /// # Errors
    /// The socket is not a TCP socket, or an option needs a privilege.
    pub fn adopt(&self, socket: &Socket, at: SocketAddr) -> io::Result<()> {
        self.mark(socket, at)?;
        self.tune(socket)
    }

    /// Sets the options that must be set before the first packet.
    fn mark(&self, socket: &Socket, address: SocketAddr) -> io::Result<()> {
        // RFC 2474: DSCP is the upper six bits of the TOS byte. The default of 0 needs no call,
        // which a sandbox might refuse.
        if self.dscp != 0 {
            let tos = u32::from(self.dscp) << 2;
            match address {
                SocketAddr::V4(_) => socket.set_tos_v4(tos)?,
                SocketAddr::V6(_) => socket.set_tclass_v6(tos)?,
            }
        }
        match &self.congestion {
            Some(name) => try_congestion_control(socket, name)?,
            // With IP_TRANSPARENT a connection to a loopback address may come from another machine.
            None if address.ip().to_canonical().is_loopback() && !self.transparent => {
                do_not_pace(socket);
            }
            None => {}
        }
        // The window scale of a connection follows from its buffer size at the SYN.
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
        let keepalive = TcpKeepalive::new();
        match self.keepalive {
            Keepalive::Off => {}
            Keepalive::KernelTimes => socket.set_tcp_keepalive(&keepalive)?,
            Keepalive::Probes(probes) => socket.set_tcp_keepalive(
                &keepalive
                    .with_time(probes.idle)
                    .with_interval(probes.interval)
                    .with_retries(probes.count),
            )?,
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

    /// Sets the options of an accepted connection.
    ///
    /// # Errors
    /// The connection is already gone.
    pub fn accepted(&self, socket: impl AsFd) -> io::Result<()> {
        self.tune(&SockRef::from(&socket))?;
        self.connected(&socket);
        Ok(())
    }

    /// Sets again what connect(2) may have replaced: if the route names a congestion control
    /// (ip-route(8), congctl), the socket takes that one as it connects, whatever was set before.
    pub fn connected(&self, socket: impl AsFd) {
        if let Some(name) = &self.congestion {
            // A route with a locked congestion control keeps it.
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

impl SocketBufferSizes {
    /// Sets the sizes that are given. Linux doubles the value and uses half of that for data
    /// (socket(7)); values above net.core.wmem_max or rmem_max are silently cut.
    ///
    /// # Errors
    /// The descriptor is not a socket.
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

/// Undoes [`SocketTuning::abrupt`]: pending data is still sent, followed by FIN. Best effort: a
/// closed connection does not need it.
pub fn close_orderly(socket: impl AsFd) {
    let _ = SockRef::from(&socket).set_linger(None);
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_congestion_control_is_on_the_socket_before_it_connects() -> io::Result<()> {
        let tuning = SocketTuning {
            congestion: Some("reno".to_owned()),
            ..SocketTuning::default()
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
        let tuning = SocketTuning::default();
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
        let tuned = SocketTuning::default().socket(&SocketAddr::from(([127, 0, 0, 1], 9)))?;
        let before = plain.recv_buffer_size()?;
        assert!(tuned.recv_buffer_size()? >= before.max(1 << 20));

        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let to = listener.local_addr()?;
        let tuned = SocketTuning::default().socket(&to)?;
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
        let tuning = SocketTuning {
            buffers: SocketBufferSizes {
                send: Some(100_000),
                receive: Some(50_000),
            },
            abrupt: true,
            ..SocketTuning::default()
        };
        let listener = tuning.listener(SocketAddr::from(([127, 0, 0, 1], 0)), false, 1)?;
        let to = listener.local_addr()?;
        let connected = tuning.socket(&to.as_socket().expect("IPv4"))?;
        connected.connect(&to)?;
        let (accepted, _) = listener.accept()?;
        for socket in [&connected, &accepted] {
            // Linux reports twice the value that was set.
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
        let tuning = SocketTuning::default();
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
        // The second listener takes the first one's index, which is also where the kernel falls
        // back to.
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
