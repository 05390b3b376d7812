//! Checks that a file whose attributes are set is still the one that was listed.

use std::io;

use rustix::fs::{FileType, Stat};
use schedule::{Attributes, EntryKind, LinkLimit, ListedEntry};
use sftp::InodeId;
use sync::{ModifiedTime, TreeEntry};

use crate::disk::kind_of;

/// File of the target that gets attributes. Somebody who may write in its directory may have put
/// another one there since it was listed, such as a hard link of a file from elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedFile {
    links: LinkLimit,
    listed: ListedEntry,
}

impl Default for ExpectedFile {
    /// A file with one name, of which nothing else is known.
    fn default() -> Self {
        Self {
            links: LinkLimit::AtMost(1),
            listed: ListedEntry::ANY,
        }
    }
}

impl ExpectedFile {
    /// File with the listed entry, and the identity that the listing told of a file with several
    /// names. One with one name has its owner and modification time, as far as they are known; the run
    /// may have set those of another one by a name of it.
    pub(super) fn of(listed: Option<&TreeEntry>, link: Option<InodeId>) -> Self {
        let seconds = |time: ModifiedTime| u32::try_from(time.seconds).ok();
        match link {
            Some(link) => Self {
                links: LinkLimit::AtMost(link.names),
                listed: ListedEntry {
                    inode: Some((link.device, link.inode)),
                    ..ListedEntry::ANY
                },
            },
            None => Self {
                links: LinkLimit::AtMost(1),
                listed: ListedEntry {
                    owner: listed.and_then(|entry| entry.owner),
                    modified: listed.and_then(|entry| entry.modified).and_then(seconds),
                    inode: None,
                },
            },
        }
    }

    /// The file may have got more names since, which the run itself makes.
    pub(super) fn with_more_links(self) -> Self {
        Self {
            links: LinkLimit::AnyNumber,
            ..self
        }
    }

    /// Number of hard links that a server is told to expect.
    pub(super) fn links(self) -> LinkLimit {
        self.links
    }

    /// The listed entry that a server is told to expect.
    pub(super) fn listed(self) -> ListedEntry {
        self.listed
    }

    /// Checks the file that was opened to get `attributes`.
    ///
    /// # Errors
    /// It is another one, or was changed.
    pub(super) fn check(self, meta: &Stat, attributes: &Attributes) -> io::Result<()> {
        let found = match kind_of(meta) {
            FileType::Directory => EntryKind::Directory,
            FileType::RegularFile => EntryKind::File,
            _ => EntryKind::Other,
        };
        // Times alone are set without a kind.
        let is_listed = attributes.mode.is_none() || found == attributes.kind();
        if found == EntryKind::Other || !is_listed {
            return Err(io::Error::other("another entry has taken its place"));
        }
        if found == EntryKind::Directory {
            return Ok(());
        }
        let size = u64::try_from(meta.st_size).ok();
        if attributes.size.is_some_and(|own| Some(own) != size) {
            return Err(io::Error::other("its size has changed since it was listed"));
        }
        let ListedEntry {
            owner,
            modified,
            inode,
        } = self.listed;
        // Times that SFTP cannot carry are listed as others.
        let time = u32::try_from(meta.st_mtime).ok();
        let is_same = owner.is_none_or(|owner| owner == (meta.st_uid, meta.st_gid))
            && modified.is_none_or(|listed| time.is_none_or(|time| time == listed));
        let changed = match inode {
            Some(inode) if inode != (meta.st_dev, meta.st_ino) => "it is another file",
            None if self.links == LinkLimit::AtMost(1) && meta.st_nlink > 1 => {
                "it has more hard links"
            }
            _ if !is_same => "it has another owner or time",
            _ => return Ok(()),
        };
        Err(io::Error::other(format!(
            "{changed} than when it was listed: check that nobody else has put the file there, then \
             run the same command again"
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use schedule::LocalTargetPath;
    use sync::TreeEntryKind;

    use super::*;
    use crate::disk::OpenDirectoryCache;
    use crate::sync::ends::set;

    /// Bug: a local user who could write in DST put a hard link of another file in place of one whose
    /// attributes `sync -A -X` of root set: the other file got the mode and the access control list.
    #[test]
    fn another_file_in_place_of_a_listed_one_got_its_mode() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        for (name, content) in [
            ("own", "12345"),
            ("elsewhere", "54321"),
            ("linked", "11111"),
        ] {
            fs::write(at(name), content).expect("ours");
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o600)).expect("ours");
        }
        fs::hard_link(at("elsewhere"), at("swapped")).expect("ours");
        fs::hard_link(at("linked"), at("linked too")).expect("ours");
        fs::create_dir(at("directory")).expect("ours");
        symlink("elsewhere", at("symlink")).expect("ours");
        let listed = |name: &str| {
            let meta = fs::metadata(at(name)).expect("ours");
            let link = InodeId {
                device: meta.dev(),
                inode: meta.ino(),
                names: 2,
            };
            ExpectedFile::of(None, Some(link))
        };
        let directories = OpenDirectoryCache::default();
        let attributes = Attributes {
            size: Some(5),
            mode: Some(0o100_644),
            ..Attributes::default()
        };
        let one = ExpectedFile::default();
        for (name, expected, is_set) in [
            ("own", one, true),
            ("swapped", one, false),
            ("swapped", listed("linked"), false),
            ("linked", listed("linked"), true),
            ("directory", one, false),
            ("symlink", one, false),
            // Bug: with --hard-links, any file in place of one that the source links got the mode.
            ("swapped", listed("linked").with_more_links(), false),
            ("linked", listed("linked").with_more_links(), true),
            ("swapped", one.with_more_links(), true),
        ] {
            let place = LocalTargetPath::beneath(dir.path(), name, false);
            let place = directories.locate(&place).expect("ours");
            let done = set(&place, &attributes, None, &expected);
            assert_eq!(done.is_ok(), is_set, "{name}: {done:?}");
            let mode = || fs::metadata(at(name)).expect("ours").permissions().mode();
            assert!(mode() & 0o7777 != 0o644 || is_set, "{name}");
        }
        // A file that was moved there has one name as well.
        let meta = fs::metadata(at("own")).expect("ours");
        let mut listed = TreeEntry::new(TreeEntryKind::File);
        listed.owner = Some((meta.uid(), meta.gid()));
        listed.modified = Some(ModifiedTime {
            seconds: meta.mtime(),
            nanoseconds: None,
        });
        let place = LocalTargetPath::beneath(dir.path(), "own", false);
        let place = directories.locate(&place).expect("ours");
        let set_with = |listed: &TreeEntry| {
            let expected = ExpectedFile::of(Some(listed), None);
            let linked = set(&place, &attributes, None, &expected.with_more_links());
            let done = set(&place, &attributes, None, &expected);
            assert_eq!(linked.is_ok(), done.is_ok(), "{linked:?}");
            done
        };
        assert!(set_with(&listed).is_ok());
        listed.owner = Some((meta.uid() + 1, meta.gid()));
        assert!(set_with(&listed).is_err());
        listed.owner = None;
        listed.modified = Some(ModifiedTime {
            seconds: meta.mtime() - 1,
            nanoseconds: None,
        });
        assert!(set_with(&listed).is_err());
    }
}
