//! Sums of what passes, to compare with those of the file at the other end.
//!
//! Disk threads hash data as they pass ([`FileSums`]), in runs of ascending bytes. Any set of runs
//! that covers a file proves it; which of them there are depends on how lanes had shared it.

mod digest;
mod file;
mod ledger;
mod manifest;
mod sum_programs;
mod tree;
mod xxh;

pub(crate) use digest::Hasher;
pub use digest::{Algorithm, Digest, Sum};
pub(crate) use file::{FileSums, Seen, Ticket};
pub use ledger::{Ledger, Wants};
pub(crate) use manifest::Manifest;
pub(crate) use sum_programs::{
    Answer, Answers, Program, command, list_command, list_line, request, script, whole_request,
};
