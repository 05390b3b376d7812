//! What is asked of open files.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use sftp::{Attrs, OpenFlags, StatusCode};
use tracing::debug;

use crate::answer::{Answer, LONGEST_DATA, Session};
use crate::error::Refused;
use crate::handles::Open;
use crate::reply::Reply;

/// copy-data reads so much at a time.
const COPIED_AT_ONCE: usize = 1 << 20;

impl Session<'_> {
    pub(crate) fn open(
        &mut self,
        path: &[u8],
        flags: OpenFlags,
        attrs: &Attrs,
        reply: &mut Reply<'_>,
    ) -> Answer {
        let mut how = open_flags(flags);
        if self.is_drop_box() && !self.is_own(path)? {
            // Whatever is there already is somebody else's.
            if !how.contains(OFlags::CREATE) {
                return Err(self.forbidden());
            }
            how |= OFlags::EXCL;
        }
        let mode = Mode::from_raw_mode(attrs.permissions.unwrap_or(0o666) & 0o7777);
        let file = File::from(self.export.place.open(path, how, mode)?);
        if self.is_drop_box() {
            self.has_put(&fs::fstat(&file)?);
        }
        let handle = self.handles.insert(Open::File {
            file,
            append: flags.contains(OpenFlags::APPEND),
            sent: 0,
            received: 0,
            path: path.to_vec(),
        })?;
        self.moved.files += 1;
        reply.handle(&handle);
        Ok(())
    }

    pub(crate) fn close(&mut self, handle: &[u8]) -> Answer {
        if let Open::File {
            path,
            sent,
            received,
            ..
        } = self.handles.remove(handle)?
        {
            let path = String::from_utf8_lossy(&path);
            debug!(path = %path.escape_debug(), sent, received, "closed");
        }
        Ok(())
    }

    pub(crate) fn read(
        &mut self,
        handle: &[u8],
        offset: u64,
        len: u32,
        reply: &mut Reply<'_>,
    ) -> Answer {
        let Open::File { file, sent, .. } = self.handles.get_mut(handle)? else {
            return Err(Errno::ISDIR.into());
        };
        let len = len.min(LONGEST_DATA) as usize;
        let moved = &mut self.moved;
        reply.data(|out| {
            let read = sys::append_at(file, out, len, offset)?;
            *sent += read as u64;
            moved.sent += read as u64;
            match read == 0 && len > 0 {
                true => Err(Refused::end_of_file()),
                false => Ok(()),
            }
        })
    }

    pub(crate) fn write(&mut self, handle: &[u8], offset: u64, data: &[u8]) -> Answer {
        let Open::File {
            file,
            append,
            received,
            ..
        } = self.handles.get_mut(handle)?
        else {
            return Err(Errno::ISDIR.into());
        };
        match append {
            true => file.write_all(data)?,
            false => file.write_all_at(data, offset)?,
        }
        *received += data.len() as u64;
        self.moved.received += data.len() as u64;
        Ok(())
    }

    /// copy-data of draft-ietf-secsh-filexfer-extensions-00 section 7: to the end where `len` is 0.
    pub(crate) fn copy_data(
        &self,
        (from, from_offset): (&[u8], u64),
        len: u64,
        (to, to_offset): (&[u8], u64),
    ) -> Answer {
        let (from, to) = (self.handles.file(from)?, self.handles.file(to)?);
        let whole = match len {
            0 => u64::MAX,
            len => len,
        };
        let (a, b) = (fs::fstat(from)?, fs::fstat(to)?);
        let same = (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
        let meet = from_offset < to_offset.saturating_add(whole)
            && to_offset < from_offset.saturating_add(whole);
        if same && meet {
            return Err(Refused::new(
                StatusCode::FAILURE,
                "the ranges to copy between overlap",
            ));
        }
        let mut buffer = vec![0; COPIED_AT_ONCE];
        let mut done = 0;
        while done < whole {
            let most = usize::try_from(whole - done).unwrap_or(usize::MAX);
            let most = most.min(buffer.len());
            let at = from_offset.saturating_add(done);
            let read = retry_on_intr(|| rustix::io::pread(from, &mut buffer[..most], at))?;
            if read == 0 {
                break;
            }
            to.write_all_at(&buffer[..read], to_offset.saturating_add(done))?;
            done += read as u64;
        }
        match len == 0 || done == len {
            true => Ok(()),
            false => Err(Refused::end_of_file()),
        }
    }
}

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
