use std::time::Duration;

use super::{NetworkPathError, NetworkPathSpec, PacketDirection, PathEventKind};

/// Limit of bytes in flight and in queues, both directions together, since they are in this
/// machine's memory.
const MOST_UNDER_WAY: u64 = 4 << 30;

/// Checks the combination of options.
pub(super) fn check(path: &NetworkPathSpec) -> Result<(), NetworkPathError> {
    let one_way = path.rtt / 2;
    if path.jitter > one_way {
        return Err(NetworkPathError(format!(
            "--jitter: {:?} is more than the one-way delay, {one_way:?}: use at most that, since \
             packets cannot arrive before they are sent",
            path.jitter
        )));
    }
    for direction in PacketDirection::BOTH {
        let queue = path.queue_bytes(direction);
        if queue < u64::from(path.mtu) {
            return Err(NetworkPathError(format!(
                "--queue: {queue} bytes cannot hold one packet of {} bytes: use a larger queue",
                path.mtu
            )));
        }
    }
    for direction in PacketDirection::BOTH {
        let (link, cross) = (
            path.rate[direction as usize],
            path.cross[direction as usize],
        );
        if let Some(cross) = cross.filter(|cross| *cross >= link) {
            return Err(NetworkPathError(format!(
                "--cross: traffic of others of {cross} leaves nothing of a link of {link}: use a \
                 lower rate"
            )));
        }
    }
    let under_way = under_way(path);
    if under_way > MOST_UNDER_WAY {
        return Err(NetworkPathError(format!(
            "the path could hold up to {:.1} GB in flight, more than the {:.1} GB that the \
             emulator buffers: lower the rate, the delay or the queue",
            under_way as f64 / 1e9,
            MOST_UNDER_WAY as f64 / 1e9
        )));
    }
    if let Some(burst) = path.loss.burst {
        // Gilbert's chain can leave its good state with a probability of at most 1.
        let share = path.loss.share.get();
        if share > burst / (burst + 1.0) {
            return Err(NetworkPathError(format!(
                "--loss: {}% is not possible with bursts of {burst} packets: use longer \
                 bursts",
                share * 100.0
            )));
        }
    }
    check_blackouts(path)
}

fn check_blackouts(path: &NetworkPathSpec) -> Result<(), NetworkPathError> {
    let mut blackouts: Vec<_> = path
        .events
        .iter()
        .filter_map(|event| match event.kind {
            PathEventKind::Blackout(length) => Some((event.at, length)),
            PathEventKind::Reset => None,
        })
        .collect();
    blackouts.sort();
    if let Some((at, _)) = blackouts.iter().find(|(_, length)| length.is_zero()) {
        return Err(NetworkPathError(format!(
            "--at: the blackout at {at:?} has a length of zero: give it a time, such as blackout=3s"
        )));
    }
    let overlap = blackouts
        .windows(2)
        .find(|pair| pair[0].0 + pair[0].1 > pair[1].0);
    match overlap {
        Some(pair) => Err(NetworkPathError(format!(
            "--at: the blackout at {:?} overlaps with the one at {:?}: join them",
            pair[0].0, pair[1].0
        ))),
        None => Ok(()),
    }
}

/// Maximum bytes in queues and in flight, both directions together.
pub(super) fn under_way(path: &NetworkPathSpec) -> u64 {
    let held = match path.reorder.share.get() > 0.0 {
        true => path.reorder.held,
        false => Duration::ZERO,
    };
    let time = path.rtt / 2 + path.jitter + held;
    let each = |direction: PacketDirection| {
        let rate = path.rate[direction as usize];
        let shaped = path.shape.iter().map(|limit| {
            let (_, queue) = limit.shape_sizes(path.rtt);
            queue
        });
        rate.bytes_in(time)
            .saturating_add(path.queue_bytes(direction))
            .saturating_add(shaped.fold(0, u64::saturating_add))
    };
    PacketDirection::BOTH
        .into_iter()
        .fold(0, |sum, direction| each(direction).saturating_add(sum))
}
