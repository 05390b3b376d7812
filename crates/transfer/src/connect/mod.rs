//! From a host name to an authenticated connection.

mod again;
mod agent_channels;
mod ahead;
mod choices;
mod command;
mod denied;
mod direct;
mod far;
mod gate;
mod host;
mod host_gate;
mod jump;
mod passing;
mod proposing;
mod proxy_process;
mod segments;
mod serving;
mod slow_notice;
mod ssh_link;
mod stream;
mod tcp;

pub use again::{ConnectionFactory, connect};
pub use ahead::{ConnectionHold, PlannedUpload};
pub use command::RemoteCommand;
pub use far::{RemoteServerUse, findings, remember_findings, remember_placed};
pub use gate::{AuthHandler, Binding, Credentials, ServerFacts};
pub use host::{FirstHostKey, Look, RequiredMatch, Resolve, Surroundings};
pub use host_gate::SharedPrompt;
pub use passing::{pass_socket, passed_socket};
pub use serving::Serving;
pub use ssh_link::{Facts, LinkConfig, Opener, SshLink};
pub use stream::Stream;
pub use tcp::{Dial, DialError, Family};
