//! Command at the far end that makes checksums of a list of whole files.

use std::collections::BTreeMap;
use std::time::Instant;

use super::watch::ChecksumWatchdog;
use crate::copy::file::CopyFileId;
use crate::session::RemoteCommandId;
use crate::sums::{ChecksumOutputParser, Digest, list_line};

/// Largest number of files in a list, and bytes of files that fill it.
pub(super) const LIST: usize = 1000;
pub(super) const LIST_BYTES: u64 = 64 << 20;

/// Files whose checksums are requested by one command.
#[derive(Default)]
pub(super) struct ChecksumList {
    names: BTreeMap<Vec<u8>, CopyFileId>,
    input: Vec<u8>,
    bytes: u64,
}

impl ChecksumList {
    pub(super) fn is_full(&self) -> bool {
        self.names.len() >= LIST
    }

    /// Adds a file of `size` bytes. Returns a file that the list no longer contains: it can contain
    /// only one of two files with the same path.
    pub(super) fn add(&mut self, id: CopyFileId, path: &[u8], size: u64) -> Option<CopyFileId> {
        let name = list_line(path)?;
        self.bytes += size;
        self.input.extend_from_slice(&name);
        self.input.push(0);
        self.names.insert(name, id)
    }

    /// Returns the standard input of the command.
    pub(super) fn take_input(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.input)
    }
}

/// Running remote program that computes checksums of a list of whole files.
pub(super) struct ChecksumListProgram {
    exec: RemoteCommandId,
    generation: u32,
    answers: ChecksumOutputParser,
    names: BTreeMap<Vec<u8>, CopyFileId>,
    watch: ChecksumWatchdog,
}

/// Checksums that a list program has printed, and if its output was valid.
pub(super) struct ListedSums {
    pub(super) sums: Vec<(CopyFileId, Digest)>,
    pub(super) is_valid: bool,
}

impl ChecksumListProgram {
    /// Program of the `generation` that was requested at `now`.
    pub(super) fn new(
        now: Instant,
        exec: RemoteCommandId,
        generation: u32,
        list: ChecksumList,
    ) -> Self {
        let mut watch = ChecksumWatchdog::default();
        watch.asked(now, list.bytes, true);
        Self {
            exec,
            generation,
            answers: ChecksumOutputParser::default(),
            names: list.names,
            watch,
        }
    }

    pub(super) fn exec(&self) -> RemoteCommandId {
        self.exec
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    pub(super) fn watch(&self) -> &ChecksumWatchdog {
        &self.watch
    }

    pub(super) fn watch_mut(&mut self) -> &mut ChecksumWatchdog {
        &mut self.watch
    }

    /// Takes output of the program.
    pub(super) fn receive(&mut self, now: Instant, bytes: &[u8]) -> ListedSums {
        self.answers.receive(bytes);
        let mut sums = Vec::new();
        let is_valid = loop {
            match self.answers.next_listed(&mut self.names) {
                Ok(Some(sum)) => sums.push(sum),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        if !sums.is_empty() {
            self.watch.answered(now, Some(LIST_BYTES));
        }
        ListedSums { sums, is_valid }
    }

    /// Takes the files without a checksum.
    pub(super) fn take_files(&mut self) -> impl Iterator<Item = CopyFileId> + use<> {
        std::mem::take(&mut self.names).into_values()
    }
}
