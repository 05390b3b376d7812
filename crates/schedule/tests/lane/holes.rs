//! Holes that stay holes, and hard links.

use schedule::{CompressionMode, FileCopyOptions, JobKind};
use testkit::sftp_model::SftpServerProfile;

use crate::world::{MODES, Mode, World, bytes, config, link, remote};

const MIB: usize = 1 << 20;

fn sparse() -> FileCopyOptions {
    FileCopyOptions {
        sparse: true,
        ..FileCopyOptions::default()
    }
}

/// Returns `len` zero bytes with 64 KiB of data at each offset in `data`.
fn with_holes(len: usize, data: &[usize]) -> Vec<u8> {
    let mut whole = vec![0; len];
    for (at, seed) in data.iter().zip(1..) {
        let some = bytes(65_536, seed);
        whole[*at..at + some.len()].copy_from_slice(&some);
    }
    whole
}

/// Returns files with holes at every kind of position.
fn files() -> Vec<Vec<u8>> {
    vec![
        with_holes(8 * MIB, &[]),
        with_holes(8 * MIB, &[0]),
        with_holes(8 * MIB, &[8 * MIB - 65_536]),
        with_holes(8 * MIB, &[5 * MIB, 5 * MIB + 70_000, 7 * MIB]),
        with_holes(8 * MIB + 77, &[3 * MIB]),
        with_holes(300_001, &[100_000]),
    ]
}

#[test]
fn holes_are_not_sent_to_any_server() {
    for mode in MODES {
        let mut w = World::new(mode);
        let mut jobs = Vec::new();
        for (at, data) in files().into_iter().enumerate() {
            jobs.push(w.put(data, &format!("f{at}"), sparse()));
        }
        w.run();
        for (at, data) in files().into_iter().enumerate() {
            assert!(w.done(jobs[at]), "{mode:?} {at}: {:?}", w.failed(jobs[at]));
            assert!(
                w.model.fs.data(&format!("f{at}")) == Some(data.as_slice()),
                "{mode:?} {at}"
            );
        }
        let sent = w.lane.paced();
        assert!(sent < 3 * MIB as u64, "{mode:?}: {sent}");
        assert_eq!(w.warnings(), Vec::<&str>::new());
        assert_eq!(w.disk.open_sources(), 0);
    }
}

#[test]
fn holes_of_a_server_of_ours_are_not_received() {
    for pack in [CompressionMode::Never, CompressionMode::Always] {
        let mut config = config(Mode::Predicting, 1);
        config.remembered = None;
        config.pack = pack;
        let mut w = World::with(config, SftpServerProfile::ours(), link(), 1);
        let mut jobs = Vec::new();
        for (at, data) in files().into_iter().enumerate() {
            let name = format!("f{at}");
            w.place(&name, &data, 0o644);
            jobs.push(w.get_with(&name, None, sparse()));
        }
        w.run();
        for (at, data) in files().into_iter().enumerate() {
            assert!(w.done(jobs[at]), "{pack:?} {at}: {:?}", w.failed(jobs[at]));
            assert!(
                w.got(&format!("f{at}")) == Some(data.as_slice()),
                "{pack:?} {at}"
            );
        }
        assert!(
            w.disk.skipped > 38 * MIB as u64,
            "{pack:?}: {}",
            w.disk.skipped
        );
        assert_eq!(w.disk.targets(), 0);
    }
}

#[test]
fn a_name_is_made_of_another_whatever_has_it() {
    for mode in MODES {
        let mut w = World::new(mode);
        w.place("first", b"data", 0o644);
        w.place("other", b"old", 0o644);
        let make = |w: &mut World, path: &str| {
            let (path, of) = (remote(path), remote("first"));
            let job = w.job(JobKind::MakeHardLink {
                path,
                of,
                tag: None,
            });
            w.run();
            job
        };
        // The last name is a link to the file already.
        for name in ["new", "other", "new"] {
            let job = make(&mut w, name);
            assert!(w.done(job), "{mode:?} {name}: {:?}", w.failed(job));
            assert_eq!(w.model.fs.data(name), Some(b"data".as_slice()), "{mode:?}");
        }
        assert_eq!(w.temporaries(), Vec::<String>::new(), "{mode:?}");
        let (path, of) = (remote("late"), remote("nowhere"));
        let job = w.job(JobKind::MakeHardLink {
            path,
            of,
            tag: None,
        });
        w.run();
        assert!(w.failed(job).is_some());
    }
}
