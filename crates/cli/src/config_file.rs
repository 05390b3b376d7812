//! Reads configuration files, and reports each mistake with its line.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::exit::Exit;
use crate::output::console::without_numbers;

/// Largest accepted configuration file, in bytes.
const MAX_FILE: u64 = 1 << 20;
const WRITABLE_BY_OTHERS: u32 = 0o002;

/// A mistake in a file: its byte offset, and a description.
#[derive(Debug, PartialEq)]
pub(crate) struct ConfigFileError {
    pub(crate) at: usize,
    pub(crate) what: String,
}

impl ConfigFileError {
    /// Converts an error of the TOML parser in `text`.
    pub(crate) fn syntax(e: &toml::de::Error, text: &str) -> Self {
        // Replace Rust type names by words for users.
        let mut what = e.message().replace('\n', ": ");
        for (of_parser, ours) in [
            ("unknown variant", "unknown value"),
            ("unknown field", "unknown option"),
            ("missing field", "missing option"),
        ] {
            if let Some(rest) = what.strip_prefix(of_parser) {
                what = format!("{ours}{rest}");
            }
        }
        // The parser lists all names of the table behind an unknown one.
        if what.starts_with("unknown option")
            && let Some((name, _)) = what.split_once(", expected ")
        {
            what = name.to_owned();
        }
        if what == "duplicate key" {
            what = set_twice(e.span().and_then(|span| text.get(span)));
        }
        what = what.replace("expected a sequence", "expected a list, such as [\"...\"]");
        what = what.replace("expected a string", "expected text in quotes");
        for number in ["usize", "u64", "u32", "u16", "u8"] {
            if let Some(begin) = what.strip_suffix(&format!("expected {number}")) {
                what = format!("{begin}expected a whole number from 0");
            }
        }
        Self {
            at: e.span().map_or(0, |span: Range<usize>| span.start),
            what,
        }
    }
}

/// Describes an option that is set twice; `name` is its text in the file.
fn set_twice(name: Option<&str>) -> String {
    let is_name = |name: &&str| !name.trim().is_empty() && !name.contains(['\n', '=']);
    match name.filter(is_name) {
        Some(name) => format!(
            "the option {} is set twice: remove one of them",
            wire::escape::name(name.trim().as_bytes())
        ),
        None => "an option is set twice: remove one of them".to_owned(),
    }
}

/// Reads and parses a file.
///
/// # Errors
/// Lines of `FILE:LINE: sentence`, one for each mistake.
pub(crate) fn read<T>(
    file: &Path,
    parse: impl FnOnce(&str) -> Result<T, Vec<ConfigFileError>>,
) -> Result<T, ConfigReadError> {
    match File::open(file) {
        Ok(opened) => read_open(opened, file, parse),
        Err(error) => Err(ConfigReadError::new(file, ConfigProblem::Io(error))),
    }
}

/// Reads and parses the user's own file, which is read without being named: a FIFO or device is
/// refused, and a file that another user may have written. A missing file is `None`.
///
/// # Errors
/// Those of [`read`].
pub(crate) fn read_own<T>(
    file: &Path,
    parse: impl FnOnce(&str) -> Result<T, Vec<ConfigFileError>>,
) -> Result<Option<T>, ConfigReadError> {
    let wrong = |problem| Err(ConfigReadError::new(file, problem));
    // Opening a FIFO would block until it has a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(file, flags, Mode::empty()) {
        Ok(opened) => File::from(opened),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(error) => return wrong(ConfigProblem::Io(error.into())),
    };
    let meta = match opened.metadata() {
        Ok(meta) => meta,
        Err(error) => return wrong(ConfigProblem::Io(error)),
    };
    let own = rustix::process::geteuid().as_raw();
    match () {
        () if !meta.is_file() => wrong(ConfigProblem::NotRegular),
        () if meta.uid() != own && meta.uid() != 0 => wrong(ConfigProblem::OfAnotherUser),
        () if meta.mode() & WRITABLE_BY_OTHERS != 0 => wrong(ConfigProblem::WritableByOthers),
        () => read_open(opened, file, parse).map(Some),
    }
}

