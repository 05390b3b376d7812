//! The program at the far end that makes sums: how it is found, asked and understood.
//!
//! One `sh` reads a request a line and answers each with a line, in order. Small files go to a
//! program of their own by `xargs`, many at a time. Names are the only thing of a request that
//! others choose; they travel as octal escapes, or ended by NUL.

use std::collections::BTreeMap;

use super::{Algorithm, Digest, Sum};

/// What the script says first; what comes before it is of the account's start-up files.
const GREETING: &[u8] = b"longhaul-sums ";
/// Most of that.
const MOST_BEFORE: usize = 64 << 10;
/// The longest line that a request is answered with.
const LONGEST: usize = 256;
/// Sizes of a block that dd may read, the best first: parts of files are multiples of 63 * 4096
/// ([`schedule::SchedulerOptions`]). Larger ones fill a pipe (64 KiB) at once, so that both sides of it
/// wait for each other: 1 GiB to xxhsum took 0.65 s of processor time in blocks of 32 KiB and
/// 0.9 s in those of 256 KiB or 1 MiB.
const BLOCKS: [u64; 4] = [32 << 10, 7 * 4096, 4096, 512];

/// A program that makes sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// As the shell runs it; empty of what is asked by requests (copy/verify/ours.rs).
    pub(crate) command: &'static str,
    /// What it is called.
    pub(crate) name: &'static str,
    pub(crate) algorithm: Algorithm,
}

const fn program(command: &'static str, name: &'static str, algorithm: Algorithm) -> Program {
    Program {
        command,
        name,
        algorithm,
    }
}

/// In the order in which they are tried: by the time that 1 GiB took from a pipe on one core (AMD
/// EPYC with SHA instructions): 0.1, 0.5, 0.6 and 2.8 s. The SHA-256 of coreutils, busybox and
/// perl is not the processor's.
const PROGRAMS: [Program; 8] = [
    program("xxhsum -H2", "xxhsum", Algorithm::Xxh128),
    program("b3sum", "b3sum", Algorithm::Blake3),
    program("openssl dgst -sha256 -r", "openssl", Algorithm::Sha256),
    program("sha256sum", "sha256sum", Algorithm::Sha256),
    program("sha256", "sha256", Algorithm::Sha256),
    program("gsha256sum", "gsha256sum", Algorithm::Sha256),
    program("shasum -a 256", "shasum", Algorithm::Sha256),
    program("digest -a sha256", "digest", Algorithm::Sha256),
];

/// Of "abc".
const fn known(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Xxh128 => "06b05ab6733a618578af5f94892f3950",
        Algorithm::Blake3 => "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
        Algorithm::Sha256 => "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }
}

/// A program must know the sum of "abc" before it is believed anything. Its answer is kept in a
/// variable, so that each request is answered by one line whatever happens.
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

/// The file is opened once, before anything reads it: where it is renamed between the question
/// whether it is there and its opening, nothing runs and there is no sum. A program at the end of a
/// pipe would make one of nothing.
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

/// The script, which [`command`] reads first.
pub(crate) fn script() -> String {
    let mut text = FIND.to_owned();
    for program in PROGRAMS {
        let line = format!("try \"{}\" {}\n", program.command, known(program.algorithm));
        text.push_str(&line);
    }
    text.push_str(SERVE);
    text
}

/// What the account's shell is asked to run. It may be any shell, so it reads nothing but this:
/// the script comes over standard input, of which dd takes no byte too many.
pub(crate) fn command() -> Vec<u8> {
    let len = script().len();
    format!("exec sh -c 'eval \"$(dd bs=1 count={len} 2>/dev/null)\"'").into_bytes()
}

/// The same for many whole files, whose names come over standard input.
pub(crate) fn list_command(program: Program) -> Vec<u8> {
    let run = program.command;
    format!(
        "exec sh -c 'LC_ALL=C; export LC_ALL; \
         PATH=$PATH:/usr/local/bin:/opt/homebrew/bin:/usr/pkg/bin; export PATH; \
         exec 2>/dev/null; echo \"longhaul-sums 1 {run}\"; exec xargs -0 -n 500 {run}'"
    )
    .into_bytes()
}

