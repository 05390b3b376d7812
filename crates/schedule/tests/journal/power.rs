//! Power is lost at random moments, at either end: unsynced data are gone or, worse, present in
//! part. The copy is resumed until it is done.

use std::collections::BTreeMap;

use schedule::journal::{
    ExistingFile, JournalEncoder, JournalRecord, JournalState, SourceFileStamp, replay,
};
use schedule::tagged_name;
use testkit::sftp_model::Rng;

const SECOND: u64 = 1_000_000_000;
/// Number of chunks in the file; a chunk stands for a mebibyte.
const CHUNKS: u64 = 40;
/// Number of chunks between two syncs.
const SYNC_EACH: u64 = 24;
/// Maximum number of chunks sent again per interruption.
const MOST_AGAIN: u64 = 64;

/// A file on a machine: the content of each chunk, and the chunks on disk.
#[derive(Clone, Default)]
struct File {
    chunks: BTreeMap<u64, u64>,
    on_disk: BTreeMap<u64, u64>,
    mtime: u64,
}

impl File {
    fn size(&self) -> u64 {
        self.chunks.keys().last().map_or(0, |last| last + 1)
    }
}

/// The receiving machine. Names survive a power loss: a journaling file system has them before the
/// data, which is the harmful case.
#[derive(Default)]
struct Disk {
    files: BTreeMap<Vec<u8>, File>,
    starts: u64,
}

impl Disk {
    /// Turns unsynced data into zeros, or keeps them, at random.
    fn lose_power(&mut self, rng: &mut Rng) {
        self.starts += 1;
        for file in self.files.values_mut() {
            for (at, content) in &mut file.chunks {
                if !file.on_disk.contains_key(at) && rng.below(2) == 0 {
                    *content = 0;
                }
            }
            file.on_disk = file.chunks.clone();
        }
    }

    fn sync(&mut self, name: &[u8]) {
        if let Some(file) = self.files.get_mut(name) {
            file.on_disk = file.chunks.clone();
        }
    }

    fn boot(&self) -> Vec<u8> {
        self.starts.to_be_bytes().to_vec()
    }

    fn seen(&self, name: &[u8]) -> Option<ExistingFile> {
        self.files.get(name).map(|file| ExistingFile {
            size: file.size(),
            mtime: file.mtime,
        })
    }
}

/// The local journal file.
#[derive(Default)]
struct Log {
    bytes: Vec<u8>,
    synced: usize,
    writer: JournalEncoder,
}

impl Log {
    fn write(&mut self, record: &JournalRecord) {
        self.writer.write(record, &mut self.bytes);
    }

    fn sync(&mut self) {
        let offset = self.synced as u64;
        self.synced = self.bytes.len();
        self.write(&JournalRecord::Synced { offset });
    }

    /// Keeps a random part of the unsynced bytes, damaged at its end.
    fn lose_power(&mut self, rng: &mut Rng) {
        let kept = self.synced + rng.below((self.bytes.len() - self.synced) as u64 + 1) as usize;
        self.bytes.truncate(kept);
        if kept > self.synced && rng.below(2) == 0 {
            let at = self.synced + rng.below((kept - self.synced) as u64) as usize;
            self.bytes[at] ^= 0x55;
        }
    }
}

/// Disk of the receiving machine, journal of the sending one and sources of the copy, in virtual
/// time.
struct World {
    disk: Disk,
    log: Log,
    now: u64,
    sent: u64,
    sources: BTreeMap<Vec<u8>, (u64, u64)>,
}

/// Power was lost.
struct Lost;

impl World {
    fn tick(&mut self, rng: &mut Rng, left: &mut u64) -> Result<(), Lost> {
        self.now += rng.below(SECOND / 4);
        *left = left.checked_sub(1).ok_or(Lost)?;
        Ok(())
    }

    /// Runs the copy once; ends early after `left` steps.
    fn run(&mut self, rng: &mut Rng, mut left: u64) -> Result<(), Lost> {
        let replayed = replay(&self.log.bytes).expect("a torn tail is no damage");
        self.log.bytes.truncate(replayed.good);
        self.log.writer = JournalEncoder::default();
        let mut state = replayed.state;
        if replayed.good == 0 {
            JournalEncoder::header(&mut self.log.bytes);
            let identity = b"copy".to_vec();
            self.log.write(&JournalRecord::Copy { identity });
        }
        self.log.synced = self.log.synced.min(self.log.bytes.len());
        let boot = self.disk.boot();
        state.started(boot.clone());
        let sealed = state.seal();
        self.log.write(&sealed);
        self.log.write(&JournalRecord::Run { boot });
        let mut next = state.next_id();
        let sources = self.sources.clone();
        for (target, (len, version)) in sources {
            let source = SourceFileStamp {
                size: len,
                mtime: version * SECOND,
                ..SourceFileStamp::default()
            };
            self.file(
                rng,
                &mut left,
                &mut state,
                &mut next,
                (target, source, version),
            )?;
        }
        for (_, entry) in state.unfinished() {
            self.disk
                .files
                .remove(&tagged_name(&entry.target, entry.tag));
        }
        Ok(())
    }

