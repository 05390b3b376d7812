//! Measures files in the directory that the user named at the server.

use std::time::{Duration, Instant};

use diagnose::{LadderRung, SmallFileRate};
use sftp::{Handle, OpenFlags, Reply, Request};

use super::connection::{ChannelIndex, ChannelUse, REQUEST};
use super::load::ProbeLoad;
use super::plan::{IDLE, ProbeRun};
use super::request_error::RequestError;

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
    Create(RequestError),
    Write(RequestError),
}

impl ProbeRun<'_> {
    /// Opens /dev/null or /dev/zero on a channel. Where the account sees no devices, a small file
    /// in the user's directory takes their place: each request writes or reads its first bytes
    /// again.
    pub(super) fn device(&mut self, at: ChannelIndex, up: bool) -> Result<Handle, RequestError> {
        let until = self.until();
        if self.stand_in.is_none() {
            match self.all.device(at, up, until) {
                Err(silence) if silence.is_no_answer() => return Err(silence),
                Err(refused) if self.options.remote_path.is_none() => {
                    return Err(refused.with(
                        "name a directory (HOST:PATH), and a small file there is used in its place",
                    ));
                }
                Err(refused) => {
                    let created = self.create_stand_in();
                    created.map_err(|error| match error.is_no_answer() {
                        true => error,
                        false => refused.with(&error.to_string()),
                    })?;
                }
                opened => return opened,
            }
        }
        let flags = match up {
            true => OpenFlags::WRITE,
            false => OpenFlags::READ,
        };
        let path = self.stand_in.clone().unwrap_or_default();
        let shown = crate::escape::name(&path).to_string();
        let opened = self.all.open_file(at, &path, flags, self.until());
        opened.map_err(|error| error.at_step(&shown))
    }

    fn create_stand_in(&mut self) -> Result<(), RequestError> {
        let directory = self.options.remote_path.clone().unwrap_or_default();
        let path = [&directory[..], b"/.longhaul-doctor-", &random_name()].concat();
        let named =
            |error: RequestError| error.at_step(&crate::escape::name(&directory).to_string());
        let until = self.until();
        let flags = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL;
        let opened = self.all.open_file(IDLE, &path, flags, until);
        let file = opened.map_err(named)?;
        self.stand_in = Some(path);
        let handle = file.as_bytes();
        let write = Request::Write {
            handle,
            offset: 0,
            data: &[0xa5; REQUEST as usize],
        };
        let written = self.all.ask(IDLE, &write, until)?.0;
        self.all.ask(IDLE, &Request::Close { handle }, until)?;
        match written {
            Reply::Status(status) if !status.is_ok() => Err(named(status.to_string().into())),
            _ => Ok(()),
        }
    }

    /// Removes the file that took the place of missing devices.
    pub(super) fn remove_stand_in(&mut self) {
        if let Some(path) = self.stand_in.take() {
            self.remove(IDLE, &path);
        }
    }

    /// Removes a file of this measurement, or notes that it may be left.
    fn remove(&mut self, at: ChannelIndex, path: &[u8]) {
        let asked = self.all.ask(at, &Request::Remove { path }, self.until());
        let removed = matches!(asked, Ok((Reply::Status(status), _)) if status.is_ok());
        if !removed {
            let shown = crate::escape::name(path).to_string();
            self.e.unseen.push(format!(
                "cleaning up: {shown} may be left on the server: remove it by hand"
            ));
        }
    }

    /// Writes small files in the user's directory at the server, one after the other.
    pub(super) fn small_files(&mut self) -> Result<(), String> {
        let Some(directory) = self.options.remote_path.clone() else {
            return Ok(());
        };
        // The disk's part of the measurement has noted why nothing can be written there.
        if self.e.there.disk.is_none() {
            return Ok(());
        }
        self.step("small files")?;
        let path = [&directory[..], b"/.longhaul-doctor-", &random_name()].concat();
        let (begun, most) = (Instant::now(), self.time.mul_f64(SMALL_TIME));
        let mut written = 0;
        let mut needed = Duration::ZERO;
        while written < SMALL_FILES && begun.elapsed() < most.min(self.left()) {
            self.step("small files")?;
            let start = Instant::now();
            let done = self.small_file(&path);
            needed += start.elapsed();
            let created = !matches!(&done, Err(SmallFileError::Create(_)));
            if created {
                self.remove((1, 0), &path);
            }
            if let Err(SmallFileError::Create(why) | SmallFileError::Write(why)) = done {
                // Quotas and full disks end this part alone.
                return match self.all.is_usable((1, 0)) {
                    true => {
                        self.e.unseen.push(format!("small files: {why}"));
                        Ok(())
                    }
                    false => Err(why.into()),
                };
            }
            written += 1;
        }
        if written > 0 {
            self.e.small_files = Some(SmallFileRate {
                per_second: f64::from(written) / needed.as_secs_f64().max(1e-6),
                size: SMALL_SIZE as u64,
            });
        }
        Ok(())
    }

    /// Writes one small file as scp does: each request waits for the answer to the last.
    fn small_file(&mut self, path: &[u8]) -> Result<(), SmallFileError> {
        let flags = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL;
        let until = self.until();
        let file = self.all.open_file((1, 0), path, flags, until);
        let file = file.map_err(SmallFileError::Create)?;
        let failed = SmallFileError::Write;
        let handle = file.as_bytes();
        let data = [0xa5; SMALL_SIZE];
        let write = Request::Write {
            handle,
            offset: 0,
            data: &data,
        };
        let written = self.all.ask((1, 0), &write, until).map_err(failed)?.0;
        let closed = self
            .all
            .ask((1, 0), &Request::Close { handle }, until)
            .map_err(failed)?
            .0;
        for reply in [written, closed] {
            if let Reply::Status(status) = reply
                && !status.is_ok()
            {
                return Err(failed(status.to_string().into()));
            }
        }
        Ok(())
    }

    /// Writes a file in the user's directory at the server.
    pub(super) fn disk(&mut self) -> Result<(), String> {
        let Some(directory) = self.options.remote_path.clone() else {
            return Ok(());
        };
        self.step("the server's disk")?;
        let path = [&directory[..], b"/.longhaul-doctor-", &random_name()].concat();
        let until = self.until();
        let flags = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL;
        let file = match self.all.open_file((1, 0), &path, flags, until) {
            Ok(file) => file,
            Err(why) => {
                self.leave_out_disk(&directory, &String::from(why));
                return Ok(());
            }
        };
        let writing = ChannelUse::Writing {
            file: file.clone(),
            advances: true,
        };
        self.all.set_use((1, 0), writing);
        let before = self.all.channel((1, 0)).map_or(0, |c| c.moved);
        let time = self
            .time
            .mul_f64(DISK)
            .max(Duration::from_secs_f64(10.0 * self.rtt));
        let time = time.min(self.left());
        let load = ProbeLoad {
            up: true,
            channels: &[(1, 0)],
            time,
            data: self.options.data.saturating_sub(self.bytes),
            idle: None,
            pauses: true,
            extension: Duration::ZERO,
        };
        let begun = Instant::now();
        let result = self.all.load(&load, &self.target.cancel);
        let request = Request::Fsync {
            handle: file.as_bytes(),
        };
        let synced = self.all.ask((1, 0), &request, self.until());
        let needed = begun.elapsed().as_secs_f64();
        let moved = self.all.channel((1, 0)).map_or(0, |c| c.moved) - before;
        let close = Request::Close {
            handle: file.as_bytes(),
        };
        let _ = self.all.ask((1, 0), &close, self.until());
        self.remove((1, 0), &path);
        if let (Some(rung), Ok(_)) = (result.rung, synced)
            && moved > u64::from(REQUEST)
            && rung.rate > 0.0
        {
            self.e.there.disk = Some(self.disk_rate(&rung, moved, needed, result.seconds));
        }
        match result.lost {
            // A full disk or a quota: the path's figures are complete.
            Some(why) if self.all.is_usable((1, 0)) => {
                self.e.there.disk = None;
                self.leave_out_disk(&directory, &why);
                Ok(())
            }
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    fn leave_out_disk(&mut self, directory: &[u8], why: &str) {
        let shown = crate::escape::name(directory);
        self.e
            .unseen
            .push(format!("the server's disk: {shown}: {why}"));
    }

    /// Rate of the server's disk in bytes per second, from `moved` bytes that needed `needed`
    /// seconds until they were on the disk, `loaded` of them until the load ended: the plateau of
    /// the path, and the time that the disk needed beyond it.
    fn disk_rate(&self, rung: &LadderRung, moved: u64, needed: f64, loaded: f64) -> f64 {
        // TCP's rate is the disk's only while the server does not hold data that it cannot write.
        // The answers to what is in flight take a round trip, and that to the last request another.
        let flush = (needed - loaded - 2.0 * self.rtt).max(0.0);
        let written = match rung.held > HELD {
            true => (needed - START_TRIPS * self.rtt).max(0.01),
            false => moved as f64 / rung.rate + flush,
        };
        moved as f64 / written
    }
}

fn random_name() -> Vec<u8> {
    let mut bytes = [0; 8];
    (crate::session::this_machine().random)(&mut bytes);
    bytes.iter().map(|b| b'a' + b % 26).collect()
}
