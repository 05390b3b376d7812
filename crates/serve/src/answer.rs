//! What each request does.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use jiff::tz::TimeZone;
use rustix::fs::{self, Mode, OFlags, Stat};
use rustix::io::Errno;
use sftp::{Attrs, Limits, OpenFlags, Request, RequestId, Response, StatusCode, StatusText};
use tracing::info;
use wire::{Field, Rest};

use crate::accounts::Accounts;
use crate::attributes::attributes;
use crate::error::Refused;
use crate::handles::{Handles, Open};
use crate::set::{set_found, set_open};
use crate::{Access, Export};

/// The longest message that is taken (SFTP_MAX_MSG_LENGTH of sftp-common.h).
pub(crate) const LONGEST: u32 = 256 * 1024;
/// What a READ answers, and a WRITE may carry, at most: a message holds headers too.
pub(crate) const LONGEST_DATA: u32 = LONGEST - 1024;

/// How a request was answered.
pub(crate) enum Said {
    /// With what is already written.
    Told,
    /// It is done, and there is nothing else to say.
    Done,
}

pub(crate) type Answer = Result<Said, Refused>;

/// One client, from INIT on.
pub(crate) struct Session<'a> {
    pub(crate) export: &'a Export,
    pub(crate) handles: Handles,
    pub(crate) accounts: Accounts,
    pub(crate) zone: TimeZone,
    /// What this client has put into a drop box, by device and inode.
    own: BTreeSet<(u64, u64)>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(export: &'a Export) -> Self {
        Self {
            export,
            handles: Handles::new(),
            accounts: Accounts::default(),
            zone: TimeZone::system(),
            own: BTreeSet::new(),
        }
    }

    /// Carries a request out and appends the answer to `out`.
    pub(crate) fn answer(&mut self, id: RequestId, request: Request<'_>, out: &mut Vec<u8>) {
        let start = out.len();
        let answer = match self.export.access.allows(&request) {
            true => self.carry_out(id, request, out),
            false => Err(self.forbidden()),
        };
        let (code, words) = match &answer {
            Ok(Said::Told) => return,
            Ok(Said::Done) => (StatusCode::OK, "Success"),
            Err(refused) => (refused.code, refused.words.as_str()),
        };
        out.truncate(start);
        let text = StatusText {
            message: words.as_bytes(),
        };
        Response::Status { code, text }.encode(id, out);
    }

    fn carry_out(&mut self, id: RequestId, request: Request<'_>, out: &mut Vec<u8>) -> Answer {
        match request {
            Request::Open { path, flags, attrs } => self.open(id, path, flags, &attrs, out),
            Request::Close { handle } => self.close(handle),
            Request::Read {
                handle,
                offset,
                len,
            } => self.read(id, handle, offset, len, out),
            Request::Write {
                handle,
                offset,
                data,
            } => self.write(handle, offset, data),
            Request::Fstat { handle } => {
                let stat = match self.handles.get_mut(handle)? {
                    Open::File { file, .. } => fs::fstat(file)?,
                    Open::Dir { fd, .. } => fs::fstat(fd)?,
                };
                tell_attributes(id, &stat, out)
            }
            Request::Fsetstat { handle, attrs } => {
                set_open(self.handles.file(handle)?, &attrs)?;
                Ok(Said::Done)
            }
            Request::Fsync { handle } => {
                fs::fsync(self.handles.file(handle)?)?;
                Ok(Said::Done)
            }
            Request::CopyData {
                from,
                from_offset,
                len,
                to,
                to_offset,
            } => self.copy_data((from, from_offset), len, (to, to_offset)),
            Request::Stat { path } => self.stat(id, path, true, out),
            Request::Lstat { path } => self.stat(id, path, false, out),
            Request::Setstat { path, attrs } => self.set(path, true, &attrs),
            Request::Lsetstat { path, attrs } => self.set(path, false, &attrs),
            Request::Limits {} => {
                let limits = Limits {
                    packet: LONGEST.into(),
                    read: LONGEST_DATA.into(),
                    write: LONGEST_DATA.into(),
                    handles: self.handles.most() as u64,
                };
                tell_extended(id, &limits, out)
            }
            Request::OtherExtension { .. } | Request::Other { .. } => Err(Refused::new(
                StatusCode::OP_UNSUPPORTED,
                "this server does not know the request",
            )),
            names => self.carry_out_names(id, names, out),
        }
    }

    fn open(
        &mut self,
        id: RequestId,
        path: &[u8],
        flags: OpenFlags,
        attrs: &Attrs,
        out: &mut Vec<u8>,
    ) -> Answer {
        let drop_box = self.export.access == Access::WriteOnly;
        let mut how = open_flags(flags);
        if drop_box && !self.is_own(path)? {
            // Whatever is there already is somebody else's.
            if !how.contains(OFlags::CREATE) {
                return Err(self.forbidden());
            }
            how |= OFlags::EXCL;
        }
        let mode = attrs.permissions.unwrap_or(0o666) & 0o7777;
        let fd = self
            .export
            .place
            .open(path, how, Mode::from_raw_mode(mode))?;
        let file = File::from(fd);
        if drop_box {
            self.own(&fs::fstat(&file)?);
        }
        let open = Open::File {
            file,
            append: flags.contains(OpenFlags::APPEND),
            moved: (0, 0),
            path: path.to_vec(),
        };
        let handle = self.handles.insert(open)?;
        Response::Handle { handle: &handle }.encode(id, out);
        Ok(Said::Told)
    }

    fn close(&mut self, handle: &[u8]) -> Answer {
        if let Open::File {
            path,
            moved: (sent, received),
            ..
        } = self.handles.remove(handle)?
        {
            let path = String::from_utf8_lossy(&path);
            info!(path = %path.escape_debug(), sent, received, "closed");
        }
        Ok(Said::Done)
    }

    fn read(
        &mut self,
        id: RequestId,
        handle: &[u8],
        offset: u64,
        len: u32,
        out: &mut Vec<u8>,
    ) -> Answer {
        let Open::File { file, moved, .. } = self.handles.get_mut(handle)? else {
            return Err(Errno::ISDIR.into());
        };
        let len = len.min(LONGEST_DATA) as usize;
        // Length of the message, number, id, length of the data; then the data, where it stays.
        let start = out.len();
        out.resize(start + DATA_HEADER + len, 0);
        let read = loop {
            match file.read_at(&mut out[start + DATA_HEADER..], offset) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if read == 0 && len > 0 {
            return Err(Refused::new(StatusCode::EOF, "End of file"));
        }
        moved.0 += read as u64;
        out.truncate(start + DATA_HEADER + read);
        let mut header = Vec::with_capacity(DATA_HEADER);
        ((DATA_HEADER - 4 + read) as u32).write(&mut header);
        header.push(DATA);
        id.0.write(&mut header);
        (read as u32).write(&mut header);
        out[start..start + DATA_HEADER].copy_from_slice(&header);
        Ok(Said::Told)
    }

    fn write(&mut self, handle: &[u8], offset: u64, data: &[u8]) -> Answer {
        let Open::File {
            file,
            append,
            moved,
            ..
        } = self.handles.get_mut(handle)?
        else {
            return Err(Errno::ISDIR.into());
        };
        match append {
            true => std::io::Write::write_all(file, data)?,
            false => file.write_all_at(data, offset)?,
        }
        moved.1 += data.len() as u64;
        Ok(Said::Done)
    }

    /// copy-data of draft-ietf-secsh-filexfer-extensions-00 section 7: to the end where `len` is 0.
    fn copy_data(&mut self, from: (&[u8], u64), len: u64, to: (&[u8], u64)) -> Answer {
        let source = self.handles.file(from.0)?.try_clone()?;
        let target = self.handles.file(to.0)?.try_clone()?;
        let whole = match len {
            0 => u64::MAX,
            len => len,
        };
        let (a, b) = (fs::fstat(&source)?, fs::fstat(&target)?);
        let same = (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
        let meet = from.1 < to.1.saturating_add(whole) && to.1 < from.1.saturating_add(whole);
        if same && meet {
            return Err(Refused::new(
                StatusCode::FAILURE,
                "the ranges to copy between overlap",
            ));
        }
        let mut buffer = vec![0; 1 << 20];
        let mut done = 0;
        while done < whole {
            let most = usize::try_from(whole - done).unwrap_or(usize::MAX);
            let most = most.min(buffer.len());
            let read = source.read_at(&mut buffer[..most], from.1.saturating_add(done))?;
            if read == 0 {
                break;
            }
            target.write_all_at(&buffer[..read], to.1.saturating_add(done))?;
            done += read as u64;
        }
        match len == 0 || done == len {
            true => Ok(Said::Done),
            false => Err(Refused::new(StatusCode::EOF, "End of file")),
        }
    }

    fn stat(&self, id: RequestId, path: &[u8], follow: bool, out: &mut Vec<u8>) -> Answer {
        let found = self.export.place.find(path, follow)?;
        let stat = fs::fstat(&found)?;
        // A drop box tells where one can put things, and of what one has put there.
        let dir = fs::FileType::from_raw_mode(stat.st_mode) == fs::FileType::Directory;
        if self.export.access == Access::WriteOnly && !dir && !self.has_put(&stat) {
            return Err(self.forbidden());
        }
        tell_attributes(id, &stat, out)
    }

    fn set(&self, path: &[u8], follow: bool, attrs: &Attrs) -> Answer {
        let found = self.export.place.find(path, follow)?;
        if self.export.access == Access::WriteOnly && !self.has_put(&fs::fstat(&found)?) {
            return Err(self.forbidden());
        }
        set_found(&found, attrs)?;
        Ok(Said::Done)
    }

    pub(crate) fn forbidden(&self) -> Refused {
        Refused::new(
            StatusCode::PERMISSION_DENIED,
            match self.export.access {
                Access::ReadOnly => "nothing can be changed here: it is served read-only",
                _ => "only new files can be put here: it is a drop box",
            },
        )
    }

    /// Remembers what this client has put into a drop box.
    pub(crate) fn own(&mut self, stat: &Stat) {
        self.own.insert((stat.st_dev, stat.st_ino));
    }

    fn has_put(&self, stat: &Stat) -> bool {
        self.own.contains(&(stat.st_dev, stat.st_ino))
    }

    /// Whether this client has put into the drop box what now has this name.
    pub(crate) fn is_own(&self, path: &[u8]) -> Result<bool, Refused> {
        match self.export.place.find(path, false) {
            Ok(found) => Ok(self.has_put(&fs::fstat(&found)?)),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

/// DATA's number, and what stands before the data.
const DATA: u8 = 103;
const DATA_HEADER: usize = 13;

fn open_flags(flags: OpenFlags) -> OFlags {
    let has = |flag| flags.contains(flag);
    let mut how = match (has(OpenFlags::READ), has(OpenFlags::WRITE)) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    let more = [
        (OpenFlags::APPEND, OFlags::APPEND),
        (OpenFlags::CREAT, OFlags::CREATE),
        (OpenFlags::TRUNC, OFlags::TRUNC),
        (OpenFlags::EXCL, OFlags::EXCL),
    ];
    for (asked, flag) in more {
        if has(asked) {
            how |= flag;
        }
    }
    // Whoever opens a terminal here shall not get it.
    how | OFlags::NOCTTY
}

pub(crate) fn tell_attributes(id: RequestId, stat: &Stat, out: &mut Vec<u8>) -> Answer {
    let attrs = attributes(stat);
    Response::Attrs { attrs }.encode(id, out);
    Ok(Said::Told)
}

pub(crate) fn tell_extended<'f>(id: RequestId, body: &impl Field<'f>, out: &mut Vec<u8>) -> Answer {
    let mut bytes = Vec::new();
    body.write(&mut bytes);
    let body = Rest(&bytes);
    Response::ExtendedReply { body }.encode(id, out);
    Ok(Said::Told)
}
