//! Sums that a longhaul at the far end makes: hash@longhaul, on an SFTP channel of its own.

use std::collections::VecDeque;

use bytes::Bytes;
use sftp::blocks::{LEAST_BLOCK, MOST_HASHED, SumKind};
use sftp::{
    Attrs, Client, Greeting, Handle, MARKER_PROTOCOL, OpenFlags, Options, Output, Preamble, Reply,
    Request, RequestId,
};

use super::far::{Answer, Program, Question};
use super::{Algorithm, Digest, Hasher};

/// What makes them, as it is told.
pub(crate) const OURS: Program = Program {
    command: "",
    name: "longhaul",
    algorithm: Algorithm::Blake3,
};

/// The type of VERSION, behind its length: no marker begins so.
const VERSION: u8 = 2;
/// It takes one request after the other and numbers handles from 0 on, so that what is asked of a
/// file need not wait for its handle.
const FIRST: u32 = 0;
const SECOND: u32 = 1;

/// The channel: what is asked, and what of the answers has come.
pub(crate) struct Ours {
    client: Client,
    preamble: Option<Preamble>,
    /// What came before it was known whether there is a marker: a longhaul that is the SSH server
    /// itself shows none.
    head: Vec<u8>,
    shown: bool,
    greeted: bool,
    asked: VecDeque<Asked>,
    answers: VecDeque<Answer>,
}

/// A file that is opened, looked at, summed and closed.
struct Asked {
    /// Those that open it: under the first name, and under the second.
    opens: [Option<RequestId>; 2],
    stat: RequestId,
    hash: Option<RequestId>,
    last: RequestId,
    /// How long it is to be, where its end is summed.
    size: Option<u64>,
    digest: Option<Digest>,
}

impl Ours {
    pub(crate) fn new() -> Self {
        Self {
            client: Client::new(Options::default()),
            preamble: None,
            head: Vec::new(),
            shown: false,
            greeted: false,
            asked: VecDeque::new(),
            answers: VecDeque::new(),
        }
    }

    /// What is to be sent.
    pub(crate) fn output(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(output) = self.client.poll_output() {
            match output {
                Output::Bytes(some) => bytes.extend(some),
                Output::Block(block) => bytes.extend(block.to_vec()),
            }
        }
        bytes
    }

    /// Asks for a sum.
    pub(crate) fn ask(&mut self, question: &Question) {
        let mut open = |path: &[u8]| {
            self.client.request(&Request::Open {
                path,
                flags: OpenFlags::READ,
                attrs: Attrs::default(),
            })
        };
        // While it is being renamed it may be found under both names, or another under the second:
        // the handle of the first one that opens is the first handle.
        let opens = [
            Some(open(&question.path)),
            question.later.as_deref().map(&mut open),
        ];
        let (first, second) = (Handle::openssh(FIRST), Handle::openssh(SECOND));
        let stat = self.client.request(&Request::Fstat {
            handle: first.as_bytes(),
        });
        let len = u32::try_from(question.len).ok();
        let len = len.filter(|len| *len <= MOST_HASHED);
        let hash = len.filter(|len| *len > 0).map(|len| {
            self.client.request(&Request::Hash {
                handle: first.as_bytes(),
                offset: question.from,
                len,
                block: len.max(LEAST_BLOCK),
                kind: SumKind::Blake3.name().as_bytes(),
                key: &[],
            })
        });
        let mut last = self.client.request(&Request::Close {
            handle: first.as_bytes(),
        });
        if question.later.is_some() {
            last = self.client.request(&Request::Close {
                handle: second.as_bytes(),
            });
        }
        // The sum of nothing.
        let none = || Hasher::new(Some(OURS.algorithm)).finish().pop();
        let digest = (len == Some(0)).then(none).flatten();
        self.asked.push_back(Asked {
            opens,
            stat,
            hash,
            last,
            size: question.ends().then_some(question.size),
            digest: digest.map(|(_, digest)| digest),
        });
    }

