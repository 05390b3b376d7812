//! list-tree@longhaul: lists a whole tree in one stream of answers.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use sftp::packed::LONGEST_UNPACKED;
use sftp::{Told, TreeFlags, TreeRecord};
use wire::{Field as _, RemainingBytes};

use super::attributes::attributes;
use super::client_tree::ClientTree;
use super::count;
use super::handles::{DescriptorPermit, HandleTable};
use super::packed::SessionCompression;
use super::reply::ReplyBuilder;
use super::request_error::{Exhausted, RequestError};
use super::session::RequestResult;
use crate::beneath::ServedPart;

/// Maximum number of trees that a client lists at a time, and of open directories of each; every
/// directory costs a descriptor and 32 KiB of entries. The client lists deeper directories itself,
/// and those for which no descriptor is left.
const MOST: usize = 16;
const DEEPEST: usize = 32;
/// Bytes at which an answer ends.
const PART: usize = 64 * 1024;
/// Size of the first answer; each is twice as long as the one before. In slow start, bytes of the
/// listing delay those of files.
const FIRST_PART: usize = 4 * 1024;

/// Longest time for estimating the size of a tree.
const COUNTING: Duration = Duration::from_millis(15);

/// A walk through a tree: the open directories from the top to the one being read.
#[derive(Debug)]
struct ServedTreeWalk {
    levels: Vec<TreeWalkLevel>,
    /// Size of the next answer.
    part: usize,
    /// Answers may be compressed. The short first ones are not: they open TCP's congestion window,
    /// which is in slow start, for the files that follow. When the first answers were compressed,
    /// 2,000 files took two round trips more.
    packs: bool,
    /// Device of the topmost directory, if those on other devices are not entered.
    device: Option<u64>,
}

/// An open directory of a walk.
#[derive(Debug)]
struct TreeWalkLevel {
    dir: Dir,
    /// The part of it that is listed.
    served: ServedPart,
    _permit: DescriptorPermit,
}

/// Trees that a client is listing, by its numbers.
#[derive(Debug, Default)]
pub(super) struct TreeWalks(BTreeMap<u32, ServedTreeWalk>);

impl TreeWalks {
    /// Begins a listing if the flags say so, and answers with its next part.
    pub(super) fn answer(
        &mut self,
        (number, flags, path): (u32, TreeFlags, &[u8]),
        told: Told,
        (tree, handles): (&ClientTree<'_>, &HandleTable),
        zstd: &mut SessionCompression,
        reply: &mut ReplyBuilder<'_>,
    ) -> RequestResult {
        if flags.contains(TreeFlags::END) {
            self.0.remove(&number);
            return Ok(());
        }
        if flags.contains(TreeFlags::BEGIN) {
            self.begin((number, flags, path), tree, handles)?;
        }
        let Some(walk) = self.0.get_mut(&number) else {
            return Err(RequestError::EndOfFile);
        };
        let mut part = Vec::new();
        let packs = walk.packs && walk.part == PART;
        walk.fill(told, handles, &mut part);
        if flags.contains(TreeFlags::BEGIN | TreeFlags::COUNT) {
            walk.count(&mut part);
        }
        if walk.levels.is_empty() {
            self.0.remove(&number);
        }
        let len = u32::try_from(part.len()).unwrap_or(u32::MAX);
        if packs
            && len <= LONGEST_UNPACKED
            && let Some(packed) = zstd.pack(&part)?
        {
            let mut answer = Vec::with_capacity(packed.len() + 5);
            sftp::pack_steps(len, packed, &mut answer);
            reply.extended(&RemainingBytes(&answer));
            return Ok(());
        }
        reply.extended(&RemainingBytes(&part));
        Ok(())
    }

    fn begin(
        &mut self,
        (number, flags, path): (u32, TreeFlags, &[u8]),
        tree: &ClientTree<'_>,
        handles: &HandleTable,
    ) -> RequestResult {
        self.0.remove(&number);
        if self.0.len() >= MOST {
            return Err(Exhausted::Trees.into());
        }
        let how = OFlags::RDONLY | OFlags::DIRECTORY;
        let top: OwnedFd = tree.open(path, how, Mode::empty())?;
        let taken = handles.take().ok_or(Exhausted::OpenFiles)?;
        let device = match flags.contains(TreeFlags::SAME_DEVICE) {
            true => Some(fs::fstat(&top)?.st_dev),
            false => None,
        };
        let levels = vec![TreeWalkLevel {
            dir: Dir::new(top)?,
            served: tree.paths().export().served_part(path),
            _permit: taken,
        }];
        let walk = ServedTreeWalk {
            levels,
            part: FIRST_PART,
            packs: flags.contains(TreeFlags::PACK),
            device,
        };
        self.0.insert(number, walk);
        Ok(())
    }
}

impl ServedTreeWalk {
    /// Appends steps until an answer is full or the walk has ended.
    fn fill(&mut self, told: Told, handles: &HandleTable, part: &mut Vec<u8>) {
        let end = self.part;
        self.part = (2 * end).min(PART);
        while part.len() < end && !self.levels.is_empty() {
            match self.step(told, handles, part) {
                Ok(true) => {}
                Ok(false) => self.leave(part),
                Err(errno) => {
                    failed(errno, part);
                    self.leave(part);
                }
            }
        }
    }

