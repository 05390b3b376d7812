//! A relay for TCP connections that somebody else makes: bytes in are bytes out, ends are ends and
//! resets are resets, and no more is held between the two than was told.
//!
//! [`Relays`] listens on a thread and hands each connection to one of the [`worker`] threads, a
//! mio loop each. A connection has two legs, and a [`pump`] for each direction, which moves what
//! it can until nothing moves any more: what to wait for then follows from the state and not from
//! the event. docs/design/0011-relay.md.

mod address;
pub mod entry;
mod network;
mod own_addresses;
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

/// What a relay and the half of a pair that it has started over ssh say to each other.
pub mod control {
    pub use bytes::Bytes;
    pub use pair::control::*;
}

pub use address::{AddressError, Entrance, Host, Place, Target};
pub use network::{Network, is_allowed};
pub use rules::{Command, Rules};
pub use server::{Handle, InheritedSockets, ListeningSocket, Relays, StartError, streams};
pub use settings::{Asks, ClientProtocols, Limits, RedirectKind, Relay, is_for_strangers};
pub use sockopt::clamped;
pub use uplinks::Uplink;
