//! Configuration files: read, and each mistake told with its line.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;

use crate::exit::Exit;

/// No configuration is longer.
const MAX_FILE: u64 = 1 << 20;

/// What is wrong, and where in the text.
#[derive(Debug, PartialEq)]
pub(crate) struct ConfigFileError {
    pub(crate) at: usize,
    pub(crate) what: String,
}

impl ConfigFileError {
    /// What the parser of TOML has found.
    pub(crate) fn syntax(e: &toml::de::Error) -> Self {
        // Its types are nobody's words.
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

/// Reads a file and has it parsed.
///
/// # Errors
/// Lines of `FILE:LINE: sentence`, one for each mistake that was found.
pub(crate) fn read<T>(
    file: &Path,
    parse: impl FnOnce(&str) -> Result<T, Vec<ConfigFileError>>,
) -> Result<T, String> {
    let named = |what: &dyn Display| format!("{}: {what}", file.display());
    let meta = fs::metadata(file).map_err(|e| named(&e))?;
    if meta.len() > MAX_FILE {
        return Err(named(&"it is longer than any configuration"));
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

/// For `check FILE`: lines of FILE:LINE, as compilers have them.
pub(crate) fn checked<T>(read: Result<T, String>) -> Exit {
    match read {
        Ok(_) => Exit::Done,
        Err(why) => {
            drop(writeln!(io::stderr(), "{why}"));
            Exit::SomeFailed
        }
    }
}

/// Whether figures may be told there: they are for this machine's own eyes.
pub(crate) fn is_nearby(metrics: &str) -> bool {
    let address = metrics.parse::<SocketAddr>();
    metrics.starts_with('/') || address.is_ok_and(|a| a.ip().is_loopback())
}

pub(crate) fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|b| **b == b'\n').count()
}
