//! Checksum program of a simulated host: `xxhsum`, behind the script that the copy sends.

use testkit::sftp_model::Fs;

use crate::sums::{Hasher, SumAlgorithm};

/// Greeting of the script.
const GREETING: &str = "longhaul-sums 2 xxhsum -H2\n";

/// Answers of the checksum program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SumAnswers {
    Right,
    /// The checksums are those of other data.
    Wrong,
    /// The program can read no file.
    Unreadable,
    /// The program prints something else.
    Garbage,
    /// The program reads its input and prints nothing after its greeting.
    Silent,
    /// The program prints each answer twice.
    Twice,
    /// The program ends at the first request.
    Ends,
}

/// Running checksum program.
#[derive(Debug)]
pub(super) struct SimSumProgram {
    answers: SumAnswers,
    /// The names of whole files come as a list.
    lists: bool,
    has_script: bool,
    input: Vec<u8>,
}

impl SimSumProgram {
    /// Starts the program by this command.
    pub(super) fn new(command: &[u8], answers: SumAnswers) -> Self {
        Self {
            answers,
            lists: command.windows(5).any(|word| word == b"xargs"),
            has_script: false,
            input: Vec::new(),
        }
    }

    /// True if the program ends at this input.
    pub(super) fn ends(&self) -> bool {
        self.answers == SumAnswers::Ends && (self.lists || self.has_script)
    }

    /// Takes input. Returns the output.
    pub(super) fn receive(&mut self, fs: &Fs, input: &[u8]) -> String {
        if !self.lists && !self.has_script {
            self.has_script = true;
            return GREETING.to_owned();
        }
        self.input.extend_from_slice(input);
        let end = if self.lists { 0 } else { b'\n' };
        let mut out = String::new();
        if self.lists && !std::mem::replace(&mut self.has_script, true) {
            out.push_str(GREETING);
        }
        while let Some(at) = self.input.iter().position(|byte| *byte == end) {
            let mut line: Vec<u8> = self.input.drain(..=at).collect();
            line.pop();
            match self.lists {
                true => self.list(fs, &line, &mut out),
                false => self.answer(fs, &line, &mut out),
            }
        }
        out
    }

    fn list(&self, fs: &Fs, name: &[u8], out: &mut String) {
        let name = String::from_utf8_lossy(name);
        if let Some(digest) = fs.data(&name).and_then(|data| self.digest(data)) {
            let line = format!("{digest}  {name}\n");
            out.push_str(&line.repeat(self.times()));
        }
    }

    fn answer(&self, fs: &Fs, line: &[u8], out: &mut String) {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let [how, skip, count, left, names @ ..] = words.as_slice() else {
            panic!("a request has four words and names");
        };
        let mut files = names.iter().map(|name| unescaped(name));
        let data = files.find_map(|name| fs.data(&name));
        let digest = data.and_then(|data| self.digest(range(data, [how, skip, count, left])));
        match digest {
            Some(digest) => out.push_str(&format!("={digest}\n").repeat(self.times())),
            None if self.answers == SumAnswers::Silent => {}
            None => out.push_str("-\n"),
        }
    }

    /// Number of times that an answer is printed.
    fn times(&self) -> usize {
        1 + usize::from(self.answers == SumAnswers::Twice)
    }

    fn digest(&self, data: &[u8]) -> Option<String> {
        let mut hasher = Hasher::new(Some(SumAlgorithm::Xxh128));
        hasher.update(data);
        match self.answers {
            SumAnswers::Right | SumAnswers::Twice => {}
            SumAnswers::Wrong => hasher.update(b"more"),
            SumAnswers::Unreadable | SumAnswers::Silent | SumAnswers::Ends => return None,
            SumAnswers::Garbage => return Some("no such program".to_owned()),
        }
        let (_, digest) = hasher.finish().pop().expect("one algorithm");
        Some(digest.to_string())
    }
}

/// Part of a file that a request of the script is about.
fn range<'d>(data: &'d [u8], [how, skip, count, left]: [&[u8]; 4]) -> &'d [u8] {
    let number = |text: &[u8]| -> Option<usize> { std::str::from_utf8(text).ok()?.parse().ok() };
    let (from, len) = match (how, number(how)) {
        (b"w", _) => (0, None),
        (b"t", _) => (number(skip).expect("an offset") - 1, number(left)),
        (_, Some(block)) => {
            let counted = number(count).map(|count| count * block);
            (
                number(skip).expect("blocks") * block,
                number(left).or(counted),
            )
        }
        _ => panic!("an unknown request"),
    };
    let rest = data.get(from..).unwrap_or_default();
    rest.get(..len.unwrap_or(rest.len())).unwrap_or(rest)
}

/// Name behind the escapes of a request.
fn unescaped(name: &[u8]) -> String {
    let mut bytes = Vec::new();
    let mut left = name;
    while let Some((first, rest)) = left.split_first() {
        left = rest;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let (digits, rest) = left.split_at(4);
        let digits = std::str::from_utf8(digits).expect("digits");
        bytes.push(u8::from_str_radix(digits, 8).expect("an octal number"));
        left = rest;
    }
    String::from_utf8(bytes).expect("names of tests are UTF-8")
}
