//! Connections of a copy between two hosts: the receiver is the SSH client of a `longhaul serve
//! --once` on the source's host. Either side opens the TCP connections, whichever works.

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use ssh::direct_control::{self, DialRequest, MOST_ADDRESSES, TOKEN};
use sys::{Keepalive, SocketTuning};

use super::{DirectConnectionConfig, DirectConnector, not_served};
use crate::config::{ConnectTimeout, RekeyLimit};
use crate::connect::error::{ConnectError, ConnectStep};
use crate::connect::proposing::AlgorithmPreferences;
use crate::connect::tcp::{DialError, TcpConnectSettings};
use crate::session::{
    ConnectionOpener, ControlSender, DirectServerLauncher as _, DirectServerStatus,
    FurtherConnectionError, Link,
};

/// Head start of the connection from the receiver to the source before the other direction is
/// tried.
const HEAD_START: Duration = Duration::from_millis(300);
/// Time limit of the first connection, in both directions. A host that drops packets is noticed
/// this way.
const BOTH: Duration = Duration::from_secs(6);
/// Time limit for the token of an accepted connection.
const TOKEN_WAIT: Duration = Duration::from_secs(5);

/// Settings of the connections between two hosts.
#[derive(Clone, Debug)]
pub struct HostToHostSettings {
    /// The source's host as the user wrote it.
    pub name: String,
    /// The allowed algorithms.
    pub secured: AlgorithmPreferences,
    /// Addresses at which the starter of the copy reached the source's host.
    pub source: Vec<IpAddr>,
    /// Addresses of this host, for the source.
    pub here: Vec<IpAddr>,
    /// Bytes with which a connection of the source begins, chosen by the starter of the copy.
    pub token: [u8; TOKEN],
}

/// The first TCP connection between the source's host and this one: who made it, and the address of
/// the source's host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceConnectionInfo {
    /// True if the source's host connected to this one.
    pub dialed: bool,
    /// Address of the source's host.
    pub address: SocketAddr,
}

/// Opens SSH connections to the source's host; a [`ConnectionOpener`] for the session.
pub struct HostToHostConnector {
    direct: DirectConnector,
    opener: Arc<HostToHostDialer>,
}

/// Opens TCP connections in the direction that works.
pub(super) struct HostToHostDialer {
    source: Mutex<SourceHostAddresses>,
    here: Vec<IpAddr>,
    token: [u8; TOKEN],
    /// Requests to the source.
    outlet: ControlSender,
    /// Port of the listener that the source connects to; `None` if there is none.
    port: Option<u16>,
    arrived: Mutex<Receiver<DirectDialResult>>,
    arrivals: Sender<DirectDialResult>,
    way: Mutex<Option<SourceConnectionInfo>>,
}

#[derive(Default)]
struct SourceHostAddresses {
    addresses: Vec<IpAddr>,
    port: u16,
    number: u32,
}

/// Result of an attempt in one of the two directions.
enum DirectDialResult {
    Connected(TcpStream, bool),
    /// The number of the request to the source, or `None` for a connection from here.
    Failed(Option<u32>, String),
}

