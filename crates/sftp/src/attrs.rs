use serde::{Deserialize, Serialize};
use wire::{Field, FieldReader, WireError};

use crate::{ExpectedEntry, ListedEntry};

const SIZE: u32 = 0x1;
const UIDGID: u32 = 0x2;
const PERMISSIONS: u32 = 0x4;
const ACMODTIME: u32 = 0x8;
const EXTENDED: u32 = 0x8000_0000;

/// Extended pairs of `attributes@longhaul`.
const NANOSECONDS: &[u8] = b"nanoseconds@longhaul";
const LINK: &[u8] = b"link@longhaul";
/// Extended pairs of `expect@longhaul` and `expect-listed@longhaul`.
const EXPECT: &[u8] = b"expect@longhaul";
const EXPECT_LISTED: &[u8] = b"expect-listed@longhaul";
const SECOND: u32 = 1_000_000_000;

/// File attributes, ATTRS (draft-ietf-secsh-filexfer-02 section 5). Absent fields are `None`;
/// unknown extended pairs are read and dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    /// File size in bytes.
    pub size: Option<u64>,
    /// User and group ID.
    pub owner: Option<(u32, u32)>,
    /// `st_mode`, with the file type bits if the sender includes them.
    pub permissions: Option<u32>,
    /// Access and modification time in seconds since 1970.
    pub times: Option<(u32, u32)>,
    /// Nanosecond parts of the times, each below 1,000,000,000: an extended pair of peers with
    /// attributes@longhaul.
    pub nanoseconds: Option<(u32, u32)>,
    /// Identity of a file with several hard links, or of a directory: an extended pair of peers
    /// with attributes@longhaul.
    pub link: Option<InodeId>,
    /// Entry that a request may change: an extended pair for servers with expect@longhaul.
    pub expected: Option<ExpectedEntry>,
}

/// Identity of a file, equal for all of its hard links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InodeId {
    /// The file system's number (`st_dev`).
    pub device: u64,
    /// The inode number (`st_ino`).
    pub inode: u64,
    /// Number of hard links (`st_nlink`).
    pub names: u32,
}

impl Attrs {
    /// Returns attributes with permission bits and nothing else.
    pub fn with_permissions(permissions: u32) -> Self {
        Self {
            permissions: Some(permissions),
            ..Self::default()
        }
    }

    /// Returns true if no attribute is set.
    pub fn is_empty(&self) -> bool {
        let expected = None;
        Self { expected, ..*self } == Self::default()
    }

    /// Returns true if the mode says directory.
    pub fn is_dir(&self) -> bool {
        self.permissions.is_some_and(|p| p & 0o170_000 == 0o040_000)
    }
}

impl<'a> Field<'a> for Attrs {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        let flags = r.u32()?;
        let mut attrs = Self::default();
        if flags & SIZE != 0 {
            attrs.size = Some(r.u64()?);
        }
        if flags & UIDGID != 0 {
            attrs.owner = Some((r.u32()?, r.u32()?));
        }
        if flags & PERMISSIONS != 0 {
            attrs.permissions = Some(r.u32()?);
        }
        if flags & ACMODTIME != 0 {
            attrs.times = Some((r.u32()?, r.u32()?));
        }
        if flags & EXTENDED != 0 {
            for _ in 0..r.u32()? {
                attrs.take_pair(r.string()?, r.string()?)?;
            }
        }
        Ok(attrs)
    }

    fn write(&self, out: &mut Vec<u8>) {
        let flag = |present: bool, bit: u32| if present { bit } else { 0 };
        let flags = flag(self.size.is_some(), SIZE)
            | flag(self.owner.is_some(), UIDGID)
            | flag(self.permissions.is_some(), PERMISSIONS)
            | flag(self.times.is_some(), ACMODTIME)
            | flag(self.pairs() > 0, EXTENDED);
        flags.write(out);
        if let Some(size) = self.size {
            size.write(out);
        }
        for (a, b) in self.owner.iter() {
            a.write(out);
            b.write(out);
        }
        if let Some(permissions) = self.permissions {
            permissions.write(out);
        }
        for (a, b) in self.times.iter() {
            a.write(out);
            b.write(out);
        }
        if self.pairs() > 0 {
            self.pairs().write(out);
        }
        if let Some((accessed, modified)) = self.nanoseconds {
            NANOSECONDS.write(out);
            let both = [accessed, modified].map(u32::to_be_bytes).concat();
            both.as_slice().write(out);
        }
        if let Some(link) = self.link {
            LINK.write(out);
            let InodeId {
                device,
                inode,
                names,
            } = link;
            let (device, inode) = (device.to_be_bytes(), inode.to_be_bytes());
            let whole = [&device[..], &inode, &names.to_be_bytes()].concat();
            whole.as_slice().write(out);
        }
        if let Some(expected) = self.expected {
            EXPECT.write(out);
            expected.to_bytes().as_slice().write(out);
            if !expected.listed.is_any() {
                EXPECT_LISTED.write(out);
                expected.listed.to_bytes().as_slice().write(out);
            }
        }
    }
}

impl Attrs {
    /// Returns the number of extended pairs to write.
    fn pairs(&self) -> u32 {
        let pairs = [
            self.nanoseconds.is_some(),
            self.link.is_some(),
            self.expected.is_some(),
            self.expected.is_some_and(|entry| !entry.listed.is_any()),
        ];
        pairs.map(u32::from).iter().sum()
    }

