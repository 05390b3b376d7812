//! Listings of a server's directories in place of a STAT for each of many entries.

use schedule::{JobKind, RemotePath};

/// Number of entries of a directory from which it is listed: a STAT takes 130 bytes on the wire, as an
/// entry of a listing does.
pub(crate) const LISTED: usize = 32;
/// Number of directories that are listed together.
pub(crate) const LISTINGS: usize = 64;
/// Number of entries that one READDIR of OpenSSH brings: a listing costs no less.
const ONE_ANSWER: usize = 100;

/// Request that lists `dir` in place of `saved` requests, and that fails in a directory with so many
/// entries that the listing costs more.
pub(crate) fn listing(dir: &[u8], saved: usize) -> JobKind {
    JobKind::List {
        path: RemotePath(dir.to_vec()),
        most: Some(ONE_ANSWER + 2 * saved),
    }
}