    /// Appends an estimate of the tree's size.
    fn count(&self, part: &mut Vec<u8>) {
        // What is not served is not counted either.
        let whole = self.levels.first().filter(|top| top.served.is_whole());
        let Some(top) = whole.and_then(|top| top.dir.fd().ok()) else {
            return;
        };
        let (files, bytes) = count::below(top, Instant::now() + COUNTING, self.device.is_some());
        TreeRecord::Count { files, bytes }.write(part);
    }

    fn leave(&mut self, part: &mut Vec<u8>) {
        self.levels.pop();
        TreeRecord::Leave.write(part);
    }

    /// Appends the next entry of the current directory; false at its end.
    fn step(
        &mut self,
        told: Told,
        handles: &HandleTable,
        part: &mut Vec<u8>,
    ) -> Result<bool, Errno> {
        let depth = self.levels.len();
        let Some(TreeWalkLevel { dir, served, .. }) = self.levels.last_mut() else {
            return Ok(false);
        };
        let Some(entry) = dir.read() else {
            return Ok(false);
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") || !served.has(name.to_bytes()) {
            return Ok(true);
        }
        // The entry vanished meanwhile.
        let Ok(stat) = fs::statat(dir.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return Ok(true);
        };
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            && self.device.is_none_or(|device| device == stat.st_dev);
        let taken = (is_dir && depth < DEEPEST).then(|| handles.take());
        let taken = taken.flatten();
        let enters = taken.is_some();
        TreeRecord::write_entry(name.to_bytes(), &attributes(&stat, told), enters, part);
        if let Some(taken) = taken {
            // O_NOFOLLOW: a symlink may have replaced the directory.
            let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let below = fs::openat(dir.fd()?, name, how, Mode::empty());
            match below.and_then(Dir::new) {
                Ok(below) => {
                    let served = served.of(name.to_bytes());
                    self.levels.push(TreeWalkLevel {
                        dir: below,
                        served,
                        _permit: taken,
                    });
                }
                Err(errno) => {
                    failed(errno, part);
                    TreeRecord::Leave.write(part);
                }
            }
        }
        Ok(true)
    }
}

fn failed(errno: Errno, part: &mut Vec<u8>) {
    let refused = RequestError::from(errno);
    TreeRecord::Failed(refused.code(), refused.text().as_bytes().to_vec()).write(part);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use bytes::Bytes;
    use sftp::packed::BlockDecompressor;
    use sftp::{Request, Response, TreeFlags};

    use crate::testing::{answers, bytes_of};
    use crate::{Access, ExportedTree};

    #[test]
    fn a_tree_whose_answers_may_be_packed_is_told_the_same() {
        let folder = tempfile::tempdir().unwrap();
        for n in 0..3000 {
            fs::write(folder.path().join(format!("file{n:04}")), b"x").unwrap();
        }
        let (export, path) = (
            ExportedTree::everything(Access::Full),
            bytes_of(folder.path()),
        );
        let ask = |flags, path| Request::ListTree {
            tree: 1,
            flags,
            path,
        };
        let listed = |flags| -> Vec<Vec<u8>> {
            let mut requests = vec![ask(TreeFlags::BEGIN | flags, path)];
            requests.extend((0..7).map(|_| ask(TreeFlags::NEXT, b"")));
            let body = |answer: &Bytes| match Response::decode(answer) {
                Ok((_, Response::ExtendedReply { body })) => Some(body.0.to_vec()),
                _ => None,
            };
            answers(&export, &requests)
                .iter()
                .filter_map(body)
                .collect()
        };
        let (plain, packed) = (listed(TreeFlags::NEXT), listed(TreeFlags::PACK));
        assert!(plain.len() > 5 && plain.len() == packed.len());
        for (n, (plain, packed)) in plain.iter().zip(&packed).enumerate() {
            let (&6, rest) = packed.split_first().unwrap() else {
                assert_eq!(plain, packed);
                continue;
            };
            assert!(n >= 4, "slow start is over then");
            let (len, rest) = rest.split_first_chunk().unwrap();
            let mut unpacker = BlockDecompressor::new().unwrap();
            let unpacked = unpacker.unpack(rest, u32::from_be_bytes(*len));
            assert_eq!(unpacked.as_ref(), Some(plain));
            assert!(packed.len() < plain.len() / 2);
        }
        assert_eq!(packed.get(4).and_then(|body| body.first()), Some(&6));
    }
}