fn read_open<T>(
    opened: File,
    file: &Path,
    parse: impl FnOnce(&str) -> Result<T, Vec<ConfigFileError>>,
) -> Result<T, ConfigReadError> {
    let wrong = |problem| ConfigReadError::new(file, problem);
    let mut bytes = Vec::new();
    let read = opened.take(MAX_FILE + 1).read_to_end(&mut bytes);
    read.map_err(|e| wrong(ConfigProblem::Io(e)))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(wrong(ConfigProblem::TooLarge));
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong(ConfigProblem::NotUtf8))?;
    parse(&text).map_err(|wrongs| {
        let lines = wrongs.into_iter();
        let lines = lines.map(|wrong| (line_of(&text, wrong.at), wrong.what));
        wrong(ConfigProblem::Mistakes(lines.collect()))
    })
}

/// A configuration file that cannot be read, or has mistakes.
#[derive(Debug)]
pub(crate) struct ConfigReadError {
    file: PathBuf,
    problem: ConfigProblem,
}

/// Problem of a configuration file.
#[derive(Debug)]
enum ConfigProblem {
    /// The file cannot be opened or read.
    Io(io::Error),
    /// The user's own file is a directory, a FIFO or a device.
    NotRegular,
    /// The user's own file belongs to another user.
    OfAnotherUser,
    /// Other users can write the user's own file.
    WritableByOthers,
    /// The file is larger than [`MAX_FILE`].
    TooLarge,
    /// The content is not UTF-8.
    NotUtf8,
    /// Mistakes with the numbers of their lines.
    Mistakes(Vec<(usize, String)>),
}

impl ConfigReadError {
    fn new(file: &Path, problem: ConfigProblem) -> Self {
        let file = file.to_owned();
        Self { file, problem }
    }
}

impl fmt::Display for ConfigReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        let what = match &self.problem {
            ConfigProblem::Io(error) => return write!(f, "{file}: {error}"),
            ConfigProblem::NotRegular => "is not a regular file",
            ConfigProblem::OfAnotherUser => "belongs to another user",
            ConfigProblem::WritableByOthers => "is writable by other users: run chmod o-w on it",
            ConfigProblem::TooLarge => "too large for a configuration file: the limit is 1 MiB",
            ConfigProblem::NotUtf8 => "is not UTF-8",
            ConfigProblem::Mistakes(mistakes) => {
                let lines = mistakes.iter();
                let lines = lines.map(|(line, what)| format!("{file}:{line}: {what}"));
                return f.write_str(&lines.collect::<Vec<_>>().join("\n"));
            }
        };
        write!(f, "{file}: {what}")
    }
}

impl std::error::Error for ConfigReadError {}

/// The exit code of `check FILE`. Prints mistakes as lines of `FILE:LINE: sentence`, like a
/// compiler.
pub(crate) fn checked<T>(read: Result<T, ConfigReadError>) -> Exit {
    match read {
        Ok(_) => Exit::Done,
        Err(why) => {
            drop(writeln!(
                io::stderr(),
                "{}",
                without_numbers(&why.to_string())
            ));
            Exit::SomeFailed
        }
    }
}

/// Returns true if metrics may be served at this address: only a loopback port or a UNIX socket.
pub(crate) fn is_nearby(metrics: &str) -> bool {
    let address = metrics.parse::<SocketAddr>();
    metrics.starts_with('/') || address.is_ok_and(|a| a.ip().is_loopback())
}

pub(crate) fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|b| **b == b'\n').count()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// Bug: with `--via auto` a FIFO in the place of config.toml blocked the copy for ever, and a
    /// symlink to /dev/zero filled the memory.
    #[test]
    fn a_fifo_a_device_and_a_file_of_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let own = |name: &str| read_own(&at(name), |text| Ok(text.len()));
        assert_eq!(own("none").unwrap(), None);
        fs::write(at("file"), "via = []").unwrap();
        assert_eq!(own("file").unwrap(), Some(8));
        fs::set_permissions(at("file"), fs::Permissions::from_mode(0o666)).unwrap();
        let why = own("file").unwrap_err().to_string();
        assert!(why.contains("writable by other users"), "{why}");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("fifo"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        for name in ["fifo", "zero", "."] {
            let why = own(name).unwrap_err().to_string();
            assert!(why.contains("is not a regular file"), "{why}");
        }
        let why = read(&at("zero"), |text| Ok(text.len()))
            .unwrap_err()
            .to_string();
        assert!(why.contains("too large"), "{why}");
    }
}
