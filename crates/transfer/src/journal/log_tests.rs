//! Tests of writing and syncing the journal, including its cost.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use schedule::journal::{JournalRecord, SourceFileStamp, replay};

use super::flush::FileSystemFlusher;
use super::log::FileJournalWriter;

/// A time limit above that of any sync.
const LONG: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;

fn log(folder: &Path) -> (FileJournalWriter, PathBuf) {
    let path = folder.join("journal");
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    let mut log =
        FileJournalWriter::start(file, path.clone(), 0, FileSystemFlusher::new(false)).unwrap();
    let identity = b"a copy".to_vec();
    log.write(&JournalRecord::Copy { identity });
    (log, path)
}

fn begun(id: u64) -> JournalRecord {
    let folder = id / 500;
    JournalRecord::Begun {
        id,
        target: format!("/srv/archive/2024/project-{folder}/results/sample_{id:08}.dat").into(),
        source: SourceFileStamp {
            size: 4096,
            mtime: 1_700_000_000_000_000_000 + id,
            inode: id,
            device: 2049,
        },
        tag: id,
    }
}

fn ranges(id: u64, mib: u64, durable: bool) -> JournalRecord {
    JournalRecord::Ranges {
        id,
        durable,
        mtime: 0,
        ranges: vec![(mib * MIB, (mib + 4) * MIB)],
    }
}

fn until(what: impl Fn() -> bool) {
    testkit::wait::until(LONG, what, || "it does not come".to_owned());
}

#[test]
fn who_begins_a_file_waits_for_its_record_only_once_it_is_worth_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, path) = log(folder.path());
    log.write(&begun(0));
    log.write_out().unwrap();
    let before = log.durable();
    let number = log.sync_from_now_on();
    log.write_out().unwrap();
    until(|| log.durable() >= number);
    assert_eq!(before, 0, "synced before anybody asked");
    let number = log.write(&begun(1));
    assert!(log.durable() < number);
    log.write_out().unwrap();
    until(|| log.durable() >= number);
    let left = replay(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(left.state.unfinished().count(), 2);
}

/// Regression test: the journal was synced for every 5 MB of 4 GiB.
#[test]
fn what_was_told_is_synced_by_the_second_or_by_24_mib() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, path) = log(folder.path());
    let number = log.sync_from_now_on();
    log.write(&begun(0));
    log.write_out().unwrap();
    until(|| log.durable() > number);
    let before = log.synced();
    // Records 2,000 MiB as fast as the disk accepts the records.
    let first = Instant::now();
    for told in 0..500 {
        log.write(&ranges(0, told * 4, false));
        log.write_out().unwrap();
    }
    let last = log.write(&JournalRecord::Clock { files: 0, mtime: 1 });
    log.write_out().unwrap();
    until(|| log.durable() >= last);
    let (syncs, seconds) = (log.synced() - before, first.elapsed().as_secs());
    assert!(syncs <= 2000 / 24 + seconds + 2, "{syncs} in {seconds} s");
    // All records are in the file after a kill, synced or not.
    for told in 0..3 {
        log.write(&ranges(0, 4000 + told * 8, false));
        log.write_out().unwrap();
    }
    let left = replay(&fs::read(&path).unwrap()).unwrap();
    let (_, file) = left.state.file(&target(0)).unwrap();
    let proven: u64 = file.proven().iter().map(|(from, to)| to - from).sum();
    assert_eq!(proven, 2012 * MIB);
}

fn target(id: u64) -> Vec<u8> {
    match begun(id) {
        JournalRecord::Begun { target, .. } => target,
        _ => Vec::new(),
    }
}

#[test]
fn what_is_durable_at_the_far_end_is_not_kept_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = log(folder.path());
    log.sync_from_now_on();
    log.write(&begun(0));
    let number = log.write(&ranges(0, 0, true));
    log.write_out().unwrap();
    until(|| log.durable() >= number);
}

#[test]
fn nobody_waits_for_a_journal_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    fs::write(&path, b"").unwrap();
    let file = File::open(&path).unwrap();
    assert!(FileJournalWriter::start(file, path, 0, FileSystemFlusher::new(false)).is_err());
    let Ok(full) = File::options().write(true).open("/dev/full") else {
        return;
    };
    let (mut log, _) = log(folder.path());
    log.sync_from_now_on();
    log.put_in(full);
    let number = log.write(&begun(0));
    let why = log.write_out().unwrap_err();
    assert_eq!(why.raw_os_error(), Some(28), "{why}");
    assert!(log.durable() >= number);
    for id in 1..1000 {
        log.write(&begun(id));
        assert!(log.write_out().is_ok(), "it is said once");
    }
    assert_eq!(log.kept(), 0, "for nobody");
}

/// Limits: a million files take less than 200 MiB, and less than 2 % of their transfer time at
/// 20,000 files per second, which no tested server has reached.
#[test]
#[ignore = "measures; cargo test --release -p longhaul-transfer million -- --ignored --nocapture"]
fn a_million_files_cost_little() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let (mut log, path) = log(folder.path());
    log.sync_from_now_on();
    let files = 1_000_000;
    let mut took = Duration::ZERO;
    for first in (0..files).step_by(64) {
        // At that rate 64 files take 3.2 ms; half of that is enough here.
        let begun_at = Instant::now();
        for id in first..first + 64 {
            log.write(&begun(id));
            let (durable, size, mtime) = (false, 4096, 0);
            log.write(&JournalRecord::Done {
                id,
                durable,
                size,
                mtime,
            });
        }
        log.write_out().unwrap();
        took += begun_at.elapsed();
        // Paces the measurement.
        std::thread::sleep(Duration::from_micros(1600));
    }
    let len = fs::metadata(&path).unwrap().len();
    let begun_at = Instant::now();
    let left = replay(&fs::read(&path).unwrap()).unwrap();
    println!(
        "{} MiB, {:.2} s to write, {} syncs, {:.2} s to read",
        len >> 20,
        took.as_secs_f64(),
        log.synced(),
        begun_at.elapsed().as_secs_f64()
    );
    assert_eq!(left.state.done(), files as usize);
    assert!(len < 200 << 20, "{len} bytes");
    assert!(took < Duration::from_secs(1), "{took:?}");
}
