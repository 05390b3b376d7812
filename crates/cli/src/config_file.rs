//! Reads configuration files, and reports each mistake with its line.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::exit::Exit;

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
) -> Result<T, String> {
    match File::open(file) {
        Ok(opened) => read_open(opened, file, parse),
        Err(error) => Err(format!("{}: {error}", file.display())),
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
) -> Result<Option<T>, String> {
    let named = |what: &dyn Display| format!("{}: {what}", file.display());
    // Opening a FIFO would block until it has a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(file, flags, Mode::empty()) {
        Ok(opened) => File::from(opened),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(named(&io::Error::from(error))),
    };
    let meta = opened.metadata().map_err(|e| named(&e))?;
    let own = rustix::process::geteuid().as_raw();
    match () {
        () if !meta.is_file() => Err(named(&"is not a regular file")),
        () if meta.uid() != own && meta.uid() != 0 => Err(named(&"belongs to another user")),
        () if meta.mode() & WRITABLE_BY_OTHERS != 0 => {
            Err(named(&"is writable by other users: run chmod o-w on it"))
        }
        () => read_open(opened, file, parse).map(Some),
    }
}

fn read_open<T>(
    opened: File,
    file: &Path,
    parse: impl FnOnce(&str) -> Result<T, Vec<ConfigFileError>>,
) -> Result<T, String> {
    let named = |what: &dyn Display| format!("{}: {what}", file.display());
    let mut bytes = Vec::new();
    let read = opened.take(MAX_FILE + 1).read_to_end(&mut bytes);
    read.map_err(|e| named(&e))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(named(
            &"too large for a configuration file: the limit is 1 MiB",
        ));
    }
    let text = String::from_utf8(bytes).map_err(|_| named(&"is not UTF-8"))?;
    parse(&text).map_err(|wrongs| {
        let lines = wrongs.into_iter().map(|wrong| {
            let line = line_of(&text, wrong.at);
            format!("{}:{line}: {}", file.display(), wrong.what)
        });
        lines.collect::<Vec<_>>().join("\n")
    })
}

/// The exit code of `check FILE`. Prints mistakes as lines of `FILE:LINE: sentence`, like a
/// compiler.
pub(crate) fn checked<T>(read: Result<T, String>) -> Exit {
    match read {
        Ok(_) => Exit::Done,
        Err(why) => {
            drop(writeln!(io::stderr(), "{why}"));
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
        assert_eq!(own("none"), Ok(None));
        fs::write(at("file"), "via = []").unwrap();
        assert_eq!(own("file"), Ok(Some(8)));
        fs::set_permissions(at("file"), fs::Permissions::from_mode(0o666)).unwrap();
        assert!(own("file").unwrap_err().contains("writable by other users"));
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
            let why = own(name).unwrap_err();
            assert!(why.contains("is not a regular file"), "{why}");
        }
        let why = read(&at("zero"), |text| Ok(text.len())).unwrap_err();
        assert!(why.contains("too large"), "{why}");
    }
}
