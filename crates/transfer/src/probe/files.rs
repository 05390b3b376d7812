//! Measures files in the directory that the user named at the server.

use std::time::{Duration, Instant};

use diagnose::SmallFiles;
use sftp::{OpenFlags, Request};

use super::connection::{REQUEST, Use};
use super::load::Load;
use super::plan::Run;

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

impl Run<'_> {
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
            let request = Request::Remove { path: &path };
            let _ = self.all.ask((1, 0), &request, self.until());
            done?;
            written += 1;
        }
        if written > 0 {
            self.e.small_files = Some(SmallFiles {
                per_second: f64::from(written) / needed.as_secs_f64().max(1e-6),
                size: SMALL_SIZE as u64,
            });
        }
        Ok(())
    }

    /// Writes one small file as scp does: each request waits for the answer to the last.
    fn small_file(&mut self, path: &[u8]) -> Result<(), String> {
        let flags = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL;
        let until = self.until();
        let file = self.all.open_file((1, 0), path, flags, until)?;
        let handle = file.as_bytes();
        let data = [0xa5; SMALL_SIZE];
        let write = Request::Write {
            handle,
            offset: 0,
            data: &data,
        };
        self.all.ask((1, 0), &write, until)?;
        self.all.ask((1, 0), &Request::Close { handle }, until)?;
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
                let shown = crate::escape::name(&directory).to_string();
                self.e
                    .unseen
                    .push(format!("the server's disk: {shown}: {why}"));
                return Ok(());
            }
        };
        self.all.set_use(
            (1, 0),
            Use::Writing {
                file: file.clone(),
                advances: true,
            },
        );
        let before = self.all.channel((1, 0)).map_or(0, |c| c.moved);
        let time = self
            .time
            .mul_f64(DISK)
            .max(Duration::from_secs_f64(10.0 * self.rtt));
        let time = time.min(self.left());
        let load = Load {
            up: true,
            channels: &[(1, 0)],
            time,
            data: self.options.data.saturating_sub(self.bytes),
            idle: None,
            pauses: true,
        };
        let begun = Instant::now();
        let result = self.all.load(&load, &self.target.cancel);
        let request = Request::Fsync {
            handle: file.as_bytes(),
        };
        let synced = self.all.ask((1, 0), &request, self.until());
        let moved = self.all.channel((1, 0)).map_or(0, |c| c.moved) - before;
        let close = Request::Close {
            handle: file.as_bytes(),
        };
        let _ = self.all.ask((1, 0), &close, self.until());
        let removed = self
            .all
            .ask((1, 0), &Request::Remove { path: &path }, self.until());
        if removed.is_err() {
            let shown = crate::escape::name(&path).to_string();
            self.e.unseen.push(format!(
                "cleaning up: {shown} may be left on the server: remove it by hand"
            ));
        }
        // The plateau of the path, and the time that the disk needed beyond it.
        if let (Some(rung), Ok((_, sync))) = (result.rung, synced)
            && moved > u64::from(REQUEST)
            && rung.rate > 0.0
        {
            // TCP's rate is the disk's only while the server does not hold data that it cannot
            // write.
            let flush = (sync.as_secs_f64() - self.rtt).max(0.0);
            let written = match rung.held > HELD {
                true => (begun.elapsed().as_secs_f64() - START_TRIPS * self.rtt).max(0.01),
                false => moved as f64 / rung.rate + flush,
            };
            self.e.there.disk = Some(moved as f64 / written);
        }
        match result.lost {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }
}

fn random_name() -> Vec<u8> {
    let mut bytes = [0; 8];
    (crate::session::this_machine().random)(&mut bytes);
    bytes.iter().map(|b| b'a' + b % 26).collect()
}
