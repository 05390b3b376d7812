//! `scp -f`: sends files.

use std::collections::VecDeque;
use std::io::IoSliceMut;

use bytes::Bytes;
use sftp::{Attrs, OpenFlags, Request};

use super::files::{FileError, ScpFileOps, UnsuitableReason};
use super::{ScpClientReply, ScpFlags, joined, take_line};
use crate::sftp::LONGEST_DATA;

/// Longest path in a tree that is sent.
const LONGEST_PATH: usize = 4096;
/// Maximum bytes of names that wait while a tree is walked.
const MOST_WAITING: usize = 32 << 20;

/// State of `scp -f`: the paths and directories still to be sent, and the file that is being sent.
pub(super) struct ScpSource {
    how: ScpFlags,
    /// Remaining steps, the next one last.
    steps: Vec<ScpSourceStep>,
    /// Bytes of the names in `steps`.
    waiting: usize,
    line: Vec<u8>,
    state: ScpSourceState,
}

/// Entry to send: a path, or a directory with the names in it that are left.
enum ScpSourceStep {
    Path(Vec<u8>),
    Directory {
        path: Vec<u8>,
        handle: Vec<u8>,
        names: VecDeque<Vec<u8>>,
    },
}

/// Next action of the source; scp's protocol lets the client acknowledge each line and each file.
enum ScpSourceState {
    /// Takes the next step.
    Next,
    /// Waits for the client's answer.
    AwaitReply(NextAction),
    Data(OutgoingFile),
    Finished,
}

/// Action after the client's answer.
enum NextAction {
    /// Take the next step.
    Next,
    /// Send the line of an entry whose times were sent.
    Entry(ScpSourceItem),
    /// Send the contents of an entry.
    Content(ScpSourceItem),
}

/// An open file or directory to be sent.
struct ScpSourceItem {
    path: Vec<u8>,
    handle: Vec<u8>,
    attrs: Attrs,
}

/// File whose bytes are being sent. After an error the announced length is filled with zeros, and
/// the error follows.
struct OutgoingFile {
    item: ScpSourceItem,
    at: u64,
    size: u64,
    trouble: Option<String>,
}

impl ScpSource {
    pub(super) fn new(how: ScpFlags, paths: Vec<Vec<u8>>) -> Self {
        let steps = paths.into_iter().rev().map(|mut path| {
            // As in OpenSSH, trailing slashes are dropped, even from a file's name.
            while path.len() > 1 && path.ends_with(b"/") {
                path.pop();
            }
            ScpSourceStep::Path(path)
        });
        let steps = steps.collect();
        Self {
            how,
            steps,
            waiting: 0,
            line: Vec::new(),
            state: ScpSourceState::AwaitReply(NextAction::Next),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, ScpSourceState::Finished)
    }

    /// True if there is work that does not need the client's answer.
    pub(super) fn has_more(&self) -> bool {
        matches!(self.state, ScpSourceState::Next | ScpSourceState::Data(_))
    }

    /// Takes one step; false if the client must answer first.
    pub(super) fn turn(&mut self, received: &mut Bytes, files: &mut ScpFileOps<'_>) -> bool {
        self.state = match std::mem::replace(&mut self.state, ScpSourceState::Next) {
            ScpSourceState::Next => self.step(files),
            ScpSourceState::Data(outgoing) => outgoing.give(files),
            ScpSourceState::AwaitReply(then) => match self.hear(received) {
                None => {
                    self.state = ScpSourceState::AwaitReply(then);
                    return false;
                }
                Some(ScpClientReply::Ready) => self.go_on(then, files),
                Some(ScpClientReply::Failed) => {
                    files.fail();
                    match then {
                        NextAction::Next => {}
                        NextAction::Entry(item) | NextAction::Content(item) => item.close(files),
                    }
                    ScpSourceState::Next
                }
                Some(ScpClientReply::Closed) => {
                    files.fail();
                    ScpSourceState::Finished
                }
            },
            ScpSourceState::Finished => ScpSourceState::Finished,
        };
        true
    }

    /// Reads the client's answer: a byte, or an error line.
    fn hear(&mut self, received: &mut Bytes) -> Option<ScpClientReply> {
        if self.line.is_empty() {
            match received.first()? {
                0 => {
                    let _ = received.split_to(1);
                    return Some(ScpClientReply::Ready);
                }
                1 => {}
                _ => return Some(ScpClientReply::Closed),
            }
        }
        match take_line(received, &mut self.line) {
            Ok(false) => None,
            Ok(true) => {
                self.line.clear();
                Some(ScpClientReply::Failed)
            }
            Err(()) => Some(ScpClientReply::Closed),
        }
    }

    fn go_on(&mut self, then: NextAction, files: &mut ScpFileOps<'_>) -> ScpSourceState {
        match then {
            NextAction::Next => ScpSourceState::Next,
            NextAction::Entry(item) => item.announce(files),
            NextAction::Content(item) if item.attrs.is_dir() => {
                let ScpSourceItem { path, handle, .. } = item;
                let names = VecDeque::new();
                self.steps.push(ScpSourceStep::Directory {
                    path,
                    handle,
                    names,
                });
                ScpSourceState::Next
            }
            NextAction::Content(item) => ScpSourceState::Data(OutgoingFile {
                size: item.size(),
                item,
                at: 0,
                trouble: None,
            }),
        }
    }

