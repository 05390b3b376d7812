//! From a host name to an authenticated connection.

mod agent_channels;
mod gate;
mod host;
mod host_gate;
mod jump;
mod ssh_link;
mod stream;
mod tcp;

pub use gate::{Binding, Credentials, Gate, Visit};
pub use host::{Resolve, Surroundings, connect};
pub use host_gate::SharedPrompt;
pub use ssh_link::{Facts, LinkConfig, Opener, SshLink};
pub use stream::Stream;
pub use tcp::{Dial, DialError, Family};
