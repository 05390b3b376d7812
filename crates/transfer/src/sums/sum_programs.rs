//! Finds a checksum program at the far end, sends it requests and parses the answers.
//!
//! One `sh` reads a request per line and answers each with a line, in order. Small files go to a
//! separate process through `xargs`, many at a time. File names are the only part of a request that
//! others choose; they travel as octal escapes, or terminated by NUL.

use std::collections::BTreeMap;
use std::fmt;

use super::{Digest, RangeChecksum, SumAlgorithm};

/// The start of the script's greeting; any output before it comes from the account's start-up
/// files.
const GREETING: &[u8] = b"longhaul-sums ";
/// The maximum number of bytes before the greeting.
const MOST_BEFORE: usize = 64 << 10;
/// The maximum length of an answer line.
const LONGEST: usize = 256;
/// Block sizes for dd, best first: parts of files are multiples of 63 * 4096
/// ([`schedule::SchedulerOptions`]). Larger blocks fill a pipe (64 KiB) at once, so that both sides
/// wait for each other: 1 GiB to xxhsum took 0.65 s of processor time in blocks of 32 KiB and 0.9 s
/// in blocks of 256 KiB or 1 MiB.
const BLOCKS: [u64; 4] = [32 << 10, 7 * 4096, 4096, 512];

/// Reason why the output of a far end's checksum program is given up: one sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SumProgramError(&'static str);

impl fmt::Display for SumProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for SumProgramError {}

/// A checksum program at the far end, or checksums requested over SFTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SumProgram {
    /// The shell command; empty for sums that are requested over SFTP by hash@longhaul
    /// (copy/verify/longhaul_sums.rs).
    pub command: &'static str,
    /// The name of the program.
    pub name: &'static str,
    pub algorithm: SumAlgorithm,
}

const fn program(command: &'static str, name: &'static str, algorithm: SumAlgorithm) -> SumProgram {
    SumProgram {
        command,
        name,
        algorithm,
    }
}

/// The programs in the order in which they are tried, fastest first: 1 GiB from a pipe on one core
/// took 0.1, 0.5, 0.6 and 2.8 s (AMD EPYC with SHA instructions). The SHA-256 of coreutils, busybox
/// and perl does not use these instructions.
const PROGRAMS: [SumProgram; 8] = [
    program("xxhsum -H2", "xxhsum", SumAlgorithm::Xxh128),
    program("b3sum", "b3sum", SumAlgorithm::Blake3),
    program("openssl dgst -sha256 -r", "openssl", SumAlgorithm::Sha256),
    program("sha256sum", "sha256sum", SumAlgorithm::Sha256),
    program("sha256", "sha256", SumAlgorithm::Sha256),
    program("gsha256sum", "gsha256sum", SumAlgorithm::Sha256),
    program("shasum -a 256", "shasum", SumAlgorithm::Sha256),
    program("digest -a sha256", "digest", SumAlgorithm::Sha256),
];

/// Returns the known digest of "abc".
const fn known(algorithm: SumAlgorithm) -> &'static str {
    match algorithm {
        SumAlgorithm::Xxh128 => "06b05ab6733a618578af5f94892f3950",
        SumAlgorithm::Blake3 => "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
        SumAlgorithm::Sha256 => "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }
}

/// Finds a program that computes the correct digest of "abc". The answer to each request is kept in
/// a variable, so that exactly one line is sent whatever happens.
const FIND: &str = r#"LC_ALL=C; export LC_ALL
PATH=$PATH:/usr/local/bin:/opt/homebrew/bin:/usr/pkg/bin; export PATH
set -f
exec 2>/dev/null
p=
try() {
[ -n "$p" ] && return
k=$2
set -- "$1" $(printf abc | $1)
[ "$2" = "$k" ] && p=$1
}
"#;

