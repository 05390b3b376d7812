//! What clients have named, in a line of the log.

use std::fmt::{self, Display, Formatter};

/// A path of a client's: escaped, and in quotes where its end would not be known otherwise, so that nobody who reads the
/// line takes some of the name for another field.
pub(crate) struct Shown<'p>(pub(crate) &'p [u8]);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let path = String::from_utf8_lossy(self.0);
        let unclear = |c: char| c.is_whitespace() || matches!(c, '=' | '"' | '\'' | '{' | '}');
        match path.is_empty() || path.chars().any(unclear) {
            true => write!(f, "\"{}\"", path.escape_debug()),
            false => write!(f, "{}", path.escape_debug()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `x sent=5` was a name and looked like a field.
    #[test]
    fn a_name_is_no_field() {
        for (path, shown) in [
            ("/a/b.txt", "/a/b.txt"),
            ("/a/ü", "/a/ü"),
            ("/x sent=5", "\"/x sent=5\""),
            ("/x\" y", "\"/x\\\" y\""),
            ("/x\n2026-01-01 INFO", "\"/x\\n2026-01-01 INFO\""),
            ("/\u{1b}[31m", "/\\u{1b}[31m"),
            ("user=root", "\"user=root\""),
            ("", "\"\""),
        ] {
            assert_eq!(Shown(path.as_bytes()).to_string(), shown);
        }
        assert_eq!(Shown(b"/\xff").to_string(), "/\u{fffd}");
    }
}
