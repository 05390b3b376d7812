//! Directories, and what is asked by name rather than by handle.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use sftp::{NameEntry, Names, Request, RequestId, Response, StatusCode, Statvfs};
use wire::{Field, Reader};

use crate::answer::{Answer, Said, Session, tell_extended};
use crate::attributes::attributes;
use crate::beneath::Place;
use crate::error::Refused;
use crate::handles::Open;
use crate::longname::longname;
use crate::{Access, accounts};

/// Entries and bytes of one answer to READDIR; sftp-server gives a hundred.
const ENTRIES: usize = 512;
const ENTRY_BYTES: usize = 128 * 1024;

/// An entry of a listing: its name, its line for people, and what it is.
type Entry = (Vec<u8>, Vec<u8>, Stat);

impl Session<'_> {
    pub(crate) fn carry_out_names(
        &mut self,
        id: RequestId,
        request: Request<'_>,
        out: &mut Vec<u8>,
    ) -> Answer {
        match request {
            Request::Opendir { path } => self.opendir(id, path, out),
            Request::Readdir { handle } => self.readdir(id, handle, out),
            Request::Remove { path } => self.remove(path, AtFlags::empty()),
            Request::Rmdir { path } => self.remove(path, AtFlags::REMOVEDIR),
            Request::Mkdir { path, attrs } => {
                let mode = attrs.permissions.unwrap_or(0o777) & 0o7777;
                let place = &self.export.place;
                place.at(path, |dir, name| {
                    fs::mkdirat(dir, name, Mode::from_raw_mode(mode))
                })?;
                if self.export.access == Access::WriteOnly {
                    let made = fs::fstat(place.find(path, false)?)?;
                    self.own(&made);
                }
                Ok(Said::Done)
            }
            Request::Rename { from, to } => self.rename(from, to, false),
            Request::PosixRename { from, to } => self.rename(from, to, true),
            // OpenSSH's order: what it says, then where it is.
            Request::Symlink { first, second } => {
                let place = &self.export.place;
                place.at(second, |dir, name| fs::symlinkat(first, dir, name))?;
                Ok(Said::Done)
            }
            Request::Hardlink { from, to } => {
                let place = &self.export.place;
                place.at(from, |from_dir, from_name| {
                    place.at(to, |to_dir, to_name| {
                        fs::linkat(from_dir, from_name, to_dir, to_name, AtFlags::empty())
                    })
                })?;
                Ok(Said::Done)
            }
            Request::Readlink { path } => {
                let place = &self.export.place;
                let says = place.at(path, |dir, name| fs::readlinkat(dir, name, Vec::new()))?;
                tell_name(id, says.to_bytes(), out)
            }
            Request::Statvfs { path } => {
                let found = self.export.place.find(path, true)?;
                tell_space(id, &found, out)
            }
            Request::Fstatvfs { handle } => match self.handles.get_mut(handle)? {
                Open::File { file, .. } => tell_space(id, file, out),
                Open::Dir { fd, .. } => tell_space(id, fd, out),
            },
            paths => self.carry_out_paths(id, paths, out),
        }
    }

    fn opendir(&mut self, id: RequestId, path: &[u8], out: &mut Vec<u8>) -> Answer {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd: OwnedFd = self.export.place.open(path, flags, Mode::empty())?;
        let dir = Dir::read_from(&fd)?;
        let handle = self.handles.insert(Open::Dir { dir, fd })?;
        Response::Handle { handle: &handle }.encode(id, out);
        Ok(Said::Told)
    }

    fn readdir(&mut self, id: RequestId, handle: &[u8], out: &mut Vec<u8>) -> Answer {
        let Open::Dir { dir, fd } = self.handles.get_mut(handle)? else {
            return Err(Errno::NOTDIR.into());
        };
        let beneath = matches!(self.export.place, Place::Beneath(_));
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        while entries.len() < ENTRIES && bytes < ENTRY_BYTES {
            let Some(entry) = dir.read() else { break };
            let name = entry?.file_name().to_bytes().to_vec();
            // Above a root there is nothing, as above `/`.
            let looked = match name.as_slice() {
                b".." if beneath => b".",
                name => name,
            };
            // What vanished meanwhile is not there.
            let Ok(stat) = fs::statat(fd.as_fd(), looked, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let line = longname(&name, &stat, &mut self.accounts, &self.zone);
            bytes += name.len() + line.len();
            entries.push((name, line, stat));
        }
        if entries.is_empty() {
            return Err(Refused::new(StatusCode::EOF, "End of file"));
        }
        let names = entries.iter().map(|(name, line, stat)| NameEntry {
            filename: name,
            longname: line,
            attrs: attributes(stat),
        });
        let names = Names(names.collect());
        Response::Name { names }.encode(id, out);
        Ok(Said::Told)
    }

    fn remove(&self, path: &[u8], flags: AtFlags) -> Answer {
        self.must_be_own(path)?;
        let place = &self.export.place;
        place.at(path, |dir, name| fs::unlinkat(dir, name, flags))?;
        Ok(Said::Done)
    }

    fn rename(&self, from: &[u8], to: &[u8], replace: bool) -> Answer {
        self.must_be_own(from)?;
        let replace = match self.export.access {
            Access::WriteOnly => replace && self.is_own(to)?,
            _ => replace,
        };
        let place = &self.export.place;
        place.at(from, |from_dir, from_name| {
            place.at(to, |to_dir, to_name| {
                if replace {
                    return fs::renameat(from_dir, from_name, to_dir, to_name);
                }
                let keep = RenameFlags::NOREPLACE;
                match fs::renameat_with(from_dir, from_name, to_dir, to_name, keep) {
                    // A file system that cannot: a link fails where the name exists.
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
            })
        })?;
        Ok(Said::Done)
    }

    /// In a drop box only what this client has put there may go or be renamed.
    fn must_be_own(&self, path: &[u8]) -> Result<(), Refused> {
        match self.export.access == Access::WriteOnly && !self.is_own(path)? {
            true => Err(self.forbidden()),
            false => Ok(()),
        }
    }

    /// Names of users and groups: two strings of numbers in, two of strings out.
    pub(crate) fn names_of_ids(
        &mut self,
        id: RequestId,
        users: &[u8],
        groups: &[u8],
        out: &mut Vec<u8>,
    ) -> Answer {
        let users = names(users, |user| self.accounts.user(user))?;
        let groups = names(groups, |group| self.accounts.group(group))?;
        tell_extended(id, &Pair(&users, &groups), out)
    }
}

/// Strings for the numbers in `ids`, empty where there is no such account.
fn names(ids: &[u8], mut look: impl FnMut(u32) -> Option<String>) -> Result<Vec<u8>, Refused> {
    let mut reader = Reader::new(ids);
    let mut names = Vec::new();
    while reader.left() > 0 {
        let bad = |_| Refused::new(StatusCode::BAD_MESSAGE, "a number is cut short");
        let name = look(reader.u32().map_err(bad)?).unwrap_or_default();
        name.as_bytes().write(&mut names);
    }
    Ok(names)
}

/// Two strings.
struct Pair<'a>(&'a [u8], &'a [u8]);

impl<'a> Field<'a> for Pair<'a> {
    fn read(r: &mut Reader<'a>) -> Result<Self, wire::WireError> {
        Ok(Self(r.string()?, r.string()?))
    }
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
        self.1.write(out);
    }
}

/// NAME with one path and nothing else.
pub(crate) fn tell_name(id: RequestId, name: &[u8], out: &mut Vec<u8>) -> Answer {
    let entry = NameEntry {
        filename: name,
        longname: name,
        attrs: sftp::Attrs::default(),
    };
    let names = Names(vec![entry]);
    Response::Name { names }.encode(id, out);
    Ok(Said::Told)
}

fn tell_space(id: RequestId, of: &impl AsFd, out: &mut Vec<u8>) -> Answer {
    let space = fs::fstatvfs(of)?;
    let told = Statvfs {
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
    };
    tell_extended(id, &told, out)
}

/// Where users of this export are at home.
pub(crate) fn home(session: &Session<'_>, user: &[u8]) -> Option<Vec<u8>> {
    match session.export.place {
        Place::Everything => accounts::home(user),
        // There are no other directories than this.
        Place::Beneath(_) => Some(b"/".to_vec()),
    }
}
