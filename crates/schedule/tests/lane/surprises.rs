use schedule::{FileCopyOptions, LaneError, RemotePath};
use sftp::StatusCode;
use testkit::sftp_model::{Act, HandleStyle, InjectedFault, SftpServerProfile};

use crate::world::{Mode, World, bytes, config, link};

/// Repeats everything without prediction on a new channel after a misprediction.
fn plainly(w: &mut World) {
    assert!(
        matches!(w.error, Some(LaneError::Misprediction(_))),
        "{:?}",
        w.error
    );
    assert!(w.lane.poll_output().is_none());
    w.reconnect(config(Mode::Plain, 2));
    w.run();
    assert_eq!(w.error, None);
    for i in 0..20 {
        let data = w.model.fs.data(&format!("f{i}"));
        assert!(data == Some(bytes(50_000, i).as_slice()), "f{i}");
    }
    assert_eq!(w.temporaries(), Vec::<String>::new());
    assert_eq!(w.disk.open_sources(), 0);
}

fn twenty(w: &mut World) {
    for i in 0..20 {
        w.put(
            bytes(50_000, i),
            &format!("f{i}"),
            FileCopyOptions::default(),
        );
    }
}

#[test]
fn another_handle_ends_the_lane_and_the_files_are_done_again() {
    for mode in [Mode::Remembered, Mode::Predicting] {
        for nth in [0, 3, 19] {
            let mut w = World::new(mode);
            twenty(&mut w);
            w.model.inject(InjectedFault {
                kind: Some("OPEN"),
                nth,
                act: Act::OtherHandle,
            });
            w.run();
            plainly(&mut w);
        }
    }
}

#[test]
fn a_server_that_changed_its_extensions_is_done_again() {
    let mut server = SftpServerProfile::openssh();
    server.extensions.pop();
    let mut w = World::with(config(Mode::Remembered, 1), server, link(), 1);
    twenty(&mut w);
    w.run();
    plainly(&mut w);
}

/// A proxy with OpenSSH's banner and extensions in front of another server.
#[test]
fn random_handles_behind_openssh_extensions_are_noticed() {
    let server = SftpServerProfile {
        handles: HandleStyle::Random(4),
        ..SftpServerProfile::openssh()
    };
    let mut w = World::with(config(Mode::Remembered, 1), server, link(), 1);
    twenty(&mut w);
    w.run();
    plainly(&mut w);
}

#[test]
fn a_remembered_set_that_is_not_openssh_is_not_relied_on() {
    let mut config = config(Mode::Remembered, 1);
    if let Some(info) = &mut config.remembered {
        info.extensions.swap(0, 1);
    }
    let mut w = World::with(config, SftpServerProfile::openssh(), link(), 1);
    twenty(&mut w);
    w.run();
    assert_eq!(w.error, None);
}

#[test]
fn broken_answers_end_the_lane_with_the_reason() {
    for act in [
        Act::OtherId,
        Act::Truncated,
        Act::Length(0xffff_fff0),
        Act::Length(0),
    ] {
        for nth in 0..12 {
            for mode in [Mode::Remembered, Mode::Plain] {
                let mut w = World::new(mode);
                w.put(bytes(100, 1), "a", FileCopyOptions::default());
                w.place("b", &bytes(5000, 1), 0o644);
                w.get("b", None);
                w.model.inject(InjectedFault {
                    kind: None,
                    nth,
                    act: act.clone(),
                });
                w.run();
                let requests = w.model.log().len();
                let broken = matches!(w.error, Some(LaneError::Protocol(_)));
                assert_eq!(broken, nth < requests, "{act:?} {nth} {mode:?}");
            }
        }
    }
}

/// Bug: the refusal was ignored, and every later request could follow a symlink below the target.
#[test]
fn a_server_that_holds_no_root_ends_the_lane() {
    let mut w = World::new(Mode::Ours);
    w.model.inject(InjectedFault {
        kind: Some("hold-root@longhaul"),
        nth: 0,
        act: Act::Status(StatusCode::FAILURE),
    });
    w.lane.hold_root(w.now, &RemotePath(b"dir".to_vec()));
    w.put(bytes(4096, 1), "dir/f", FileCopyOptions::default());
    w.run();
    let refused = matches!(w.error, Some(LaneError::RootRefused(_)));
    assert!(refused, "{:?}", w.error);
}