impl HostToHostConnector {
    /// Prepares the connections and listens for those of the source. `outlet` carries requests to
    /// the source; the first message for it is returned.
    ///
    /// # Errors
    /// One sentence.
    pub fn begin(
        settings: HostToHostSettings,
        outlet: impl Fn(Vec<u8>) + Send + Sync + Clone + 'static,
    ) -> Result<(Arc<Self>, Vec<u8>), ConnectError> {
        let token = settings.token;
        let (arrivals, arrived) = channel();
        let port = accept(token, arrivals.clone());
        let opener = Arc::new(HostToHostDialer {
            source: Mutex::new(SourceHostAddresses {
                addresses: settings.source,
                ..SourceHostAddresses::default()
            }),
            here: settings.here,
            token,
            outlet: Box::new(outlet.clone()),
            port,
            arrived: Mutex::new(arrived),
            arrivals,
            way: Mutex::default(),
        });
        let config = DirectConnectionConfig {
            name: settings.name,
            tuning: SocketTuning {
                keepalive: Keepalive::KernelTimes,
                ..SocketTuning::default()
            },
            secured: settings.secured,
            rekey: RekeyLimit::default(),
            bind: None,
            window_poll: true,
            bear_losses: true,
            insisted: true,
            placed: None,
        };
        // The opener knows the addresses.
        let peer = Box::new(|| Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))));
        let mut direct = DirectConnector::new(config, peer, Box::new(|_| {}));
        direct.opener = Some(Arc::clone(&opener));
        let begun = direct.begin(Box::new(outlet));
        let (_, first) = begun.ok_or_else(|| {
            let why = "internal error: cannot make one-time keys";
            ConnectError::this_machine(ConnectStep::Configuration, why)
        })?;
        Ok((Arc::new(Self { direct, opener }), first))
    }

    /// Handles bytes of the source; true once connections can be opened.
    ///
    /// # Errors
    /// The source refuses, or its messages are invalid.
    pub fn heard(&self, bytes: &[u8]) -> Result<bool, ConnectError> {
        match self.direct.heard(bytes, Duration::ZERO) {
            DirectServerStatus::Listening => Ok(true),
            DirectServerStatus::Nothing => Ok(false),
            DirectServerStatus::Failed(why) => Err(not_served(why)),
        }
    }

    /// Handles the end of the source's control channel.
    pub fn control_closed(&self, why: &str) {
        self.direct.control_closed(why);
    }

    /// Opens and authenticates the next connection.
    ///
    /// # Errors
    /// The far end confirms no key, or no connection could be made.
    pub fn connect(&self) -> Result<Box<dyn Link>, ConnectError> {
        let (server, key) = self.direct.key()?;
        let link = self.direct.log_in(server, key)?;
        Ok(Box::new(link))
    }

    /// Returns how the first connection was made.
    pub fn way(&self) -> Option<SourceConnectionInfo> {
        lock(&self.opener.way).clone()
    }
}

impl ConnectionOpener for HostToHostConnector {
    fn is_open(&self) -> bool {
        self.direct.is_open()
    }

    fn another(&self, _: bool) -> Result<Box<dyn Link>, FurtherConnectionError> {
        let link = self.connect();
        link.map_err(|e| FurtherConnectionError::Connection(e.into()))
    }
}

impl HostToHostDialer {
    pub(super) fn learn_addresses(&self, own: &[IpAddr]) {
        let mut source = lock(&self.source);
        // A hostile source must not make this host connect to itself.
        let loopback = source.addresses.iter().any(IpAddr::is_loopback);
        for address in own.iter().filter(|a| usable(a, loopback)) {
            if source.addresses.len() < MOST_ADDRESSES && !source.addresses.contains(address) {
                source.addresses.push(*address);
            }
        }
    }

    pub(super) fn listens(&self, port: u16) {
        lock(&self.source).port = port;
    }

    pub(super) fn dialed(&self, number: u32, why: Option<String>) {
        // A connection that was made arrives by itself.
        if let Some(why) = why {
            let _ = self
                .arrivals
                .send(DirectDialResult::Failed(Some(number), why));
        }
    }

    /// Opens a TCP connection: in the direction that worked before, or in both.
    pub(super) fn open(&self) -> Result<TcpStream, ConnectError> {
        let way = lock(&self.way).clone();
        let arrived = lock(&self.arrived);
        let until = Instant::now() + BOTH;
        match way {
            Some(SourceConnectionInfo {
                dialed: false,
                address,
            }) => from_here(&[address]),
            Some(SourceConnectionInfo { dialed: true, .. }) => {
                let number = self.ask_source()?;
                let (stream, _) = await_first(&arrived, until, Some(number), 1)?;
                Ok(stream)
            }
            None => self.race(&arrived, until),
        }
    }