/// Serves the requests. The file is opened once, before any program reads it: if it is renamed
/// between the existence check and the open, no program runs and there is no sum. A program at the
/// end of a pipe would print the sum of empty input.
const SERVE: &str = r#"sum() {
case $b in
w) $p ;;
t) tail -c +$s | head -c $l | $p ;;
*) case $c$l in
--) dd bs=$b skip=$s | $p ;;
*-) dd bs=$b skip=$s count=$c | $p ;;
*) dd bs=$b skip=$s count=$c | head -c $l | $p ;;
esac ;;
esac
}
n=$(getconf _NPROCESSORS_ONLN || nproc || echo 1)
echo "longhaul-sums ${n:-1} $p"
[ -n "$p" ] || exit 0
while read -r b s c l n m; do
f=$(printf %b. "$n")
f=${f%.}
if [ -n "$m" ] && ! [ -f "$f" ]; then
f=$(printf %b. "$m")
f=${f%.}
fi
if [ -f "$f" ] && [ -r "$f" ]; then
r=$(sum <"$f")
echo "=${r%% *}"
else
echo -
fi
done"#;

/// Returns the script, which [`command`] reads first.
pub(crate) fn script() -> String {
    script_from(SumAlgorithm::Xxh128)
}

/// Returns the script that skips programs for faster algorithms than `fastest`, which
/// [`command_from`] reads first.
pub(crate) fn script_from(fastest: SumAlgorithm) -> String {
    let mut text = FIND.to_owned();
    for program in PROGRAMS.iter().filter(|p| p.algorithm >= fastest) {
        let line = format!("try \"{}\" {}\n", program.command, known(program.algorithm));
        text.push_str(&line);
    }
    text.push_str(SERVE);
    text
}

/// Returns the command for the account's shell, which may be any shell: the script itself comes
/// over standard input, from which dd reads exactly its length.
pub(crate) fn command() -> Vec<u8> {
    command_from(SumAlgorithm::Xxh128)
}

/// Returns the command for the account's shell, as [`command`] does, that reads the script of
/// [`script_from`].
pub(crate) fn command_from(fastest: SumAlgorithm) -> Vec<u8> {
    let len = script_from(fastest).len();
    format!("exec sh -c 'eval \"$(dd bs=1 count={len} 2>/dev/null)\"'").into_bytes()
}

/// Returns the command that sums many whole files, whose names come over standard input.
pub(crate) fn list_command(program: SumProgram) -> Vec<u8> {
    let run = program.command;
    format!(
        "exec sh -c 'LC_ALL=C; export LC_ALL; \
         PATH=$PATH:/usr/local/bin:/opt/homebrew/bin:/usr/pkg/bin; export PATH; \
         exec 2>/dev/null; echo \"longhaul-sums 1 {run}\"; exec xargs -0 -n 500 {run}'"
    )
    .into_bytes()
}

/// Returns `path` in a form that a program never parses as an option.
fn plain(path: &[u8]) -> Vec<u8> {
    match path.first() {
        Some(b'/') => path.to_vec(),
        _ => [b"./", path].concat(),
    }
}

/// Returns the line for `path` in the input of [`list_command`], which is also its name in the
/// answer. `None` if programs may print the name in another form.
pub(crate) fn list_line(path: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(path).ok()?;
    let shown_as_is = |c: char| !c.is_control() && c != '\\';
    text.chars().all(shown_as_is).then(|| plain(path))
}

/// Returns the request for the sum of the whole file at `path`.
pub(crate) fn whole_request(path: &[u8]) -> Vec<u8> {
    request(path, None, &RangeChecksum::default(), 0)
}

/// Returns the request for one sum of the file of `size` bytes at `path`, or at `later` if it has
/// been renamed meanwhile.
pub(crate) fn request(
    path: &[u8],
    later: Option<&[u8]>,
    sum: &RangeChecksum,
    size: u64,
) -> Vec<u8> {
    let (from, len, last) = (sum.from, sum.len, sum.end() >= size);
    let begins = |b: &&u64| from.is_multiple_of(**b);
    let fits = |b: &&u64| last || len.is_multiple_of(**b);
    let block = BLOCKS.iter().find(|b| begins(b) && fits(b));
    let how = match block.or_else(|| BLOCKS.iter().find(begins)) {
        _ if from == 0 && last => "w - - -".to_owned(),
        // A file that has grown gets a different sum.
        Some(block) if last => format!("{block} {} - -", from / block),
        Some(block) => {
            let exact = len.is_multiple_of(*block);
            let left = if exact {
                "-".to_owned()
            } else {
                len.to_string()
            };
            format!("{block} {} {} {left}", from / block, len.div_ceil(*block))
        }
        None => format!("t {} - {len}", from + 1),
    };
    let mut line = how.into_bytes();
    for path in [path].into_iter().chain(later) {
        line.push(b' ');
        for byte in plain(path) {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => {
                    line.push(byte);
                }
                _ => line.extend(format!("\\0{byte:03o}").bytes()),
            }
        }
    }
    line.push(b'\n');
    line
}

