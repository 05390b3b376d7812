//! Checksums of transferred data, for comparison with the file at the other end.
//!
//! Disk threads hash data in passing ([`FileChecksums`]), in runs of ascending bytes. Any set of runs
//! that covers a file proves it; which runs exist depends on how lanes shared the file.

mod digest;
mod file;
mod ledger;
mod manifest;
mod sum_programs;
mod tree;
mod xxh;

pub(crate) use digest::Hasher;
pub use digest::{Digest, RangeChecksum, SumAlgorithm};
pub(crate) use file::{ChecksumPieceTicket, FileChecksums, FinishedSums};
pub use ledger::{ChecksumLedger, WantedDigest};
pub(crate) use manifest::Manifest;
pub(crate) use sum_programs::{
    ChecksumOutputParser, SumProgram, SumProgramAnswer, command as program_command,
    command_from as program_command_from, list_command, list_line, request,
    script as program_script, script_from as program_script_from, whole_request,
};
