//! Checksums of ranges of remote files.

use schedule::{ByteRange, JobId, JobKind, LaneEvent};
use testkit::sftp_model::{Act, InjectedFault, SftpServerProfile};

use crate::world::{Mode, World, bytes, config, link, remote};

const SIZE: u64 = 100_000;

fn world(mode: Mode) -> World {
    let mut config = config(mode, 1);
    config.remembered = None;
    let mut w = World::with(config, SftpServerProfile::ours(), link(), 1);
    w.place("file", &bytes(SIZE as usize, 5), 0o644);
    w
}

fn sum(w: &mut World, path: &str, len: u64, size: Option<u64>) -> JobId {
    w.job(JobKind::Sum {
        path: remote(path),
        span: ByteRange {
            offset: 1000,
            len: Some(len),
        },
        size,
    })
}

fn answer(w: &mut World, body: usize) {
    w.model.inject(InjectedFault {
        kind: Some("hash@longhaul"),
        nth: 0,
        act: Act::Reply(vec![7; body]),
    });
}

#[test]
fn a_sum_is_told_and_the_file_closed() {
    for mode in [Mode::Predicting, Mode::Plain] {
        for (len, body) in [(5000, 32), (0, 0)] {
            let mut w = world(mode);
            answer(&mut w, 32);
            let id = sum(&mut w, "file", len, Some(SIZE));
            let other = sum(&mut w, "none", len, None);
            w.run();
            assert!(w.done(id), "{:?}", w.events);
            let told = LaneEvent::Sum(id, vec![7; body]);
            assert!(w.at(&told).is_some(), "{:?}", w.events);
            assert!(w.failed(other).is_some());
            assert_eq!(w.model.open_handles().0, 0);
        }
    }
}

#[test]
fn what_is_no_sum_of_the_range_fails() {
    for (body, len, size) in [
        (0, 5000, None),
        (31, 5000, None),
        (33, 5000, None),
        (64, 5000, None),
        (32, 5000, Some(SIZE + 1)),
        (32, 5000, Some(SIZE - 1)),
        (32, (64 << 20) + 1, None),
    ] {
        let mut w = world(Mode::Predicting);
        answer(&mut w, body);
        let id = sum(&mut w, "file", len, size);
        w.run();
        assert!(w.failed(id).is_some(), "{body}: {:?}", w.events);
        assert_eq!(w.model.open_handles().0, 0);
    }
    let mut w = World::with(
        config(Mode::Plain, 1),
        SftpServerProfile::openssh(),
        link(),
        1,
    );
    let id = sum(&mut w, "file", 10, None);
    w.run();
    assert!(w.failed(id).is_some());
    assert!(!w.model.log().contains(&"OPEN"));
}
