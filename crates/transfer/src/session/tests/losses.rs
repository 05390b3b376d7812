use super::*;

fn data(data_lanes: usize) -> EndedLane {
    EndedLane {
        role: LaneRole::Data,
        answered: true,
        falls_back: false,
        data_lanes,
        has_company: true,
        done: 0,
    }
}

/// End of the last lane after `done` jobs.
fn last_after(done: u64) -> EndedLane {
    EndedLane { done, ..data(1) }
}

fn closed() -> LaneError {
    LaneError::Closed("it ended".to_owned())
}

fn bare(after: LaneEndAction) -> Option<EmptyConnectionAction> {
    match after {
        LaneEndAction::Continue { bare, .. } => bare,
        LaneEndAction::GiveUp(why) => panic!("{why}"),
    }
}

fn refused(after: LaneEndAction) -> bool {
    matches!(after, LaneEndAction::Continue { refused: true, .. })
}

#[test]
fn one_of_several_lanes_may_end_any_number_of_times() {
    let mut losses = LaneLosses::default();
    for _ in 0..100 {
        let after = losses.lane_ended(data(2), &closed());
        let goes_on = LaneEndAction::Continue {
            refused: false,
            bare: None,
        };
        assert_eq!(after, goes_on);
    }
}

#[test]
fn the_last_lane_may_end_four_times() {
    let mut losses = LaneLosses::default();
    for done in 1..=u64::from(RESTARTS) {
        assert!(matches!(
            losses.lane_ended(last_after(done), &closed()),
            LaneEndAction::Continue { .. }
        ));
    }
    let after = losses.lane_ended(last_after(9), &closed());
    assert_eq!(after, LaneEndAction::GiveUp(closed().to_string()));
}

/// The scheduler would fail the first directory of a tree at the same moment, and the copy would
/// end as if only files had failed.
#[test]
fn a_host_that_does_no_job_is_given_up_before_its_jobs_fail() {
    for done in [0, 7] {
        let mut losses = LaneLosses::default();
        losses.lane_ended(last_after(done), &closed());
        for _ in 2..FRUITLESS {
            assert!(matches!(
                losses.lane_ended(last_after(done), &closed()),
                LaneEndAction::Continue { .. }
            ));
        }
        let after = losses.lane_ended(last_after(done), &closed());
        assert_eq!(after, LaneEndAction::GiveUp(closed().to_string()));
    }
}

#[test]
fn a_new_connection_starts_the_count_anew() {
    let mut losses = LaneLosses::default();
    for done in 1..=u64::from(RESTARTS) {
        losses.lane_ended(last_after(done), &closed());
    }
    losses.forgive();
    assert!(matches!(
        losses.lane_ended(data(1), &closed()),
        LaneEndAction::Continue { .. }
    ));
}

#[test]
fn a_violation_of_the_protocol_is_never_repeated() {
    let error = LaneError::Protocol(sftp::Error::Version(6));
    let mut losses = LaneLosses::default();
    let after = losses.lane_ended(data(5), &error);
    assert_eq!(after, LaneEndAction::GiveUp(error.to_string()));
}

#[test]
fn a_channel_without_an_answer_beside_others_was_one_too_many() {
    let silent = EndedLane {
        answered: false,
        ..data(3)
    };
    let mut losses = LaneLosses::default();
    assert!(refused(losses.lane_ended(silent, &closed())));
    let only = EndedLane {
        data_lanes: 1,
        ..silent
    };
    assert!(
        !refused(losses.lane_ended(only, &closed())),
        "none is too many"
    );
    let listing = EndedLane {
        role: LaneRole::Listing,
        ..silent
    };
    assert!(!refused(losses.lane_ended(listing, &closed())));
    let stock = EndedLane {
        falls_back: true,
        ..silent
    };
    assert!(!refused(losses.lane_ended(stock, &closed())));
    let surprise = LaneError::Misprediction("other handles");
    assert!(!refused(losses.lane_ended(silent, &surprise)));
}

#[test]
fn a_connection_without_lanes_is_dropped_cut_or_used_again() {
    let alone = EndedLane {
        has_company: false,
        ..data(3)
    };
    let mut losses = LaneLosses::default();
    let dropped = bare(losses.lane_ended(alone, &closed()));
    assert_eq!(dropped, Some(EmptyConnectionAction::Drop));
    let cut = bare(losses.lane_ended(alone, &LaneError::Stalled));
    assert_eq!(cut, Some(EmptyConnectionAction::Cut));
    let surprise = LaneError::Misprediction("other handles");
    let again = bare(losses.lane_ended(alone, &surprise));
    assert_eq!(again, Some(EmptyConnectionAction::Reopen));
    let stock = EndedLane {
        falls_back: true,
        ..alone
    };
    let again = bare(losses.lane_ended(stock, &closed()));
    assert_eq!(again, Some(EmptyConnectionAction::Reopen));
}

#[test]
fn the_connection_of_the_last_lane_is_kept() {
    let alone = EndedLane {
        has_company: false,
        ..data(1)
    };
    let mut losses = LaneLosses::default();
    assert_eq!(bare(losses.lane_ended(alone, &closed())), None);
    assert_eq!(losses.last(), Some(&closed()));
}

/// However lanes end, a session whose last lane ends again and again is given up after a bounded
/// number of ends, and lanes that end beside others never end it.
#[test]
fn a_session_ends_after_a_bounded_number_of_ends_of_its_last_lane() {
    let mut seed = testkit::Seed::new(17);
    for _ in 0..500 {
        let mut losses = LaneLosses::default();
        let (mut ends, mut done) = (0, 0);
        loop {
            let lanes = 1 + seed.below(3) as usize;
            done += seed.below(2);
            let lane = EndedLane {
                done,
                has_company: seed.below(2) == 0,
                answered: seed.below(2) == 0,
                ..data(lanes)
            };
            let error = match seed.below(3) {
                0 => closed(),
                1 => LaneError::Stalled,
                _ => LaneError::GivenUp("it was given up".to_owned()),
            };
            ends += u32::from(lanes == 1);
            match losses.lane_ended(lane, &error) {
                LaneEndAction::GiveUp(why) => {
                    assert_eq!(why, error.to_string());
                    assert!(ends >= FRUITLESS, "{ends}");
                    break;
                }
                LaneEndAction::Continue { refused, bare } => {
                    assert!(
                        !refused || lanes > 1,
                        "the only channel is not one too many"
                    );
                    assert_eq!(bare.is_some(), lanes > 1 && !lane.has_company);
                    assert_eq!(losses.last(), Some(&error));
                }
            }
            assert!(ends <= RESTARTS + 1, "it is never given up");
        }
    }
}
