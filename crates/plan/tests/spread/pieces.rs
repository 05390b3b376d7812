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

/// The first lane had 64 files of 256 KiB at once, and more whenever one was through: of a tree over
/// 114 ms it had 40 MB to send when all other connections had nothing to do any more.
#[test]
fn whole_files_do_not_pile_up_on_one_lane() {
    let now = testkit::sftp_model::epoch();
    let mut options = small();
    options.split = false;
    for (size, at_once) in [(256 << 10, 16), (4 << 10, 64)] {
        let mut spread = Spread::new(options, now);
        let report = LaneReport {
            wants: 64,
            predicts: true,
            in_order: true,
            depth: MB,
            ..LaneReport::default()
        };
        let mut lanes = (0..2).map(|channel| LaneId {
            connection: ConnectionId(0),
            channel,
        });
        let mut open = |spread: &mut Spread| {
            let lane = lanes.next().expect("one of two");
            spread.lane_opened(now, lane, false, report);
            lane
        };
        let first = open(&mut spread);
        for id in 0..200 {
            let kind = JobKind::Put {
                source: PathBuf::from("/src/file"),
                target: remote(&format!("file {id}")),
                options: PutOptions::default(),
            };
            let hint = Hint {
                size: Some(size),
                relayed: false,
            };
            let id = JobId(id);
            spread.push(now, Job { id, kind }, hint);
        }
        let given = pushed(&mut spread);
        assert_eq!(given.len(), at_once, "files of {size} bytes");
        open(&mut spread);
        assert_eq!(pushed(&mut spread).len(), at_once, "the other lane's");
        let moved = LaneEvent::Progress(given[0], size);
        spread.handle_lane(now, first, moved);
        let more = usize::from(at_once == 16);
        assert_eq!(pushed(&mut spread).len(), more, "room for its bytes again");
    }
}
