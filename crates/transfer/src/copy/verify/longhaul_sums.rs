//! Checksums by a longhaul at the far end over the existing channels (hash@longhaul): needs no
//! command, and no file data crosses the path.

use sftp::blocks::MOST_HASHED;

use crate::sums::{SumAlgorithm, SumProgram};

/// Stands for the remote longhaul in place of a checksum program.
pub(super) const OURS: SumProgram = SumProgram {
    command: "",
    name: "longhaul",
    algorithm: SumAlgorithm::Blake3,
};
/// Number of checksum requests in flight; small files need many to keep a long path full.
pub(super) const ASKED: usize = 256;

impl SumProgram {
    /// True for the remote longhaul, which sums only ranges and is asked by SFTP requests.
    pub(super) fn is_ours(&self) -> bool {
        self.command.is_empty()
    }
}

/// True if one request can sum `len` bytes.
pub(super) fn fits(len: u64) -> bool {
    len <= u64::from(MOST_HASHED)
}
