//! Transparent TCP relay: bytes, end of stream and resets pass from one socket to another, and the
//! memory held between the two is bounded by a setting.
//!
//! [`RelayServer`] accepts connections on a thread and hands each one to a [`worker`] thread with
//! its own mio loop. A connection has two legs, and a [`pump`] for each direction, which moves
//! bytes until both sockets block. The events to wait for follow from the state of the connection,
//! not from the last event. See docs/design/0011-relay.md.

mod address;
pub mod entry;
mod network;
pub mod peer;
mod pump;
mod rules;
mod server;
mod settings;
pub mod sockopt;
pub mod status;
pub mod strategy;
pub mod tls;
mod tls_error;
mod tls_verify;
mod uplinks;
mod worker;

/// Messages between a relay and the peer relay that it has started over ssh.
pub mod control {
    pub use bytes::Bytes;
    pub use pair::control::*;
}

pub use address::{AddressError, HostSpec, ListenSpec, RelayEndpoint, TargetSpec};
pub use network::{IpNetwork, IpNetworkError, is_allowed};
pub use rules::{FirewallCommand, ListenerRules, ListenerRulesError};
pub use server::{
    HandedOverListener, InheritedSockets, RelayControl, RelayServer, RelayStartError, streams,
};
pub use settings::{
    ClientProtocol, ClientProtocols, RedirectKind, RelayLimits, RelaySettings,
    is_reachable_remotely,
};
pub use sockopt::clamped;
pub use uplinks::{Uplink, UplinkCountError};
