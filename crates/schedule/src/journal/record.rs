use serde::{Deserialize, Serialize};
use wire::{Field, Reader, WireError};

/// The longest record in bytes. Paths are up to PATH_MAX (4096) here and bounded by SFTP's
/// messages there; the identity holds all sources of a command line.
pub const LONGEST: usize = 1 << 20;
/// Ranges in one record; more are several records.
pub const MOST_RANGES: usize = 1024;

/// What a source was when its copy began: if anything of it differs, it is another file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceId {
    /// Bytes.
    pub size: u64,
    /// Modification time in nanoseconds since 1970, whole seconds at the far end.
    pub mtime: u64,
    /// Inode and device; zero at the far end, which tells neither.
    pub inode: u64,
    /// See `inode`.
    pub device: u64,
}

/// One thing that was written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The first: which copy it is.
    Copy {
        /// Sources, destination and the flags that change the result.
        identity: Vec<u8>,
    },
    /// A process begins to write. What was not durable at the receiving end is void if that
    /// machine has started anew since.
    Run {
        /// Names the start of the receiving machine's kernel; empty if it is not known.
        boot: Vec<u8>,
    },
    /// The start of the receiving machine's kernel, found out by the run that is under way: what
    /// that run has told before came from the same.
    Boot {
        /// As in [`Record::Run`].
        boot: Vec<u8>,
    },
    /// How the first run found the target that the command names.
    Onto {
        /// It was a directory, and sources go into it; else they go to exactly that name.
        into: bool,
    },
    /// A file is about to be begun: its temporary may exist from now on.
    Begun {
        /// Names it in the records that follow.
        id: u64,
        /// The final name.
        target: Vec<u8>,
        /// What is copied.
        source: SourceId,
        /// The letters in the temporary's name ([`crate::tagged_name`]).
        tag: u64,
    },
    /// Where the temporary really is: the target may have been a symlink.
    Temp {
        /// Of which file.
        id: u64,
        /// Its path.
        path: Vec<u8>,
    },
    /// Bytes of the temporary that are there.
    Ranges {
        /// Of which file.
        id: u64,
        /// They were synced; else only the receiving machine's kernel has them.
        durable: bool,
        /// The temporary's modification time then, in nanoseconds; 0 if unknown.
        mtime: u64,
        /// First bytes, and those behind the last.
        ranges: Vec<(u64, u64)>,
    },
    /// The file has its final name.
    Done {
        /// Which.
        id: u64,
        /// It was synced.
        durable: bool,
        /// Bytes.
        size: u64,
        /// The target's modification time in nanoseconds; 0 if it was not asked for.
        mtime: u64,
    },
    /// The file failed and its temporary is gone, or was found to be gone.
    Forgotten {
        /// Which.
        id: u64,
    },
    /// The receiving machine's clock, as a modification time that it has just set; nanoseconds.
    Clock {
        /// The time.
        mtime: u64,
    },
    /// Of the files done and not durable, the first so many were made durable.
    Durable {
        /// How many.
        files: u64,
    },
    /// All of the journal before this offset was durable when this was written.
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

impl Record {
    /// Appends it. Paths of files are written as what differs from `last`, the one before.
    pub(super) fn encode(&self, last: &mut Vec<u8>, out: &mut Vec<u8>) {
        match self {
            Self::Copy { identity } => {
                out.push(COPY);
                identity.as_slice().write(out);
            }
            Self::Run { boot } => {
                out.push(RUN);
                boot.as_slice().write(out);
                last.clear();
            }
            Self::Boot { boot } => {
                out.push(BOOT);
                boot.as_slice().write(out);
            }
            Self::Onto { into } => {
                out.push(ONTO);
                into.write(out);
            }
            Self::Begun {
                id,
                target,
                source,
                tag,
            } => {
                out.push(BEGUN);
                id.write(out);
                let same = last.iter().zip(target).take_while(|(a, b)| a == b).count();
                u32::try_from(same).unwrap_or(0).write(out);
                target.get(same..).unwrap_or_default().write(out);
                for number in [source.size, source.mtime, source.inode, source.device, *tag] {
                    number.write(out);
                }
                last.clone_from(target);
            }
            Self::Temp { id, path } => {
                out.push(TEMP);
                id.write(out);
                path.as_slice().write(out);
            }
            Self::Ranges {
                id,
                durable,
                mtime,
                ranges,
            } => {
                out.push(RANGES);
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
                out.push(DONE);
                id.write(out);
                durable.write(out);
                size.write(out);
                mtime.write(out);
            }
            Self::Forgotten { id } => {
                out.push(FORGOTTEN);
                id.write(out);
            }
            Self::Clock { mtime } => {
                out.push(CLOCK);
                mtime.write(out);
            }
            Self::Durable { files } => {
                out.push(DURABLE);
                files.write(out);
            }
            Self::Synced { offset } => {
                out.push(SYNCED);
                offset.write(out);
            }
        }
    }

    /// Reads one; `None` for what no writer of this version writes.
    pub(super) fn decode(bytes: &[u8], last: &mut Vec<u8>) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let record = Self::read(&mut r, last).ok().flatten()?;
        r.finish().ok()?;
        Some(record)
    }

    fn read(r: &mut Reader<'_>, last: &mut Vec<u8>) -> Result<Option<Self>, WireError> {
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
            BEGUN => {
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
                Self::Begun {
                    id,
                    target: last.clone(),
                    source: SourceId {
                        size: r.u64()?,
                        mtime: r.u64()?,
                        inode: r.u64()?,
                        device: r.u64()?,
                    },
                    tag: r.u64()?,
                }
            }
            TEMP => Self::Temp {
                id: r.u64()?,
                path: r.string()?.to_vec(),
            },
            RANGES => {
                let (id, durable, mtime) = (r.u64()?, bool::read(r)?, r.u64()?);
                let mut ranges = Vec::new();
                while r.left() > 0 && ranges.len() < MOST_RANGES {
                    let (from, to) = (r.u64()?, r.u64()?);
                    // To where a file ends is a range only while it is copied.
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
            CLOCK => Self::Clock { mtime: r.u64()? },
            DURABLE => Self::Durable { files: r.u64()? },
            SYNCED => Self::Synced { offset: r.u64()? },
            _ => return Ok(None),
        }))
    }
}
