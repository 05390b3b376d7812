//! Measures files in the directory that the user named at the server.

use std::time::{Duration, Instant};

use diagnose::{Evidence, SmallFileRate, ThroughputMeasurement};
use sftp::{OpenFlags, Reply, Request};

use super::budget::answer_deadline;
use super::connection::{ChannelUse, ProbeChannel, REQUEST};
use super::load::ProbeLoad;
use super::measurement_error::MeasurementError;
use super::path::ProbedConnections;

/// Share of the time for the server's disk.
const DISK: f64 = 0.08;
/// Bytes that the server holds without an answer if its disk is too slow for the path.
const HELD: u64 = 1 << 20;
/// Round trips until the first data are written and until the answer to the last request.
const START_TRIPS: f64 = 5.0;
/// Small files that are written, their size, and the share of the time for them.
const SMALL_FILES: u32 = 20;
const SMALL_SIZE: usize = 4096;
const SMALL_TIME: f64 = 0.06;

/// Step at which a small file failed, with the server's words.
enum SmallFileError {
    Create(MeasurementError),
    Write(MeasurementError),
}

/// Files that are written in the directory that the user named.
pub(super) struct DirectoryProbe<'p, 'a> {
    path: &'p mut ProbedConnections<'a>,
    evidence: &'p mut Evidence,
    directory: &'p [u8],
}

impl<'p, 'a> DirectoryProbe<'p, 'a> {
    pub(super) fn new(
        path: &'p mut ProbedConnections<'a>,
        evidence: &'p mut Evidence,
        directory: &'p [u8],
    ) -> Self {
        Self {
            path,
            evidence,
            directory,
        }
    }

    fn remove(&mut self, file: &[u8]) {
        self.evidence.unseen.extend(self.path.remove((1, 0), file));
    }

    /// Writes small files in the user's directory at the server, one after the other.
    pub(super) fn small_files(&mut self) -> Result<(), MeasurementError> {
        // The disk's part of the measurement has noted why nothing can be written there.
        if self.evidence.there.disk.is_none() {
            return Ok(());
        }
        self.path.budget().step("small files")?;
        let path = new_file_path(self.directory);
        let budget = self.path.budget();
        let (begun, most) = (Instant::now(), budget.time().mul_f64(SMALL_TIME));
        let mut written = 0;
        let mut needed = Duration::ZERO;
        while written < SMALL_FILES && begun.elapsed() < most.min(self.path.budget().left()) {
            self.path.budget().step("small files")?;
            let start = Instant::now();
            let done = self.small_file(&path);
            needed += start.elapsed();
            let created = !matches!(&done, Err(SmallFileError::Create(_)));
            if created {
                self.remove(&path);
            }
            if let Err(SmallFileError::Create(why) | SmallFileError::Write(why)) = done {
                if why.ends_channel() {
                    return Err(why);
                }
                // Quotas and full disks end this part alone.
                self.evidence.unseen.push(format!("small files: {why}"));
                return Ok(());
            }
            written += 1;
        }
        if written > 0 {
            self.evidence.small_files = Some(SmallFileRate {
                per_second: f64::from(written) / needed.as_secs_f64().max(1e-6),
                size: SMALL_SIZE as u64,
            });
        }
        Ok(())
    }

    /// Writes one small file as scp does: each request waits for the answer to the last.
    fn small_file(&mut self, path: &[u8]) -> Result<(), SmallFileError> {
        let flags = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL;
        let until = answer_deadline();
        let connections = self.path.connections();
        let file = connections.open_file((1, 0), path, flags, until);
        let file = file.map_err(SmallFileError::Create)?;
        let failed = SmallFileError::Write;
        let handle = file.as_bytes();
        let data = [0xa5; SMALL_SIZE];
        let write = Request::Write {
            handle,
            offset: 0,
            data: &data,
        };
        let written = connections.ask((1, 0), &write, until).map_err(failed)?.0;
        let closed = connections
            .ask((1, 0), &Request::Close { handle }, until)
            .map_err(failed)?
            .0;
        for reply in [written, closed] {
            if let Reply::Status(status) = reply
                && !status.is_ok()
            {
                return Err(failed(status.into()));
            }
        }
        Ok(())
    }

