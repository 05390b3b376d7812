//! Answers the requests of an SFTP client.

mod accounts;
pub(crate) mod answer;
pub(crate) mod answers;
mod attributes;
pub(crate) mod blocking_pool;
mod copied;
mod count;
mod deferred_close;
pub(crate) mod direct_write;
mod drop_box;
mod durable;
#[cfg(test)]
mod escape_tests;
#[cfg(test)]
mod extensions_tests;
mod files;
mod group_sync;
pub(crate) mod handles;
mod hashes;
mod incoming;
mod io_error_log;
mod longname;
mod metadata;
mod names;
mod packed;
mod reply;
mod set;
pub(crate) mod stream;
mod temporary;
mod transfers;
mod tree;
mod whole_file;