    /// Takes what has come.
    ///
    /// # Errors
    /// It is no longhaul's, or not what was asked for.
    pub(crate) fn receive(&mut self, mut bytes: Bytes) -> Result<(), String> {
        if !self.shown {
            let Some(rest) = self.find_marker(bytes)? else {
                return Ok(());
            };
            self.shown = true;
            bytes = rest;
        }
        let taken = self.client.handle_input(bytes);
        self.greet()?;
        while let Some((id, reply)) = self.client.poll_reply() {
            self.on_reply(id, reply)?;
        }
        taken.map_err(|error| error.to_string())
    }

    /// The next answer.
    pub(crate) fn next(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    /// What follows the marker, or all where there is none; `None` while that is not known.
    fn find_marker(&mut self, mut bytes: Bytes) -> Result<Option<Bytes>, String> {
        if self.preamble.is_none() {
            self.head.extend_from_slice(&bytes);
            bytes = match self.head[..] {
                [0, 0, _, _, VERSION, ..] => {
                    return Ok(Some(Bytes::from(std::mem::take(&mut self.head))));
                }
                [_, _, _, _, _, ..] => Bytes::from(std::mem::take(&mut self.head)),
                _ => return Ok(None),
            };
        }
        let preamble = self.preamble.get_or_insert_default();
        match preamble.take(&mut bytes) {
            Ok(None) => Ok(None),
            Ok(Some(Greeting::Serves { protocol, .. })) if protocol == MARKER_PROTOCOL => {
                Ok(Some(bytes))
            }
            _ => Err("there is no longhaul that makes sums".to_owned()),
        }
    }

    fn greet(&mut self) -> Result<(), String> {
        let Some(info) = self.client.info().filter(|_| !self.greeted) else {
            return Ok(());
        };
        if !info.is_ours() || !info.has("hash@longhaul") {
            return Err("the longhaul there makes no sums".to_owned());
        }
        self.greeted = true;
        self.answers.push_back(Answer::Program(OURS));
        Ok(())
    }

    fn on_reply(&mut self, id: RequestId, reply: Reply) -> Result<(), String> {
        let unasked = || "it answers unasked".to_owned();
        let asked = self.asked.front_mut().ok_or_else(unasked)?;
        match reply {
            // Any other number would be another file's.
            Reply::Handle(handle) => {
                let first = asked.opens.iter().position(|open| open.is_some());
                let at = if asked.opens.get(first.unwrap_or(0)) == Some(&Some(id)) {
                    FIRST
                } else {
                    SECOND
                };
                if handle != Handle::openssh(at) {
                    return Err("its handles are numbered in another way".to_owned());
                }
            }
            Reply::Attrs(attrs) if id == asked.stat => {
                let size = attrs.size.unwrap_or(u64::MAX);
                if asked.size.is_some_and(|expected| expected != size) {
                    asked.hash = None;
                    asked.digest = None;
                }
            }
            Reply::Sums(sums) if Some(id) == asked.hash => {
                asked.digest = (sums.len() == OURS.algorithm.len()).then(|| Digest::new(&sums));
            }
            _ => {
                // It does not open under its first name: the second one has the first handle.
                if let Some(open) = asked.opens.iter_mut().find(|open| **open == Some(id)) {
                    *open = None;
                }
                if id == asked.stat || Some(id) == asked.hash {
                    asked.hash = None;
                    asked.digest = None;
                }
            }
        }
        if id == asked.last {
            let answered = self.asked.pop_front();
            let digest = answered.and_then(|asked| asked.digest);
            self.answers
                .push_back(digest.map_or(Answer::Unreadable, Answer::Sum));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::fs;
    use std::path::Path;

    use serve::{Access, Answer as Said, Export, Server};

    use super::*;

    /// What a server of ours answers to what is asked.
    fn answers(ours: &mut Ours, server: &mut Server<'_>) -> Vec<Answer> {
        let mut sent = Bytes::from(ours.output());
        loop {
            server.handle(&mut sent).expect("a client");
            let mut said = Vec::new();
            let taken = server.take_answers(|answer| {
                match answer {
                    Said::Bytes(bytes) => said.extend_from_slice(bytes),
                    Said::Block(block) => said.extend(block.to_vec()),
                }
                Ok::<_, Infallible>(())
            });
            let Ok(()) = taken;
            if said.is_empty() {
                return std::iter::from_fn(|| ours.next()).collect();
            }
            ours.receive(Bytes::from(said)).expect("a server");
        }
    }

    fn question(path: &Path, (from, len): (u64, u64), size: u64) -> Question {
        Question {
            path: path.as_os_str().as_encoded_bytes().to_vec(),
            later: None,
            from,
            len,
            size,
        }
    }

    fn sum(bytes: &[u8]) -> Answer {
        Answer::Sum(Digest::new(blake3::hash(bytes).as_bytes()))
    }

    #[test]
    fn sums_are_those_of_the_file_as_it_is_to_be() -> std::io::Result<()> {
        let dir = tempfile::tempdir()?;
        let data: Vec<u8> = (0..300_000_u32).map(|n| (n * n / 7) as u8).collect();
        let [file, empty] = ["file", "empty"].map(|name| dir.path().join(name));
        fs::write(&file, &data)?;
        fs::write(&empty, [])?;
        let export = Export::everything(Access::default());
        let mut server = Server::new(&export);
        let mut ours = Ours::new();
        let size = data.len() as u64;
        for (range, size) in [((0, size), size), ((0, 100), size), ((100, 600), size)] {
            ours.ask(&question(&file, range, size));
        }
        // It is longer, and shorter.
        ours.ask(&question(&file, (0, size - 1), size - 1));
        ours.ask(&question(&file, (0, size + 1), size + 1));
        ours.ask(&question(&empty, (0, 0), 0));
        ours.ask(&question(&dir.path().join("none"), (0, 0), 0));
        assert_eq!(
            answers(&mut ours, &mut server),
            [
                Answer::Program(OURS),
                sum(&data),
                sum(&data[..100]),
                sum(&data[100..700]),
                Answer::Unreadable,
                Answer::Unreadable,
                sum(b""),
                Answer::Unreadable,
            ]
        );
        assert!(!server.has_open());
        Ok(())
    }

    /// A temporary that gets its name while it is asked for.
    #[test]
    fn a_file_is_found_under_either_name() -> std::io::Result<()> {
        let dir = tempfile::tempdir()?;
        let [before, later] = ["before", "later"].map(|name| dir.path().join(name));
        let export = Export::everything(Access::default());
        let mut server = Server::new(&export);
        let mut ours = Ours::new();
        let mut ask = question(&before, (0, 3), 3);
        ask.later = Some(later.as_os_str().as_encoded_bytes().to_vec());
        fs::write(&later, b"old")?;
        fs::write(&before, b"new")?;
        ours.ask(&ask);
        assert_eq!(
            answers(&mut ours, &mut server),
            [Answer::Program(OURS), sum(b"new")]
        );
        fs::rename(&before, &later)?;
        ours.ask(&ask);
        assert_eq!(answers(&mut ours, &mut server), [sum(b"new")]);
        fs::remove_file(&later)?;
        ours.ask(&ask);
        assert_eq!(answers(&mut ours, &mut server), [Answer::Unreadable]);
        assert!(!server.has_open());
        Ok(())
    }

    #[test]
    fn what_is_no_longhaul_is_told_apart() {
        let version = [&[0, 0, 0, 5, VERSION][..], &[0, 0, 0, 3]].concat();
        for said in [&version[..], b"\nlonghaul-absent Linux x86_64\n"] {
            assert!(Ours::new().receive(Bytes::copy_from_slice(said)).is_err());
        }
        let mut ours = Ours::new();
        for byte in [b"Hi".as_slice(), b"!\nlonghaul-serves 1 0.1\n"] {
            assert_eq!(ours.receive(Bytes::copy_from_slice(byte)), Ok(()));
        }
        assert_eq!(ours.next(), None, "VERSION is still to come");
        assert!(ours.receive(Bytes::from(version)).is_err());
    }
}
