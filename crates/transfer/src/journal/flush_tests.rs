//! Tests of syncing the file systems of copied files.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{EACH, FileDevices, FileSystemFlusher, open_all};

/// Creates a folder in /dev/shm, if present: its device differs from the disk's.
fn elsewhere() -> Option<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").ok()
}

fn device(path: &Path) -> u64 {
    fs::metadata(path).unwrap().dev()
}

fn file(path: PathBuf) -> PathBuf {
    fs::write(&path, "it").unwrap();
    path
}

/// Runs one sync and returns how many files became durable.
fn durable(flush: &mut FileSystemFlusher) -> Option<u64> {
    flush.begun = flush.begun.checked_sub(EACH).unwrap();
    assert_eq!(flush.poll(), None, "it begins");
    testkit::wait::until(
        Duration::from_secs(20),
        || flush.thread.as_ref().is_none_or(|t| t.is_finished()),
        || "it does not end".to_owned(),
    );
    flush.poll()
}

#[test]
fn each_device_that_files_lie_on_is_synced() {
    let here = tempfile::tempdir().unwrap();
    let Some(there) = elsewhere() else { return };
    let (ours, theirs) = (file(here.path().join("a")), file(there.path().join("b")));
    // Symlinks to a folder and to a file on another device.
    symlink(there.path(), here.path().join("folder")).unwrap();
    symlink(&theirs, here.path().join("link")).unwrap();
    for name in ["folder/b", "link"] {
        let other = here.path().join(name);
        let all = [(device(&ours), ours.clone()), (device(&theirs), other)];
        let devices = FileDevices::from(all);
        let opened = open_all(&devices).unwrap();
        let found = opened.iter().map(|f| f.metadata().unwrap().dev());
        assert!(found.eq(devices.keys().copied()), "{name}");
    }
}

#[test]
fn files_on_a_device_that_cannot_be_synced_are_not_told_durable() {
    let here = tempfile::tempdir().unwrap();
    let ours = file(here.path().join("a"));
    let mut flush = FileSystemFlusher::new(true);
    flush.lies_on(device(&ours), &ours);
    flush.add();
    assert_eq!(durable(&mut flush), Some(1));
    // One of the next two files lies on a device that is no longer mounted.
    flush.lies_on(device(&ours), &ours);
    flush.add();
    flush.lies_on(u64::MAX, &ours);
    flush.add();
    assert_eq!(durable(&mut flush), None);
    // The missing device is not forgotten at the next attempt.
    assert_eq!(durable(&mut flush), None);
}

#[test]
fn what_an_earlier_run_has_done_is_looked_for() {
    let here = tempfile::tempdir().unwrap();
    let ours = file(here.path().join("a"));
    let all = vec![ours.clone(), here.path().join("gone"), ours.join("gone")];
    let mut flush = FileSystemFlusher::new(true).with_earlier(4, all);
    assert_eq!(durable(&mut flush), Some(4));
    // The device of this file cannot be determined.
    symlink("round", here.path().join("round")).unwrap();
    let mut flush = FileSystemFlusher::new(true).with_earlier(1, vec![here.path().join("round")]);
    assert_eq!(durable(&mut flush), None);
}
