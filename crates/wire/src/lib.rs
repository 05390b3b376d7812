//! Encoding and decoding of the data types of RFC 4251 section 5, with bounds checks.
//!
//! The project has no other codec: transport, authentication, channel, agent and SFTP messages are
//! all declared with [`message!`](crate::message!) over the types here.
//!
//! Pure: no I/O, no clock, no randomness. Nothing here allocates by a length from a peer;
//! [`FieldReader`] returns slices of data that has already arrived.

mod block;
mod error;
pub mod escape;
mod external_payload;
mod field;
mod message;
mod name_list;
mod packet_buf;
mod reader;

pub use block::{PacketPool, PayloadBlock};
pub use error::WireError;
pub use external_payload::{BorrowPolicy, ExternalPayloadSource, MissingPayloadError, OutputPart};
pub use field::{Field, Mpint, RemainingBytes};
pub use name_list::NameList;
pub use packet_buf::{HEADROOM, PacketBuf, TAILROOM};
pub use reader::FieldReader;
