//! What crossed the path and what became of it.

use std::fmt;
use std::time::Duration;

use crate::path::{Direction, Dscp};

/// Packets as a wire has them, each segment of a super-packet for itself, and their IP bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub packets: u64,
    /// With all headers from IP on.
    pub bytes: u64,
}

impl Count {
    pub(crate) fn add(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }

    /// No packets.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }
}

/// What was dropped and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drops {
    /// The queue was full.
    pub queue: Count,
    /// Lost at random behind the queue.
    pub loss: Count,
    /// Over a policer's rate, by code point.
    pub police: [Count; 64],
    /// The link was cut.
    pub blackout: Count,
    /// To a blocked port.
    pub blocked: Count,
    /// Belonged to a connection that was reset.
    pub reset: Count,
    /// Too short to be a packet.
    pub malformed: Count,
}

impl Drops {
    /// All that were dropped.
    pub fn total(&self) -> Count {
        let mut total = Count::default();
        for (_, count) in self.causes() {
            total.add(count.packets, count.bytes);
        }
        total
    }

    /// (cause, count) of every cause but policers that dropped nothing.
    pub fn causes(&self) -> Vec<(String, Count)> {
        let mut causes = vec![
            ("queue".to_owned(), self.queue),
            ("loss".to_owned(), self.loss),
        ];
        for (dscp, count) in by_dscp(&self.police) {
            causes.push((format!("police {dscp}"), count));
        }
        causes.extend([
            ("blackout".to_owned(), self.blackout),
            ("blocked".to_owned(), self.blocked),
            ("reset".to_owned(), self.reset),
            ("malformed".to_owned(), self.malformed),
        ]);
        causes
    }
}

impl Default for Drops {
    fn default() -> Self {
        Self {
            queue: Count::default(),
            loss: Count::default(),
            police: [Count::default(); 64],
            blackout: Count::default(),
            blocked: Count::default(),
            reset: Count::default(),
            malformed: Count::default(),
        }
    }
}

/// Figures of one direction. What was offered and duplicated was delivered or dropped, or is still
/// under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectionFigures {
    /// Taken from the sender.
    pub offered: Count,
    /// Given to the receiver, duplicates included.
    pub delivered: Count,
    /// Neither.
    pub drops: Drops,
    /// Offered, by code point as sent.
    pub dscp: [Count; 64],
    /// Copies made.
    pub duplicated: Count,
    /// Held back for others to overtake.
    pub reordered: Count,
    /// RSTs that the path itself sent in this direction; in no other figure.
    pub resets: u64,
    /// The most bytes that the queue held, with what was being sent.
    pub queue_peak: u64,
    /// How long the link takes to send as many.
    pub queue_peak_time: Duration,
}

impl Default for DirectionFigures {
    fn default() -> Self {
        Self {
            offered: Count::default(),
            delivered: Count::default(),
            drops: Drops::default(),
            dscp: [Count::default(); 64],
            duplicated: Count::default(),
            reordered: Count::default(),
            resets: 0,
            queue_peak: 0,
            queue_peak_time: Duration::ZERO,
        }
    }
}

impl DirectionFigures {
    /// (code point, packets) of what was offered, without those that nothing had.
    pub fn by_dscp(&self) -> impl Iterator<Item = (Dscp, Count)> + '_ {
        by_dscp(&self.dscp)
    }
}

/// The figures of a path. `Display` is the text that a lab closes with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// From the start to the last time the emulator was told.
    pub covered: Duration,
    /// Indexed by [`Direction`].
    pub directions: [DirectionFigures; 2],
}

impl Figures {
    /// One direction's.
    pub fn of(&self, direction: Direction) -> &DirectionFigures {
        &self.directions[direction as usize]
    }

    /// All figures as (dotted name, number), for JSON: "near_to_far.drops.queue.packets". Times
    /// are in microseconds and say so in their name.
    pub fn pairs(&self) -> Vec<(String, u64)> {
        let mut pairs = vec![("covered_us".to_owned(), self.covered.as_micros() as u64)];
        for (direction, name) in Direction::BOTH
            .into_iter()
            .zip(["near_to_far", "far_to_near"])
        {
            let figures = self.of(direction);
            let mut counts = vec![
                ("offered".to_owned(), figures.offered),
                ("delivered".to_owned(), figures.delivered),
                ("duplicated".to_owned(), figures.duplicated),
                ("reordered".to_owned(), figures.reordered),
            ];
            for (cause, count) in figures.drops.causes() {
                counts.push((format!("drops.{}", cause.replace(' ', ".")), count));
            }
            for (dscp, count) in figures.by_dscp() {
                counts.push((
                    format!("dscp.{}", dscp.to_string().replace("DSCP ", "")),
                    count,
                ));
            }
            for (what, count) in counts {
                pairs.push((format!("{name}.{what}.packets"), count.packets));
                pairs.push((format!("{name}.{what}.bytes"), count.bytes));
            }
            let peak_us = figures.queue_peak_time.as_micros() as u64;
            pairs.push((format!("{name}.resets"), figures.resets));
            pairs.push((format!("{name}.queue_peak_bytes"), figures.queue_peak));
            pairs.push((format!("{name}.queue_peak_us"), peak_us));
        }
        pairs
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the path over {:.1} s", self.covered.as_secs_f64())?;
        for (direction, name) in Direction::BOTH
            .into_iter()
            .zip(["near to far", "far to near"])
        {
            self.of(direction).write(f, name)?;
        }
        Ok(())
    }
}

impl DirectionFigures {
    fn write(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        let peak = Bytes(self.queue_peak);
        write!(
            f,
            "  {name}  {} packets, {}; {} delivered; queue peak {peak} ({:.1} ms)",
            self.offered.packets,
            Bytes(self.offered.bytes),
            Bytes(self.delivered.bytes),
            self.queue_peak_time.as_secs_f64() * 1e3,
        )?;
        line(f, "dropped", self.drops.causes().into_iter())?;
        let others = [
            ("duplicated", self.duplicated.packets),
            ("reordered", self.reordered.packets),
            ("resets sent", self.resets),
        ];
        for (what, count) in others.into_iter().filter(|(_, count)| *count > 0) {
            write!(f, "\n      {what} {count}")?;
        }
        // All unmarked is what one expects, and not worth a line.
        if self.by_dscp().any(|(dscp, _)| dscp != Dscp::default()) {
            line(
                f,
                "sent as",
                self.by_dscp()
                    .map(|(dscp, count)| (dscp.to_string(), count)),
            )?;
        }
        writeln!(f)
    }
}

/// "dropped: 12 by queue, ..." on a line of its own; nothing without any.
fn line(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    counts: impl Iterator<Item = (String, Count)>,
) -> fmt::Result {
    let mut before = format!("\n      {title} ");
    for (name, count) in counts.filter(|(_, count)| !count.is_empty()) {
        write!(
            f,
            "{before}{name} {} ({})",
            count.packets,
            Bytes(count.bytes)
        )?;
        ", ".clone_into(&mut before);
    }
    Ok(())
}

fn by_dscp(counts: &[Count; 64]) -> impl Iterator<Item = (Dscp, Count)> + '_ {
    (0..)
        .map(Dscp::new)
        .zip(counts.iter().copied())
        .filter(|(_, count)| !count.is_empty())
}

struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..10_000 => write!(f, "{} B", self.0),
            10_000..10_000_000 => write!(f, "{:.1} kB", bytes / 1e3),
            10_000_000..10_000_000_000 => write!(f, "{:.1} MB", bytes / 1e6),
            _ => write!(f, "{:.2} GB", bytes / 1e9),
        }
    }
}