    /// Writes a file in the user's directory at the server. Returns false if the disk was left out
    /// and the evidence says why.
    ///
    /// # Errors
    /// The measurement was interrupted, or a connection was lost.
    pub(super) fn disk(&mut self) -> Result<bool, MeasurementError> {
        self.path.budget().step("the server's disk")?;
        let path = new_file_path(self.directory);
        let until = answer_deadline();
        let flags = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL;
        let budget = self.path.budget();
        let time = budget
            .time()
            .mul_f64(DISK)
            .max(Duration::from_secs_f64(10.0 * self.path.rtt()));
        let data = budget.data_left();
        let cancel = budget.cancel();
        let connections = self.path.connections();
        let file = match connections.open_file((1, 0), &path, flags, until) {
            Ok(file) => file,
            Err(why) if why.ends_channel() => return Err(why),
            Err(why) => {
                self.leave_out_disk(&why);
                return Ok(false);
            }
        };
        let writing = ChannelUse::Writing {
            file: file.clone(),
            advances: true,
        };
        connections.set_use((1, 0), writing);
        let before = connections.channel((1, 0)).map_or(0, ProbeChannel::moved);
        let time = time.min(self.path.budget().left());
        let connections = self.path.connections();
        let load = ProbeLoad {
            up: true,
            channels: &[(1, 0)],
            time,
            data,
            idle: None,
            pauses: true,
            extension: Duration::ZERO,
        };
        let begun = Instant::now();
        let result = connections.load(&load, cancel);
        let request = Request::Fsync {
            handle: file.as_bytes(),
        };
        let synced = connections.ask((1, 0), &request, answer_deadline());
        let needed = begun.elapsed().as_secs_f64();
        let moved = connections.channel((1, 0)).map_or(0, ProbeChannel::moved) - before;
        let close = Request::Close {
            handle: file.as_bytes(),
        };
        let _ = connections.ask((1, 0), &close, answer_deadline());
        self.remove(&path);
        if let (Some(rung), Ok(_)) = (result.rung, synced)
            && moved > u64::from(REQUEST)
            && rung.rate > 0.0
        {
            self.evidence.there.disk = Some(self.disk_rate(&rung, moved, needed, result.seconds));
        }
        match result.lost {
            Some(why) if why.ends_channel() => Err(why),
            // A full disk or a quota: the path's figures are complete.
            Some(why) => {
                self.evidence.there.disk = None;
                self.leave_out_disk(&why);
                Ok(false)
            }
            None => Ok(true),
        }
    }

    fn leave_out_disk(&mut self, why: &MeasurementError) {
        let shown = crate::escape::name(self.directory);
        self.evidence
            .unseen
            .push(format!("the server's disk: {shown}: {why}"));
    }

    /// Rate of the server's disk in bytes per second, from `moved` bytes that needed `needed`
    /// seconds until they were on the disk, `loaded` of them until the load ended: the plateau of
    /// the path, and the time that the disk needed beyond it.
    fn disk_rate(&self, rung: &ThroughputMeasurement, moved: u64, needed: f64, loaded: f64) -> f64 {
        // TCP's rate is the disk's only while the server does not hold data that it cannot write.
        // The answers to what is in flight take a round trip, and that to the last request another.
        let flush = (needed - loaded - 2.0 * self.path.rtt()).max(0.0);
        let written = match rung.held > HELD {
            true => (needed - START_TRIPS * self.path.rtt()).max(0.01),
            false => moved as f64 / rung.rate + flush,
        };
        moved as f64 / written
    }
}

/// Returns a path in `directory` that no file has.
pub(super) fn new_file_path(directory: &[u8]) -> Vec<u8> {
    let mut bytes = [0; 8];
    (crate::session::this_machine().random)(&mut bytes);
    let name: Vec<u8> = bytes.iter().map(|b| b'a' + b % 26).collect();
    [directory, b"/.longhaul-doctor-", &name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::test_support::{options, path, settings};

    /// Bug: the loss of the connection was told as a directory in which no file can be created, and
    /// nobody looked for a broken connection.
    #[test]
    fn a_lost_connection_was_taken_for_an_unwritable_directory() {
        let (target, options) = (settings(), options());
        let (mut path, [_, load]) = path(&target, &options);
        let mut evidence = Evidence::default();
        load.lose_with_request();
        let mut files = DirectoryProbe::new(&mut path, &mut evidence, b"/home");
        let error = files.disk().unwrap_err();
        assert!(error.is_lost(), "{error}");
        assert!(evidence.unseen.is_empty(), "{:?}", evidence.unseen);
    }

    #[test]
    fn a_refused_file_leaves_out_the_disk_alone() {
        let (target, options) = (settings(), options());
        let (mut path, [_, load]) = path(&target, &options);
        let mut evidence = Evidence::default();
        load.refuse("OPEN");
        path.connections().cut_from(1);
        let number = path.connections().add(Box::new(load)).expect("a link");
        let opened = path.connections().open(number, answer_deadline());
        assert!(opened.is_ok());
        let mut files = DirectoryProbe::new(&mut path, &mut evidence, b"/home");
        assert_eq!(files.disk(), Ok(false));
        let said = "the server's disk: /home: permission denied";
        assert_eq!(evidence.unseen, [said]);
    }
}
