//! SSH without I/O: transport, authentication and channels.

pub mod auth;
pub mod channel;
pub mod cipher;
pub mod compress;
mod conn;
mod crypto_offload;
pub mod direct_control;
mod error;
pub mod kex;
pub mod key;
pub mod msg;
mod text;
pub mod transport;

pub use conn::{
    Connection, ConnectionConfig, ConnectionEvent, DATA_HEAD, DataPacketStart, EarlyMessages,
    SealedQueue,
};
pub use crypto_offload::{CryptoHelpers, HelperWork};
pub use error::{Error, Local, PeerIncompatible, PeerMisbehaved, SeenError};

/// Role of this end in a connection, which decides the messages that it accepts and the keys of
/// each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointRole {
    /// The side that connects and authenticates.
    Client,
    /// The side that accepts connections.
    Server,
}

impl EndpointRole {
    /// Returns the peer's role.
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}
