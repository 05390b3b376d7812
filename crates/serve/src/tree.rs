//! Trees listed in one stream: list-tree@longhaul.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use sftp::{StatusCode, Told, TreeFlags, TreeStep};
use wire::{Field as _, Rest};

use crate::answer::{Answer, Session};
use crate::attributes::attributes;
use crate::count;
use crate::error::Refused;
use crate::reply::Reply;

/// Trees that a client lists at the same time, and directories of each that are open: each of them
/// is a descriptor and 32 KiB of entries. What lies deeper the client lists by itself.
const MOST: usize = 16;
const DEEPEST: usize = 32;
/// An answer ends behind this many bytes.
const PART: usize = 64 * 1024;
/// The first one; each is twice as long as the one before. What a connection in slow start carries of a
/// listing it does not carry of files.
const FIRST_PART: usize = 4 * 1024;

/// What a client waits at most for what there probably is.
const COUNTING: Duration = Duration::from_millis(15);

/// The trees that a client is listing, by its numbers.
pub(crate) type Trees = BTreeMap<u32, Walk>;

/// A walk through a tree: the directories from its topmost to the one that is read.
#[derive(Debug)]
pub(crate) struct Walk {
    levels: Vec<Dir>,
    /// Where the next part ends.
    part: usize,
}

impl Session<'_> {
    pub(crate) fn list_tree(
        &mut self,
        number: u32,
        flags: TreeFlags,
        path: &[u8],
        reply: &mut Reply<'_>,
    ) -> Answer {
        if flags.contains(TreeFlags::END) {
            self.trees.remove(&number);
            return Ok(());
        }
        if flags.contains(TreeFlags::BEGIN) {
            self.trees.remove(&number);
            if self.trees.len() >= MOST {
                return Err(Refused::new(
                    StatusCode::FAILURE,
                    "too many trees are listed at once",
                ));
            }
            let how = OFlags::RDONLY | OFlags::DIRECTORY;
            let top: OwnedFd = self.export.place.open(path, how, Mode::empty())?;
            let levels = vec![Dir::new(top)?];
            let part = FIRST_PART;
            self.trees.insert(number, Walk { levels, part });
        }
        let Some(walk) = self.trees.get_mut(&number) else {
            return Err(Refused::end_of_file());
        };
        let mut part = Vec::new();
        walk.fill(self.told, &mut part);
        if flags.contains(TreeFlags::BEGIN | TreeFlags::COUNT) {
            walk.count(&mut part);
        }
        if walk.levels.is_empty() {
            self.trees.remove(&number);
        }
        reply.extended(&Rest(&part));
        Ok(())
    }
}

impl Walk {
    /// Appends steps until there are enough for one answer, or no more.
    fn fill(&mut self, told: Told, part: &mut Vec<u8>) {
        let end = self.part;
        self.part = (2 * end).min(PART);
        while part.len() < end && !self.levels.is_empty() {
            match self.step(told, part) {
                Ok(true) => {}
                Ok(false) => self.leave(part),
                Err(errno) => {
                    failed(errno, part);
                    self.leave(part);
                }
            }
        }
    }

    /// Appends what there probably is in all, where that was not told already.
    fn count(&self, part: &mut Vec<u8>) {
        let Some(top) = self.levels.first().and_then(|top| top.fd().ok()) else {
            return;
        };
        let (files, bytes) = count::below(top, Instant::now() + COUNTING);
        TreeStep::Count { files, bytes }.write(part);
    }

    fn leave(&mut self, part: &mut Vec<u8>) {
        self.levels.pop();
        TreeStep::Leave.write(part);
    }

    /// The next entry of the directory that is read; false at its end.
    fn step(&mut self, told: Told, part: &mut Vec<u8>) -> Result<bool, Errno> {
        let depth = self.levels.len();
        let Some(dir) = self.levels.last_mut() else {
            return Ok(false);
        };
        let Some(entry) = dir.read() else {
            return Ok(false);
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            return Ok(true);
        }
        // What vanished meanwhile is not there.
        let Ok(stat) = fs::statat(dir.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return Ok(true);
        };
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let enters = is_dir && depth < DEEPEST;
        TreeStep::write_entry(name.to_bytes(), &attributes(&stat, told), enters, part);
        if enters {
            // A symlink that took its place meanwhile leads nowhere.
            let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let below = fs::openat(dir.fd()?, name, how, Mode::empty());
            match below.and_then(Dir::new) {
                Ok(below) => self.levels.push(below),
                Err(errno) => {
                    failed(errno, part);
                    TreeStep::Leave.write(part);
                }
            }
        }
        Ok(true)
    }
}

fn failed(errno: Errno, part: &mut Vec<u8>) {
    let refused = Refused::from(errno);
    TreeStep::Failed(refused.code, refused.words.as_bytes().to_vec()).write(part);
}
