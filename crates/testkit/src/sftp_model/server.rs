use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use sftp::{
    ExpectedEntry, Init, MessageSplitter, MessageSplitterOutput, OPENSSH_EXTENSIONS,
    OUR_EXTENSIONS, Request, RequestId, Response, StatusCode, StatusText, TreeRecord, Version,
    frame,
};
use wire::{Field, RemainingBytes};

use super::handles::Handles;
use super::{Act, Fs, HandleStyle, InjectedFault, Rng};

/// Properties of a server implementation that the SFTP model imitates.
#[derive(Clone, Debug)]
pub struct SftpServerProfile {
    /// Extensions that the server announces, as name and data.
    pub extensions: Vec<(Vec<u8>, Vec<u8>)>,
    /// Form of its handles.
    pub handles: HandleStyle,
    /// Maximum number of bytes in the answer to a READ.
    pub read: u32,
    /// Maximum number of bytes in a WRITE.
    pub write: u32,
    /// SYMLINK has its arguments in the draft's order.
    pub draft_symlink: bool,
    /// Answers to requests that arrive together leave in any order, as the draft allows (section
    /// 7).
    pub shuffles: bool,
    /// FSETSTAT and SETSTAT are not supported.
    pub no_setstat: bool,
    /// Requests that the server refuses or does not support.
    pub restrictions: ModelServerRestrictions,
}

/// Restrictions of servers other than OpenSSH's, or set by an administrator.
#[derive(Clone, Debug, Default)]
pub struct ModelServerRestrictions {
    /// Types of requests that are always refused, by name ([`sftp::Request::name`]).
    pub refused: BTreeMap<&'static str, StatusCode>,
    /// Answer to OPEN with the flag EXCL.
    pub exclusive: Option<StatusCode>,
    /// Suffix that new names must have, and the answer to others.
    pub suffix: Option<(&'static str, StatusCode)>,
    /// WRITE accepts only the next byte of a file.
    pub in_order: bool,
    /// An open file cannot be opened again.
    pub locks: bool,
}

impl SftpServerProfile {
    /// Returns the behavior of OpenSSH 9.2.
    pub fn openssh() -> Self {
        Self {
            extensions: OPENSSH_EXTENSIONS
                .iter()
                .map(|(n, d)| (n.as_bytes().to_vec(), d.as_bytes().to_vec()))
                .collect(),
            handles: HandleStyle::OpenSsh,
            read: 255 * 1024,
            write: 255 * 1024,
            draft_symlink: false,
            shuffles: false,
            no_setstat: false,
            restrictions: ModelServerRestrictions::default(),
        }
    }

    /// Returns the behavior of `longhaul serve`: that of OpenSSH, with extensions of its own.
    pub fn ours() -> Self {
        let own = OUR_EXTENSIONS.iter();
        let own = own.map(|(n, d)| (n.as_bytes().to_vec(), d.as_bytes().to_vec()));
        let mut ours = Self::openssh();
        ours.extensions.extend(own);
        ours.write = 1 << 20;
        ours
    }