    fn race(
        &self,
        arrived: &Receiver<DirectDialResult>,
        until: Instant,
    ) -> Result<TcpStream, ConnectError> {
        let (addresses, port) = {
            let source = lock(&self.source);
            (source.addresses.clone(), source.port)
        };
        let addresses: Vec<SocketAddr> =
            addresses.into_iter().map(|ip| (ip, port).into()).collect();
        let arrivals = self.arrivals.clone();
        let tried = thread::Builder::new()
            .name("connect".to_owned())
            .spawn(move || {
                let attempt = match from_here(&addresses) {
                    Ok(stream) => DirectDialResult::Connected(stream, false),
                    Err(error) => DirectDialResult::Failed(None, error.into()),
                };
                let _ = arrivals.send(attempt);
            });
        tried.map_err(|e| ConnectError::this_machine(ConnectStep::Reach, e.to_string()))?;
        let mut first = String::new();
        match arrived.recv_timeout(HEAD_START) {
            Ok(DirectDialResult::Connected(stream, dialed)) => return self.won(stream, dialed),
            Ok(DirectDialResult::Failed(_, why)) => first = why,
            Err(_) => {}
        }
        let others = usize::from(first.is_empty());
        let asked = self.ask_source();
        let number = asked.as_ref().ok().copied();
        let pending = others + usize::from(number.is_some());
        match await_first(arrived, until, number, pending) {
            Ok((stream, dialed)) => self.won(stream, dialed),
            Err(why) => {
                let asked = asked.err().map(String::from).unwrap_or_default();
                let reasons = [first, asked, why.into()];
                let said: Vec<&str> = reasons.iter().map(String::as_str).collect();
                let said: Vec<&str> = said.into_iter().filter(|why| !why.is_empty()).collect();
                Err(ConnectError::unreachable(said.join("; ")))
            }
        }
    }

    fn won(&self, stream: TcpStream, dialed: bool) -> Result<TcpStream, ConnectError> {
        let address = stream.peer_addr();
        let address = address.map_err(|e| ConnectError::unreachable(e.to_string()))?;
        *lock(&self.way) = Some(SourceConnectionInfo { dialed, address });
        Ok(stream)
    }

    /// Asks the source to connect to this host; returns the number of the request.
    fn ask_source(&self) -> Result<u32, ConnectError> {
        let here = |why| ConnectError::this_machine(ConnectStep::Reach, why);
        let port = self.port.ok_or_else(|| here("cannot listen on any port"))?;
        let own: Vec<String> = self
            .here
            .iter()
            .take(MOST_ADDRESSES)
            .map(|ip| SocketAddr::from((*ip, port)).to_string())
            .collect();
        if own.is_empty() {
            return Err(here(
                "this host knows no address of its own that the source's host could connect to",
            ));
        }
        let number = {
            let mut source = lock(&self.source);
            source.number += 1;
            source.number
        };
        let addresses = direct_control::write_list(own.iter().map(|a| a.as_bytes()));
        let request = DialRequest {
            number,
            addresses: &addresses,
            token: &self.token,
        };
        (self.outlet)(direct_control::framed(&request.to_bytes()));
        Ok(number)
    }
}

/// Waits for the first connection of `pending` attempts.
fn await_first(
    arrived: &Receiver<DirectDialResult>,
    until: Instant,
    number: Option<u32>,
    mut pending: usize,
) -> Result<(TcpStream, bool), ConnectError> {
    let mut reasons: Vec<String> = Vec::new();
    while pending > 0 {
        let left = until.saturating_duration_since(Instant::now());
        match arrived.recv_timeout(left) {
            Ok(DirectDialResult::Connected(stream, dialed)) => return Ok((stream, dialed)),
            // A late answer to an earlier request says nothing about this one.
            Ok(DirectDialResult::Failed(Some(other), _)) if Some(other) != number => {}
            Ok(DirectDialResult::Failed(of, why)) => {
                pending -= 1;
                reasons.push(match of {
                    Some(_) => format!("from the source's host: {why}"),
                    None => why,
                });
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                reasons.push("no connection was made in time".to_owned());
                break;
            }
        }
    }
    Err(ConnectError::unreachable(reasons.join("; ")))
}

fn from_here(addresses: &[SocketAddr]) -> Result<TcpStream, ConnectError> {
    let dial = TcpConnectSettings {
        timeout: Some(ConnectTimeout::Fixed(BOTH)),
        ..TcpConnectSettings::default()
    };
    let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let shown = shown.join(", ");
    dial.connect_to(addresses).map_err(|error| {
        let text = match &error {
            DialError::TimedOut(_) => format!(
                "{shown} did not answer; a firewall between the two hosts may drop the packets"
            ),
            DialError::Unreachable(e) => format!("cannot connect to {shown}: {e}"),
            DialError::Unresolved(_) | DialError::NoAddress(_) => {
                "the address of the source's host is unknown".to_owned()
            }
        };
        ConnectError::not_connected(&error, text)
    })
}

