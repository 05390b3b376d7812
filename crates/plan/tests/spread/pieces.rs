//! When a lane gets its next piece.

use std::path::PathBuf;

use plan::{
    Attributes, ConnectionId, DiskReply, Hint, Job, JobId, JobKind, LaneEvent, LaneId, LaneReport,
    Order, PutOptions, Spread,
};

use crate::world::{remote, small};

const MB: u64 = 1 << 20;

fn pushed(spread: &mut Spread) -> Vec<JobId> {
    std::iter::from_fn(|| spread.poll_order())
        .filter_map(|order| match order {
            Order::Push(_, job) => Some(job.id),
            _ => None,
        })
        .collect()
}

/// Nothing but progress: a lane that waited for the end of its last piece stood still for a round
/// trip between any two.
#[test]
fn the_next_piece_is_there_while_the_former_still_moves() {
    let now = testkit::sftp_model::epoch();
    let mut spread = Spread::new(small(), now);
    let lane = LaneId {
        connection: ConnectionId(0),
        channel: 0,
    };
    let report = LaneReport {
        wants: 64,
        predicts: true,
        in_order: true,
        depth: 4 * MB,
        ..LaneReport::default()
    };
    spread.lane_opened(now, lane, false, report);
    let job = JobId(1);
    let kind = JobKind::Get {
        source: remote("big"),
        target: PathBuf::from("/dst/big"),
        known: Some(Attributes {
            size: Some(16 * MB),
            mode: Some(0o100_644),
            ..Attributes::default()
        }),
        options: PutOptions::default(),
    };
    let hint = Hint {
        size: Some(16 * MB),
        relayed: false,
    };
    spread.push(now, Job { id: job, kind }, hint);
    assert_eq!(pushed(&mut spread), []);
    while spread.poll_disk().is_some() {}
    let seekable = true;
    spread.handle_disk(now, DiskReply::Created { job, seekable });
    let first = pushed(&mut spread);
    let piece = *first.last().expect("a piece for the only lane");
    assert!(first.len() < 8, "{} pieces at once", first.len());

    spread.handle_lane(now, lane, LaneEvent::Progress(piece, 400 << 10));
    assert_ne!(pushed(&mut spread), [], "the lane has room again");
}
