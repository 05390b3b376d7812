//! Ciphers and MACs: the supported algorithms, the packet layout for each, and the keys that seal
//! and open packets in place.
//!
//! [`SealingKey`] and [`OpeningKey`] are immutable. The position in the stream, which a cipher
//! needs, is the argument [`PacketPosition`] of every call, so packets of one connection can be
//! sealed or opened on any thread and in any order.
//!
//! ```text
//!  | packet_length | padding_length | payload | padding | tag |
//!  |       4       |        1       |         |  >= 4   |     |
//!                  '---------- packet_length ----------'
//! ```

mod error;
mod framing;
mod open;
mod seal;
mod suite;
mod table;
#[cfg(test)]
mod tests;

pub use error::{PacketOpenError, PacketSealError};
pub(crate) use framing::MIN_PADDING;
pub use framing::{MAX_PACKET_LENGTH, PacketFraming, PacketPosition};
pub use open::OpeningKey;
pub use seal::SealingKey;
pub use suite::KeyMaterial;
pub(crate) use table::NONE;
pub use table::{CIPHERS, CipherSpec, MACS, MacSpec, cipher, mac, preferred_order};
