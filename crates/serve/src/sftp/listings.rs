//! Directory listings: OPENDIR and READDIR.

use std::os::fd::OwnedFd;

use jiff::tz::TimeZone;
use rustix::fs::{self, AtFlags, Mode, OFlags, Stat};
use sftp::{NameEntry, Names, Told};

use super::accounts::AccountNameCache;
use super::attributes::attributes;
use super::client_tree::ClientTree;
use super::handles::{HandleTable, OpenDir};
use super::longname::longname;
use super::reply::ReplyBuilder;
use super::request_error::RequestError;
use super::session::RequestResult;
use crate::beneath::PathRoot;

/// Maximum number of entries, and of bytes, in one answer to READDIR; sftp-server sends a hundred
/// entries.
const ENTRIES: usize = 512;
const ENTRY_BYTES: usize = 128 * 1024;

/// An entry of a listing: name, human-readable line and stat(2) data.
type ListingEntry = (Vec<u8>, Vec<u8>, Stat);

/// Names of accounts and the time zone, for the human-readable lines of listings.
pub(super) struct ListingFormatter {
    accounts: AccountNameCache,
    zone: TimeZone,
}

impl ListingFormatter {
    pub(super) fn new() -> Self {
        Self {
            accounts: AccountNameCache::default(),
            zone: TimeZone::system(),
        }
    }

    /// The names of accounts that are already looked up.
    pub(super) fn accounts(&mut self) -> &mut AccountNameCache {
        &mut self.accounts
    }

    /// Answers READDIR with the next entries of an open directory.
    pub(super) fn next(
        &mut self,
        open: &mut OpenDir,
        told: Told,
        root: &PathRoot,
        reply: &mut ReplyBuilder<'_>,
    ) -> RequestResult {
        let beneath = !matches!(root, PathRoot::Everything);
        let mut entries: Vec<ListingEntry> = Vec::new();
        let mut bytes = 0;
        while entries.len() < ENTRIES && bytes < ENTRY_BYTES {
            let Some(name) = open.next_name() else { break };
            let name = name?;
            if !open.serves(&name) {
                continue;
            }
            // Nothing is above a root, as with `/`.
            let looked = match name.as_slice() {
                b".." if beneath => b".",
                name => name,
            };
            // The entry vanished meanwhile.
            let Ok(stat) = fs::statat(open.fd(), looked, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let line = longname(&name, &stat, &mut self.accounts, &self.zone);
            bytes += name.len() + line.len();
            entries.push((name, line, stat));
        }
        if entries.is_empty() {
            return Err(RequestError::EndOfFile);
        }
        let names = entries.iter().map(|(name, line, stat)| NameEntry {
            filename: name,
            longname: line,
            attrs: attributes(stat, told),
        });
        reply.names(Names(names.collect()));
        Ok(())
    }
}

/// Answers OPENDIR.
pub(super) fn opendir(
    tree: &ClientTree<'_>,
    handles: &mut HandleTable,
    path: &[u8],
    reply: &mut ReplyBuilder<'_>,
) -> RequestResult {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let room = handles.reserve()?;
    let fd: OwnedFd = tree.open(path, flags, Mode::empty())?;
    let handle = handles.insert_dir(
        room,
        OpenDir::new(fd, tree.paths().export().served_part(path))?,
    );
    reply.handle(&handle);
    Ok(())
}
