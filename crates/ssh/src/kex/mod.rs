//! Key exchange methods: the public values of both sides, the shared secret, and the derived keys.
//! The transport decides which method is used and when.
//!
//! ```text
//!  client                                     server
//!  ClientKeyExchange::start -> init  ---------->  respond -> reply, secret
//!  ClientKeyExchange::finish <- reply <---------
//!                    exchange_hash, then derive
//! ```

mod derive;
mod ecdh;
mod error;
mod exchange;
mod hybrid;
mod secret;
mod table;
#[cfg(test)]
mod tests;

pub use derive::{ExchangeHashInputs, KeyDirection, derive, derive_keys, exchange_hash};
pub use error::KexError;
pub use exchange::{ClientKeyExchange, respond};
pub use secret::SharedSecret;
pub use table::{KEX_METHODS, KexMethod, method};
