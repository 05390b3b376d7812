//! Checks that an entry is the one that the client expects (expect@longhaul).

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{self, FileType, Stat};
use rustix::process::geteuid;
use sftp::{Attrs, EntryType, LinkLimit, ListedEntry};

use super::attributes::seconds;
use super::request_error::Unexpected;
use super::session::RequestResult;

/// Fails unless the file of the descriptor, which may be an O_PATH descriptor, is the one that
/// `attrs` expects. Later calls must use the same descriptor: another process may put another entry
/// at the path at any time.
pub(super) fn check_expected(found: impl AsFd, attrs: &Attrs) -> RequestResult {
    let Some(expected) = attrs.expected else {
        return Ok(());
    };
    let found = found.as_fd();
    let stat = fs::fstat(found)?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Some(EntryType::File),
        FileType::Directory => Some(EntryType::Directory),
        FileType::Symlink => Some(EntryType::Symlink),
        _ => None,
    };
    if expected.kind.is_some() && expected.kind != kind {
        return Err(Unexpected::Entry.into());
    }
    let links = u32::try_from(stat.st_nlink).unwrap_or(u32::MAX);
    match expected.links {
        // A directory has a link for each of its subdirectories.
        LinkLimit::AtMost(most) if kind != Some(EntryType::Directory) && links > most => {
            Err(Unexpected::Links.into())
        }
        LinkLimit::AtMost(_) | LinkLimit::AnyNumber => check_listed(found, &stat, expected.listed),
    }
}

/// Fails unless the entry is the one that the client has listed. Only a server of root compares
/// inodes, since only root changes entries of other users, and only on file systems that keep them.
fn check_listed(found: BorrowedFd<'_>, stat: &Stat, listed: ListedEntry) -> RequestResult {
    let owner = (stat.st_uid, stat.st_gid);
    let modified = seconds(stat.st_mtime);
    let inode = (stat.st_dev, stat.st_ino);
    let compares_inodes = || geteuid().is_root() && keeps_inodes(found);
    let is_other = listed.owner.is_some_and(|it| it != owner)
        || listed.modified.is_some_and(|it| it != modified)
        || listed
            .inode
            .is_some_and(|it| it != inode && compares_inodes());
    match is_other {
        true => Err(Unexpected::Listed.into()),
        false => Ok(()),
    }
}

/// Superblock magic of FUSE and overlay (linux/magic.h), which may give a file another inode.
const CHANGES_INODES: [i128; 2] = [0x6573_5546, 0x794c_7630];

