//! Settings of a relay.

use std::net::IpAddr;
use std::time::Duration;

use sys::{SocketTuning, SourcePrefixLengths};

use crate::address::{ListenSpec, TargetSpec};
use crate::entry::permit::PermittedTargetRule;
use crate::network::IpNetwork;
use crate::peer::PairRelaySettings;
use crate::sockopt::SocketOptionSettings;
use crate::tls::{TlsClientSettings, TlsServerSettings};
use crate::uplinks::Uplink;

/// Listening address, targets and settings of one relay.
#[derive(Clone, Debug)]
pub struct RelaySettings {
    /// Address to accept connections at.
    pub entrance: ListenSpec,
    /// Targets, tried in turn until one answers.
    pub targets: Vec<TargetSpec>,
    /// Networks of permitted clients; empty permits all.
    pub allow: Vec<IpNetwork>,
    /// Uplinks by which connections leave, in turn; if empty, the kernel's routing decides.
    pub uplinks: Vec<Uplink>,
    /// Socket options for both legs.
    pub tuning: SocketTuning,
    /// Socket buffer sizes set with `--sockopt`.
    pub sockopts: SocketOptionSettings,
    /// Maximum buffer for each direction of a connection, in bytes.
    pub buffer: usize,
    /// Time limit to connect to one target, including the DNS lookup.
    pub connect_timeout: Duration,
    /// Interval of active health checks, which run even without clients.
    pub health: Option<Duration>,
    /// Time without progress after which a connection is closed; `None` means never.
    pub idle_timeout: Option<Duration>,
    /// Time without progress after which a half-closed connection is closed.
    pub half_timeout: Duration,
    /// Targets see the client's address as the source (transparent proxy).
    pub keep_address: bool,
    /// TCP Fast Open: if the client speaks first, its data goes with the SYN.
    pub fastopen: bool,
    /// Limits on connections and rates.
    pub limits: RelayLimits,
    /// Protocols that clients speak before their payload.
    pub speaks: ClientProtocols,
    /// Targets that clients may name, or to which diverted connections may go.
    pub permits: Vec<PermittedTargetRule>,
    /// TLS settings for targets that use TLS.
    pub tls_client: Option<TlsClientSettings>,
    /// Settings of a pair, for listeners and targets that are one end of it.
    pub facing: Option<PairRelaySettings>,
    /// Time limit for everything that precedes the payload, including TLS handshakes.
    pub entry_timeout: Duration,
}

/// Protocols that clients speak before their payload, outermost first.
#[derive(Clone, Debug, Default)]
pub struct ClientProtocols {
    /// PROXY header with the address of the original client.
    pub proxy: bool,
    /// TLS with these settings.
    pub tls: Option<TlsServerSettings>,
    /// Connections are stripes of a pair, inside TLS.
    pub pair: bool,
    /// Request that names the target.
    pub asks: Option<ClientProtocol>,
    /// No request: connections were diverted here from another destination.
    pub diverted: Option<RedirectKind>,
}

impl ClientProtocols {
    /// Returns true if each connection names its own target.
    pub fn names_target(&self) -> bool {
        self.asks.is_some() || self.diverted.is_some()
    }
}

/// Method by which the firewall diverts connections to the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectKind {
    /// nftables `redirect`: the destination address is rewritten.
    Redirect,
    /// nftables `tproxy`: the destination stays, and the socket accepts connections to foreign
    /// addresses.
    Tproxy,
}

/// Protocol by which clients name their target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientProtocol {
    /// SOCKS version 5.
    Socks5,
    /// HTTP CONNECT.
    Http,
}

/// Limits of one relay: the acceptor rejects connections above the numbers, and the flows pause at
/// the rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayLimits {
    /// Maximum number of simultaneous connections.
    pub connections: usize,
    /// Maximum number of simultaneous connections from one source.
    pub per_source: usize,
    /// Prefix lengths that make addresses one source.
    pub source_block: SourcePrefixLengths,
    /// Rate limit for each direction of a connection, in bytes per second.
    pub rate: Option<u64>,
    /// Rate limit for each direction of all connections together, in bytes per second.
    pub rate_all: Option<u64>,
}

impl Default for RelayLimits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            per_source: 16_384,
            source_block: SourcePrefixLengths::default(),
            rate: None,
            rate_all: None,
        }
    }
}

/// Reports if a listening address can be reached from other machines: any address except loopback.
pub fn is_reachable_remotely(ip: IpAddr) -> bool {
    !ip.to_canonical().is_loopback()
}
