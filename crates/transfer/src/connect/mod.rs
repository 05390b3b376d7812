//! From a host name to an authenticated connection.

mod gate;
mod ssh_link;
mod stream;
mod tcp;

pub use gate::{Binding, Credentials, Gate, Visit};
pub use ssh_link::{LinkConfig, Opener, SshLink};
pub use stream::Stream;
pub use tcp::{Dial, DialError, Family};