/// `path` as a program takes it for a file: never for an option.
fn plain(path: &[u8]) -> Vec<u8> {
    match path.first() {
        Some(b'/') => path.to_vec(),
        _ => [b"./", path].concat(),
    }
}

/// The line of [`list_command`] for `path`, and what names it in the answer. `None` where
/// programs may show the name otherwise than it is.
pub(crate) fn list_line(path: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(path).ok()?;
    let shown_as_is = |c: char| !c.is_control() && c != '\\';
    text.chars().all(shown_as_is).then(|| plain(path))
}

/// The request for the sum of all of the file at `path`.
pub(crate) fn whole_request(path: &[u8]) -> Vec<u8> {
    request(path, None, &Sum::default(), 0)
}

/// The request for one sum of the file of `size` at `path`, or at `later` where it has got that
/// name meanwhile.
pub(crate) fn request(path: &[u8], later: Option<&[u8]>, sum: &Sum, size: u64) -> Vec<u8> {
    let (from, len, last) = (sum.from, sum.len, sum.end() >= size);
    let begins = |b: &&u64| from.is_multiple_of(**b);
    let fits = |b: &&u64| last || len.is_multiple_of(**b);
    let block = BLOCKS.iter().find(|b| begins(b) && fits(b));
    let how = match block.or_else(|| BLOCKS.iter().find(begins)) {
        _ if from == 0 && last => "w - - -".to_owned(),
        // A file that is longer than it should be has another sum.
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

/// What the far end said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The program it has.
    Program(Program),
    /// It has none that is known.
    NoProgram,
    /// The next sum.
    Sum(Digest),
    /// The next file cannot be read there, or the program failed.
    Unreadable,
}

/// Reads answers from what arrives. Everything else than what was asked for is an error.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    held: Vec<u8>,
    program: Option<Program>,
    /// Of the far end, as it says; 0 until it has.
    pub(crate) processors: u32,
}

impl Answers {
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    fn line(&mut self, longest: usize) -> Result<Option<Vec<u8>>, String> {
        match self.held.iter().position(|b| *b == b'\n') {
            Some(at) if at <= longest => {
                let mut line: Vec<u8> = self.held.drain(..=at).collect();
                line.pop();
                Ok(Some(line))
            }
            None if self.held.len() <= longest => Ok(None),
            _ => Err("what runs there answers with something else".to_owned()),
        }
    }

    fn greeting(&mut self) -> Result<Option<Answer>, String> {
        while let Some(line) = self.line(MOST_BEFORE)? {
            let Some(said) = line.strip_prefix(GREETING) else {
                continue;
            };
            let mut words = said.splitn(2, |b| *b == b' ');
            let cores = words.next().and_then(|n| std::str::from_utf8(n).ok());
            self.processors = cores.and_then(|n| n.parse().ok()).unwrap_or(1);
            let said = words.next().unwrap_or_default();
            if said.is_empty() {
                return Ok(Some(Answer::NoProgram));
            }
            let known = PROGRAMS.iter().find(|p| p.command.as_bytes() == said);
            let Some(program) = known else {
                return Err("it names a program that was not asked for".to_owned());
            };
            self.program = Some(*program);
            return Ok(Some(Answer::Program(*program)));
        }
        Ok(None)
    }

    /// The next answer of [`command`].
    pub(crate) fn next(&mut self) -> Result<Option<Answer>, String> {
        let Some(program) = self.program else {
            return self.greeting();
        };
        let Some(line) = self.line(LONGEST)? else {
            return Ok(None);
        };
        match line.strip_prefix(b"=") {
            Some(hex) => Ok(Some(match Digest::from_hex(hex, program.algorithm) {
                Some(digest) => Answer::Sum(digest),
                None => Answer::Unreadable,
            })),
            None if line == b"-" => Ok(Some(Answer::Unreadable)),
            None => Err("what runs there answers with something else".to_owned()),
        }
    }

