//! Opens authenticated connections to hosts.

mod agent_channels;
mod auth_handler;
mod choices;
mod command;
mod connection_factory;
mod denied;
mod detour_memory;
mod direct;
mod error;
mod host;
mod host_auth_handler;
mod host_key_learner;
mod jump;
mod master;
mod passing;
mod preopened_connections;
mod proposing;
mod proxy_process;
mod remote_use;
mod segments;
mod server_kind;
mod ssh_link;
mod stream;
mod tcp;

pub use auth_handler::{AgentBinding, AuthHandler, Credentials, ServerFacts};
pub use command::{RemoteCommand, RemoteLonghaulRole};
pub(crate) use connection_factory::connect_measured;
pub use connection_factory::{ConnectionFactory, connect};
pub use detour_memory::{forget_detour, remember_detour, remembered_detour};
pub use direct::{HostToHostConnector, HostToHostSettings, SourceConnectionInfo};
pub use error::{ConnectError, ConnectStep, ResponsibleParty};
pub use host::{
    AttemptSettings, DataSampler, FirstConnectionMatch, FirstHostKey, HostConfigResolver,
    SharedConnectSettings,
};
pub use host_auth_handler::SharedPrompt;
pub use passing::{pass_socket, passed_socket};
pub use preopened_connections::{ConnectionHold, PlannedUpload};
pub use proposing::{AlgorithmPreferences, algorithms};
pub use remote_use::{
    RemoteLonghaulPolicy, findings, longhaul_is_absent, remember_absent, remember_findings,
    remember_placed, remembered_rate,
};
pub use server_kind::DetectedServerKind;
pub use ssh_link::{
    BulkDirection, ConnectionFacts, FirstJobTime, LinkRole, LoginLimits, LoginUserInput,
    SocketOpener, SshLink, SshLinkSettings,
};
pub use stream::ConnectedStream;
pub use tcp::{AllowedAddressFamilies, DialError, TcpConnectSettings};
