//! Names and texts from elsewhere, made safe to show.
//!
//! A file name or a server's banner may hold terminal escapes that move the cursor, change the
//! title or hide text, and bidirectional overrides that make one name look like another. Every
//! name and every text that did not come from this program is shown through here.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A name on one line: everything that is not a plain character becomes visible.
///
/// Control characters become `\n`, `\t`, `\r` or `\x1b`, invalid UTF-8 `\xff`, characters that
/// change direction or take no room `\u{202e}`.
pub fn name(bytes: &[u8]) -> Escaped<'_> {
    Escaped {
        bytes,
        multiline: false,
    }
}

/// A path, as [`name`].
pub fn path(path: &Path) -> Escaped<'_> {
    name(path.as_os_str().as_bytes())
}

/// An argument, as [`name`].
pub fn os(text: &OsStr) -> Escaped<'_> {
    name(text.as_bytes())
}

/// A text of several lines, as a banner: line ends and tabs stay, all else as [`name`].
pub fn text(bytes: &[u8]) -> Escaped<'_> {
    Escaped {
        bytes,
        multiline: true,
    }
}

/// Shows bytes escaped; made by [`name`] and [`text`].
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a> {
    bytes: &'a [u8],
    multiline: bool,
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.bytes.utf8_chunks() {
            let mut chars = chunk.valid().chars().peekable();
            while let Some(c) = chars.next() {
                match c {
                    '\n' | '\t' if self.multiline => f.write_char(c)?,
                    // The end of a line as SSH's texts have it (RFC 4252 section 5.4).
                    '\r' if self.multiline && chars.peek() == Some(&'\n') => {}
                    '\n' => f.write_str("\\n")?,
                    '\t' => f.write_str("\\t")?,
                    '\r' => f.write_str("\\r")?,
                    c if c.is_ascii_control() => write!(f, "\\x{:02x}", u32::from(c))?,
                    c if misleads(c) => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                    c => f.write_char(c)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// C1 controls (8-bit terminal escapes), characters that change the direction of text, that
/// break lines, or that take no room.
pub(crate) fn misleads(c: char) -> bool {
    matches!(c,
        '\u{80}'..='\u{9f}'
        | '\u{ad}'
        | '\u{61c}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_comes_through() {
        let cases: &[(&[u8], &str)] = &[
            (b"plain name.txt", "plain name.txt"),
            ("Stra\u{df}e \u{1f600}".as_bytes(), "Stra\u{df}e \u{1f600}"),
            (b"\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
            (b"a\nb\rc\td\x7f", "a\\nb\\rc\\td\\x7f"),
            (b"\xff\xfeok\xc3", "\\xff\\xfeok\\xc3"),
            ("\u{9b}31m".as_bytes(), "\\u{9b}31m"),
            ("gpj\u{202e}exe".as_bytes(), "gpj\\u{202e}exe"),
        ];
        for (bytes, shown) in cases {
            assert_eq!(name(bytes).to_string(), *shown);
        }
    }

    #[test]
    fn a_text_keeps_its_lines_but_not_a_lone_return() {
        assert_eq!(
            text(b"a\r\nb\n\tc\rd\x1b[2J").to_string(),
            "a\nb\n\tc\\rd\\x1b[2J"
        );
    }
}
