//! `scp -t`: receives files.

use bytes::Bytes;
use sftp::{Attrs, Request};

use super::files::ScpFileOps;
use super::incoming::{IncomingFile, PERMISSIONS};
use super::{ScpFlags, joined, take_line};

/// Owner permissions that a directory needs while files are written into it.
const OWN: u32 = 0o700;

/// State of `scp -t`: the target, the directories that the client has entered, and the line or file
/// that is being received.
pub(super) struct ScpSink {
    how: ScpFlags,
    target: Vec<u8>,
    /// Files go into the target directory, and not to the target's own name.
    into: bool,
    /// Directories that were entered, the innermost last.
    entered: Vec<EnteredDirectory>,
    /// Times for the next file or directory.
    times: Option<(u32, u32)>,
    line: Vec<u8>,
    state: ScpSinkState,
}

/// Directory between the client's `D` and `E` lines.
struct EnteredDirectory {
    path: Vec<u8>,
    /// Attributes that the directory gets once all its files are there.
    attrs: Attrs,
}

/// Input that the sink expects next; the bytes of a file are counted by its `C` line.
enum ScpSinkState {
    /// Waits for a line.
    Line,
    /// Receives the remaining bytes of a file.
    Data(IncomingFile, u64),
    /// Waits for the client's report that it could read the whole file.
    Verdict(IncomingFile),
    Finished,
}

impl ScpSink {
    pub(super) fn new(how: ScpFlags, mut paths: Vec<Vec<u8>>, files: &mut ScpFileOps<'_>) -> Self {
        let ambiguous = paths.len() > 1;
        let target = paths.pop().filter(|path| !path.is_empty());
        let target = target.unwrap_or_else(|| b".".to_vec());
        let into = files.is_dir(&target);
        let mut new = Self {
            how,
            target,
            into,
            entered: Vec::new(),
            times: None,
            line: Vec::new(),
            state: ScpSinkState::Line,
        };
        if ambiguous {
            new.give_up("ambiguous target", files);
        } else if how.into_directory && !into {
            let target = new.target.clone();
            files.complain(&target, "Not a directory");
            new.state = ScpSinkState::Finished;
        } else {
            files.acknowledge();
        }
        new
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, ScpSinkState::Finished)
    }

    /// Ends the session after EOF; returns true if nothing is lost.
    pub(super) fn end(&mut self, files: &mut ScpFileOps<'_>) -> bool {
        match std::mem::replace(&mut self.state, ScpSinkState::Finished) {
            ScpSinkState::Finished => true,
            ScpSinkState::Line => self.line.is_empty() && self.entered.is_empty(),
            ScpSinkState::Verdict(file) | ScpSinkState::Data(file, 0) => {
                Self::finish(file, files);
                self.entered.is_empty()
            }
            ScpSinkState::Data(file, _) => {
                file.abandon(files);
                false
            }
        }
    }

    fn finish(file: IncomingFile, files: &mut ScpFileOps<'_>) {
        match file.finish(files) {
            Ok(()) => files.acknowledge(),
            Err((path, why)) => files.complain(&path, why),
        }
    }

    /// Handles some of the received bytes; false if more are needed.
    pub(super) fn turn(&mut self, received: &mut Bytes, files: &mut ScpFileOps<'_>) -> bool {
        match std::mem::replace(&mut self.state, ScpSinkState::Line) {
            ScpSinkState::Line => {
                match take_line(received, &mut self.line) {
                    Ok(false) => return false,
                    Ok(true) => {
                        let line = std::mem::take(&mut self.line);
                        self.heard(&line, files);
                    }
                    Err(()) => self.give_up("a line is too long", files),
                }
                true
            }
            ScpSinkState::Data(mut file, left) => {
                let most = usize::try_from(left).unwrap_or(usize::MAX);
                let data = received.split_to(received.len().min(most));
                let left = left - data.len() as u64;
                let came = !data.is_empty();
                file.write(data, files);
                self.state = match left {
                    0 => ScpSinkState::Verdict(file),
                    left => ScpSinkState::Data(file, left),
                };
                came || left == 0
            }
            ScpSinkState::Verdict(file) => {
                let Some(verdict) = received.first().copied() else {
                    self.state = ScpSinkState::Verdict(file);
                    return false;
                };
                if verdict == 0 {
                    let _ = received.split_to(1);
                    Self::finish(file, files);
                    return true;
                }
                file.abandon(files);
                files.fail();
                match verdict {
                    // The message of a warning is one line.
                    1 => files.acknowledge(),
                    _ => self.state = ScpSinkState::Finished,
                }
                true
            }
            ScpSinkState::Finished => {
                self.state = ScpSinkState::Finished;
                false
            }
        }
    }

    /// Ends the session after an invalid line.
    fn give_up(&mut self, why: &str, files: &mut ScpFileOps<'_>) {
        files.complain(b"protocol error", why);
        self.state = ScpSinkState::Finished;
    }

    fn heard(&mut self, line: &[u8], files: &mut ScpFileOps<'_>) {
        let (kind, rest) = line.split_first().unwrap_or((&b'\n', &[]));
        match kind {
            // The client has reported the error to its user, and continues.
            1 => files.fail(),
            // A fatal error of the client.
            2 => {
                files.fail();
                self.state = ScpSinkState::Finished;
            }
            b'T' => match times(rest) {
                Ok(times) => {
                    self.times = times;
                    files.acknowledge();
                }
                Err(()) => self.give_up("malformed times", files),
            },
            b'E' if rest.is_empty() => self.leave(files),
            b'C' | b'D' => match entry(rest) {
                Ok((mode, size, name)) if *kind == b'C' => self.file(mode, size, name, files),
                Ok((mode, _, name)) => self.enter(mode, name, files),
                Err(why) => self.give_up(why, files),
            },
            _ => self.give_up("an unknown line", files),
        }
    }

    /// Path of the entry with this name.
    fn place(&self, name: &[u8]) -> Vec<u8> {
        match self.entered.last() {
            Some(entered) => joined(&entered.path, name),
            None if self.into => joined(&self.target, name),
            None => self.target.clone(),
        }
    }

    /// Enters or creates a directory, whose entries follow.
    fn enter(&mut self, mode: u32, name: &[u8], files: &mut ScpFileOps<'_>) {
        if !self.how.trees {
            return self.give_up("a directory without -r", files);
        }
        let path = self.place(name);
        let times = self.times.take();
        let mut attrs = Attrs {
            times: times.map(|(modified, accessed)| (accessed, modified)),
            permissions: self.how.times.then_some(mode),
            ..Attrs::default()
        };
        match files.attrs(Request::Stat { path: &path }) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return files.complain(&path, "Not a directory"),
            Err(_) => {
                let made = Request::Mkdir {
                    path: &path,
                    attrs: Attrs::with_permissions(mode & PERMISSIONS | OWN),
                };
                if let Err(refused) = files.done(made) {
                    return files.complain(&path, refused);
                }
                if mode & OWN != OWN && attrs.permissions.is_none() {
                    // Permissions that this process's umask has left.
                    let made = files.attrs(Request::Stat { path: &path }).ok();
                    let made = made.and_then(|made| made.permissions);
                    attrs.permissions = made.map(|made| made & 0o7777 & !(OWN & !mode));
                }
            }
        }
        self.entered.push(EnteredDirectory { path, attrs });
        files.acknowledge();
    }

    fn leave(&mut self, files: &mut ScpFileOps<'_>) {
        let Some(EnteredDirectory { path, attrs }) = self.entered.pop() else {
            files.acknowledge();
            self.state = ScpSinkState::Finished;
            return;
        };
        if !attrs.is_empty() {
            // As in OpenSSH, failing to set a directory's mode or times is not an error.
            let _ = files.done(Request::Setstat { path: &path, attrs });
        }
        files.acknowledge();
    }

    fn file(&mut self, mode: u32, size: u64, name: &[u8], files: &mut ScpFileOps<'_>) {
        let path = self.place(name);
        let times = self.times.take();
        match IncomingFile::begin(path, mode, self.how.times, files) {
            Ok(mut file) => {
                file.set_times(times);
                self.state = ScpSinkState::Data(file, size);
                files.acknowledge();
            }
            Err((path, refused)) => files.complain(&path, refused),
        }
    }

    /// Removes an incomplete file.
    pub(super) fn abandon(&mut self, files: &mut ScpFileOps<'_>) {
        if let ScpSinkState::Data(file, _) | ScpSinkState::Verdict(file) =
            std::mem::replace(&mut self.state, ScpSinkState::Finished)
        {
            file.abandon(files);
        }
    }
}

