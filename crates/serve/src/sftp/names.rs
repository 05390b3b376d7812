//! Requests on directories, and requests that name a path instead of a handle.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use sftp::{Attrs, NameEntry, Names, StatusCode, Statvfs};
use wire::{Field, Reader};

use crate::beneath::PathRoot;
use crate::error::RequestError;
use crate::sftp::accounts;
use crate::sftp::answer::{Answer, LONGEST, Session};
use crate::sftp::attributes::attributes;
use crate::sftp::handles::OpenHandle;
use crate::sftp::longname::longname;
use crate::sftp::reply::Reply;
use crate::sftp::set::set_found;

/// Most entries, and most bytes, of one answer to READDIR; sftp-server sends a hundred entries.
const ENTRIES: usize = 512;
const ENTRY_BYTES: usize = 128 * 1024;

/// Most names that ids-by-name@longhaul looks up; each may be a query to a directory server.
const MOST_NAMES: usize = 1024;

/// An entry of a listing: name, human-readable line and stat(2) data.
type Entry = (Vec<u8>, Vec<u8>, Stat);

impl Session<'_> {
    pub(crate) fn opendir(&mut self, path: &[u8], reply: &mut Reply<'_>) -> Answer {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let room = self.handles.room()?;
        let fd: OwnedFd = self.export.place.open(path, flags, Mode::empty())?;
        let dir = Dir::read_from(&fd)?;
        let handle = self.handles.insert(room, OpenHandle::Dir { dir, fd });
        reply.handle(&handle);
        Ok(())
    }

    pub(crate) fn readdir(&mut self, handle: &[u8], reply: &mut Reply<'_>) -> Answer {
        let OpenHandle::Dir { dir, fd } = self.handles.get_mut(handle)? else {
            return Err(Errno::NOTDIR.into());
        };
        let told = self.told;
        let beneath = matches!(self.export.place, PathRoot::Beneath(_));
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        while entries.len() < ENTRIES && bytes < ENTRY_BYTES {
            let Some(entry) = dir.read() else { break };
            let name = entry?.file_name().to_bytes().to_vec();
            // Nothing is above a root, as with `/`.
            let looked = match name.as_slice() {
                b".." if beneath => b".",
                name => name,
            };
            // The entry vanished meanwhile.
            let Ok(stat) = fs::statat(fd.as_fd(), looked, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let line = longname(&name, &stat, &mut self.accounts, &self.zone);
            bytes += name.len() + line.len();
            entries.push((name, line, stat));
        }
        if entries.is_empty() {
            return Err(RequestError::end_of_file());
        }
        let names = entries.iter().map(|(name, line, stat)| NameEntry {
            filename: name,
            longname: line,
            attrs: attributes(stat, told),
        });
        reply.names(Names(names.collect()));
        Ok(())
    }

    pub(crate) fn stat(&self, path: &[u8], follow: bool, reply: &mut Reply<'_>) -> Answer {
        let found = self.export.place.find(path, follow)?;
        let stat = fs::fstat(&found)?;
        // A drop box reveals directories and the client's own files.
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            self.must_be_own(path, &found, &stat)?;
        }
        reply.attributes(&stat, self.told);
        Ok(())
    }

    pub(crate) fn set(&self, path: &[u8], follow: bool, attrs: &Attrs) -> Answer {
        let found = self.export.place.find(path, follow)?;
        let stat = fs::fstat(&found)?;
        if self.is_drop_box() && is_so_already(&stat, attrs) {
            // The client created this folder on another channel, with this mode.
            return Ok(());
        }
        self.must_be_own(path, &found, &stat)?;
        Ok(set_found(&found, attrs)?)
    }

    pub(crate) fn mkdir(&mut self, path: &[u8], attrs: &Attrs) -> Answer {
        let mode = Mode::from_raw_mode(attrs.permissions.unwrap_or(0o777) & 0o7777);
        let place = &self.export.place;
        place.at(path, |dir, name| fs::mkdirat(dir, name, mode))?;
        if self.is_drop_box() {
            let made = place.find(path, false)?;
            self.has_put(&made)?;
            let mode = Attrs {
                permissions: attrs.permissions,
                ..Attrs::default()
            };
            set_found(&made, &mode)?;
        }
        Ok(())
    }

    pub(crate) fn remove(&self, path: &[u8], flags: AtFlags) -> Answer {
        self.name_must_be_own(path)?;
        let place = &self.export.place;
        let held = place.at(path, |dir, name| {
            let held = self.leaving.hold(dir, name);
            fs::unlinkat(dir, name, flags).map(|()| held)
        })?;
        drop(held);
        Ok(())
    }

    pub(crate) fn rename(&self, from: &[u8], to: &[u8], replace: bool) -> Answer {
        self.name_must_be_own(from)?;
        let replace = replace && (!self.is_drop_box() || self.is_own(to)?);
        let place = &self.export.place;
        let held = place.at(from, |from_dir, from_name| {
            place.at(to, |to_dir, to_name| {
                if replace {
                    let held = self.leaving.hold(to_dir, to_name);
                    let done = fs::renameat(from_dir, from_name, to_dir, to_name);
                    return done.map(|()| Some(held));
                }
                let keep = RenameFlags::NOREPLACE;
                match fs::renameat_with(from_dir, from_name, to_dir, to_name, keep) {
                    // The file system has no RENAME_NOREPLACE; link(2) also fails if the name
                    // exists.
                    Err(Errno::INVAL | Errno::NOSYS) => {
                        let stat = fs::statat(from_dir, from_name, AtFlags::SYMLINK_NOFOLLOW)?;
                        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                            return Err(Errno::OPNOTSUPP);
                        }
                        fs::linkat(from_dir, from_name, to_dir, to_name, AtFlags::empty())?;
                        fs::unlinkat(from_dir, from_name, AtFlags::empty())
                    }
                    other => other,
                }
                .map(|()| None)
            })
        })?;
        drop(held);
        Ok(())
    }

    pub(crate) fn symlink(&self, says: &[u8], path: &[u8]) -> Answer {
        let place = &self.export.place;
        Ok(place.at(path, |dir, name| fs::symlinkat(says, dir, name))?)
    }

    pub(crate) fn hardlink(&self, from: &[u8], to: &[u8]) -> Answer {
        let place = &self.export.place;
        Ok(place.at(from, |from_dir, from_name| {
            place.at(to, |to_dir, to_name| {
                fs::linkat(from_dir, from_name, to_dir, to_name, AtFlags::empty())
            })
        })?)
    }

    pub(crate) fn readlink(&self, path: &[u8], reply: &mut Reply<'_>) -> Answer {
        let place = &self.export.place;
        let says = place.at(path, |dir, name| fs::readlinkat(dir, name, Vec::new()))?;
        reply.path(says.to_bytes());
        Ok(())
    }

    pub(crate) fn realpath(&self, path: &[u8], reply: &mut Reply<'_>) -> Answer {
        reply.path(&self.export.place.canonical(path)?);
        Ok(())
    }

    pub(crate) fn expand(&self, path: &[u8], reply: &mut Reply<'_>) -> Answer {
        let path = accounts::expand(path, |user| self.home(user))?;
        self.realpath(&path, reply)
    }

    /// Home directory of users in this export.
    pub(crate) fn home(&self, user: &[u8]) -> Result<Vec<u8>, RequestError> {
        match self.export.place {
            PathRoot::Everything => accounts::home(user).ok_or_else(|| {
                RequestError::new(StatusCode::NO_SUCH_FILE, "there is no such user")
            }),
            // A restricted export has no other home directory.
            PathRoot::Beneath(_) => Ok(b"/".to_vec()),
        }
    }

    pub(crate) fn space(&self, of: impl AsFd, reply: &mut Reply<'_>) -> Answer {
        let space = fs::fstatvfs(of)?;
        reply.extended(&Statvfs {
            block: space.f_bsize,
            fragment: space.f_frsize,
            blocks: space.f_blocks,
            blocks_free: space.f_bfree,
            blocks_available: space.f_bavail,
            files: space.f_files,
            files_free: space.f_ffree,
            files_available: space.f_favail,
            id: space.f_fsid,
            // SSH_FXE_STATVFS_ST_RDONLY and _NOSUID have the kernel's values.
            flags: space.f_flag.bits() & 3,
            name_max: space.f_namemax,
        });
        Ok(())
    }

    /// Looks up names of users and groups: two strings of IDs in, two of names out.
    pub(crate) fn names_of_ids(
        &mut self,
        users: &[u8],
        groups: &[u8],
        reply: &mut Reply<'_>,
    ) -> Answer {
        let users = names(users, |id, out| {
            self.accounts.user(id).as_bytes().write(out)
        })?;
        let groups = names(groups, |id, out| {
            self.accounts.group(id).as_bytes().write(out)
        })?;
        reply.extended(&(users.as_slice(), groups.as_slice()));
        Ok(())
    }

    /// Looks up IDs of users and groups: two strings of names in, two of IDs out.
    pub(crate) fn ids_by_name(&self, users: &[u8], groups: &[u8], reply: &mut Reply<'_>) -> Answer {
        let users = ids(users, accounts::user_id)?;
        let groups = ids(groups, accounts::group_id)?;
        reply.extended(&(users.as_slice(), groups.as_slice()));
        Ok(())
    }
}