/// Answer of the far end: the checksum program found there, or the digest of the next file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SumProgramAnswer {
    /// The program that was found.
    Program(SumProgram),
    /// No known program was found.
    NoProgram,
    /// The next digest.
    Sum(Digest),
    /// The next file cannot be read, or the program failed.
    Unreadable,
}

/// Parses the output of the checksum programs at the far end; any unexpected text is an error.
#[derive(Debug, Default)]
pub(crate) struct ChecksumOutputParser {
    held: Vec<u8>,
    /// An answer was unexpected: nothing that follows is kept.
    broken: bool,
    program: Option<SumProgram>,
    /// The number of processors that the far end reports; 0 before that.
    processors: u32,
}

impl ChecksumOutputParser {
    /// The number of processors that the far end reports; 0 before that.
    pub(crate) fn processors(&self) -> u32 {
        self.processors
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        if !self.broken {
            self.held.extend_from_slice(bytes);
        }
    }

    fn line(&mut self, longest: usize) -> Result<Option<Vec<u8>>, SumProgramError> {
        match self.held.iter().position(|b| *b == b'\n') {
            Some(at) if at <= longest => {
                let mut line: Vec<u8> = self.held.drain(..=at).collect();
                line.pop();
                Ok(Some(line))
            }
            None if self.held.len() <= longest && !self.broken => Ok(None),
            _ => {
                self.broken = true;
                self.held = Vec::new();
                Err(SumProgramError(
                    "the checksum program there gave an unexpected answer",
                ))
            }
        }
    }

    fn greeting(&mut self) -> Result<Option<SumProgramAnswer>, SumProgramError> {
        while let Some(line) = self.line(MOST_BEFORE)? {
            let Some(said) = line.strip_prefix(GREETING) else {
                continue;
            };
            let mut words = said.splitn(2, |b| *b == b' ');
            let cores = words.next().and_then(|n| std::str::from_utf8(n).ok());
            self.processors = cores.and_then(|n| n.parse().ok()).unwrap_or(1);
            let said = words.next().unwrap_or_default();
            if said.is_empty() {
                return Ok(Some(SumProgramAnswer::NoProgram));
            }
            let known = PROGRAMS.iter().find(|p| p.command.as_bytes() == said);
            let Some(program) = known else {
                return Err(SumProgramError(
                    "the far end named an unexpected checksum program",
                ));
            };
            self.program = Some(*program);
            return Ok(Some(SumProgramAnswer::Program(*program)));
        }
        Ok(None)
    }

    /// Returns the next answer of [`command`].
    pub(crate) fn next(&mut self) -> Result<Option<SumProgramAnswer>, SumProgramError> {
        let Some(program) = self.program else {
            return self.greeting();
        };
        let Some(line) = self.line(LONGEST)? else {
            return Ok(None);
        };
        match line.strip_prefix(b"=") {
            Some(hex) => Ok(Some(match Digest::from_hex(hex, program.algorithm) {
                Some(digest) => SumProgramAnswer::Sum(digest),
                None => SumProgramAnswer::Unreadable,
            })),
            None if line == b"-" => Ok(Some(SumProgramAnswer::Unreadable)),
            None => Err(SumProgramError(
                "the checksum program there gave an unexpected answer",
            )),
        }
    }

