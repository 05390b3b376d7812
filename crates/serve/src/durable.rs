//! Many fsync(2) at once, and fsync-set@longhaul: what is to be durable under its path.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rustix::fs::{self, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sftp::{MOST_SYNCED, StatusCode, printable};
use wire::Reader;

use crate::answer::{Answer, Session};
use crate::beneath::{Place, proc_name};
use crate::error::Refused;

/// Threads of a set. With 4 it took a third longer, with 32 no less; those that wait for one commit
/// cost nothing but their stacks.
const THREADS: usize = 16;
/// Bytes of a path that are told where it failed.
const LONGEST_SHOWN: usize = 1024;

/// Does `work` with each of `items`, several at a time.
pub(crate) fn on_threads<T: Send>(items: &mut [T], work: impl Fn(&mut T) + Sync) {
    let threads = items.len().min(THREADS);
    let items = Mutex::new(items.iter_mut());
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        while let Some(item) = next() {
            work(item);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // What no thread can be had for the others do.
            let _ = thread::Builder::new().spawn_scoped(scope, run);
        }
        run();
    });
}

impl Session<'_> {
    /// Everything about the paths is looked at before any of them is opened.
    pub(crate) fn fsync_set(&mut self, paths: &[u8]) -> Answer {
        let mut set = Vec::new();
        let mut reader = Reader::new(paths);
        while reader.left() > 0 {
            let path = reader
                .string()
                .map_err(|_| Refused::bad_message("a path is cut short"))?;
            if set.len() >= MOST_SYNCED {
                return Err(Refused::bad_message("so many are not made durable at once"));
            }
            set.push((path, Ok(())));
        }
        let (place, own) = (&self.export.place, &self.own);
        // As with STAT: a drop box tells of directories, and of what one has put there.
        let all = !self.is_drop_box();
        on_threads(&mut set, |(path, done)| {
            *done = sync(place, path, |found, stat| all || own.has(path, found, stat));
        });
        let failed = set
            .into_iter()
            .find_map(|(path, done)| Some((path, done.err()?)));
        let Some((path, refused)) = failed else {
            return Ok(());
        };
        self.tell_of_path(path, &refused);
        let path = printable(path, LONGEST_SHOWN);
        let words = format!("{}: {path}", refused.words).into();
        Err(Refused { words, ..refused })
    }
}

/// Devices, and what waits for another end, are not even opened, and symlinks not followed.
fn sync(place: &Place, path: &[u8], may: impl Fn(BorrowedFd<'_>, &Stat) -> bool) -> Answer {
    let found = place.find(path, false)?;
    let stat = fs::fstat(&found)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {}
        FileType::RegularFile if may(found.as_fd(), &stat) => {}
        FileType::RegularFile => return Err(Errno::ACCESS.into()),
        _ => {
            let words = "it is neither a file nor a directory";
            return Err(Refused::new(StatusCode::FAILURE, words));
        }
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = fs::open(proc_name(&found), flags, Mode::empty())?;
    Ok(fs::fsync(file)?)
}