/// Parses `MTIME USEC ATIME USEC`: modification and access time in seconds. `None` for times before
/// 1970, which some clients send as a negative number in 64 bits.
///
/// # Errors
/// The numbers are invalid.
fn times(text: &[u8]) -> Result<Option<(u32, u32)>, ()> {
    let text = std::str::from_utf8(text).map_err(|_| ())?;
    let numbers: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
    let Ok([modified, _, accessed, _]) = <[u64; 4]>::try_from(numbers.map_err(|_| ())?) else {
        return Err(());
    };
    if i64::try_from(modified.max(accessed)).is_err() {
        return Ok(None);
    }
    // Times beyond SFTP's range become its last second.
    let second = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    Ok(Some((second(modified), second(accessed))))
}

/// Parses `MODE SIZE NAME`.
fn entry(text: &[u8]) -> Result<(u32, u64, &[u8]), &'static str> {
    let mut words = text.splitn(3, |byte| *byte == b' ');
    let mut next = || words.next().unwrap_or_default();
    let (mode, size, name) = (next(), next(), next());
    let number = |digits: &[u8], radix| {
        let digits = std::str::from_utf8(digits).ok()?;
        u64::from_str_radix(digits, radix)
            .ok()
            .filter(|_| !digits.starts_with('+'))
    };
    let mode = number(mode, 8)
        .filter(|mode| *mode <= 0o7777)
        .ok_or("a malformed mode")?;
    let size = number(size, 10)
        .filter(|size| i64::try_from(*size).is_ok())
        .ok_or("a malformed size")?;
    let odd = name.is_empty() || name == b"." || name == b".." || name.contains(&b'/');
    match odd || name.contains(&0) {
        true => Err("a malformed name"),
        false => Ok((u32::try_from(mode).unwrap_or_default(), size, name)),
    }
}

#[cfg(test)]
#[path = "sink_tests.rs"]
mod tests;
