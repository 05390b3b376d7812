//! Answers the requests of an SFTP client.
//!
//! A [`SftpSession`] holds the state of one client and routes each request to the part that carries
//! it out: [`client_tree`] owns the client's view of the served tree, [`open_files`] the handles
//! and the work in flight on them, [`whole_file`] small files in one request, [`listings`] and
//! [`tree`] the listings, [`packed`] the compressors, and [`transfer_log`] counters and log lines.
//! A [`SftpServer`] adds the stream: it splits input into requests and queues the answers.

mod accounts;
mod answers;
mod attributes;
mod background_file_closer;
mod client_tree;
mod copied;
mod count;
mod direct_write;
mod disk_error_log;
mod drop_box;
mod durable;
#[cfg(test)]
mod escape_tests;
mod expected;
#[cfg(test)]
mod extensions_tests;
mod file_io;
mod fsync_group;
mod handles;
mod hashes;
mod incoming;
mod listings;
mod longname;
mod metadata;
mod open_files;
mod packed;
mod paths;
mod pooled_requests;
mod remaining_requests;
mod reply;
mod request_error;
mod server;
mod session;
mod set;
mod stdio;
mod temporary;
mod transfer_log;
mod tree;
mod whole_file;

pub use answers::AnswerChunk;
pub(crate) use answers::AnswerQueue;
pub(crate) use direct_write::WriteTarget;
pub use handles::OpenFileLimit;
pub(crate) use request_error::RequestError;
pub(crate) use server::ANSWERS;
pub use server::{SftpServer, show_marker};
pub(crate) use session::{LONGEST_DATA, SftpSession};
pub use stdio::stdio;
pub use transfer_log::TransferCounters;
