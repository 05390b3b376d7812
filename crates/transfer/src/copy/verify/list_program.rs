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

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(name: &str, nth: usize) -> String {
        format!("{nth:032x}  {name}\n")
    }

    /// The list has the later one of two files with one path, and the other is returned.
    #[test]
    fn a_path_is_in_a_list_once() {
        let mut list = ChecksumList::default();
        assert_eq!(list.add(CopyFileId(1), b"a", 5), None);
        assert_eq!(list.add(CopyFileId(2), b"b", 5), None);
        assert_eq!(list.add(CopyFileId(3), b"a", 5), Some(CopyFileId(1)));
        assert_eq!(
            list.add(CopyFileId(4), b"./a", 5),
            None,
            "it is printed in this form"
        );
        assert_eq!(list.take_input(), b"./a\0./b\0./a\0././a\0");
    }

    /// Names that a program prints in another form are not passed to one.
    #[test]
    fn a_name_that_cannot_be_told_from_its_output_is_not_listed() {
        for path in [&b"a\nb"[..], b"a\\b", b"a\xffb", b"\x1b[2J"] {
            let mut list = ChecksumList::default();
            assert_eq!(list.add(CopyFileId(1), path, 5), None);
            assert!(list.take_input().is_empty(), "{path:?}");
        }
    }

    #[test]
    fn a_list_is_full_at_its_number_of_files() {
        let mut list = ChecksumList::default();
        for nth in 0..LIST {
            assert!(!list.is_full());
            list.add(CopyFileId(nth as u64), format!("f{nth}").as_bytes(), 1);
        }
        assert!(list.is_full());
    }

    /// Output arrives in parts of any size: each sum is given to its file once, and files without a
    /// sum stay.
    #[test]
    fn sums_reach_their_files_however_the_output_is_cut() {
        let now = testkit::sftp_model::epoch();
        let names = ["a", "b c", "d/e", "-f", "*g"];
        let mut output = "motd\nlonghaul-sums 1 xxhsum -H2\n".to_owned();
        for (nth, name) in names.iter().enumerate().filter(|(nth, _)| *nth != 2) {
            output.push_str(&sum(&format!("./{name}"), nth));
        }
        // A name that nobody asked for, and one that was answered before.
        output.push_str(&sum("./other", 9));
        output.push_str(&sum("./a", 7));
        for cut in 1..output.len() {
            let mut list = ChecksumList::default();
            for (nth, name) in names.iter().enumerate() {
                list.add(CopyFileId(nth as u64), name.as_bytes(), 1);
            }
            let mut program = ChecksumListProgram::new(now, RemoteCommandId(1), 0, list);
            program.watch_mut().started(now);
            let mut found = Vec::new();
            for part in output.as_bytes().chunks(cut) {
                let listed = program.receive(now, part);
                assert!(listed.is_valid, "{cut}");
                found.extend(listed.sums);
            }
            let found: Vec<_> = found
                .into_iter()
                .map(|(id, digest)| (id.0, digest.to_string()))
                .collect();
            let expected: Vec<_> = [0, 1, 3, 4]
                .iter()
                .map(|nth| (*nth, format!("{nth:032x}")))
                .collect();
            assert_eq!(found, expected, "{cut}");
            let left: Vec<CopyFileId> = program.take_files().collect();
            assert_eq!(left, [CopyFileId(2)]);
        }
    }

    /// Without a known program in its greeting, no line is taken for a checksum.
    #[test]
    fn an_unknown_program_gives_no_sum() {
        let now = testkit::sftp_model::epoch();
        let mut list = ChecksumList::default();
        list.add(CopyFileId(1), b"a", 1);
        let mut program = ChecksumListProgram::new(now, RemoteCommandId(1), 0, list);
        let listed = program.receive(now, b"longhaul-sums 1 rm -rf\n");
        assert!(!listed.is_valid);
        let listed = program.receive(now, sum("./a", 1).as_bytes());
        assert!(listed.sums.is_empty());
    }
}