    /// Returns the behavior of a server without extensions, with long random handles, that answers
    /// READs with at most 64 KiB.
    pub fn other() -> Self {
        Self {
            extensions: Vec::new(),
            handles: HandleStyle::Random(32),
            read: 64 * 1024,
            write: 255 * 1024,
            draft_symlink: true,
            shuffles: false,
            no_setstat: false,
            restrictions: ModelServerRestrictions::default(),
        }
    }
}

type Change = Box<dyn FnOnce(&mut Fs) + Send>;

/// Model of an SFTP server. Input goes to [`SftpModel::handle_input`], and output comes from
/// [`SftpModel::take_output`].
pub struct SftpModel {
    /// File system that it serves.
    pub fs: Fs,
    /// Checksums in its answers are those of other blocks.
    pub lies_about_sums: bool,
    /// Compressed data in its answers decompresses to less than announced.
    pub lies_about_lengths: bool,
    /// Bytes copied by copy-data.
    pub copied: u64,
    /// Size of each WRITE that had data.
    pub writes: Vec<usize>,
    /// Bytes of files that were transferred compressed.
    pub packed: u64,
    pub(super) personality: SftpServerProfile,
    splitter: MessageSplitter,
    greeted: bool,
    pub(super) handles: Handles,
    pub(super) out: Vec<u8>,
    injects: Vec<(InjectedFault, usize)>,
    changes: Vec<(usize, Change)>,
    pub(super) hostile: Vec<Vec<u8>>,
    pub(super) trees: BTreeMap<u32, VecDeque<TreeRecord>>,
    /// Trees among them whose answers may be compressed.
    pub(super) packed_trees: BTreeSet<u32>,
    /// Listings never end: names are numbered, and repeat after this many.
    pub endless_names: Option<u64>,
    /// Number of names listed without end.
    pub named: u64,
    /// READs at any offset are answered in full.
    pub endless_data: bool,
    /// READs that may report holes are answered by a hole of this length at any offset.
    pub endless_holes: Option<u64>,
    /// Bytes that get-file returns beyond those requested.
    pub excess: u64,
    /// Number of bytes after which get-file cuts the data.
    pub cut_at: Option<usize>,
    /// Entries that requests expected.
    pub expected: Vec<ExpectedEntry>,
    log: Vec<&'static str>,
    pub(super) most_open: usize,
    /// Next byte of each file being written, if the server accepts data in order only.
    pub(super) next_write: BTreeMap<Vec<u8>, u64>,
    rng: Rng,
}

impl SftpModel {
    /// Creates a server that has just been started.
    pub fn new(fs: Fs, personality: SftpServerProfile) -> Self {
        Self {
            fs,
            lies_about_sums: false,
            lies_about_lengths: false,
            copied: 0,
            writes: Vec::new(),
            packed: 0,
            splitter: MessageSplitter::new(longest(&personality)),
            greeted: false,
            handles: Handles::new(personality.handles),
            personality,
            out: Vec::new(),
            injects: Vec::new(),
            changes: Vec::new(),
            hostile: Vec::new(),
            trees: BTreeMap::new(),
            packed_trees: BTreeSet::new(),
            endless_names: None,
            named: 0,
            endless_data: false,
            endless_holes: None,
            excess: 0,
            cut_at: None,
            log: Vec::new(),
            expected: Vec::new(),
            most_open: 0,
            next_write: BTreeMap::new(),
            rng: Rng::new(5),
        }
    }

    /// Injects a fault into a request.
    pub fn inject(&mut self, inject: InjectedFault) {
        self.injects.push((inject, 0));
    }

    /// Changes the file system right before the `nth` request.
    pub fn change_before(&mut self, nth: usize, change: impl FnOnce(&mut Fs) + Send + 'static) {
        self.changes.push((nth, Box::new(change)));
    }

    /// Adds names to every listing.
    pub fn add_hostile_names(&mut self, names: &[&[u8]]) {
        self.hostile.extend(names.iter().map(|n| n.to_vec()));
    }

    /// Starts a new channel of the same client.
    pub fn reconnect(&mut self) {
        self.splitter = MessageSplitter::new(longest(&self.personality));
        self.greeted = false;
        self.handles = Handles::new(self.personality.handles);
        self.trees.clear();
        self.out.clear();
    }

    /// Returns the requests so far, by name.
    pub fn log(&self) -> &[&'static str] {
        &self.log
    }

    /// Reports if the server has longhaul's extensions.
    pub fn is_ours(&self) -> bool {
        let (name, _) = OUR_EXTENSIONS[0];
        let mut all = self.personality.extensions.iter();
        all.any(|(n, _)| n == name.as_bytes())
    }

    /// Returns the number of trees being listed.
    pub fn open_trees(&self) -> usize {
        self.trees.len()
    }

    /// Returns the number of open handles, and the highest number so far.
    pub fn open_handles(&self) -> (usize, usize) {
        (self.handles.len(), self.most_open)
    }

    /// Takes bytes of the client; panics if the client violates the protocol.
    pub fn handle_input(&mut self, bytes: &[u8]) {
        let mut input = Bytes::copy_from_slice(bytes);
        let mut answers: Vec<Vec<u8>> = Vec::new();
        let before = std::mem::take(&mut self.out);
        while let Some(piece) = self.splitter.next(&mut input).expect("sound lengths") {
            if let MessageSplitterOutput::Message(message) = piece {
                self.message(&message);
                answers.push(std::mem::take(&mut self.out));
            }
        }
        self.out = before;
        while !answers.is_empty() {
            let next = match self.personality.shuffles {
                true => self.rng.below(answers.len() as u64) as usize,
                false => 0,
            };
            self.out.extend(answers.remove(next));
        }
    }