    fn step(&mut self, files: &mut ScpFileOps<'_>) -> ScpSourceState {
        let path = match self.steps.pop() {
            None => return ScpSourceState::Finished,
            Some(ScpSourceStep::Path(path)) => path,
            Some(ScpSourceStep::Directory {
                path,
                handle,
                mut names,
            }) => {
                if names.is_empty() {
                    match files.names(Request::Readdir { handle: &handle }) {
                        Ok(more) => {
                            self.waiting += more.iter().map(Vec::len).sum::<usize>();
                            names = more.into();
                        }
                        Err(refused) => files.complain(&path, refused),
                    }
                    if names.is_empty() {
                        // The handle was only read.
                        let _ = files.done(Request::Close { handle: &handle });
                        files.out().bytes().extend_from_slice(b"E\n");
                        return ScpSourceState::AwaitReply(NextAction::Next);
                    }
                }
                let name = names.pop_front().unwrap_or_default();
                self.waiting -= name.len();
                let next = joined(&path, &name);
                self.steps.push(ScpSourceStep::Directory {
                    path,
                    handle,
                    names,
                });
                if name == b"." || name == b".." {
                    return ScpSourceState::Next;
                }
                next
            }
        };
        match self.begin(&path, files) {
            Ok(state) => state,
            Err(refused) => {
                files.complain(&path, refused);
                ScpSourceState::Next
            }
        }
    }

    /// Opens an entry and sends its times, if requested, or its line.
    fn begin(&self, path: &[u8], files: &mut ScpFileOps<'_>) -> Result<ScpSourceState, FileError> {
        if path.len() > LONGEST_PATH {
            return Err(UnsuitableReason::LongPath.into());
        }
        if path.contains(&b'\n') {
            return Err(UnsuitableReason::Newline.into());
        }
        let attrs = files.attrs(Request::Stat { path })?;
        let kind = attrs.permissions.unwrap_or_default() & 0o170_000;
        let open = match kind {
            0o100_000 => Request::Open {
                path,
                flags: OpenFlags::READ,
                attrs: Attrs::default(),
            },
            0o040_000 if self.how.trees && self.waiting > MOST_WAITING => {
                return Err(UnsuitableReason::DeepTree.into());
            }
            0o040_000 if self.how.trees => Request::Opendir { path },
            _ => return Err(UnsuitableReason::NotRegular.into()),
        };
        let handle = files.handle(open)?;
        // Use the attributes of the opened file, since the name may have changed its file.
        let attrs = files.attrs(Request::Fstat { handle: &handle });
        let is_kind = |attrs: &Attrs| attrs.permissions.is_some_and(|p| p & 0o170_000 == kind);
        let Some(attrs) = attrs.ok().filter(is_kind) else {
            // The handle was only read.
            let _ = files.done(Request::Close { handle: &handle });
            return Err(UnsuitableReason::NotRegular.into());
        };
        let path = path.to_vec();
        let item = ScpSourceItem {
            path,
            handle,
            attrs,
        };
        if let (true, Some((accessed, modified))) = (self.how.times, item.attrs.times) {
            let line = format!("T{modified} 0 {accessed} 0\n");
            files.out().bytes().extend_from_slice(line.as_bytes());
            return Ok(ScpSourceState::AwaitReply(NextAction::Entry(item)));
        }
        Ok(item.announce(files))
    }
}

impl ScpSourceItem {
    fn size(&self) -> u64 {
        match self.attrs.is_dir() {
            true => 0,
            false => self.attrs.size.unwrap_or_default(),
        }
    }

    /// Sends the line of an entry: type, mode, size and name.
    fn announce(self, files: &mut ScpFileOps<'_>) -> ScpSourceState {
        let kind = if self.attrs.is_dir() { 'D' } else { 'C' };
        let mode = self.attrs.permissions.unwrap_or_default() & 0o7777;
        let line = format!("{kind}{mode:04o} {} ", self.size());
        let out = files.out().bytes();
        out.extend_from_slice(line.as_bytes());
        let name = self
            .path
            .rsplit(|b| *b == b'/')
            .find(|name| !name.is_empty());
        out.extend_from_slice(name.unwrap_or(b"."));
        out.push(b'\n');
        ScpSourceState::AwaitReply(NextAction::Content(self))
    }

    fn close(self, files: &mut ScpFileOps<'_>) {
        // The handle was only read.
        let _ = files.done(Request::Close {
            handle: &self.handle,
        });
    }
}

impl OutgoingFile {
    /// Sends the next piece of a file or, at its end, the status.
    fn give(mut self, files: &mut ScpFileOps<'_>) -> ScpSourceState {
        let left = self.size - self.at;
        if left == 0 {
            match &self.trouble {
                None => files.out().bytes().push(0),
                Some(why) => files.complain(&self.item.path, why),
            }
            self.item.close(files);
            return ScpSourceState::AwaitReply(NextAction::Next);
        }
        let most = LONGEST_DATA as usize;
        let len = usize::try_from(left).map_or(most, |left| left.min(most));
        let mut block = files.out().block(len);
        let slices = block.grow(len).into_iter();
        let mut slices: Vec<IoSliceMut<'_>> = slices.map(IoSliceMut::new).collect();
        let read = match self.trouble {
            None => files.read_to(&self.item.handle, self.at, &mut slices),
            Some(_) => Ok(0),
        };
        let mut sent = len;
        match read {
            Ok(n) if n > 0 => sent = n,
            // All announced bytes must be sent; pad with zeros.
            done => {
                slices.iter_mut().for_each(|slice| slice.fill(0));
                let why = match done {
                    Ok(_) => "the file shrank while it was being read".to_owned(),
                    Err(refused) => refused.to_string(),
                };
                self.trouble.get_or_insert(why);
            }
        }
        drop(slices);
        block.truncate(sent);
        files.out().push(block);
        self.at += sent as u64;
        ScpSourceState::Data(self)
    }
}
