//! Makes foreign names and texts safe for display: [`wire::escape`], and its use for paths and
//! arguments.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sync::to_nfc;

pub use wire::escape::{Escaped, exact, file_name, name, text};

/// Shows the name `other` in a message about `this` one. Two names that would look alike, such as
/// two forms of one character in Unicode, are both shown exactly.
pub fn beside(this: &[u8], other: &[u8]) -> String {
    let shown = name(other).to_string();
    let look = |shown: &str| to_nfc(shown.as_bytes()).unwrap_or_else(|| shown.as_bytes().to_vec());
    match this != other && look(&shown) == look(&name(this).to_string()) {
        true => format!("{} (this is {})", exact(other), exact(this)),
        false => shown,
    }
}

/// Escapes a path, as [`name`].
pub fn path(path: &Path) -> Escaped<'_> {
    name(path.as_os_str().as_bytes())
}

/// Escapes an argument, as [`name`].
pub fn os(text: &OsStr) -> Escaped<'_> {
    name(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: "café has the same name as café".
    #[test]
    fn names_that_look_alike_are_shown_apart() {
        for (this, other, shown) in [
            ("a", "b", "b"),
            ("x", "x", "x"),
            (
                "caf\u{e9}",
                "cafe\u{301}",
                "cafe\\u{301} (this is caf\\u{e9})",
            ),
            ("caf\u{e9}", "CAF\u{c9}", "CAF\u{c9}"),
            ("a\x07", "a\\x07", "a\\\\x07 (this is a\\x07)"),
        ] {
            assert_eq!(beside(this.as_bytes(), other.as_bytes()), shown);
        }
    }
}
