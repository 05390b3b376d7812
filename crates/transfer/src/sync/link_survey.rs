//! Finds out which names at a stock SFTP server belong to one file. SFTP does not tell it; find(1)
//! does, if the account runs commands.

use std::collections::BTreeMap;
use std::time::Duration;

use sftp::InodeId;
use sync::{SortedTree, TreeEntryId, TreeEntryKind};

use super::programs::RunningSyncCommand;
use crate::copy::{PlannedCopy, PlannedCopySide};

/// Greeting of the script; any output before it comes from the account's start-up files.
const GREETING: &[u8] = b"longhaul-links 1\n";
/// Maximum number of bytes before the greeting.
const MOST_BEFORE: usize = 64 << 10;
/// Maximum length of a record: a path and five numbers.
const LONGEST: usize = 8 << 10;
/// Last record, without which the answer is incomplete.
const END: &[u8] = b"end";
/// Time for the command to walk the tree.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// Lists the files with several names below the directory whose path follows on standard input: GNU
/// find prints them itself, others run stat, whose options differ. Names are terminated by NUL.
const SCRIPT: &str = r#"LC_ALL=C; export LC_ALL
unset CDPATH
exec 2>/dev/null
d=$(cat; echo .)
cd -- "${d%.}" || exit 1
echo "longhaul-links 1"
if find . -prune -printf ''; then
find . -type f -links +1 -printf '%D:%i:%n:%s:%T@:%p\0'
else
find . -type f -links +1 -exec sh -c 'for f do
i=$(stat -c %d:%i:%h:%s:%Y -- "$f" || stat -f %d:%i:%l:%z:%m -- "$f") && printf "%s:%s\0" "$i" "$f"
done' sh {} +
fi
printf 'end\0'
"#;

/// Returns the identities of the files with several names at a remote end, whose entries are `tree`;
/// `None` if the account runs no commands, or find(1) does not end in time.
pub(super) async fn links_there(
    run: &mut PlannedCopy<'_>,
    end: PlannedCopySide,
    tree: &SortedTree,
) -> Option<BTreeMap<TreeEntryId, InodeId>> {
    let words = format!(
        "exec sh -c 'eval \"$(dd bs=1 count={} 2>/dev/null)\"'",
        SCRIPT.len()
    );
    let root = run.root(end).to_vec();
    let command = RunningSyncCommand::start(run, end, "find(1)", words.into_bytes());
    command.send(run, SCRIPT.as_bytes().to_vec());
    command.send(run, root);
    command.end_input(run);
    let command = command.within(run, LONGEST_WAIT);
    let mut answer = HardLinkSurveyParser::new(tree);
    while let Some(bytes) = command.output(run).await {
        if !answer.receive(&bytes) {
            break;
        }
    }
    command.stop(run);
    answer.into_links()
}

/// Parses the output of the script that finds hard links at a server without longhaul.
struct HardLinkSurveyParser<'t> {
    tree: &'t SortedTree,
    begun: bool,
    ended: bool,
    rest: Vec<u8>,
    links: BTreeMap<TreeEntryId, InodeId>,
}

impl<'t> HardLinkSurveyParser<'t> {
    fn new(tree: &'t SortedTree) -> Self {
        Self {
            tree,
            begun: false,
            ended: false,
            rest: Vec::new(),
            links: BTreeMap::new(),
        }
    }

    /// Takes output. Returns false if no more is needed or the output is not the script's.
    fn receive(&mut self, bytes: &[u8]) -> bool {
        self.rest.extend_from_slice(bytes);
        if !self.begun {
            let mut parts = self.rest.windows(GREETING.len());
            let Some(at) = parts.position(|bytes| bytes == GREETING) else {
                return self.rest.len() < MOST_BEFORE;
            };
            self.begun = true;
            self.rest.drain(..at + GREETING.len());
        }
        let rest = std::mem::take(&mut self.rest);
        let mut records = rest.split(|byte| *byte == 0);
        let incomplete = records.next_back().unwrap_or_default();
        for record in records {
            if record == END {
                self.ended = true;
                return false;
            }
            self.take(record);
        }
        self.rest = incomplete.to_vec();
        self.rest.len() <= LONGEST
    }

