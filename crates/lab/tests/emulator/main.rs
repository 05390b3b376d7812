//! Tests of the emulator in virtual time.

mod build;
mod chance;
mod events;
mod faults;
mod queue;
mod split;
mod timing;

use std::time::Duration;

use build::Packet;
use lab::path::NetworkPathSpec;
use lab::{Emulator, PacketDirection};

pub(crate) use lab::PacketDirection::{FarToNear, NearToFar};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn path(options: &[(&str, &str)]) -> NetworkPathSpec {
    NetworkPathSpec::build(None, options.iter().copied()).expect("a path")
}

/// A path, with everything that arrived at its ends.
pub(crate) struct Lab {
    pub(crate) emulator: Emulator,
    pub(crate) arrived: Vec<(Duration, PacketDirection, Packet)>,
}

impl Lab {
    pub(crate) fn new(options: &[(&str, &str)]) -> Self {
        Self {
            emulator: Emulator::new(&path(options)),
            arrived: Vec::new(),
        }
    }

    pub(crate) fn offer(&mut self, direction: PacketDirection, now: Duration, packet: &Packet) {
        self.offer_bytes(direction, now, &packet.bytes());
    }

    pub(crate) fn offer_bytes(&mut self, direction: PacketDirection, now: Duration, bytes: &[u8]) {
        self.run_until(now);
        let mut frame = self.emulator.memory();
        frame.room()[..bytes.len()].copy_from_slice(bytes);
        frame.set_len(bytes.len());
        self.emulator.offer(direction, now, frame);
    }

    /// Delivers everything due until `end`, each at its deadline.
    pub(crate) fn run_until(&mut self, end: Duration) {
        while let Some(at) = self.emulator.next_deadline().filter(|at| *at <= end) {
            while let Some((direction, frame)) = self.emulator.poll(at) {
                let packet = Packet::checked(frame.bytes());
                self.arrived.push((at, direction, packet));
                self.emulator.recycle(frame);
            }
        }
    }

    /// Delivers everything, and checks that all offered packets are accounted for.
    pub(crate) fn finish(&mut self) {
        self.run_until(Duration::from_secs(3600));
        for direction in PacketDirection::BOTH {
            let figures = self.emulator.figures().of(direction);
            let (came, went) = (figures.offered, figures.delivered);
            let (copies, gone) = (figures.duplicated, figures.drops.total());
            assert_eq!(came.packets + copies.packets, went.packets + gone.packets);
            assert_eq!(came.bytes + copies.bytes, went.bytes + gone.bytes);
        }
    }

    /// First sequence numbers of all segments that arrived, in order.
    pub(crate) fn segments(&self) -> Vec<u32> {
        let packets = self.arrived.iter();
        packets
            .flat_map(|(_, _, packet)| packet.segments())
            .collect()
    }
}