    /// Returns the pending output.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    fn message(&mut self, message: &[u8]) {
        if !self.greeted {
            let init = Init::decode(message).expect("INIT comes first");
            assert_eq!(init.version, 3);
            self.greeted = true;
            let mut pairs = Vec::new();
            for (name, data) in &self.personality.extensions {
                name.as_slice().write(&mut pairs);
                data.as_slice().write(&mut pairs);
            }
            let version = Version {
                version: 3,
                extensions: RemainingBytes(&pairs),
            };
            frame(&mut self.out, |out| version.encode(out));
            return;
        }
        let (id, request) = Request::decode(message).expect("a sound request");
        let number = self.log.len();
        self.log.push(request.name());
        while let Some(at) = self.changes.iter().position(|(n, _)| *n == number) {
            let (_, change) = self.changes.remove(at);
            change(&mut self.fs);
        }
        match self.act(request.name()) {
            None => self.answer(id, request),
            Some(Act::Status(code)) => {
                // close(2) releases the descriptor even if it reports an error.
                if let Request::Close { handle } = request {
                    self.handles.remove(handle);
                }
                self.status(id, code);
            }
            Some(Act::Full) => {
                if let Request::Close { handle } = request {
                    self.handles.remove(handle);
                }
                self.status_with(id, StatusCode::FAILURE, b"No space left on device");
            }
            Some(Act::Reply(body)) => {
                self.say(
                    id,
                    &Response::ExtendedReply {
                        body: RemainingBytes(&body),
                    },
                );
            }
            Some(Act::Data(data)) => self.say(id, &Response::Data { data: &data }),
            Some(Act::Silence) => {}
            Some(Act::Denied(code)) => {
                let start = self.out.len();
                self.answer(id, request);
                self.out.truncate(start);
                self.status(id, code);
            }
            Some(Act::OtherId) => self.answer(RequestId(id.0 ^ 0x4000_0000), request),
            Some(act) => {
                let start = self.out.len();
                self.answer(id, request);
                spoil(&mut self.out, start, &act);
            }
        }
    }

    fn act(&mut self, name: &str) -> Option<Act> {
        let mut found = None;
        for (inject, seen) in &mut self.injects {
            if inject.kind.is_none_or(|k| k == name) {
                if *seen == inject.nth {
                    found = Some(inject.act.clone());
                }
                *seen += 1;
            }
        }
        found
    }

    fn answer(&mut self, id: RequestId, request: Request<'_>) {
        if let Some(code) = self.personality.restrictions.refused.get(request.name()) {
            return self.status(id, *code);
        }
        match self.serve(id, request) {
            Ok(()) => {}
            Err(code) => self.status(id, code),
        }
    }

    fn status(&mut self, id: RequestId, code: StatusCode) {
        let message: &[u8] = match code {
            StatusCode::OK => b"Success",
            StatusCode::EOF => b"End of file",
            StatusCode::NO_SUCH_FILE => b"No such file",
            StatusCode::PERMISSION_DENIED => b"Permission denied",
            _ => b"Failure",
        };
        self.status_with(id, code, message);
    }

    pub(super) fn status_with(&mut self, id: RequestId, code: StatusCode, message: &[u8]) {
        self.say(
            id,
            &Response::Status {
                code,
                text: StatusText { message },
            },
        );
    }

    pub(super) fn say(&mut self, id: RequestId, response: &Response<'_>) {
        response.encode(id, &mut self.out);
    }

    /// Appends an answer to the output.
    pub(super) fn say_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.out);
    }
}

/// Corrupts the answer that begins at `start`.
fn spoil(out: &mut Vec<u8>, start: usize, act: &Act) {
    match act {
        Act::OtherHandle => {
            // Layout: length, type, id, length of the handle, handle. The top bit of the last byte
            // is flipped, so that the handle is far from all others: a client could not tell data
            // for another open file from its own.
            if let (true, Some(last)) = (out.get(start + 4) == Some(&102), out.last_mut()) {
                *last ^= 0x80;
            }
        }
        Act::Truncated => {
            out.pop();
            let len = (out.len() - start - 4) as u32;
            out[start..start + 4].copy_from_slice(&len.to_be_bytes());
        }
        Act::Length(len) => out[start..start + 4].copy_from_slice(&len.to_be_bytes()),
        Act::Status(_)
        | Act::Denied(_)
        | Act::Full
        | Act::Reply(_)
        | Act::Data(_)
        | Act::OtherId
        | Act::Silence => {}
    }
}

/// Maximum length of a message, in bytes.
fn longest(personality: &SftpServerProfile) -> u32 {
    personality.write + 1024
}