    /// Reads an extended pair. One that is malformed or unknown is ignored, except an expectation,
    /// without which the request must not be carried out.
    fn take_pair(&mut self, name: &[u8], data: &[u8]) -> Result<(), WireError> {
        let mut r = FieldReader::new(data);
        match name {
            NANOSECONDS => {
                let both = r.u32().and_then(|a| Ok((a, r.u32()?)));
                let both = both.ok().filter(|_| r.left() == 0);
                self.nanoseconds = both.filter(|(a, m)| a.max(m) < &SECOND);
            }
            LINK => {
                let mut read = || {
                    let (device, inode) = (r.u64()?, r.u64()?);
                    let names = r.u32()?;
                    Ok::<_, WireError>(InodeId {
                        device,
                        inode,
                        names,
                    })
                };
                let link = read().ok();
                self.link = link.filter(|_| r.left() == 0);
            }
            EXPECT => {
                let listed = self.expected.unwrap_or_default().listed;
                let entry = ExpectedEntry::from_bytes(data)?;
                self.expected = Some(ExpectedEntry { listed, ..entry });
            }
            EXPECT_LISTED => {
                let listed = ListedEntry::from_bytes(data)?;
                self.expected.get_or_insert_default().listed = listed;
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EntryType, LinkLimit};

    #[test]
    fn extended_pairs_are_skipped_and_a_false_count_is_an_error() {
        let mut bytes = Vec::new();
        (EXTENDED | PERMISSIONS).write(&mut bytes);
        0o644u32.write(&mut bytes);
        1u32.write(&mut bytes);
        b"x@y".as_slice().write(&mut bytes);
        b"".as_slice().write(&mut bytes);
        let mut r = FieldReader::new(&bytes);
        assert_eq!(Attrs::read(&mut r), Ok(Attrs::with_permissions(0o644)));
        assert_eq!(r.left(), 0);
        bytes[11] = 0xff;
        assert!(Attrs::read(&mut FieldReader::new(&bytes)).is_err());
    }
    #[test]
    fn pairs_of_ours_are_read_as_they_were_written_and_false_ones_say_nothing() {
        let attrs = Attrs {
            times: Some((1, 2)),
            nanoseconds: Some((3, SECOND - 1)),
            link: Some(InodeId {
                device: 1 << 40,
                inode: u64::MAX,
                names: 2,
            }),
            expected: Some(ExpectedEntry {
                kind: Some(EntryType::Symlink),
                links: LinkLimit::AtMost(3),
                listed: ListedEntry {
                    owner: Some((1000, u32::MAX)),
                    modified: Some(1 << 31),
                    inode: Some((1 << 40, u64::MAX)),
                },
            }),
            ..Attrs::default()
        };
        let mut bytes = Vec::new();
        attrs.write(&mut bytes);
        let mut r = FieldReader::new(&bytes);
        assert_eq!((Attrs::read(&mut r), r.left()), (Ok(attrs), 0));
        let false_ones: [(&[u8], Vec<u8>); 4] = [
            (NANOSECONDS, vec![0; 7]),
            (NANOSECONDS, vec![0xff; 8]),
            (LINK, vec![0; 21]),
            (LINK, Vec::new()),
        ];
        for (name, data) in false_ones {
            let mut bytes = Vec::new();
            EXTENDED.write(&mut bytes);
            1u32.write(&mut bytes);
            name.write(&mut bytes);
            data.as_slice().write(&mut bytes);
            let read = Attrs::read(&mut FieldReader::new(&bytes));
            assert_eq!(read, Ok(Attrs::default()), "{data:?}");
        }
    }

    #[test]
    fn a_request_whose_expectation_cannot_be_read_is_not_carried_out() {
        let expected = |data: &[u8]| {
            let mut bytes = Vec::new();
            EXTENDED.write(&mut bytes);
            1u32.write(&mut bytes);
            EXPECT.write(&mut bytes);
            data.write(&mut bytes);
            Attrs::read(&mut FieldReader::new(&bytes)).map(|attrs| attrs.expected)
        };
        let file = [0, 0, 0, 1, 0, 0, 0, 1];
        let kind = Some(EntryType::File);
        let links = LinkLimit::AtMost(1);
        let listed = ListedEntry::ANY;
        let entry = ExpectedEntry {
            kind,
            links,
            listed,
        };
        assert_eq!(expected(&file), Ok(Some(entry)));
        assert_eq!(expected(&[0; 8]), Ok(Some(ExpectedEntry::default())));
        assert!(expected(&file[..7]).is_err());
        assert!(expected(&[&file[..], &[0]].concat()).is_err());
        let unknown = expected(&[0, 0, 0, 77, 0, 0, 0, 0]).expect("a later version");
        let kind = unknown.expect("a pair").kind;
        assert_eq!(kind, Some(EntryType::Unknown));
    }

    #[test]
    fn a_listed_entry_is_read_part_by_part_and_not_without_its_whole_length() {
        let all = ListedEntry {
            owner: Some((1, 2)),
            modified: Some(3),
            inode: Some((4, 5)),
        };
        let parts = [
            ListedEntry::ANY,
            ListedEntry { owner: None, ..all },
            ListedEntry {
                modified: None,
                ..all
            },
            ListedEntry { inode: None, ..all },
            all,
        ];
        for listed in parts {
            let bytes = listed.to_bytes();
            assert_eq!(ListedEntry::from_bytes(&bytes), Ok(listed));
            assert!(ListedEntry::from_bytes(&bytes[1..]).is_err());
            assert!(ListedEntry::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn an_expectation_sets_nothing() {
        let expected = Some(ExpectedEntry::TEMPORARY);
        let attrs = Attrs {
            expected,
            ..Attrs::default()
        };
        assert!(attrs.is_empty() && attrs != Attrs::default());
    }
}
