//! Figures of the path: packets that crossed it, and the causes of drops.

use std::fmt;
use std::time::Duration;

use crate::path::{Dscp, PacketDirection};

/// A number of packets as on a wire, counting each segment of a super-packet, and of their IP
/// bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketAndByteCount {
    /// Number of packets.
    pub packets: u64,
    /// Bytes, with all headers from IP on.
    pub bytes: u64,
}

impl PacketAndByteCount {
    pub(crate) fn add(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }

    /// Returns true if no packets were counted.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }
}

/// Packets that one direction of the path has dropped, and their bytes, by the cause of the drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropCounts {
    /// The queue was full.
    pub queue: PacketAndByteCount,
    /// Random loss behind the queue.
    pub loss: PacketAndByteCount,
    /// Over a policer's rate, by DSCP.
    pub police: [PacketAndByteCount; 64],
    /// Over a shaper's rate, and its queue was full.
    pub shape: PacketAndByteCount,
    /// Longer than a path MTU black hole lets pass.
    pub black_hole: PacketAndByteCount,
    /// Belonging to a connection that a middlebox stalled.
    pub stall: PacketAndByteCount,
    /// During a blackout.
    pub blackout: PacketAndByteCount,
    /// To a blocked port.
    pub blocked: PacketAndByteCount,
    /// Belonging to a connection that was reset.
    pub reset: PacketAndByteCount,
    /// Too short for a packet.
    pub malformed: PacketAndByteCount,
}

impl DropCounts {
    /// All drops together.
    pub fn total(&self) -> PacketAndByteCount {
        let mut total = PacketAndByteCount::default();
        for (_, count) in self.causes() {
            total.add(count.packets, count.bytes);
        }
        total
    }

    /// (cause, count) of every cause, without policers that dropped nothing.
    pub fn causes(&self) -> Vec<(String, PacketAndByteCount)> {
        let mut causes = vec![
            ("queue".to_owned(), self.queue),
            ("loss".to_owned(), self.loss),
        ];
        for (dscp, count) in by_dscp(&self.police) {
            causes.push((format!("police {dscp}"), count));
        }
        causes.extend([
            ("shape".to_owned(), self.shape),
            ("black_hole".to_owned(), self.black_hole),
            ("stall".to_owned(), self.stall),
            ("blackout".to_owned(), self.blackout),
            ("blocked".to_owned(), self.blocked),
            ("reset".to_owned(), self.reset),
            ("malformed".to_owned(), self.malformed),
        ]);
        causes
    }
}

impl Default for DropCounts {
    fn default() -> Self {
        Self {
            queue: PacketAndByteCount::default(),
            loss: PacketAndByteCount::default(),
            police: [PacketAndByteCount::default(); 64],
            shape: PacketAndByteCount::default(),
            black_hole: PacketAndByteCount::default(),
            stall: PacketAndByteCount::default(),
            blackout: PacketAndByteCount::default(),
            blocked: PacketAndByteCount::default(),
            reset: PacketAndByteCount::default(),
            malformed: PacketAndByteCount::default(),
        }
    }
}

/// Figures of one direction. Offered and duplicated packets were delivered, were dropped, or are in
/// flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectionStatistics {
    /// Packets from the sender.
    pub offered: PacketAndByteCount,
    /// Packets delivered to the receiver, including duplicates.
    pub delivered: PacketAndByteCount,
    /// Dropped packets.
    pub drops: DropCounts,
    /// Offered packets, by the DSCP of the sender.
    pub dscp: [PacketAndByteCount; 64],
    /// Duplicates made.
    pub duplicated: PacketAndByteCount,
    /// Packets held back for others to overtake.
    pub reordered: PacketAndByteCount,
    /// RSTs that the path itself sent in this direction; no other figure includes them.
    pub resets: u64,
    /// Peak of the queue in bytes, including the packet being sent.
    pub queue_peak: u64,
    /// Time that the link needs to send [`Self::queue_peak`].
    pub queue_peak_time: Duration,
}

impl Default for DirectionStatistics {
    fn default() -> Self {
        Self {
            offered: PacketAndByteCount::default(),
            delivered: PacketAndByteCount::default(),
            drops: DropCounts::default(),
            dscp: [PacketAndByteCount::default(); 64],
            duplicated: PacketAndByteCount::default(),
            reordered: PacketAndByteCount::default(),
            resets: 0,
            queue_peak: 0,
            queue_peak_time: Duration::ZERO,
        }
    }
}

impl DirectionStatistics {
    /// (DSCP, count) of offered packets, without classes that had none.
    pub fn by_dscp(&self) -> impl Iterator<Item = (Dscp, PacketAndByteCount)> + '_ {
        by_dscp(&self.dscp)
    }
}

/// The figures of a path. `Display` formats the closing text of a lab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStatistics {
    /// Time from the start to the last call of the emulator.
    pub covered: Duration,
    /// Figures of each direction, indexed by [`PacketDirection`].
    pub directions: [DirectionStatistics; 2],
}

impl PathStatistics {
    /// The figures of one direction.
    pub fn of(&self, direction: PacketDirection) -> &DirectionStatistics {
        &self.directions[direction as usize]
    }

    /// All figures as (dotted name, number), for JSON: "near_to_far.drops.queue.packets". Times are
    /// in microseconds, with the suffix `_us`.
    pub fn pairs(&self) -> Vec<(String, u64)> {
        let mut pairs = vec![("covered_us".to_owned(), self.covered.as_micros() as u64)];
        for (direction, name) in PacketDirection::BOTH
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

impl fmt::Display for PathStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the path over {:.1} s", self.covered.as_secs_f64())?;
        for (direction, name) in PacketDirection::BOTH
            .into_iter()
            .zip(["near to far", "far to near"])
        {
            self.of(direction).write(f, name)?;
        }
        Ok(())
    }
}

impl DirectionStatistics {
    fn write(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        let peak = ByteDisplay(self.queue_peak);
        write!(
            f,
            "  {name}  {} packets, {}; {} delivered; queue peak {peak} ({:.1} ms)",
            self.offered.packets,
            ByteDisplay(self.offered.bytes),
            ByteDisplay(self.delivered.bytes),
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
        // A path without marked packets is normal and needs no line.
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

/// Formats "dropped: 12 by queue, ..." on its own line; nothing if all counts are empty.
fn line(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    counts: impl Iterator<Item = (String, PacketAndByteCount)>,
) -> fmt::Result {
    let mut before = format!("\n      {title} ");
    for (name, count) in counts.filter(|(_, count)| !count.is_empty()) {
        write!(
            f,
            "{before}{name} {} ({})",
            count.packets,
            ByteDisplay(count.bytes)
        )?;
        ", ".clone_into(&mut before);
    }
    Ok(())
}

fn by_dscp(
    counts: &[PacketAndByteCount; 64],
) -> impl Iterator<Item = (Dscp, PacketAndByteCount)> + '_ {
    (0..)
        .map(Dscp::new)
        .zip(counts.iter().copied())
        .filter(|(_, count)| !count.is_empty())
}

/// Shows a number of bytes in B, kB, MB or GB, in powers of 1,000.
struct ByteDisplay(u64);

impl fmt::Display for ByteDisplay {
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
