//! Copies directly from one host to another, controlled from this machine:
//! docs/design/0022-host-to-host.md.
//!
//! The receiving host runs the copy (`receiver`); the source's host runs `longhaul serve --once`,
//! confined to the sources. This machine starts both over its logins and passes control messages
//! between them (`conductor`).

mod blocks;
mod conductor;
mod discard;
mod frames;
mod host_copy_error;
mod names;
mod progress_watchdog;
mod receiver;
mod receiver_dial_guard;
mod receiver_report_checker;
mod sources;

pub use blocks::FileBlockHashes;
pub use conductor::{HostCopyOutcome, HostToHostCopy, MissingLonghaul, conduct};
pub use discard::discard;
pub use frames::{MOST_NOISE, ReceiverJob};
pub use host_copy_error::HostCopyError;
pub use names::ReportedPathTranslator;
pub use receiver::receive;
pub use sources::{SourcesInDirectory, files_of};
