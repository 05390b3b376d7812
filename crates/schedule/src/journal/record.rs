use serde::{Deserialize, Serialize};
use wire::{Field, FieldReader, WireError};

/// Longest record in bytes. Local paths are limited by PATH_MAX (4096) and remote paths by the SFTP
/// message size; the identity holds all sources of a command line.
pub const LONGEST: usize = 1 << 20;
/// Maximum number of ranges in one record; more are split into several records.
pub const MOST_RANGES: usize = 1024;

/// Size, modification time, inode and device of a source file at the start of its copy. If any of
/// them differs later, the file has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFileStamp {
    /// Size in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since 1970; whole seconds at the far end.
    pub mtime: u64,
    /// Inode number; at the far end, which sends neither inode nor device, a hash of the path.
    pub inode: u64,
    /// Device number; zero at the far end.
    pub device: u64,
}

/// Record of a journal: one step of a copy, from which a later run learns what need not be sent
/// again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalRecord {
    /// First record: identifies the copy.
    Copy {
        /// Sources, destination and the flags that change the result.
        identity: Vec<u8>,
    },
    /// A process starts to write. Data that were not durable at the receiving end are void if that
    /// machine has rebooted since.
    Run {
        /// Boot id of the receiving machine; empty if unknown.
        boot: Vec<u8>,
    },
    /// Boot id of the receiving machine, learned during the run. Earlier records of this run belong
    /// to the same boot.
    Boot {
        /// Boot id, as in [`JournalRecord::Run`].
        boot: Vec<u8>,
    },
    /// Kind of target that the first run found.
    Onto {
        /// True if the target was a directory that receives the sources; false if it is the name of
        /// the copy itself.
        into: bool,
    },
    /// A file is about to be started: its temporary may exist from now on.
    Begun {
        /// Number that identifies the file in later records.
        id: u64,
        /// Final name of the file.
        target: Vec<u8>,
        /// Identity of the source.
        source: SourceFileStamp,
        /// Number from which the temporary's name is made ([`crate::tagged_name`]).
        tag: u64,
    },
    /// Actual path of the temporary, which differs if the target was a symlink.
    Temp {
        /// Number of the file.
        id: u64,
        /// Path of the temporary.
        path: Vec<u8>,
    },
    /// Ranges of the temporary that the receiving end has confirmed.
    Ranges {
        /// Number of the file.
        id: u64,
        /// True if the ranges were synced; false if only the receiving machine's kernel may have
        /// them.
        durable: bool,
        /// Modification time of the temporary at that moment in nanoseconds since 1970; 0 if
        /// unknown.
        mtime: u64,
        /// Ranges as first byte and first byte after the range.
        ranges: Vec<(u64, u64)>,
    },
    /// The file has its final name.
    Done {
        /// Number of the file.
        id: u64,
        /// True if the file was synced.
        durable: bool,
        /// Size in bytes.
        size: u64,
        /// Modification time of the target in nanoseconds since 1970; 0 if it was not asked for.
        mtime: u64,
    },
    /// The file failed and its temporary is gone.
    Forgotten {
        /// Number of the file.
        id: u64,
    },
    /// The copy has made this directory, in one that was there before: all below it is the copy's.
    MadeDirectory {
        /// Path of the directory.
        path: Vec<u8>,
    },
    /// Number from which the temporaries of links get their names.
    LinkNames {
        /// Random number.
        seed: u64,
    },
    /// Clock of the receiving machine, read from a modification time that it has just set. The files
    /// that were finished before have no later one, unless they were changed since.
    Clock {
        /// Number of files that this run had finished, without asking for their time, when it
        /// requested the reading.
        files: u64,
        /// Time in nanoseconds since 1970.
        mtime: u64,
    },
    /// The run that wrote the records so far has ended. Files that it finished without asking for
    /// their time, after its last reading of the clock or in that second, are not believed.
    Sealed {
        /// Last reading of the clock, in nanoseconds since 1970.
        mtime: u64,
    },
    /// The first `files` files that are done but not durable have been made durable.
    Durable {
        /// Number of files.
        files: u64,
    },
    /// All of the journal before this offset was durable when this record was written.
    Synced {
        /// Bytes from the beginning of the file.
        offset: u64,
    },
}

const COPY: u8 = 1;
const RUN: u8 = 2;
const ONTO: u8 = 3;
const BEGUN: u8 = 4;
const TEMP: u8 = 5;
const RANGES: u8 = 6;
const DONE: u8 = 7;
const FORGOTTEN: u8 = 8;
const CLOCK: u8 = 9;
const DURABLE: u8 = 10;
pub(super) const SYNCED: u8 = 11;
const BOOT: u8 = 12;
const SEALED: u8 = 13;
const MADE_DIRECTORY: u8 = 14;
const LINK_NAMES: u8 = 15;

/// Writes a path as its difference from `last`, which it becomes.
fn write_path(path: &[u8], last: &mut Vec<u8>, out: &mut Vec<u8>) {
    let same = last.iter().zip(path).take_while(|(a, b)| a == b).count();
    u32::try_from(same).unwrap_or(0).write(out);
    path.get(same..).unwrap_or_default().write(out);
    last.clear();
    last.extend_from_slice(path);
}