/// Listens for connections of the source and passes on those that begin with the token.
fn accept(token: [u8; TOKEN], arrivals: Sender<DirectDialResult>) -> Option<u16> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))
        .ok()?;
    let port = listener.local_addr().ok()?.port();
    let pending = Arc::new(Mutex::new(0_u32));
    thread::Builder::new()
        .name("accept".to_owned())
        .spawn(move || {
            for stream in listener.incoming().flatten() {
                let full = *lock(&pending) >= 16;
                if full {
                    continue;
                }
                *lock(&pending) += 1;
                let (arrivals, count) = (arrivals.clone(), Arc::clone(&pending));
                let checked = thread::Builder::new().name("token".to_owned());
                let spawned = checked.spawn(move || {
                    let stream = with_token(stream, &token);
                    *lock(&count) -= 1;
                    if let Some(stream) = stream {
                        let _ = arrivals.send(DirectDialResult::Connected(stream, true));
                    }
                });
                if spawned.is_err() {
                    break;
                }
            }
        })
        .ok()?;
    Some(port)
}

/// Reads the token; `None` for a stranger.
fn with_token(mut stream: TcpStream, token: &[u8; TOKEN]) -> Option<TcpStream> {
    stream.set_read_timeout(Some(TOKEN_WAIT)).ok()?;
    let mut read = [0; TOKEN];
    stream.read_exact(&mut read).ok()?;
    aws_lc_rs::constant_time::verify_slices_are_equal(&read, token).ok()?;
    stream.set_read_timeout(None).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

/// True for an address of another machine that a connection may go to. `loopback` means that both
/// hosts are this machine.
fn usable(address: &IpAddr, loopback: bool) -> bool {
    match loopback {
        true => address.is_loopback() || !sys::is_special(*address),
        false => !sys::is_own(*address),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_source_cannot_name_an_address_of_the_receiver_itself() {
        let usable = |text: &str, loopback| usable(&text.parse().unwrap(), loopback);
        for refused in [
            "127.0.0.1",
            "::1",
            "0.0.0.0",
            "224.0.0.1",
            "fe80::1",
            "169.254.169.254",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
        ] {
            assert!(!usable(refused, false), "{refused}");
        }
        assert!(usable("10.0.0.1", false) && usable("2001:db8::1", false));
        // Both hosts were reached at loopback addresses.
        assert!(usable("127.0.0.1", true));
    }

    #[test]
    fn a_connection_without_the_token_is_dropped() {
        let (arrivals, arrived) = channel();
        let port = accept([7; TOKEN], arrivals).unwrap();
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let mut stranger = connect();
        stranger.write_all(&[8; TOKEN]).unwrap();
        // The stranger is closed without a byte.
        assert!(matches!(stranger.read(&mut [0; 8]), Ok(0) | Err(_)));
        connect().write_all(&[7; TOKEN]).unwrap();
        let first = arrived.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(matches!(first, DirectDialResult::Connected(_, true)));
        assert!(arrived.try_recv().is_err());
    }

    /// The source's port is closed to the receiver, as behind a firewall.
    #[test]
    fn the_source_connects_where_the_receiver_cannot() {
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let closed_port = closed.local_addr().unwrap().port();
        drop(closed);
        let (asked, requests) = channel::<Vec<u8>>();
        let asked = Mutex::new(asked);
        let token = [7; TOKEN];
        let (arrivals, arrived) = channel();
        let opener = HostToHostDialer {
            source: Mutex::default(),
            here: vec![Ipv4Addr::LOCALHOST.into()],
            token,
            outlet: Box::new(move |bytes| lock(&asked).send(bytes).unwrap()),
            port: accept(token, arrivals.clone()),
            arrived: Mutex::new(arrived),
            arrivals,
            way: Mutex::default(),
        };
        lock(&opener.source).addresses = vec![Ipv4Addr::LOCALHOST.into()];
        opener.listens(closed_port);
        thread::spawn(move || {
            for request in requests {
                let request = direct_control::DirectClientMessage::decode(&request[4..]).unwrap();
                let direct_control::DirectClientMessage::Dial {
                    addresses, token, ..
                } = request
                else {
                    panic!("another request");
                };
                TcpStream::connect(addresses[0])
                    .unwrap()
                    .write_all(&token)
                    .unwrap();
            }
        });
        opener.open().unwrap();
        assert!(lock(&opener.way).as_ref().is_some_and(|way| way.dialed));
        // Further connections are made in the same direction.
        opener.open().unwrap();
    }
}