/// True if the file system of `found` never gives a file another inode.
fn keeps_inodes(found: BorrowedFd<'_>) -> bool {
    let stat = fs::fstatfs(found);
    stat.is_ok_and(|stat| !CHANGES_INODES.contains(&stat.f_type.into()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;

    use sftp::{ExpectedEntry, MetadataFlags, NOT_EXPECTED, OpenFlags, Request, StatusCode};

    use super::*;
    use crate::testing::{at, both, statuses};
    use crate::{Access, ExportedTree};

    const FILE: ExpectedEntry = ExpectedEntry::TEMPORARY;

    fn mode_of(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    /// True if the request was carried out, false if it was refused with the text for an unexpected
    /// entry.
    fn is_done(export: &ExportedTree, requests: &[Request<'_>]) -> bool {
        let (code, text) = statuses(export, requests).pop().unwrap();
        let refused = code == StatusCode::FAILURE && text.starts_with(NOT_EXPECTED);
        assert!(refused || code == StatusCode::OK, "{code:?}: {text}");
        !refused
    }

    /// The names `file`, `swapped` (a hard link of `victim`), `dir`, `link` (a symlink to `file`) and
    /// `fifo`.
    fn make_entries(folder: &Path) {
        for name in ["file", "victim"] {
            fs::write(folder.join(name), name).unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        fs::hard_link(folder.join("victim"), folder.join("swapped")).unwrap();
        fs::create_dir(folder.join("dir")).unwrap();
        symlink("file", folder.join("link")).unwrap();
        let (kind, mode) = (FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, folder.join("fifo"), kind, mode, 0).unwrap();
    }

    /// Bug: a local user who could write in the target put a hard link of a file from elsewhere in
    /// place of a listed file, or of a directory that was being filled, and root's sync or copy gave
    /// that file mode and owner.
    #[test]
    fn another_entry_in_place_of_the_expected_one_got_its_mode() {
        let any = LinkLimit::AnyNumber;
        let two = LinkLimit::AtMost(2);
        let listed = ListedEntry::ANY;
        let of = |kind, links| ExpectedEntry {
            kind,
            links,
            listed,
        };
        let cases = [
            ("file", FILE, true),
            ("swapped", FILE, false),
            ("swapped", of(Some(EntryType::File), two), true),
            ("swapped", of(Some(EntryType::File), any), true),
            ("swapped", of(None, LinkLimit::AtMost(1)), false),
            ("swapped", ExpectedEntry::DIRECTORY, false),
            ("dir", ExpectedEntry::DIRECTORY, true),
            ("dir", of(None, LinkLimit::AtMost(1)), true),
            ("dir", FILE, false),
            ("link", FILE, false),
            ("fifo", FILE, false),
            ("fifo", of(Some(EntryType::Unknown), any), false),
            ("file", of(Some(EntryType::Unknown), any), false),
        ];
        let mut no_xattrs = Vec::new();
        sftp::xattrs::write(&[], &mut no_xattrs);
        both(Access::Full, |export, before, folder| {
            for (name, expected, is_set) in cases {
                let path = at(before, name);
                let attrs = Attrs {
                    expected: Some(expected),
                    ..Attrs::with_permissions(0o751)
                };
                let metadata = Request::SetMetadata {
                    of: &path,
                    flags: MetadataFlags::default(),
                    attrs,
                    xattrs: &no_xattrs,
                };
                let path = path.as_slice();
                let mut requests = vec![Request::Lsetstat { path, attrs }];
                if name != "link" {
                    requests.push(Request::Setstat { path, attrs });
                }
                for request in requests {
                    make_entries(folder);
                    let done = is_done(export, &[request]);
                    assert_eq!(done, is_set, "{name}: {request:?}");
                    assert_eq!(mode_of(&folder.join(name)) == 0o751, is_set, "{request:?}");
                    clear(folder);
                }
                make_entries(folder);
                statuses_or_reply(export, metadata);
                assert_eq!(mode_of(&folder.join(name)) == 0o751, is_set, "{name}");
                clear(folder);
            }
        });
    }

    /// Bug: a local user who could move a file of another user into the target, or put another
    /// directory in place of a listed one, had root's sync give it mode and owner.
    #[test]
    fn an_entry_of_another_user_in_place_of_the_listed_one_got_its_mode() {
        let set = |export: &ExportedTree, path: &[u8], listed, attrs| {
            let expected = Some(ExpectedEntry {
                listed,
                ..ExpectedEntry::default()
            });
            let attrs = Attrs { expected, ..attrs };
            is_done(export, &[Request::Lsetstat { path, attrs }])
        };
        both(Access::Full, |export, before, folder| {
            make_entries(folder);
            for name in ["file", "dir"] {
                let path = at(before, name);
                let meta = fs::metadata(folder.join(name)).unwrap();
                let (uid, gid, mtime) = (meta.uid(), meta.gid(), meta.mtime() as u32);
                let mode = Attrs::with_permissions(0o751);
                let same = ListedEntry {
                    owner: Some((uid, gid)),
                    modified: Some(mtime),
                    inode: Some((meta.dev(), meta.ino())),
                };
                let others = [
                    ListedEntry {
                        owner: Some((uid + 1, gid)),
                        ..same
                    },
                    ListedEntry {
                        modified: Some(mtime - 1),
                        ..same
                    },
                ];
                let other_inode = ListedEntry {
                    inode: Some((meta.dev(), meta.ino() + 1)),
                    ..same
                };
                for listed in others {
                    assert!(!set(export, &path, listed, mode), "{name} {listed:?}");
                }
                let is_root = geteuid().is_root();
                assert_eq!(set(export, &path, other_inode, mode), !is_root, "{name}");
                assert_eq!(mode_of(&folder.join(name)) == 0o751, !is_root, "{name}");
                // Bug: an owner or a time that the request sets was taken for the listed one.
                let sets = Attrs {
                    owner: Some((uid, gid)),
                    times: Some((mtime, mtime)),
                    ..mode
                };
                for listed in others {
                    assert!(!set(export, &path, listed, sets), "{name} {listed:?}");
                }
                assert!(set(export, &path, same, mode), "{name}");
            }
            clear(folder);
        });
    }

    fn open(path: &[u8], flags: OpenFlags) -> Request<'_> {
        let expected = Some(FILE);
        let attrs = Attrs {
            expected,
            ..Attrs::with_permissions(0o600)
        };
        Request::Open { path, flags, attrs }
    }

    /// Sends a request whose success is no STATUS.
    fn statuses_or_reply(export: &ExportedTree, request: Request<'_>) {
        assert_eq!(crate::testing::answers(export, &[request]).len(), 1);
    }

    fn clear(folder: &Path) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => fs::remove_dir(path).unwrap(),
                false => fs::remove_file(path).unwrap(),
            }
        }
    }

    /// Bug: the temporary of an interrupted upload was swapped for a hard link of another file, which
    /// the resumed upload overwrote.
    #[test]
    fn a_file_in_place_of_a_temporary_was_overwritten() {
        both(Access::Full, |export, before, folder| {
            make_entries(folder);
            let cut = OpenFlags::WRITE | OpenFlags::TRUNC;
            for name in ["swapped", "dir", "link", "fifo"] {
                let path = at(before, name);
                for flags in [OpenFlags::READ, OpenFlags::WRITE, cut] {
                    // The system refuses to write to a directory, or to a FIFO without a reader.
                    if flags != OpenFlags::READ && ["dir", "fifo"].contains(&name) {
                        continue;
                    }
                    let request = open(&path, flags);
                    assert!(!is_done(export, &[request]), "{name} {flags:?}");
                }
            }
            for name in ["file", "victim"] {
                assert_eq!(fs::read(folder.join(name)).unwrap(), name.as_bytes());
            }
            let path = at(before, "file");
            let request = open(&path, cut);
            assert_eq!(crate::testing::answers(export, &[request]).len(), 1);
            assert_eq!(fs::metadata(folder.join("file")).unwrap().size(), 0);
            let path = at(before, "swapped");
            let made = open(&path, cut | OpenFlags::CREAT);
            assert_eq!(crate::testing::answers(export, &[made]).len(), 1);
            assert_eq!(fs::metadata(folder.join("victim")).unwrap().size(), 0);
        });
    }

    /// A hard link that was made after OPEN.
    #[test]
    fn an_open_file_is_checked_too() {
        both(Access::Full, |export, before, folder| {
            make_entries(folder);
            let path = at(before, "swapped");
            let (handle, expected) = (&[0; 4][..], Some(FILE));
            let open = Request::Open {
                path: &path,
                flags: OpenFlags::WRITE,
                attrs: Attrs::default(),
            };
            let attrs = Attrs {
                expected,
                size: Some(0),
                ..Attrs::default()
            };
            let set = Request::Fsetstat { handle, attrs };
            let answers = crate::testing::answers(export, &[open, set]);
            let Ok((_, sftp::Response::Status { code, .. })) = sftp::Response::decode(&answers[1])
            else {
                panic!("no STATUS");
            };
            assert_eq!(code, StatusCode::FAILURE);
            assert_eq!(fs::read(folder.join("victim")).unwrap(), b"victim");
        });
    }
}
