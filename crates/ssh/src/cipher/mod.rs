//! Ciphers and MACs: which there are, how a packet is laid out for each, and the keys that seal
//! and open packets in place.
//!
//! [`SealingKey`] and [`OpeningKey`] never change once made. What a cipher must know about the
//! stream, the [`Position`], comes with every call. So packets of one connection can be sealed
//! or opened on any thread and in any order.
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

pub use error::{OpenError, SealError};
pub(crate) use framing::MIN_PADDING;
pub use framing::{Framing, MAX_PACKET_LENGTH, Position};
pub use open::OpeningKey;
pub use seal::SealingKey;
pub use suite::KeyMaterial;
pub(crate) use table::NONE;
pub use table::{CIPHERS, CipherSpec, MACS, MacSpec, cipher, mac, preferred_order};
