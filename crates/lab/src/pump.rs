//! The emulator's process: moves frames between the two TUN devices and the pure emulator, in real
//! time.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::SIGTERM;

use crate::emulator::Emulator;
use crate::error::LabError;
use crate::packet::TunFrame;
use crate::path::PacketDirection;
use crate::{LabSpec, files};

/// Maximum number of frames read from one device before the other is read and due frames are
/// written.
const BATCH: usize = 32;
/// Longest delay in noticing a signal that arrives just before the wait.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// Emulates the path between the TUN devices at standard input (near) and standard output (far)
/// until SIGTERM, then writes the figures. [`crate::inside`] starts this process.
///
/// # Errors
/// A device fails, or the figures can't be written.
pub fn emulate(lab: &LabSpec, scratch: &Path) -> Result<(), LabError> {
    let failed = |error: io::Error| LabError::system("the lab's emulator failed", error);
    let asked_to_end = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGTERM, Arc::clone(&asked_to_end)).map_err(failed)?;
    // Both help to wake up in time, and are optional.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let _ = sys::before_others();
    let (near, far) = (io::stdin(), io::stdout());
    let mut pump = TunPump {
        devices: [near.as_fd(), far.as_fd()],
        emulator: Emulator::new(&lab.path),
        started: Instant::now(),
        waiting: [VecDeque::new(), VecDeque::new()],
        refused: 0,
    };
    let ready = scratch.join(files::EMULATOR_READY);
    fs::write(&ready, "").map_err(failed)?;
    while !asked_to_end.load(Ordering::Relaxed) {
        pump.turn().map_err(failed)?;
    }
    pump.write_figures(scratch).map_err(failed)
}

/// State of the emulator's process. Frames that a device does not take at once wait here.
struct TunPump<'a> {
    /// The device at the beginning of each direction, indexed by [`PacketDirection`]; the other one
    /// is at its end.
    devices: [BorrowedFd<'a>; 2],
    emulator: Emulator,
    started: Instant,
    /// Due frames of each direction for which the device had no room.
    waiting: [VecDeque<TunFrame>; 2],
    /// Number of frames that a device rejected.
    refused: u64,
}

impl TunPump<'_> {
    /// Moves all frames that can be moved; waits if there are none.
    fn turn(&mut self) -> io::Result<()> {
        let mut idle = true;
        for direction in PacketDirection::BOTH {
            idle &= !self.read(direction)?;
            self.write_waiting(direction)?;
        }
        while let Some((direction, frame)) = self.emulator.poll(self.started.elapsed()) {
            self.write(direction, frame)?;
        }
        if idle { self.wait() } else { Ok(()) }
    }

    /// Reads frames from the device at the beginning of `direction`. Returns true if there were
    /// any.
    fn read(&mut self, direction: PacketDirection) -> io::Result<bool> {
        for count in 0..BATCH {
            let mut frame = self.emulator.memory();
            match rustix::io::read(self.devices[direction as usize], frame.room()) {
                Ok(len) => {
                    frame.set_len(len);
                    self.emulator
                        .offer(direction, self.started.elapsed(), frame);
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    self.emulator.recycle(frame);
                    return Ok(count > 0);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Writes a frame to the device at the end of its direction, after those that wait for it.
    fn write(&mut self, direction: PacketDirection, frame: TunFrame) -> io::Result<()> {
        if self.waiting[direction as usize].is_empty() && self.taken(direction, &frame)? {
            self.emulator.recycle(frame);
        } else {
            self.waiting[direction as usize].push_back(frame);
        }
        Ok(())
    }

    fn write_waiting(&mut self, direction: PacketDirection) -> io::Result<()> {
        while let Some(frame) = self.waiting[direction as usize].pop_front() {
            if !self.taken(direction, &frame)? {
                self.waiting[direction as usize].push_front(frame);
                break;
            }
            self.emulator.recycle(frame);
        }
        Ok(())
    }

    /// Writes a frame. Returns true if the device is done with it, false if it has no room.
    fn taken(&mut self, direction: PacketDirection, frame: &TunFrame) -> io::Result<bool> {
        let device = self.devices[direction.opposite() as usize];
        match rustix::io::write(device, frame.bytes()) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => Ok(false),
            // The kernel rejected the header; the figures report it.
            Err(Errno::INVAL) => {
                self.refused += 1;
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn wait(&self) -> io::Result<()> {
        let mut longest = LONGEST_WAIT;
        if let Some(due) = self.emulator.next_deadline() {
            longest = longest.min(due.saturating_sub(self.started.elapsed()));
        }
        if longest.is_zero() {
            return Ok(());
        }
        let longest = longest.try_into().map_err(io::Error::other)?;
        let mut fds = PacketDirection::BOTH.map(|direction| {
            let mut wanted = PollFlags::IN;
            // Frames that wait for this device belong to the other direction.
            let waits = !self.waiting[direction.opposite() as usize].is_empty();
            wanted.set(PollFlags::OUT, waits);
            PollFd::from_borrowed_fd(self.devices[direction as usize], wanted)
        });
        match poll(&mut fds, Some(&longest)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn write_figures(&self, scratch: &Path) -> io::Result<()> {
        let figures = self.emulator.figures();
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let used = Duration::try_from(used).unwrap_or_default();
        let ran = self.started.elapsed();
        // The lab has written this file before it asks for the figures.
        let by_devices = fs::read_to_string(scratch.join(files::DEVICE_DROPS));
        let by_devices: u64 = by_devices.map_or(0, |text| text.trim().parse().unwrap_or(0));
        let seconds = used.as_secs_f64();
        let mut text = format!("{figures}  emulator   {seconds:.2} s of processor time");
        // The start of the emulator counts in a shorter run.
        if ran >= Duration::from_secs(1) {
            let share = 100.0 * seconds / ran.as_secs_f64();
            let _ = write!(text, ", {share:.0} % of a core");
        }
        text.push('\n');
        if by_devices + self.refused > 0 {
            let _ = writeln!(
                text,
                "  not by the path: its devices dropped {by_devices} packets and refused {}; \
                 this machine was too slow for the path",
                self.refused
            );
        }
        fs::write(scratch.join(files::FIGURES_TEXT), text)?;
        let mut pairs = figures.pairs();
        for (name, value) in [
            ("emulator_cpu_us", used.as_micros() as u64),
            ("emulator_ran_us", ran.as_micros() as u64),
            ("device_drops", by_devices),
            ("device_refusals", self.refused),
        ] {
            pairs.push((name.to_owned(), value));
        }
        fs::write(scratch.join(files::FIGURES_JSON), json(&pairs))
    }
}

/// Formats a JSON object of numbers. The names are the emulator's own and need no escapes.
fn json(pairs: &[(String, u64)]) -> String {
    let lines: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("  \"{name}\": {value}"))
        .collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}
