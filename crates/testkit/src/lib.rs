//! Test infrastructure: a seeded network in virtual time, real servers on loopback, a proxy that
//! emulates long paths, seeded file trees, and programs that run with a time limit.
//!
//! Everything binds to 127.0.0.1 only, lives in a temporary folder, and is ended by process id when
//! its owner is dropped.

pub mod agent;
pub mod background_process;
pub mod certificate;
pub mod client;
pub mod delay_proxy;
pub mod keys;
pub mod missing;
pub mod peer;
pub mod port;
pub mod process;
pub mod seed;
pub mod sftp_model;
pub mod sim;
pub mod sshd_model;
pub mod tree;
pub mod wait;

pub use agent::Agent;
pub use client::ClientDir;
pub use delay_proxy::DelayProxy;
pub use keys::{KeyKind, KeyPair};
pub use peer::{Auth, PeerBuilder, PeerKind, PeerServer};
pub use process::{Outcome, Run, Running};
pub use seed::Seed;