    /// Returns the next answer of [`list_command`]: the file's key in `names`, which is removed,
    /// and its digest. Files that remain at the end were not read.
    pub(crate) fn next_listed<K>(
        &mut self,
        names: &mut BTreeMap<Vec<u8>, K>,
    ) -> Result<Option<(K, Digest)>, SumProgramError> {
        if self.program.is_none() {
            self.greeting()?;
        }
        let Some(program) = self.program else {
            return Ok(None);
        };
        while let Some(line) = self.line(LONGEST + 4096)? {
            let hex = line.len().min(2 * program.algorithm.len());
            let (digest, name) = line.split_at(hex);
            // Formats: "SUM  NAME", "SUM *NAME", and the BSDs' "SUM NAME"; no name here begins with
            // a space or `*`.
            let name = name.trim_ascii_start();
            let name = name.strip_prefix(b"*").unwrap_or(name);
            if let Some(digest) = Digest::from_hex(digest, program.algorithm)
                && let Some(key) = names.remove(name)
            {
                return Ok(Some((key, digest)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(from: u64, len: u64) -> RangeChecksum {
        RangeChecksum {
            from,
            len,
            digests: Vec::new(),
        }
    }

    fn line(path: &[u8], from: u64, len: u64, size: u64) -> String {
        String::from_utf8(request(path, None, &sum(from, len), size)).unwrap()
    }

    /// Regression test: output without an end filled the memory.
    #[test]
    fn nothing_is_kept_after_an_unexpected_answer() {
        let mut answers = ChecksumOutputParser::default();
        let mut names = BTreeMap::from([(b"a".to_vec(), 1)]);
        for _ in 0..100 {
            answers.receive(&[b'x'; 100_000]);
            assert!(answers.next_listed(&mut names).is_err());
            assert!(answers.next().is_err());
            assert_eq!(answers.held.capacity(), 0);
        }
    }

    #[test]
    fn requests_name_ranges_in_blocks_and_names_as_octal() {
        assert_eq!(line(b"/a", 0, 5, 5), "w - - - /a\n");
        assert_eq!(line(b"-a b\n", 0, 5, 5), "w - - - ./-a\\0040b\\0012\n");
        assert_eq!(line(b"/\xff'", 0, 0, 0), "w - - - /\\0377\\0047\n");
        let unit = 63 * 4096;
        assert_eq!(line(b"/a", 0, 2 * unit, 9 * unit), "28672 0 18 - /a\n");
        assert_eq!(line(b"/a", unit, 2 * unit, 9 * unit), "28672 9 18 - /a\n");
        assert_eq!(
            line(b"/a", unit, unit + 1, 9 * unit),
            "28672 9 10 258049 /a\n"
        );
        assert_eq!(line(b"/a", unit, unit, 2 * unit), "28672 9 - - /a\n");
        assert_eq!(line(b"/a", 3, 4, 9), "t 4 - 4 /a\n");
    }

    #[test]
    fn answers_are_those_that_were_asked_for() {
        let mut answers = ChecksumOutputParser::default();
        answers
            .receive(b"Welcome!\nlonghaul-sums 2 xxhsum -H2\n=06b05ab6733a618578af5f94892f3950\n");
        assert!(
            matches!(answers.next(), Ok(Some(SumProgramAnswer::Program(p))) if p.name == "xxhsum")
        );
        assert!(matches!(answers.next(), Ok(Some(SumProgramAnswer::Sum(_)))));
        assert_eq!(answers.next(), Ok(None));
        answers.receive(b"-\n=\n=zz\nsomething\n");
        for _ in 0..3 {
            assert_eq!(answers.next(), Ok(Some(SumProgramAnswer::Unreadable)));
        }
        assert!(answers.next().is_err());
    }

    #[test]
    fn what_never_answers_is_not_held() {
        let mut answers = ChecksumOutputParser::default();
        answers.receive(&vec![b'x'; MOST_BEFORE + 1]);
        assert!(answers.next().is_err());
        let mut answers = ChecksumOutputParser::default();
        answers.receive(b"longhaul-sums 1 rm -rf\n");
        assert!(answers.next().is_err());
        let mut answers = ChecksumOutputParser::default();
        answers.receive(b"longhaul-sums 4 \n");
        assert_eq!(answers.next(), Ok(Some(SumProgramAnswer::NoProgram)));
    }

    #[test]
    fn lists_are_read_by_name_in_the_forms_that_programs_have() {
        let mut answers = ChecksumOutputParser::default();
        let hex = known(SumAlgorithm::Sha256);
        let said = format!(
            "longhaul-sums 1 sha256sum\n{hex}  /a b\n{hex} *./c\n{hex} /d\n{hex}  /nobody\nnonsense\n"
        );
        answers.receive(said.as_bytes());
        let names = [&b"/a b"[..], b"./c", b"/d", b"/e"];
        let keys = names.into_iter().map(<[u8]>::to_vec).zip(1..);
        let mut names: BTreeMap<Vec<u8>, i32> = keys.collect();
        let mut found = Vec::new();
        while let Some((key, _)) = answers.next_listed(&mut names).unwrap() {
            found.push(key);
        }
        assert_eq!(found, [1, 2, 3]);
        assert_eq!(names.into_values().collect::<Vec<_>>(), [4]);
        assert_eq!(list_line(b"-x"), Some(b"./-x".to_vec()));
        assert_eq!(list_line(b"a\\b"), None);
        assert_eq!(list_line(b"a\n"), None);
        assert_eq!(list_line(b"\xff"), None);
    }

    /// Runs the script with these questions and this machine's programs.
    fn ask(questions: &[u8]) -> Vec<u8> {
        use std::io::Write;
        use std::process::{Command, Stdio};
        let command = String::from_utf8(command()).unwrap();
        let mut child = Command::new("sh")
            .args(["-c", &command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(script().as_bytes()).unwrap();
        stdin.write_all(questions).unwrap();
        drop(stdin);
        child.wait_with_output().unwrap().stdout
    }

    /// Regression test: a file was looked up under its first name and opened after the rename, so
    /// the sum of empty input was taken for the file's.
    #[test]
    fn a_file_that_is_renamed_while_it_is_asked_for_has_its_sum_or_none() {
        use std::sync::mpsc::{TryRecvError, channel};
        let dir = tempfile::tempdir().unwrap();
        let data = vec![7; 20_000];
        let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
        std::fs::write(&one, &data).unwrap();
        let [first, second] = [&one, &other].map(|p| p.as_os_str().as_encoded_bytes());
        let question = request(first, Some(second), &sum(4096, 8192), 20_000);
        let said = std::thread::scope(|scope| {
            let (_asking, asks) = channel::<()>();
            scope.spawn(|| {
                let asks = asks;
                while asks.try_recv() == Err(TryRecvError::Empty) {
                    std::fs::rename(&one, &other).unwrap();
                    std::fs::rename(&other, &one).unwrap();
                }
            });
            ask(&question.repeat(200))
        });
        let mut answers = ChecksumOutputParser::default();
        answers.receive(&said);
        let Ok(Some(SumProgramAnswer::Program(program))) = answers.next() else {
            panic!("{}", String::from_utf8_lossy(&said));
        };
        let mut hasher = super::super::Hasher::new(Some(program.algorithm));
        hasher.update(&data[4096..12_288]);
        let right = SumProgramAnswer::Sum(hasher.finish().remove(0).1);
        for n in 0..200 {
            let answer = answers.next().unwrap();
            let known = [Some(&right), Some(&SumProgramAnswer::Unreadable)];
            assert!(known.contains(&answer.as_ref()), "{n}: {answer:?}");
        }
    }

    /// Uses the shell and programs of this machine.
    #[test]
    fn the_script_answers_in_the_shell_that_is_here() {
        let dir = tempfile::tempdir().unwrap();
        let data: Vec<u8> = (0..300_000_u32)
            .map(|n| (n.wrapping_mul(n) / 3) as u8)
            .collect();
        let path = dir.path().join("-odd\n name\\'\u{e9}");
        std::fs::write(&path, &data).unwrap();
        let name = path.as_os_str().as_encoded_bytes();
        let mut input = Vec::new();
        let ranges = [
            (0, 300_000),
            (0, 258_048),
            (258_048, 41_952),
            (77, 1000),
            (4096, 5000),
        ];
        for (from, len) in ranges {
            input.extend(request(name, None, &sum(from, len), 300_000));
        }
        input.extend(request(b"/no/such/file", None, &sum(0, 1), 1));
        let said = ask(&input);
        let mut answers = ChecksumOutputParser::default();
        answers.receive(&said);
        let Ok(Some(SumProgramAnswer::Program(program))) = answers.next() else {
            panic!("{}", String::from_utf8_lossy(&said));
        };
        for (from, len) in ranges {
            let mut hasher = super::super::Hasher::new(Some(program.algorithm));
            hasher.update(&data[from as usize..(from + len) as usize]);
            let digest = hasher.finish().remove(0).1;
            assert_eq!(
                answers.next(),
                Ok(Some(SumProgramAnswer::Sum(digest))),
                "{from} {len}"
            );
        }
        assert_eq!(answers.next(), Ok(Some(SumProgramAnswer::Unreadable)));
    }
}
