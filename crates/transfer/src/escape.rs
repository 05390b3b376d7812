//! Makes foreign names and texts safe for display: [`wire::escape`], and its use for paths and
//! arguments.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub use wire::escape::{Escaped, name, text};

/// Escapes a path, as [`name`].
pub fn path(path: &Path) -> Escaped<'_> {
    name(path.as_os_str().as_bytes())
}

/// Escapes an argument, as [`name`].
pub fn os(text: &OsStr) -> Escaped<'_> {
    name(text.as_bytes())
}