    /// Notes a file that is still as it was listed.
    fn take(&mut self, record: &[u8]) -> Option<()> {
        let mut fields = record.splitn(6, |byte| *byte == b':');
        let mut number = || -> Option<u64> {
            let field = std::str::from_utf8(fields.next()?).ok()?;
            // find(1) prints parts of a second.
            field.split('.').next()?.parse().ok()
        };
        let (device, inode, names) = (number()?, number()?, number()?);
        let (size, modified) = (number()?, number()?);
        let id = self.tree.find(fields.next()?.strip_prefix(b"./")?)?;
        let entry = self.tree.tree().entry(id);
        let is_same = entry.kind == TreeEntryKind::File
            && entry.size == size
            && entry
                .modified
                .is_some_and(|time| u64::try_from(time.seconds) == Ok(modified));
        let names = u32::try_from(names).unwrap_or(u32::MAX);
        if is_same && names > 1 {
            let link = InodeId {
                device,
                inode,
                names,
            };
            self.links.insert(id, link);
        }
        Some(())
    }

    fn into_links(self) -> Option<BTreeMap<TreeEntryId, InodeId>> {
        self.ended.then_some(self.links)
    }
}

#[cfg(test)]
mod tests {
    use sync::{EntryTree, TreeEntry};

    use super::*;

    fn tree() -> SortedTree {
        let mut tree = EntryTree::new();
        let dir = TreeEntry::new(TreeEntryKind::Directory);
        let dir = tree.add(EntryTree::ROOT, b"d", dir).expect("there is room");
        for name in [&b"a"[..], b"b\n1:2:2:5:7:.", b"c"] {
            tree.add(dir, name, TreeEntry::file(5, 7));
        }
        tree.sorted()
    }

    #[test]
    fn files_are_known_by_their_records_however_the_output_is_cut() {
        let tree = tree();
        let output = b"Welcome!\nlonghaul-links 1\n\
            1:2:2:5:7.25:./d/a\0\
            1:2:2:5:7:./d/b\n1:2:2:5:7:.\0\
            1:2:2:6:7:./d/c\0\
            1:2:2:5:7:./d\0\
            1:2:2:5:7:./none\0\
            x:2:2:5:7:./d/c\0\
            end\0";
        for cut in 1..output.len() {
            let mut answer = HardLinkSurveyParser::new(&tree);
            for part in output.chunks(cut) {
                answer.receive(part);
            }
            let links = answer.into_links().expect("it is complete");
            let paths: Vec<Vec<u8>> = links.keys().map(|id| tree.tree().path(*id)).collect();
            assert_eq!(paths, [&b"d/a"[..], b"d/b\n1:2:2:5:7:."]);
            assert!(
                links
                    .values()
                    .all(|link| (link.device, link.inode) == (1, 2))
            );
        }
    }

    #[test]
    fn an_answer_without_its_end_or_greeting_tells_nothing() {
        let tree = tree();
        for output in [
            &b"longhaul-links 1\n1:2:2:5:7:./d/a\0"[..],
            b"1:2:2:5:7:./d/a\0end\0",
        ] {
            let mut answer = HardLinkSurveyParser::new(&tree);
            assert!(answer.receive(output));
            assert_eq!(answer.into_links(), None);
        }
        let mut answer = HardLinkSurveyParser::new(&tree);
        assert!(!answer.receive(&vec![b'x'; MOST_BEFORE]));
        let mut answer = HardLinkSurveyParser::new(&tree);
        assert!(answer.receive(GREETING));
        assert!(!answer.receive(&vec![b'x'; LONGEST + 1]));
    }
}
