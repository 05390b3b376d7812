use std::collections::BTreeMap;

use bytes::Bytes;
use sftp::{Piece, Request, Response, Splitter, StatusCode};

/// Watches both directions at the client's end and holds the client to two rules: a rename to
/// the final name leaves only after every earlier request of that file was answered, and not
/// when OPEN, a WRITE, fsync or CLOSE failed; and no OPEN leaves on a predicted handle while
/// another file is open.
#[derive(Debug)]
pub struct Witness {
    sent: Splitter,
    received: Splitter,
    greetings: (bool, bool),
    files: BTreeMap<Vec<u8>, File>,
    requests: BTreeMap<u32, (Vec<u8>, bool)>,
    opening: Vec<(u32, Vec<u8>)>,
    handles: BTreeMap<Vec<u8>, Vec<u8>>,
    most_open: usize,
    renames: usize,
    renamed: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct File {
    unanswered: usize,
    failed: bool,
}

impl Default for Witness {
    fn default() -> Self {
        Self {
            sent: Splitter::new(2 << 20),
            received: Splitter::new(1 << 20),
            greetings: (false, false),
            files: BTreeMap::new(),
            requests: BTreeMap::new(),
            opening: Vec::new(),
            handles: BTreeMap::new(),
            most_open: 0,
            renames: 0,
            renamed: Vec::new(),
        }
    }
}

impl Witness {
    /// Bytes leave the client. Panics when a rename leaves too early.
    pub fn on_sent(&mut self, bytes: &[u8]) {
        let mut input = Bytes::copy_from_slice(bytes);
        while let Some(piece) = self.sent.next(&mut input).expect("sound lengths") {
            let Piece::Message(message) = piece else {
                continue;
            };
            if !std::mem::replace(&mut self.greetings.0, true) {
                continue;
            }
            let (id, request) = Request::decode(&message).expect("a sound request");
            self.request(id.0, &request);
        }
    }

    /// Bytes reach the client.
    pub fn on_received(&mut self, bytes: &[u8]) {
        let mut input = Bytes::copy_from_slice(bytes);
        // What a broken server sends is the client's to judge.
        while let Ok(Some(piece)) = self.received.next(&mut input) {
            let Piece::Message(message) = piece else {
                continue;
            };
            if !std::mem::replace(&mut self.greetings.1, true) {
                continue;
            }
            if let Ok((id, response)) = Response::decode(&message) {
                self.response(id.0, &response);
            }
        }
    }

    /// Renames that have left.
    pub fn renames(&self) -> usize {
        self.renames
    }

    /// The names that renames have given up, since the last call: to be held against what other
    /// channels have under way.
    pub fn take_renamed(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.renamed)
    }

    /// Requests about `path`, or a handle of it, that are not answered.
    pub fn unanswered(&self, path: &[u8]) -> usize {
        let open = self.handles.values().filter(|open| *open == path).count();
        self.files.get(path).map_or(0, |f| f.unanswered) + open
    }

    /// The most files open or opening at once, as the client sent it.
    pub fn most_open(&self) -> usize {
        self.most_open
    }

    fn request(&mut self, id: u32, request: &Request<'_>) {
        let (path, matters) = match *request {
            Request::Open { path, .. } => {
                let file = self.files.entry(path.to_vec()).or_default();
                // The same file may be opened again while answers of the first time are out.
                if file.unanswered == 0 {
                    *file = File::default();
                }
                self.opening.push((id, path.to_vec()));
                let open = self.opening.len() + self.handles.len();
                self.most_open = self.most_open.max(open);
                (path.to_vec(), true)
            }
            // A directory's handle must not be taken for that of a file being opened, nor its CLOSE
            // for that file's, which may leave before the handle is there.
            Request::Opendir { path } => {
                self.opening.push((id, path.to_vec()));
                return;
            }
            Request::Write { handle, .. } | Request::Fsync { handle } => (self.file(handle), true),
            Request::Fsetstat { handle, .. } | Request::Fstat { handle } => {
                (self.file(handle), false)
            }
            Request::Close { handle } => {
                let file = self.file(handle);
                // A predicted handle is that of the last OPEN; others of the same file go on.
                if self.handles.remove(handle).is_none() {
                    self.opening.pop();
                }
                (file, true)
            }
            Request::Setstat { path, .. } => (path.to_vec(), false),
            Request::Rename { from, to } | Request::PosixRename { from, to } => {
                self.rename(from, to);
                return;
            }
            // Of the file that is to be named so.
            Request::Lstat { path } => (path.to_vec(), false),
            _ => return,
        };
        self.files.entry(path.clone()).or_default().unanswered += 1;
        self.requests.insert(id, (path, matters));
    }

    /// The file a handle stands for; one that no answer has named yet is that of the last OPEN.
    fn file(&self, handle: &[u8]) -> Vec<u8> {
        let known = self.handles.get(handle);
        let last = self.opening.last().map(|(_, path)| path);
        known.or(last).cloned().unwrap_or_default()
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) {
        self.renames += 1;
        self.renamed.push(from.to_vec());
        for path in [from, to] {
            let name = String::from_utf8_lossy(path);
            if let Some(file) = self.files.get(path) {
                assert_eq!(
                    file.unanswered, 0,
                    "rename left with requests of {name} unanswered"
                );
                assert!(!file.failed, "rename left though {name} had failed");
            }
        }
    }

    fn response(&mut self, id: u32, response: &Response<'_>) {
        if let Response::Handle { handle } = response
            && let Some(at) = self.opening.iter().position(|(open, _)| *open == id)
        {
            let (_, path) = self.opening.remove(at);
            self.handles.insert(handle.to_vec(), path);
        }
        let failed = matches!(response, Response::Status { code, .. } if *code != StatusCode::OK);
        if failed {
            self.opening.retain(|(open, _)| *open != id);
        }
        let Some((path, matters)) = self.requests.remove(&id) else {
            return;
        };
        let file = self.files.entry(path).or_default();
        file.unanswered = file.unanswered.saturating_sub(1);
        file.failed |= failed && matters;
    }
}
