use bytes::Bytes;
use sftp::{
    Attrs, Init, Limits, NameEntry, Names, OPENSSH_EXTENSIONS, OpenFlags, Piece, Request,
    RequestId, Response, Splitter, StatusCode, StatusText, Version, frame,
};
use wire::{Field, Rest};

use super::handles::{Handles, Open};
use super::{Act, Errno, Fs, HandleStyle, Inject, Kind, Rng};

/// Which server it is.
#[derive(Clone, Debug)]
pub struct Personality {
    /// Announced extensions, name and data.
    pub extensions: Vec<(Vec<u8>, Vec<u8>)>,
    /// What its handles look like.
    pub handles: HandleStyle,
    /// Bytes a READ answers at most, whatever was asked.
    pub read: u32,
    /// SYMLINK's arguments in the draft's order.
    pub draft_symlink: bool,
    /// Answers to what arrives together leave in any order, as the draft allows (section 7).
    pub shuffles: bool,
    /// FSETSTAT and SETSTAT are not supported.
    pub no_setstat: bool,
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
            draft_symlink: false,
            shuffles: false,
            no_setstat: false,
        }
    }

    /// A server without extensions, with long random handles, that answers READs with at most
    /// 64 KiB.
    pub fn other() -> Self {
        Self {
            extensions: Vec::new(),
            handles: HandleStyle::Random(32),
            read: 64 * 1024,
            draft_symlink: true,
            shuffles: false,
            no_setstat: false,
        }
    }
}

type Change = Box<dyn FnOnce(&mut Fs) + Send>;

/// The server. Bytes in with [`SftpModel::handle_input`], bytes out with
/// [`SftpModel::take_output`].
pub struct SftpModel {
    /// What it serves.
    pub fs: Fs,
    personality: Personality,
    splitter: Splitter,
    greeted: bool,
    handles: Handles,
    out: Vec<u8>,
    injects: Vec<(Inject, usize)>,
    changes: Vec<(usize, Change)>,
    hostile: Vec<Vec<u8>>,
    log: Vec<&'static str>,
    most_open: usize,
    rng: Rng,
}

