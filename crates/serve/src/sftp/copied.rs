//! copy-data: copies from one open file to another.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

use rustix::fs::{self, FileType};
use rustix::io::retry_on_intr;
use sftp::StatusCode;

use crate::error::RequestError;
use crate::sftp::answer::{Answer, Session};
use crate::sftp::blocking_pool::{BlockingPool, Outcome};
use crate::sftp::files::STATUS;
use crate::sftp::reply::Reply;

/// Bytes per read of copy-data.
const COPIED_AT_ONCE: usize = 1 << 20;
/// Bytes of the first copy_file_range(2) call; doubled after each quick call, as on file systems
/// that share blocks.
#[cfg(target_os = "linux")]
const LEAST_IN_KERNEL: usize = 4 << 20;
/// Most bytes per copy_file_range(2) call.
#[cfg(target_os = "linux")]
const MOST_IN_KERNEL: usize = 1 << 30;
/// Time after which a piece of a copy counts as slow; input from the client is read between pieces.
#[cfg(target_os = "linux")]
const LONG: Duration = Duration::from_millis(5);
/// Largest copy that is carried out inline; it takes no longer than a few WRITEs.
const SHORT: u64 = 4 << 20;

impl Session<'_> {
    /// Carries out copy-data (draft-ietf-secsh-filexfer-extensions-00 section 7); `len` 0 means to
    /// the end. Only regular files are allowed, because a copy of an endless device would never
    /// end. A long copy runs on the blocking pool, so that other channels get their turn.
    pub(crate) fn copy_data(
        &mut self,
        (from, from_offset): (&[u8], u64),
        len: u64,
        (to_handle, to_offset): (&[u8], u64),
        reply: &mut Reply<'_>,
    ) -> Answer {
        let (from, to) = (self.handles.file(from)?, self.handles.file(to_handle)?);
        let whole = match len {
            0 => u64::MAX,
            len => len,
        };
        let (a, b) = (fs::fstat(&**from)?, fs::fstat(&**to)?);
        if FileType::from_raw_mode(a.st_mode) != FileType::RegularFile {
            let words = "only what is in a regular file is copied";
            return Err(RequestError::new(StatusCode::FAILURE, words));
        }
        let same = (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
        let meet = from_offset < to_offset.saturating_add(whole)
            && to_offset < from_offset.saturating_add(whole);
        if same && meet {
            return Err(RequestError::new(
                StatusCode::FAILURE,
                "the ranges to copy between overlap",
            ));
        }
        let (out, into) = ((Arc::clone(from), from_offset), (Arc::clone(to), to_offset));
        let until = self
            .aside
            .as_ref()
            .map(BlockingPool::until)
            .unwrap_or_default();
        match &mut self.aside {
            Some(aside) if aside.is_told() && whole > SHORT => {
                let handle = to_handle.to_vec();
                let ticket = aside.begin_long(move || {
                    let (out, into) = ((&*out.0, out.1), (&*into.0, into.1));
                    Outcome::Copied(handle, copy(out, len, into, &|| !until.is_over()))
                });
                reply.awaits(ticket, STATUS);
                Ok(())
            }
            _ => {
                let goes_on = || {
                    self.meanwhile();
                    !until.is_over()
                };
                copy((&out.0, out.1), len, (&into.0, into.1), &goes_on)
            }
        }
    }
}

/// Copies `len` bytes, or up to the end if `len` is 0, while `goes_on` returns true.
fn copy(
    (from, from_offset): (&File, u64),
    len: u64,
    (to, to_offset): (&File, u64),
    goes_on: &impl Fn() -> bool,
) -> Answer {
    let whole = match len {
        0 => u64::MAX,
        len => len,
    };
    // copy_file_range(2) costs nothing on file systems that share blocks, and saves one copy
    // elsewhere.
    let (out, into) = ((from, from_offset), (to, to_offset));
    let mut done = copy_in_kernel(out, whole, into, goes_on);
    let mut buffer = match done < whole {
        true => vec![0; COPIED_AT_ONCE],
        false => Vec::new(),
    };
    while done < whole {
        if !goes_on() {
            return Err(RequestError::new(
                StatusCode::FAILURE,
                "the client has left",
            ));
        }
        let most = usize::try_from(whole - done).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        let at = from_offset.saturating_add(done);
        let read = retry_on_intr(|| rustix::io::pread(from, &mut buffer[..most], at))?;
        if read == 0 {
            break;
        }
        to.write_all_at(&buffer[..read], to_offset.saturating_add(done))?;
        done += read as u64;
    }
    match len == 0 || done == len {
        true => Ok(()),
        false => Err(RequestError::end_of_file()),
    }
}

/// Copies with copy_file_range(2) until it copies no more or fails; returns the number of bytes.
/// The caller copies the rest and meets the error again, if there is one.
#[cfg(target_os = "linux")]
fn copy_in_kernel(
    (from, from_offset): (&File, u64),
    len: u64,
    (to, to_offset): (&File, u64),
    goes_on: &impl Fn() -> bool,
) -> u64 {
    let (mut done, mut at_once) = (0, LEAST_IN_KERNEL);
    while done < len && goes_on() {
        let (mut a, mut b) = (
            from_offset.saturating_add(done),
            to_offset.saturating_add(done),
        );
        let most = usize::try_from(len - done).unwrap_or(usize::MAX);
        let begun = Instant::now();
        match fs::copy_file_range(from, Some(&mut a), to, Some(&mut b), most.min(at_once)) {
            Ok(0) | Err(_) => break,
            Ok(n) => done += n as u64,
        }
        at_once = match begun.elapsed() < LONG {
            true => MOST_IN_KERNEL.min(at_once * 2),
            false => LEAST_IN_KERNEL,
        };
    }
    done
}

#[cfg(not(target_os = "linux"))]
fn copy_in_kernel(_: (&File, u64), _: u64, _: (&File, u64), _: &impl Fn() -> bool) -> u64 {
    0
}
