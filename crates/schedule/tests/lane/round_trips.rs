use schedule::{Attributes, ExistingTargetPolicy, FileCopyOptions, FileCopyState, LaneEvent};
use testkit::sftp_model::{SftpServerProfile, VirtualLinkOptions};

use crate::world::{Mode, RTT, World, bytes, config, link};

fn fresh() -> FileCopyOptions {
    FileCopyOptions {
        existing: ExistingTargetPolicy::FRESH,
        ..FileCopyOptions::default()
    }
}

#[test]
fn a_small_file_to_a_remembered_server_is_confirmed_after_one_round_trip() {
    for options in [fresh(), FileCopyOptions::default()] {
        let mut w = World::new(Mode::Remembered);
        let job = w.put(bytes(1024, 1), "a", options);
        w.run();
        assert_eq!(w.reached(job, FileCopyState::Closed), Some(RTT));
        assert_eq!(w.reached(job, FileCopyState::Renamed), Some(2 * RTT));
        assert_eq!(w.model.fs.data("a"), Some(bytes(1024, 1).as_slice()));
    }
}

#[test]
fn an_unknown_openssh_costs_one_more() {
    let mut w = World::new(Mode::Predicting);
    let job = w.put(bytes(1024, 1), "a", fresh());
    w.run();
    assert_eq!(w.reached(job, FileCopyState::Renamed), Some(3 * RTT));
}

#[test]
fn without_prediction_the_handle_is_waited_for() {
    let mut w = World::new(Mode::Plain);
    let job = w.put(bytes(1024, 1), "a", fresh());
    w.run();
    assert_eq!(w.reached(job, FileCopyState::Renamed), Some(4 * RTT));
}

#[test]
fn overwriting_costs_one_round_trip_for_the_old_mode_where_handles_are_predicted() {
    let mut w = World::new(Mode::Remembered);
    w.place("a", b"old", 0o640);
    let job = w.put(bytes(1024, 1), "a", FileCopyOptions::default());
    w.run();
    assert_eq!(w.reached(job, FileCopyState::Renamed), Some(3 * RTT));
    assert_eq!(w.model.fs.at("a").map(|n| n.mode), Some(0o640));

    let mut w = World::new(Mode::Plain);
    w.place("a", b"old", 0o640);
    let job = w.put(bytes(1024, 1), "a", FileCopyOptions::default());
    w.run();
    assert_eq!(w.reached(job, FileCopyState::Renamed), Some(4 * RTT));
    assert_eq!(w.model.fs.at("a").map(|n| n.mode), Some(0o640));
}

#[test]
fn two_thousand_small_files_take_few_round_trips() {
    for (mode, most) in [(Mode::Remembered, 7), (Mode::Predicting, 8)] {
        let mut w = World::new(mode);
        for i in 0..2000 {
            w.put(bytes(4096, i), &format!("f{i}"), FileCopyOptions::default());
        }
        w.run();
        assert!(
            w.now - w.start <= most * RTT,
            "{mode:?} {:?}",
            w.now - w.start
        );
        for i in 0..2000 {
            let data = w.model.fs.data(&format!("f{i}"));
            assert_eq!(data, Some(bytes(4096, i).as_slice()));
        }
        assert_eq!(w.witness.most_open(), 1);
    }
}

#[test]
fn two_thousand_small_files_come_down_in_few_round_trips() {
    let mut w = World::new(Mode::Remembered);
    for i in 0..2000 {
        let name = format!("f{i}");
        w.place(&name, &bytes(4096, i), 0o644);
        let known = Attributes {
            size: Some(4096),
            mode: Some(0o100_644),
            ..Attributes::default()
        };
        w.get(&name, Some(known));
    }
    w.run();
    assert!(w.now - w.start <= 6 * RTT, "{:?}", w.now - w.start);
    for i in 0..2000 {
        assert_eq!(w.got(&format!("f{i}")), Some(bytes(4096, i).as_slice()));
    }
    assert_eq!(w.model.open_handles(), (0, 1));
}

/// 100 MB/s and 100 ms: a bandwidth-delay product of 10 MB, which a depth of 2 MiB would not fill.
#[test]
fn a_long_path_is_filled_both_ways() {
    let long = VirtualLinkOptions {
        bandwidth: 100_000_000,
        ..link()
    };
    let data = bytes(200 << 20, 9);
    let seconds = data.len() as f64 / 1e8;
    for mode in [Mode::Plain, Mode::Remembered] {
        let mut w = World::with(config(mode, 1), SftpServerProfile::openssh(), long, 1);
        let job = w.put(data.clone(), "big", fresh());
        w.run();
        assert!(w.done(job));
        let took = (w.now - w.start).as_secs_f64();
        assert!(took < seconds + 1.0, "up {mode:?} {took}");
        assert!(w.model.fs.data("big") == Some(data.as_slice()));

        let mut w = World::with(config(mode, 1), SftpServerProfile::openssh(), long, 1);
        w.place("big", &data, 0o644);
        w.get("big", None);
        w.run();
        let took = (w.now - w.start).as_secs_f64();
        assert!(took < seconds + 1.0, "down {mode:?} {took}");
        assert!(w.got("big") == Some(data.as_slice()));
    }
}

#[test]
fn states_come_in_order() {
    let mut w = World::new(Mode::Remembered);
    let options = FileCopyOptions {
        fsync: true,
        ..FileCopyOptions::default()
    };
    let job = w.put(bytes(100, 1), "a", options);
    w.run();
    let states: Vec<FileCopyState> = w
        .events
        .iter()
        .filter_map(|(_, e)| match e {
            LaneEvent::State(id, state) if *id == job => Some(*state),
            _ => None,
        })
        .collect();
    let all = [
        FileCopyState::Created,
        FileCopyState::Written,
        FileCopyState::Closed,
        FileCopyState::Synced,
        FileCopyState::Renamed,
    ];
    assert_eq!(states, all);
}

#[test]
fn no_output_without_room() {
    let mut w = World::new(Mode::Remembered);
    w.lane.set_output_room(0);
    assert!(w.lane.poll_output().is_none());
    w.lane.set_output_room(5);
    assert!(w.lane.poll_output().is_some());
    assert!(w.lane.poll_output().is_none());
}