    /// The next answer of [`list_command`]: the key of a file in `names`, and its sum. The files
    /// that are left in it at the end were not read.
    pub(crate) fn next_listed<K>(
        &mut self,
        names: &mut BTreeMap<Vec<u8>, K>,
    ) -> Result<Option<(K, Digest)>, String> {
        if self.program.is_none() {
            self.greeting()?;
        }
        let Some(program) = self.program else {
            return Ok(None);
        };
        while let Some(line) = self.line(LONGEST + 4096)? {
            let hex = line.len().min(2 * program.algorithm.len());
            let (digest, name) = line.split_at(hex);
            // "SUM  NAME", "SUM *NAME", and the BSDs' "SUM NAME"; none of the names begins so.
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

    fn sum(from: u64, len: u64) -> Sum {
        Sum {
            from,
            len,
            digests: Vec::new(),
        }
    }

    fn line(path: &[u8], from: u64, len: u64, size: u64) -> String {
        String::from_utf8(request(path, None, &sum(from, len), size)).unwrap()
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
        let mut answers = Answers::default();
        answers
            .receive(b"Welcome!\nlonghaul-sums 2 xxhsum -H2\n=06b05ab6733a618578af5f94892f3950\n");
        assert!(matches!(answers.next(), Ok(Some(Answer::Program(p))) if p.name == "xxhsum"));
        assert!(matches!(answers.next(), Ok(Some(Answer::Sum(_)))));
        assert_eq!(answers.next(), Ok(None));
        answers.receive(b"-\n=\n=zz\nsomething\n");
        for _ in 0..3 {
            assert_eq!(answers.next(), Ok(Some(Answer::Unreadable)));
        }
        assert!(answers.next().is_err());
    }

    #[test]
    fn what_never_answers_is_not_held() {
        let mut answers = Answers::default();
        answers.receive(&vec![b'x'; MOST_BEFORE + 1]);
        assert!(answers.next().is_err());
        let mut answers = Answers::default();
        answers.receive(b"longhaul-sums 1 rm -rf\n");
        assert!(answers.next().is_err());
        let mut answers = Answers::default();
        answers.receive(b"longhaul-sums 4 \n");
        assert_eq!(answers.next(), Ok(Some(Answer::NoProgram)));
    }

    #[test]
    fn lists_are_read_by_name_in_the_forms_that_programs_have() {
        let mut answers = Answers::default();
        let hex = known(Algorithm::Sha256);
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

    /// What the script says to this, with whatever this machine has.
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

    /// It was once looked for under its first name, and opened when it had the second: the sum of
    /// nothing was taken for its.
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
        let mut answers = Answers::default();
        answers.receive(&said);
        let Ok(Some(Answer::Program(program))) = answers.next() else {
            panic!("{}", String::from_utf8_lossy(&said));
        };
        let mut hasher = super::super::Hasher::new(Some(program.algorithm));
        hasher.update(&data[4096..12_288]);
        let right = Answer::Sum(hasher.finish().remove(0).1);
        for n in 0..200 {
            let answer = answers.next().unwrap();
            let known = [Some(&right), Some(&Answer::Unreadable)];
            assert!(known.contains(&answer.as_ref()), "{n}: {answer:?}");
        }
    }

    /// With whatever this machine has.
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
        let mut answers = Answers::default();
        answers.receive(&said);
        let Ok(Some(Answer::Program(program))) = answers.next() else {
            panic!("{}", String::from_utf8_lossy(&said));
        };
        for (from, len) in ranges {
            let mut hasher = super::super::Hasher::new(Some(program.algorithm));
            hasher.update(&data[from as usize..(from + len) as usize]);
            let digest = hasher.finish().remove(0).1;
            assert_eq!(
                answers.next(),
                Ok(Some(Answer::Sum(digest))),
                "{from} {len}"
            );
        }
        assert_eq!(answers.next(), Ok(Some(Answer::Unreadable)));
    }
}
