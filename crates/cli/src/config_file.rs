//! Reads configuration files, and reports each mistake with its line.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;

use crate::exit::Exit;

/// Largest accepted configuration file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// A mistake in a file: its byte offset, and a description.
#[derive(Debug, PartialEq)]
pub(crate) struct ConfigFileError {
    pub(crate) at: usize,
    pub(crate) what: String,
}

impl ConfigFileError {
    /// Converts an error of the TOML parser.
    pub(crate) fn syntax(e: &toml::de::Error) -> Self {
        // Replace Rust type names by words for users.
        let mut what = e.message().replace('\n', ": ");
        for number in ["usize", "u64", "u32", "u16", "u8"] {
            if let Some(begin) = what.strip_suffix(&format!("expected {number}")) {
                what = format!("{begin}expected a whole number");
            }
        }
        Self {
            at: e.span().map_or(0, |span: Range<usize>| span.start),
            what,
        }
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
    let named = |what: &dyn Display| format!("{}: {what}", file.display());
    let meta = fs::metadata(file).map_err(|e| named(&e))?;
    if meta.len() > MAX_FILE {
        return Err(named(&"the file is too large for a configuration"));
    }
    let text = fs::read_to_string(file).map_err(|e| named(&e))?;
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
