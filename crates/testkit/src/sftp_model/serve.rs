//! Execution of each request.

use sftp::packed::BlockDecompressor;
use sftp::{
    Attrs, NOT_EXPECTED, NameEntry, Names, OpenFlags, Request, RequestId, Response, ServerLimits,
    StatusCode,
};
use wire::{Field, RemainingBytes};

use super::handles::Open;
use super::server::SftpModel;
use super::{Errno, Kind};

impl SftpModel {
    pub(super) fn serve(&mut self, id: RequestId, request: Request<'_>) -> Result<(), StatusCode> {
        let done = |result: Result<(), Errno>| match result {
            Ok(()) => Err(StatusCode::OK),
            Err(errno) => Err(errno.status()),
        };
        let draft = self.personality.draft_symlink;
        if self.is_unexpected(&request) {
            let text = format!("{NOT_EXPECTED}another one has taken its place");
            self.status_with(id, StatusCode::FAILURE, text.as_bytes());
            return Ok(());
        }
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
                if self.personality.restrictions.in_order {
                    let next = self.next_write.entry(handle.to_vec()).or_default();
                    if *next != offset {
                        return Err(StatusCode::FAILURE);
                    }
                    *next = offset + data.len() as u64;
                }
                self.writes.push(data.len());
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
                let inode = self.inode(handle, true)?;
                self.fs.sync(inode);
                Err(StatusCode::OK)
            }
            Request::Limits {} if self.has(&request) => {
                let limits = ServerLimits {
                    packet: u64::from(self.personality.write) + 1024,
                    read: u64::from(self.personality.read),
                    write: self.personality.write.into(),
                    handles: 1019,
                };
                let mut body = Vec::new();
                limits.write(&mut body);
                let body = RemainingBytes(&body);
                self.say(id, &Response::ExtendedReply { body });
                Ok(())
            }
            Request::PutFile {
                path,
                flags,
                tag,
                mode,
                attrs,
                data,
            } if self.has(&request) => self.put_file(id, (path, flags), (tag, mode), &attrs, data),
            Request::GetFile { path, len } if self.has(&request) => {
                self.get_file(id, path, len, false)
            }
            Request::GetFileZstd { path, len } if self.has(&request) => {
                self.get_file(id, path, len, true)
            }
            Request::PutFileZstd {
                path,
                flags,
                tag,
                mode,
                attrs,
                len,
                data,
            } if self.has(&request) => {
                self.packed += u64::from(len);
                match BlockDecompressor::new().and_then(|mut u| u.unpack(data, len)) {
                    Some(data) => self.put_file(id, (path, flags), (tag, mode), &attrs, &data),
                    None => Err(StatusCode::BAD_MESSAGE),
                }
            }
            Request::Hash { .. }
            | Request::CopyData { .. }
            | Request::WriteZstd { .. }
            | Request::ReadZstd { .. }
            | Request::ReadSparse { .. }
                if self.has(&request) =>
            {
                self.serve_blocks(id, request)
            }
            Request::FsyncSet { .. } if self.has(&request) => {
                self.fs.sync_all();
                Err(StatusCode::OK)
            }
            Request::Attributes { .. } | Request::HoldRoot { .. } if self.has(&request) => {
                Err(StatusCode::OK)
            }
            Request::Hardlink { from, to } if self.has(&request) => {
                done(self.fs.hard_link(from, to))
            }
            Request::ListTree { tree, flags, path } if self.has(&request) => {
                self.list_tree(id, tree, flags, path)
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
        let limits = &self.personality.restrictions;
        if let Some(code) = limits.exclusive.filter(|_| how.2) {
            return Err(code);
        }
        if let Some((suffix, code)) = limits.suffix
            && how.0
            && !path.ends_with(suffix.as_bytes())
        {
            return Err(code);
        }
        if limits.locks
            && let Ok(inode) = self.fs.lookup(path, true)
            && self.handles.has(inode)
        {
            return Err(StatusCode::FAILURE);
        }
        let inode = self
            .fs
            .open(path, write, how, mode)
            .map_err(Errno::status)?;
        let open = Open::File { inode, read, write };
        self.handle(id, open)
    }

    fn handle(&mut self, id: RequestId, open: Open) -> Result<(), StatusCode> {
        let handle = self.handles.insert(open);
        self.next_write.remove(&handle);
        self.most_open = self.most_open.max(self.handles.len());
        self.say(id, &Response::Handle { handle: &handle });
        Ok(())
    }

    /// Returns the inode of an open file handle.
    pub(super) fn inode(&mut self, handle: &[u8], writing: bool) -> Result<u64, StatusCode> {
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
        let data = match self.endless_data {
            true => vec![b'A'; len],
            false => data.get(..len).unwrap_or(data).to_vec(),
        };
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
        // Maximum number of entries that sftp-server.c puts into one NAME message.
        const AT_ONCE: usize = 100;
        let Some(Open::Dir { left, path }) = self.handles.get_mut(handle) else {
            return Err(StatusCode::FAILURE);
        };
        if let Some(cycle) = self.endless_names {
            let first = self.named;
            self.named += AT_ONCE as u64;
            let names: Vec<Vec<u8>> = (first..self.named)
                .map(|n| format!("n{}", n % cycle.max(1)).into_bytes())
                .collect();
            let names = names.iter().map(|filename| NameEntry {
                filename,
                longname: b"",
                attrs: Attrs::default(),
            });
            let names = Names(names.collect());
            Response::Name { names }.encode(id, &mut self.out);
            return Ok(());
        }
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