/// IDs for the strings in `names`, `u32::MAX` for unknown accounts.
fn ids(names: &[u8], find: impl Fn(&str) -> Option<u32>) -> Result<Vec<u8>, RequestError> {
    let mut reader = Reader::new(names);
    let mut ids = Vec::new();
    while reader.left() > 0 {
        let bad = |_| RequestError::bad_message("a name is cut short");
        let name = reader.string().map_err(bad)?;
        if ids.len() >= 4 * MOST_NAMES {
            return Err(RequestError::bad_message(
                "so many names are not looked up at once",
            ));
        }
        let id = std::str::from_utf8(name).ok().and_then(&find);
        id.unwrap_or(u32::MAX).write(&mut ids);
    }
    Ok(ids)
}

/// Names for the IDs in `ids`, empty for unknown accounts.
fn names(ids: &[u8], mut write: impl FnMut(u32, &mut Vec<u8>)) -> Result<Vec<u8>, RequestError> {
    let mut reader = Reader::new(ids);
    let mut names = Vec::new();
    while reader.left() > 0 {
        let bad = |_| RequestError::bad_message("a number is cut short");
        write(reader.u32().map_err(bad)?, &mut names);
        // Both lists must fit into one message.
        if names.len() > LONGEST as usize / 4 {
            return Err(RequestError::new(
                StatusCode::FAILURE,
                "so many names do not fit into one answer",
            ));
        }
    }
    Ok(names)
}

/// True if `attrs` sets only a mode, and `stat` is a folder that already has it.
fn is_so_already(stat: &Stat, attrs: &Attrs) -> bool {
    let mode = Attrs {
        permissions: attrs.permissions,
        ..Attrs::default()
    };
    let folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let has = |mode: u32| (mode ^ stat.st_mode) & 0o7777 == 0;
    folder && *attrs == mode && attrs.permissions.is_some_and(has)
}