    fn file(
        &mut self,
        rng: &mut Rng,
        left: &mut u64,
        state: &mut JournalState,
        next: &mut u64,
        (target, source, version): (Vec<u8>, SourceFileStamp, u64),
    ) -> Result<(), Lost> {
        let known = state.file(&target).map(|(id, entry)| (id, entry.clone()));
        let mut going_on = None;
        if let Some((id, entry)) = known {
            let same = entry.source == source;
            if let Some(done) = entry.done.filter(|_| same) {
                if self.disk.seen(&target).is_some_and(|s| done.stands(s)) {
                    return Ok(());
                }
            } else if entry.done.is_none() {
                let temp = tagged_name(&target, entry.tag);
                state.take(id);
                match self.disk.seen(&temp) {
                    Some(seen) if same && entry.may_go_on(seen) => {
                        going_on = Some((id, temp, entry.proven()));
                    }
                    _ => {
                        self.disk.files.remove(&temp);
                    }
                }
            }
        }
        let (id, temp, proven) = match going_on {
            Some(known) => known,
            None => {
                let (id, tag) = (*next, rng.next_u64());
                *next += 1;
                let begun = JournalRecord::Begun {
                    id,
                    target: target.clone(),
                    source,
                    tag,
                };
                self.log.write(&begun);
                self.tick(rng, left)?;
                self.log.sync();
                let temp = tagged_name(&target, tag);
                let there = self.disk.files.insert(temp.clone(), File::default());
                assert!(there.is_none(), "created exclusively");
                (id, temp, Vec::new())
            }
        };
        let has = |at: u64| proven.iter().any(|(from, to)| (*from..*to).contains(&at));
        let mut missing: Vec<u64> = (0..source.size).filter(|at| !has(*at)).collect();
        // Lanes write in mixed order.
        for at in (1..missing.len()).rev() {
            missing.swap(at, at - rng.below(at.min(6) as u64 + 1) as usize);
        }
        let (mut since, mut answered) = (0, proven.clone());
        for at in missing {
            self.tick(rng, left)?;
            let now = self.now;
            let file = self.disk.files.get_mut(&temp).expect("it is there");
            file.chunks.insert(at, version + 1);
            file.mtime = now;
            self.sent += 1;
            // Only this chunk: an earlier run may have lost others that the temporary seems to
            // hold.
            answered.push((at, at + 1));
            since += 1;
            // Reported before it is durable: it counts unless the machine stops.
            if since % 4 == 0 {
                self.log.write(&JournalRecord::Ranges {
                    id,
                    durable: false,
                    mtime: 0,
                    ranges: answered[answered.len() - 4..].to_vec(),
                });
            }
            if since == SYNC_EACH {
                since = 0;
                let file = self.disk.files[&temp].clone();
                self.disk.sync(&temp);
                self.tick(rng, left)?;
                self.log.write(&JournalRecord::Ranges {
                    id,
                    durable: true,
                    mtime: file.mtime,
                    ranges: answered.clone(),
                });
            }
        }
        self.tick(rng, left)?;
        // A file that would be costly to send again is synced before its rename.
        let durable = source.size >= SYNC_EACH;
        if durable {
            self.disk.sync(&temp);
        }
        let file = self.disk.files.remove(&temp).expect("it is there");
        let mtime = file.mtime;
        self.disk.files.insert(target, file);
        let done = JournalRecord::Done {
            id,
            durable,
            size: source.size,
            mtime,
        };
        self.log.write(&done);
        self.tick(rng, left)
    }
}

#[test]
fn copies_that_lose_power_end_right() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let mut world = World {
            disk: Disk::default(),
            log: Log::default(),
            now: 1_700_000_000 * SECOND,
            sent: 0,
            sources: BTreeMap::new(),
        };
        for n in 0..6u64 {
            let len = if n % 2 == 0 {
                CHUNKS + rng.below(40)
            } else {
                rng.below(3)
            };
            world
                .sources
                .insert(format!("to/file{n}").into_bytes(), (len, 1));
        }
        let total: u64 = world.sources.values().map(|(len, _)| len).sum();
        let mut interruptions = 0;
        let mut changed = 0;
        loop {
            let left = if interruptions < 6 {
                rng.below(2 * total)
            } else {
                u64::MAX
            };
            if world.run(&mut rng, left).is_ok() {
                break;
            }
            interruptions += 1;
            let ends = rng.below(4);
            if ends & 1 == 1 {
                world.log.lose_power(&mut rng);
            }
            if ends & 2 == 2 {
                world.disk.lose_power(&mut rng);
            }
            if rng.below(8) == 0 {
                let (len, version) = world.sources.get_mut(b"to/file2".as_slice()).expect("ours");
                *version += 1;
                changed += *len;
            }
        }
        for (target, (len, version)) in &world.sources {
            let file = world.disk.files.get(target).expect("copied");
            assert_eq!(file.size(), *len, "seed {seed}");
            assert!(
                file.chunks.values().all(|c| *c == version + 1),
                "seed {seed}: {} holds what was lost",
                String::from_utf8_lossy(target)
            );
        }
        assert_eq!(
            world.disk.files.len(),
            world.sources.len(),
            "seed {seed}: left over"
        );
        let again = world.sent - total;
        let allowed = interruptions * (MOST_AGAIN + 16) + changed;
        assert!(
            again <= allowed,
            "seed {seed}: {again} sent again, {interruptions} interruptions"
        );
    }
}