impl JournalRecord {
    /// Returns the first byte of the encoded record.
    fn tag(&self) -> u8 {
        match self {
            Self::Copy { .. } => COPY,
            Self::Run { .. } => RUN,
            Self::Boot { .. } => BOOT,
            Self::Onto { .. } => ONTO,
            Self::Begun { .. } => BEGUN,
            Self::Temp { .. } => TEMP,
            Self::Ranges { .. } => RANGES,
            Self::Done { .. } => DONE,
            Self::Forgotten { .. } => FORGOTTEN,
            Self::MadeDirectory { .. } => MADE_DIRECTORY,
            Self::LinkNames { .. } => LINK_NAMES,
            Self::Clock { .. } => CLOCK,
            Self::Sealed { .. } => SEALED,
            Self::Durable { .. } => DURABLE,
            Self::Synced { .. } => SYNCED,
        }
    }

    /// Appends the encoded record. A path is stored as the difference from `last`, the path before
    /// it.
    pub(super) fn encode(&self, last: &mut Vec<u8>, out: &mut Vec<u8>) {
        out.push(self.tag());
        match self {
            Self::Copy { identity } => identity.as_slice().write(out),
            Self::Run { boot } => {
                boot.as_slice().write(out);
                last.clear();
            }
            Self::Boot { boot } => {
                boot.as_slice().write(out);
            }
            Self::Onto { into } => {
                into.write(out);
            }
            Self::Begun {
                id,
                target,
                source,
                tag,
            } => {
                id.write(out);
                write_path(target, last, out);
                for number in [source.size, source.mtime, source.inode, source.device, *tag] {
                    number.write(out);
                }
            }
            Self::Temp { id, path } => {
                id.write(out);
                path.as_slice().write(out);
            }
            Self::Ranges {
                id,
                durable,
                mtime,
                ranges,
            } => {
                id.write(out);
                durable.write(out);
                mtime.write(out);
                for (from, to) in ranges.iter().take(MOST_RANGES) {
                    from.write(out);
                    to.write(out);
                }
            }
            Self::Done {
                id,
                durable,
                size,
                mtime,
            } => {
                id.write(out);
                durable.write(out);
                size.write(out);
                mtime.write(out);
            }
            Self::Forgotten { id } => {
                id.write(out);
            }
            Self::MadeDirectory { path } => path.as_slice().write(out),
            Self::LinkNames { seed } => seed.write(out),
            Self::Clock { files, mtime } => {
                files.write(out);
                mtime.write(out);
            }
            Self::Sealed { mtime } => {
                mtime.write(out);
            }
            Self::Durable { files } => {
                files.write(out);
            }
            Self::Synced { offset } => {
                offset.write(out);
            }
        }
    }

    /// Decodes a record; `None` if no writer of this version can have written it.
    pub(super) fn decode(bytes: &[u8], last: &mut Vec<u8>) -> Option<Self> {
        let mut r = FieldReader::new(bytes);
        let record = Self::read(&mut r, last).ok().flatten()?;
        r.finish().ok()?;
        Some(record)
    }

    fn read(r: &mut FieldReader<'_>, last: &mut Vec<u8>) -> Result<Option<Self>, WireError> {
        Ok(Some(match r.u8()? {
            COPY => Self::Copy {
                identity: r.string()?.to_vec(),
            },
            RUN => {
                last.clear();
                Self::Run {
                    boot: r.string()?.to_vec(),
                }
            }
            BOOT => Self::Boot {
                boot: r.string()?.to_vec(),
            },
            ONTO => Self::Onto {
                into: bool::read(r)?,
            },
            BEGUN => return Self::read_begun(r, last),
            TEMP => Self::Temp {
                id: r.u64()?,
                path: r.string()?.to_vec(),
            },
            RANGES => {
                let (id, durable, mtime) = (r.u64()?, bool::read(r)?, r.u64()?);
                let mut ranges = Vec::new();
                while r.left() > 0 && ranges.len() < MOST_RANGES {
                    let (from, to) = (r.u64()?, r.u64()?);
                    // A range to the end of the file is valid only during the copy, never in the
                    // journal.
                    if from >= to || to == u64::MAX {
                        return Ok(None);
                    }
                    ranges.push((from, to));
                }
                Self::Ranges {
                    id,
                    durable,
                    mtime,
                    ranges,
                }
            }
            DONE => Self::Done {
                id: r.u64()?,
                durable: bool::read(r)?,
                size: r.u64()?,
                mtime: r.u64()?,
            },
            FORGOTTEN => Self::Forgotten { id: r.u64()? },
            MADE_DIRECTORY => Self::MadeDirectory {
                path: r.string()?.to_vec(),
            },
            LINK_NAMES => Self::LinkNames { seed: r.u64()? },
            CLOCK => Self::Clock {
                files: r.u64()?,
                mtime: r.u64()?,
            },
            SEALED => Self::Sealed { mtime: r.u64()? },
            DURABLE => Self::Durable { files: r.u64()? },
            SYNCED => Self::Synced { offset: r.u64()? },
            _ => return Ok(None),
        }))
    }

    fn read_begun(r: &mut FieldReader<'_>, last: &mut Vec<u8>) -> Result<Option<Self>, WireError> {
        let id = r.u64()?;
        let same = r.u32()? as usize;
        if same > last.len() {
            return Ok(None);
        }
        last.truncate(same);
        last.extend_from_slice(r.string()?);
        if last.len() > LONGEST {
            return Ok(None);
        }
        Ok(Some(Self::Begun {
            id,
            target: last.clone(),
            source: SourceFileStamp {
                size: r.u64()?,
                mtime: r.u64()?,
                inode: r.u64()?,
                device: r.u64()?,
            },
            tag: r.u64()?,
        }))
    }
}
