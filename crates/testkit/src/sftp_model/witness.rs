use std::collections::BTreeMap;

use bytes::Bytes;
use sftp::{MessageSplitter, MessageSplitterOutput, Request, Response, StatusCode};

/// Observes both directions at the client's end and enforces two rules. A rename to the final name
/// leaves only after every earlier request for that file was answered, and not if OPEN, a WRITE,
/// fsync or CLOSE has failed. No OPEN leaves on a predicted handle while another file is open.
#[derive(Debug)]
pub struct Witness {
    sent: MessageSplitter,
    received: MessageSplitter,
    greetings: (bool, bool),
    files: BTreeMap<Vec<u8>, WitnessedFile>,
    requests: BTreeMap<u32, (Vec<u8>, bool)>,
    opening: Vec<(u32, Vec<u8>)>,
    handles: BTreeMap<Vec<u8>, Vec<u8>>,
    most_open: usize,
    in_flight: usize,
    most_in_flight: usize,
    renames: usize,
    renamed: Vec<Vec<u8>>,
}

/// Requests for one file: the number without an answer, and a failure among the answered ones.
#[derive(Debug, Default)]
struct WitnessedFile {
    unanswered: usize,
    failed: bool,
}

impl Default for Witness {
    fn default() -> Self {
        Self {
            sent: MessageSplitter::new(2 << 20),
            received: MessageSplitter::new(1 << 20),
            greetings: (false, false),
            files: BTreeMap::new(),
            requests: BTreeMap::new(),
            opening: Vec::new(),
            handles: BTreeMap::new(),
            most_open: 0,
            in_flight: 0,
            most_in_flight: 0,
            renames: 0,
            renamed: Vec::new(),
        }
    }
}

impl Witness {
    /// Takes bytes that leave the client; panics if a rename leaves too early.
    pub fn on_sent(&mut self, bytes: &[u8]) {
        let mut input = Bytes::copy_from_slice(bytes);
        while let Some(piece) = self.sent.next(&mut input).expect("sound lengths") {
            let MessageSplitterOutput::Message(message) = piece else {
                continue;
            };
            if !std::mem::replace(&mut self.greetings.0, true) {
                continue;
            }
            let (id, request) = Request::decode(&message).expect("a sound request");
            self.in_flight += 1;
            self.most_in_flight = self.most_in_flight.max(self.in_flight);
            self.request(id.0, &request);
        }
    }

    /// Takes bytes that reach the client.
    pub fn on_received(&mut self, bytes: &[u8]) {
        let mut input = Bytes::copy_from_slice(bytes);
        // Errors in the server's bytes are left to the client to detect.
        while let Ok(Some(piece)) = self.received.next(&mut input) {
            let MessageSplitterOutput::Message(message) = piece else {
                continue;
            };
            if !std::mem::replace(&mut self.greetings.1, true) {
                continue;
            }
            if let Ok((id, response)) = Response::decode(&message) {
                self.in_flight = self.in_flight.saturating_sub(1);
                self.response(id.0, &response);
            }
        }
    }

    /// Returns the number of renames that have left.
    pub fn renames(&self) -> usize {
        self.renames
    }

    /// Returns the old names of renames since the last call, to be compared with the requests that
    /// other channels have in flight.
    pub fn take_renamed(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.renamed)
    }

    /// Returns the number of unanswered requests for `path` or its handle.
    pub fn unanswered(&self, path: &[u8]) -> usize {
        let open = self.handles.values().filter(|open| *open == path).count();
        self.files.get(path).map_or(0, |f| f.unanswered) + open
    }

    /// Returns the highest number of requests without an answer since the last call.
    pub fn take_most_in_flight(&mut self) -> usize {
        std::mem::replace(&mut self.most_in_flight, self.in_flight)
    }

    /// Returns the highest number of files open or being opened at once, in the client's order.
    pub fn most_open(&self) -> usize {
        self.most_open
    }

    fn request(&mut self, id: u32, request: &Request<'_>) {
        let (path, matters) = match *request {
            Request::Open { path, .. } => {
                let file = self.files.entry(path.to_vec()).or_default();
                // The file may be opened again while answers for the first time are outstanding.
                if file.unanswered == 0 {
                    *file = WitnessedFile::default();
                }
                self.opening.push((id, path.to_vec()));
                let open = self.opening.len() + self.handles.len();
                self.most_open = self.most_open.max(open);
                (path.to_vec(), true)
            }
            // The handle of a directory must not be taken for that of a file being opened, nor its
            // CLOSE for the file's, which may leave before the handle is known.
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
                // A predicted handle belongs to the last OPEN; others of that file remain.
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
            // Concerns the file that is to get this name.
            Request::Lstat { path } => (path.to_vec(), false),
            _ => return,
        };
        self.files.entry(path.clone()).or_default().unanswered += 1;
        self.requests.insert(id, (path, matters));
    }

    /// Returns the file of a handle; a handle that no answer has contained yet belongs to the last
    /// OPEN.
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
                // A refused look at the old file says nothing about the new one.
                let last = path.rsplit(|b| *b == b'/').next();
                let old = !last.is_some_and(sftp::is_temp_name);
                assert!(old || !file.failed, "rename left though {name} had failed");
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
