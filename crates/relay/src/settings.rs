//! What one relay is told.

use std::net::IpAddr;
use std::time::Duration;

use sys::{SourceBlock, Tuning};

use crate::address::{Entrance, Target};
use crate::entry::permit::TargetRule;
use crate::network::Network;
use crate::peer::PeerConfig;
use crate::sockopt::SockOpts;
use crate::tls::{TlsClient, TlsServer};
use crate::uplinks::Uplink;

/// One entrance and where it leads.
#[derive(Clone, Debug)]
pub struct Relay {
    /// Where connections come in.
    pub entrance: Entrance,
    /// Where they go: to the first that answers.
    pub targets: Vec<Target>,
    /// Who may come; all who can, if it is empty.
    pub allow: Vec<Network>,
    /// By which ways connections leave, in turn; as the system chooses, if it is empty.
    pub uplinks: Vec<Uplink>,
    /// How sockets are tuned, on both legs.
    pub tuning: Tuning,
    /// Buffers of the kernel's that are set by hand.
    pub sockopts: SockOpts,
    /// The most that is held of each direction of a connection, in bytes.
    pub buffer: usize,
    /// For one target, names included.
    pub connect_timeout: Duration,
    /// Targets are looked after so often, whether anybody comes or not.
    pub health: Option<Duration>,
    /// A connection on which nothing has moved for so long ends; never if not set.
    pub idle_timeout: Option<Duration>,
    /// The same for one of which one end has finished.
    pub half_timeout: Duration,
    /// Targets see the client's address.
    pub keep_address: bool,
    /// A first flight goes with the SYN, where the client speaks first.
    pub fastopen: bool,
    /// How much there may be.
    pub limits: Limits,
    /// What clients speak in front of their bytes.
    pub speaks: ClientProtocols,
    /// Where clients that say themselves where to go may go, or that were on their way elsewhere.
    pub permits: Vec<TargetRule>,
    /// For targets with which TLS is spoken.
    pub tls_client: Option<TlsClient>,
    /// For entrances and targets that are the other half of a pair.
    pub facing: Option<PeerConfig>,
    /// For what is said before bytes, TLS handshakes included.
    pub entry_timeout: Duration,
}

/// What clients speak in front of their bytes, from the outside in.
#[derive(Clone, Debug, Default)]
pub struct ClientProtocols {
    /// A header that says where they come from.
    pub proxy: bool,
    /// TLS.
    pub tls: Option<TlsServer>,
    /// They are legs of a pair, within TLS.
    pub pair: bool,
    /// A request that says where they want to go.
    pub asks: Option<Asks>,
    /// Nothing: they were on their way elsewhere.
    pub diverted: Option<RedirectKind>,
}

impl ClientProtocols {
    /// Whether clients have a target of their own.
    pub fn names_target(&self) -> bool {
        self.asks.is_some() || self.diverted.is_some()
    }
}

/// How clients were led here that wanted to go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectKind {
    /// Their destination was replaced (nftables' redirect).
    Redirect,
    /// It was not: the socket takes what is for others (nftables' tproxy).
    Tproxy,
}

/// How clients say where they want to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// SOCKS version 5.
    Socks5,
    /// HTTP's CONNECT.
    Http,
}

/// How much there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Connections at once from one source.
    pub per_source: usize,
    /// Which addresses are one source.
    pub source_block: SourceBlock,
    /// Bytes a second of each direction of a connection.
    pub rate: Option<u64>,
    /// Bytes a second of each direction of all connections together.
    pub rate_all: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            per_source: 16_384,
            source_block: SourceBlock::default(),
            rate: None,
            rate_all: None,
        }
    }
}

/// Whether somebody who is not on this machine can come to an address.
pub fn is_for_strangers(ip: IpAddr) -> bool {
    !ip.to_canonical().is_loopback()
}
