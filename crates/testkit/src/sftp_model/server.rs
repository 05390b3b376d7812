use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use sftp::{
    Init, OPENSSH_EXTENSIONS, OUR_EXTENSIONS, Piece, Request, RequestId, Response, Splitter,
    StatusCode, StatusText, TreeStep, Version, frame,
};
use wire::{Field, Rest};

use super::handles::Handles;
use super::{Act, Fs, HandleStyle, Inject, Rng};

/// Which server it is.
#[derive(Clone, Debug)]
pub struct Personality {
    /// Announced extensions, name and data.
    pub extensions: Vec<(Vec<u8>, Vec<u8>)>,
    /// What its handles look like.
    pub handles: HandleStyle,
    /// Bytes a READ answers at most, whatever was asked.
    pub read: u32,
    /// Bytes that a WRITE may carry.
    pub write: u32,
    /// SYMLINK's arguments in the draft's order.
    pub draft_symlink: bool,
    /// Answers to what arrives together leave in any order, as the draft allows (section 7).
    pub shuffles: bool,
    /// FSETSTAT and SETSTAT are not supported.
    pub no_setstat: bool,
    /// What it refuses or does not bear.
    pub restrictions: Restrictions,
}

/// Restrictions of servers that are not OpenSSH's, or that an administrator has set.
#[derive(Clone, Debug, Default)]
pub struct Restrictions {
    /// Requests that are refused whatever they say, by name ([`sftp::Request::name`]).
    pub refused: BTreeMap<&'static str, StatusCode>,
    /// Answer to OPEN with the flag EXCL.
    pub exclusive: Option<StatusCode>,
    /// Names that end otherwise are not created, and the answer to who tries.
    pub suffix: Option<(&'static str, StatusCode)>,
    /// WRITE takes only the next byte of a file.
    pub in_order: bool,
    /// A file that is open cannot be opened.
    pub locks: bool,
}

impl Personality {
    /// OpenSSH 9.2.
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
            restrictions: Restrictions::default(),
        }
    }

    /// `longhaul serve`, which answers as OpenSSH does and has extensions of its own.
    pub fn ours() -> Self {
        let own = OUR_EXTENSIONS.iter();
        let own = own.map(|(n, d)| (n.as_bytes().to_vec(), d.as_bytes().to_vec()));
        let mut ours = Self::openssh();
        ours.extensions.extend(own);
        ours.write = 1 << 20;
        ours
    }

    /// A server without extensions, with long random handles, that answers READs with at most
    /// 64 KiB.
    pub fn other() -> Self {
        Self {
            extensions: Vec::new(),
            handles: HandleStyle::Random(32),
            read: 64 * 1024,
            write: 255 * 1024,
            draft_symlink: true,
            shuffles: false,
            no_setstat: false,
            restrictions: Restrictions::default(),
        }
    }
}

type Change = Box<dyn FnOnce(&mut Fs) + Send>;

/// The server. Bytes in with [`SftpModel::handle_input`], bytes out with
/// [`SftpModel::take_output`].
pub struct SftpModel {
    /// What it serves.
    pub fs: Fs,
    /// Its sums are those of other blocks.
    pub lies_about_sums: bool,
    /// What it has packed unpacks to less than it says.
    pub lies_about_lengths: bool,
    /// Bytes that copy-data has copied.
    pub copied: u64,
    /// Bytes of each WRITE, if there were data.
    pub writes: Vec<usize>,
    /// Bytes of files that came or went packed.
    pub packed: u64,
    pub(super) personality: Personality,
    splitter: Splitter,
    greeted: bool,
    pub(super) handles: Handles,
    pub(super) out: Vec<u8>,
    injects: Vec<(Inject, usize)>,
    changes: Vec<(usize, Change)>,
    pub(super) hostile: Vec<Vec<u8>>,
    pub(super) trees: BTreeMap<u32, VecDeque<TreeStep>>,
    /// Of them, those whose answers may be packed.
    pub(super) packed_trees: BTreeSet<u32>,
    /// Listings never end: names are numbered, and begin anew after so many.
    pub endless_names: Option<u64>,
    /// Names that were listed without end.
    pub named: u64,
    /// READs are answered in full wherever they begin.
    pub endless_data: bool,
    /// Bytes that get-file answers more than it was asked for.
    pub excess: u64,
    log: Vec<&'static str>,
    pub(super) most_open: usize,
    /// The next byte of each file that is written, where the server takes data in order only.
    pub(super) next_write: BTreeMap<Vec<u8>, u64>,
    rng: Rng,
}

impl SftpModel {
    /// A server that has just been started.
    pub fn new(fs: Fs, personality: Personality) -> Self {
        Self {
            fs,
            lies_about_sums: false,
            lies_about_lengths: false,
            copied: 0,
            writes: Vec::new(),
            packed: 0,
            splitter: Splitter::new(longest(&personality)),
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
            excess: 0,
            log: Vec::new(),
            most_open: 0,
            next_write: BTreeMap::new(),
            rng: Rng::new(5),
        }
    }

    /// Lets a request go wrong.
    pub fn inject(&mut self, inject: Inject) {
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

    /// The client comes again on a new channel.
    pub fn reconnect(&mut self) {
        self.splitter = Splitter::new(longest(&self.personality));
        self.greeted = false;
        self.handles = Handles::new(self.personality.handles);
        self.trees.clear();
        self.out.clear();
    }

    /// The requests so far, by name.
    pub fn log(&self) -> &[&'static str] {
        &self.log
    }

    /// Whether it has extensions of ours.
    pub fn is_ours(&self) -> bool {
        let (name, _) = OUR_EXTENSIONS[0];
        let mut all = self.personality.extensions.iter();
        all.any(|(n, _)| n == name.as_bytes())
    }

    /// Trees that are being listed.
    pub fn open_trees(&self) -> usize {
        self.trees.len()
    }

    /// Handles that are open now, and the most there ever were.
    pub fn open_handles(&self) -> (usize, usize) {
        (self.handles.len(), self.most_open)
    }

    /// Takes bytes of the client; panics when it breaks the protocol.
    pub fn handle_input(&mut self, bytes: &[u8]) {
        let mut input = Bytes::copy_from_slice(bytes);
        let mut answers: Vec<Vec<u8>> = Vec::new();
        let before = std::mem::take(&mut self.out);
        while let Some(piece) = self.splitter.next(&mut input).expect("sound lengths") {
            if let Piece::Message(message) = piece {
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

    /// What it answers.
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
                extensions: Rest(&pairs),
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
                // close(2) lets go of the descriptor even where it reports an error.
                if let Request::Close { handle } = request {
                    self.handles.remove(handle);
                }
                self.status(id, code);
            }
            Some(Act::Reply(body)) => {
                self.say(id, &Response::ExtendedReply { body: Rest(&body) });
            }
            Some(Act::Silence) => {}
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

    /// What `write` appends is the answer.
    pub(super) fn say_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.out);
    }
}

/// Changes the answer that begins at `start`.
fn spoil(out: &mut Vec<u8>, start: usize, act: &Act) {
    match act {
        Act::OtherHandle => {
            // Length, number, id, length of the handle; then its last byte. Far off, so that it is
            // no other open file's: data for that would be data for this, to any client.
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
        Act::Status(_) | Act::Reply(_) | Act::OtherId | Act::Silence => {}
    }
}

/// The longest message.
fn longest(personality: &Personality) -> u32 {
    personality.write + 1024
}
