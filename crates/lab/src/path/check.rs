use std::time::Duration;

use super::{Direction, EventKind, PathError, PathSpec};

/// Limit of bytes in flight and in queues, both directions together, since they are in this
/// machine's memory.
const MOST_UNDER_WAY: u64 = 4 << 30;

impl PathSpec {
    /// Checks the combination of options.
    pub(super) fn check(&self) -> Result<(), PathError> {
        let one_way = self.rtt / 2;
        if self.jitter > one_way {
            return Err(PathError(format!(
                "--jitter: {:?} is more than the one-way delay, {one_way:?}: packets cannot \
                 arrive before they are sent",
                self.jitter
            )));
        }
        for direction in Direction::BOTH {
            let queue = self.queue_bytes(direction);
            if queue < u64::from(self.mtu) {
                return Err(PathError(format!(
                    "--queue: {queue} bytes cannot hold one packet of {} bytes",
                    self.mtu
                )));
            }
        }
        for direction in Direction::BOTH {
            let (link, cross) = (
                self.rate[direction as usize],
                self.cross[direction as usize],
            );
            if let Some(cross) = cross.filter(|cross| *cross >= link) {
                return Err(PathError(format!(
                    "--cross: {cross} leaves nothing of a link of {link}"
                )));
            }
        }
        let under_way = self.under_way();
        if under_way > MOST_UNDER_WAY {
            return Err(PathError(format!(
                "the path could hold up to {:.1} GB in flight, more than the {:.1} GB that the \
                 emulator buffers: lower the rate, the delay or the queue",
                under_way as f64 / 1e9,
                MOST_UNDER_WAY as f64 / 1e9
            )));
        }
        if let Some(burst) = self.loss.burst {
            // Gilbert's chain can leave its good state with a probability of at most 1.
            let share = self.loss.share.get();
            if share > burst / (burst + 1.0) {
                return Err(PathError(format!(
                    "--loss: {}% is not possible with bursts of {burst} packets: use longer \
                     bursts",
                    share * 100.0
                )));
            }
        }
        self.check_blackouts()
    }

    fn check_blackouts(&self) -> Result<(), PathError> {
        let mut blackouts: Vec<_> = self
            .events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Blackout(length) => Some((event.at, length)),
                EventKind::Reset => None,
            })
            .collect();
        blackouts.sort();
        if let Some((at, _)) = blackouts.iter().find(|(_, length)| length.is_zero()) {
            return Err(PathError(format!(
                "--at: the blackout at {at:?} has no length"
            )));
        }
        let overlap = blackouts
            .windows(2)
            .find(|pair| pair[0].0 + pair[0].1 > pair[1].0);
        match overlap {
            Some(pair) => Err(PathError(format!(
                "--at: the blackout at {:?} overlaps with the one at {:?}",
                pair[0].0, pair[1].0
            ))),
            None => Ok(()),
        }
    }

    /// Most bytes in queues and in flight, both directions together.
    pub fn under_way(&self) -> u64 {
        let held = match self.reorder.share.get() > 0.0 {
            true => self.reorder.held,
            false => Duration::ZERO,
        };
        let time = self.rtt / 2 + self.jitter + held;
        let each = |direction: Direction| {
            let rate = self.rate[direction as usize];
            let shaped = self.shape.iter().map(|limit| {
                let (_, queue) = limit.shape_sizes(self.rtt);
                queue
            });
            rate.bytes_in(time)
                .saturating_add(self.queue_bytes(direction))
                .saturating_add(shaped.fold(0, u64::saturating_add))
        };
        Direction::BOTH
            .into_iter()
            .fold(0, |sum, direction| each(direction).saturating_add(sum))
    }
}