impl SftpModel {
    /// A server that has just been started.
    pub fn new(fs: Fs, personality: Personality) -> Self {
        Self {
            fs,
            splitter: Splitter::new(256 * 1024),
            greeted: false,
            handles: Handles::new(personality.handles),
            personality,
            out: Vec::new(),
            injects: Vec::new(),
            changes: Vec::new(),
            hostile: Vec::new(),
            log: Vec::new(),
            most_open: 0,
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
        self.splitter = Splitter::new(256 * 1024);
        self.greeted = false;
        self.handles = Handles::new(self.personality.handles);
        self.out.clear();
    }

    /// The requests so far, by name.
    pub fn log(&self) -> &[&'static str] {
        &self.log
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

    fn say(&mut self, id: RequestId, response: &Response<'_>) {
        response.encode(id, &mut self.out);
    }

    fn serve(&mut self, id: RequestId, request: Request<'_>) -> Result<(), StatusCode> {
        let done = |result: Result<(), Errno>| match result {
            Ok(()) => Err(StatusCode::OK),
            Err(errno) => Err(errno.status()),
        };
        let draft = self.personality.draft_symlink;
        match request {
            Request::Open { path, flags, attrs } => self.open(id, path, flags, &attrs),
            Request::Close { handle } => match self.handles.remove(handle) {
                true => Err(StatusCode::OK),
                false => Err(StatusCode::FAILURE),
            },
            Request::Read {
                handle,
                offset,
                len,
            } => self.read(id, handle, offset, len),
            Request::Write {
                handle,
                offset,
                data,
            } => {
                let inode = self.inode(handle, true)?;
                done(self.fs.write(inode, offset, data))
            }
            Request::Stat { path } => self.stat(id, path, true),
            Request::Lstat { path } => self.stat(id, path, false),
            Request::Fstat { handle } => {
                let inode = self.inode(handle, false)?;
                self.attrs(id, self.fs.stat(inode))
            }
            Request::Setstat { .. } | Request::Fsetstat { .. } if self.personality.no_setstat => {
                Err(StatusCode::OP_UNSUPPORTED)
            }
            Request::Setstat { path, attrs } => self.set(path, true, &attrs),
            Request::Lsetstat { path, attrs } => self.set(path, false, &attrs),
            Request::Fsetstat { handle, attrs } => {
                let inode = self.inode(handle, false)?;
                done(self.fs.set(inode, &attrs))
            }
            Request::Opendir { path } => self.opendir(id, path),
            Request::Readdir { handle } => self.readdir(id, handle),
            Request::Remove { path } => done(self.fs.remove(path, false)),
            Request::Rmdir { path } => done(self.fs.remove(path, true)),
            Request::Mkdir { path, attrs } => {
                let mode = attrs.permissions.unwrap_or(0o777);
                done(self.fs.make(path, Kind::Dir, mode))
            }
            Request::Realpath { path } => self.path(id, path),
            Request::ExpandPath { path } => match path {
                [b'~', rest @ ..] => self.path(id, &[b"/home/u", rest].concat()),
                path => self.path(id, path),
            },
            Request::Readlink { path } => self.readlink(id, path),
            Request::Symlink { first, second } => {
                let (link, to) = if draft {
                    (first, second)
                } else {
                    (second, first)
                };
                done(self.fs.make(link, Kind::Symlink(to.to_vec()), 0o777))
            }
            Request::Rename { from, to } => done(self.fs.rename(from, to, false)),
            Request::PosixRename { from, to } if self.has(&request) => {
                done(self.fs.rename(from, to, true))
            }
            Request::Fsync { handle } if self.has(&request) => {
                self.inode(handle, true)?;
                Err(StatusCode::OK)
            }
            Request::Limits {} if self.has(&request) => {
                let limits = Limits {
                    packet: 256 * 1024,
                    read: u64::from(self.personality.read),
                    write: 255 * 1024,
                    handles: 1019,
                };
                let mut body = Vec::new();
                limits.write(&mut body);
                let body = Rest(&body);
                self.say(id, &Response::ExtendedReply { body });
                Ok(())
            }
            _ => Err(StatusCode::OP_UNSUPPORTED),
        }
    }

    fn has(&self, request: &Request<'_>) -> bool {
        let name = request.name().as_bytes();
        self.personality.extensions.iter().any(|(n, _)| n == name)
    }

    fn open(
        &mut self,
        id: RequestId,
        path: &[u8],
        flags: OpenFlags,
        attrs: &Attrs,
    ) -> Result<(), StatusCode> {
        let how = (
            flags.contains(OpenFlags::CREAT),
            flags.contains(OpenFlags::TRUNC),
            flags.contains(OpenFlags::EXCL),
        );
        let (read, write) = (
            flags.contains(OpenFlags::READ),
            flags.contains(OpenFlags::WRITE),
        );
        let mode = attrs.permissions.unwrap_or(0o666);
        let inode = self
            .fs
            .open(path, write, how, mode)
            .map_err(Errno::status)?;
        let open = Open::File { inode, read, write };
        self.handle(id, open)
    }

    fn handle(&mut self, id: RequestId, open: Open) -> Result<(), StatusCode> {
        let handle = self.handles.insert(open);
        self.most_open = self.most_open.max(self.handles.len());
        self.say(id, &Response::Handle { handle: &handle });
        Ok(())
    }

    /// The file a handle is open on.
    fn inode(&mut self, handle: &[u8], writing: bool) -> Result<u64, StatusCode> {
        match self.handles.get_mut(handle) {
            Some(Open::File {
                inode,
                write,
                read: _,
            }) if *write || !writing => Ok(*inode),
            _ => Err(StatusCode::FAILURE),
        }
    }

    fn read(
        &mut self,
        id: RequestId,
        handle: &[u8],
        offset: u64,
        len: u32,
    ) -> Result<(), StatusCode> {
        let readable = matches!(
            self.handles.get_mut(handle),
            Some(Open::File { read: true, .. })
        );
        if !readable {
            return Err(StatusCode::FAILURE);
        }
        let inode = self.inode(handle, false)?;
        let len = len.min(self.personality.read) as usize;
        let data = match &self.fs.node(inode).map_err(Errno::status)?.kind {
            Kind::File(data) => data.get(offset as usize..).unwrap_or_default(),
            _ => &[],
        };
        let data = data.get(..len).unwrap_or(data).to_vec();
        if data.is_empty() {
            return Err(StatusCode::EOF);
        }
        self.say(id, &Response::Data { data: &data });
        Ok(())
    }

    fn stat(&mut self, id: RequestId, path: &[u8], follow: bool) -> Result<(), StatusCode> {
        let inode = self.fs.lookup(path, follow).map_err(Errno::status)?;
        self.attrs(id, self.fs.stat(inode))
    }

    fn attrs(&mut self, id: RequestId, attrs: Result<Attrs, Errno>) -> Result<(), StatusCode> {
        let attrs = attrs.map_err(Errno::status)?;
        self.say(id, &Response::Attrs { attrs });
        Ok(())
    }

    fn set(&mut self, path: &[u8], follow: bool, attrs: &Attrs) -> Result<(), StatusCode> {
        let inode = self.fs.lookup(path, follow).map_err(Errno::status)?;
        self.fs.set(inode, attrs).map_err(Errno::status)?;
        Err(StatusCode::OK)
    }

    fn opendir(&mut self, id: RequestId, path: &[u8]) -> Result<(), StatusCode> {
        let path = self.fs.resolve(path, true).map_err(Errno::status)?;
        let inode = self.fs.lookup(&path, true).map_err(Errno::status)?;
        if self.fs.node(inode).map_err(Errno::status)?.kind != Kind::Dir {
            return Err(Errno::NotDir.status());
        }
        let mut left = self.hostile.clone();
        left.extend(self.fs.list(&path));
        left.extend([b"..".to_vec(), b".".to_vec()]);
        self.handle(id, Open::Dir { left, path })
    }

    fn readdir(&mut self, id: RequestId, handle: &[u8]) -> Result<(), StatusCode> {
        // As many as sftp-server.c puts into one NAME.
        const AT_ONCE: usize = 100;
        let Some(Open::Dir { left, path }) = self.handles.get_mut(handle) else {
            return Err(StatusCode::FAILURE);
        };
        if left.is_empty() {
            return Err(StatusCode::EOF);
        }
        let path = path.clone();
        let names = left.split_off(left.len().saturating_sub(AT_ONCE));
        let attrs: Vec<Attrs> = names
            .iter()
            .map(|name| {
                let full = [path.as_slice(), b"/", name].concat();
                let inode = self.fs.lookup(&full, false);
                inode.and_then(|i| self.fs.stat(i)).unwrap_or_default()
            })
            .collect();
        let names = names.iter().zip(attrs).map(|(filename, attrs)| NameEntry {
            filename,
            longname: filename,
            attrs,
        });
        let names = Names(names.collect());
        Response::Name { names }.encode(id, &mut self.out);
        Ok(())
    }

    fn path(&mut self, id: RequestId, path: &[u8]) -> Result<(), StatusCode> {
        let path = self.fs.resolve(path, true).map_err(Errno::status)?;
        self.name(id, &path)
    }

    fn readlink(&mut self, id: RequestId, path: &[u8]) -> Result<(), StatusCode> {
        let inode = self.fs.lookup(path, false).map_err(Errno::status)?;
        match self.fs.node(inode).map_err(Errno::status)?.kind.clone() {
            Kind::Symlink(to) => self.name(id, &to),
            _ => Err(Errno::Inval.status()),
        }
    }

    fn name(&mut self, id: RequestId, filename: &[u8]) -> Result<(), StatusCode> {
        let names = Names(vec![NameEntry {
            filename,
            longname: filename,
            attrs: Attrs::default(),
        }]);
        self.say(id, &Response::Name { names });
        Ok(())
    }
}

/// Changes the answer that begins at `start`.
fn spoil(out: &mut Vec<u8>, start: usize, act: &Act) {
    match act {
        Act::OtherHandle => {
            // Length, number, id, length of the handle; then its last byte.
            if let (true, Some(last)) = (out.get(start + 4) == Some(&102), out.last_mut()) {
                *last ^= 1;
            }
        }
        Act::Truncated => {
            out.pop();
            let len = (out.len() - start - 4) as u32;
            out[start..start + 4].copy_from_slice(&len.to_be_bytes());
        }
        Act::Length(len) => out[start..start + 4].copy_from_slice(&len.to_be_bytes()),
        Act::Status(_) | Act::OtherId | Act::Silence => {}
    }
}
