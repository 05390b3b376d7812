//! Escapes text from untrusted sources for display: one table of characters, used by every crate.
//!
//! A file name, a server's banner or a name in a certificate may hold terminal escapes that move
//! the cursor, change the title or hide text, and marks that make one name look like another. Every
//! text that did not come from this program is shown through this module, in errors, logs, tables
//! and pages alike.

use std::fmt::{self, Write as _};

/// Returns true for a character that must not reach a terminal, a log or a page unescaped.
///
/// Such characters are the C0 and C1 controls and DEL, line and paragraph separators, marks that
/// change the direction of text, and characters without width (Unicode's
/// Default_Ignorable_Code_Point, the soft hyphen and the tags of block E0000 included). Variation
/// selectors 1 to 16 pass: they only choose between two pictures of the preceding character, and
/// emoji in file names have them.
pub const fn steers_terminal(c: char) -> bool {
    matches!(c,
        '\0'..='\u{1f}'
        | '\u{7f}'..='\u{9f}'
        | '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Escapes a text for one line.
///
/// Control characters become `\n`, `\t`, `\r` or `\x1b`, bytes that are not UTF-8 become `\xff`,
/// and other characters of [`steers_terminal`] become `\u{202e}`. Quotes and backslashes stay.
pub const fn name(bytes: &[u8]) -> Escaped<'_> {
    Escaped {
        bytes,
        style: EscapeStyle::Line,
        is_cut: false,
    }
}

/// Escapes the name of a file for one line, like [`name`], and doubles each backslash that would
/// read as the beginning of an escape.
///
/// A name `a\nb` with a backslash is shown as `a\\nb`, and one with a line end as `a\nb`. The
/// result may be escaped by [`name`] once more, as a part of a message, without a change.
pub const fn file_name(bytes: &[u8]) -> Escaped<'_> {
    Escaped {
        style: EscapeStyle::FileName,
        ..name(bytes)
    }
}

/// Escapes a text of several lines, such as a banner: line ends and tabs stay, everything else is
/// escaped as by [`name`].
pub const fn text(bytes: &[u8]) -> Escaped<'_> {
    Escaped {
        style: EscapeStyle::Lines,
        ..name(bytes)
    }
}

/// Escapes a text so that different bytes look different: like [`name`], and with escapes for the
/// backslash and for each character outside of ASCII.
pub const fn exact(bytes: &[u8]) -> Escaped<'_> {
    Escaped {
        style: EscapeStyle::Exact,
        ..name(bytes)
    }
}

/// Escapes the value of a log field like [`name`], and puts it in double quotes if its end would be
/// ambiguous.
///
/// Within quotes, quotes and backslashes are escaped too, so that no part of a value looks like
/// another field of the line.
pub fn field(bytes: &[u8]) -> Escaped<'_> {
    let is_unclear = |c: char| c.is_whitespace() || matches!(c, '=' | '"' | '\'' | '{' | '}');
    let mut chars = bytes.utf8_chunks().flat_map(|chunk| chunk.valid().chars());
    let style = match bytes.is_empty() || chars.any(is_unclear) {
        true => EscapeStyle::Quoted,
        false => EscapeStyle::Line,
    };
    Escaped {
        style,
        ..name(bytes)
    }
}

/// Escaped bytes for display, made by [`name`], [`text`], [`exact`] and [`field`].
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a> {
    bytes: &'a [u8],
    style: EscapeStyle,
    is_cut: bool,
}

/// Set of characters that are escaped, by the function that made the [`Escaped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EscapeStyle {
    Line,
    FileName,
    Lines,
    Exact,
    Quoted,
}

impl Escaped<'_> {
    /// Limits the output to the first `limit` bytes, followed by `...` if there are more.
    #[must_use]
    pub fn up_to(self, limit: usize) -> Self {
        match self.bytes.get(..limit) {
            Some(bytes) if bytes.len() < self.bytes.len() => Self {
                bytes,
                is_cut: true,
                ..self
            },
            _ => self,
        }
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_quoted = self.style == EscapeStyle::Quoted;
        if is_quoted {
            f.write_char('"')?;
        }
        let keeps_lines = self.style == EscapeStyle::Lines;
        let is_exact = self.style == EscapeStyle::Exact;
        let is_name = self.style == EscapeStyle::FileName;
        for chunk in self.bytes.utf8_chunks() {
            let is_followed = !chunk.invalid().is_empty();
            let mut chars = chunk.valid().chars().peekable();
            while let Some(c) = chars.next() {
                match c {
                    '\n' | '\t' if keeps_lines => f.write_char(c)?,
                    // SSH texts end their lines with CR LF (RFC 4252 section 5.4).
                    '\r' if keeps_lines && chars.peek() == Some(&'\n') => {}
                    '"' | '\\' if is_quoted => write!(f, "\\{c}")?,
                    '\\' if is_exact => f.write_str("\\\\")?,
                    '\\' if is_name && reads_as_escape(chars.clone(), is_followed) => {
                        f.write_str("\\\\")?;
                    }
                    c if is_exact && !c.is_ascii() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                    c => escape(c, f)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        if self.is_cut {
            f.write_str("...")?;
        }
        if is_quoted {
            f.write_char('"')?;
        }
        Ok(())
    }
}

/// True if a backslash before `rest` would read as the beginning of an escape. `is_followed` tells
/// if bytes that are not UTF-8, which are shown as escapes, follow the rest.
fn reads_as_escape(mut rest: impl Iterator<Item = char>, is_followed: bool) -> bool {
    match rest.next() {
        None => is_followed,
        Some('n' | 't' | 'r' | '\\') => true,
        Some('u') => rest.next() == Some('{'),
        Some('x') => rest.take(2).filter(char::is_ascii_hexdigit).count() == 2,
        Some(c) => steers_terminal(c),
    }
}

/// Writes a character, escaped if [`steers_terminal`] lists it.
fn escape(c: char, out: &mut impl fmt::Write) -> fmt::Result {
    match c {
        '\n' => out.write_str("\\n"),
        '\t' => out.write_str("\\t"),
        '\r' => out.write_str("\\r"),
        c if c.is_ascii_control() => write!(out, "\\x{:02x}", u32::from(c)),
        c if steers_terminal(c) => write!(out, "\\u{{{:x}}}", u32::from(c)),
        c => out.write_char(c),
    }
}

/// Escapes characters in a JSON text that JSON permits but a terminal would obey.
///
/// Such characters occur only in strings, where `\u202e` has the same meaning.
pub fn json(line: String) -> String {
    // Line ends and blanks outside of strings belong to JSON's syntax.
    let steers = |c: char| steers_terminal(c) && !matches!(c, '\n' | '\r' | '\t');
    if !line.contains(steers) {
        return line;
    }
    let mut out = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        match steers(c) {
            true => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            false => out.push(c),
        }
    }
    out
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
            ("ro\u{200d}ot".as_bytes(), "ro\\u{200d}ot"),
            ("a\u{e0041}b\u{ad}".as_bytes(), "a\\u{e0041}b\\u{ad}"),
            (
                "heart \u{2764}\u{fe0f}".as_bytes(),
                "heart \u{2764}\u{fe0f}",
            ),
        ];
        for (bytes, shown) in cases {
            assert_eq!(name(bytes).to_string(), *shown);
        }
    }

    /// Bug: a backslash and a letter looked like an escaped line end.
    #[test]
    fn a_backslash_in_a_file_name_does_not_read_as_an_escape() {
        let cases: &[(&[u8], &str)] = &[
            (br"a\nb", r"a\\nb"),
            (br"a\x07", r"a\\x07"),
            (br"a\x7", r"a\x7"),
            (br"a\u{7}", r"a\\u{7}"),
            (br"DOM\user", r"DOM\user"),
            (br"a\b", r"a\b"),
            (br"a\\b", r"a\\\b"),
            (b"a\\\n", r"a\\\n"),
            (b"a\\\xff", r"a\\\xff"),
            (br"a\", r"a\"),
            (b"a\nb", r"a\nb"),
        ];
        for (bytes, shown) in cases {
            let once = file_name(bytes).to_string();
            assert_eq!(once, *shown);
            assert_eq!(name(once.as_bytes()).to_string(), *shown);
        }
    }

    /// Regression: Rust's own `escape_debug` and the four lists that the crates once had each
    /// lacked some of these.
    #[test]
    fn all_that_unicode_calls_control_separator_or_direction_is_in_the_table() {
        let kinds = [
            0..=0x1f,
            0x7f..=0x9f,
            0xad..=0xad,
            0x61c..=0x61c,
            0x200b..=0x200f,
            0x2028..=0x202e,
            0x2060..=0x206f,
            0xfeff..=0xfeff,
            0xfff9..=0xfffb,
            0xe0000..=0xe007f,
        ];
        for code in kinds.into_iter().flatten() {
            let c = char::from_u32(code).unwrap();
            let shown = name(c.to_string().as_bytes()).to_string();
            assert!(shown.starts_with('\\'), "U+{code:04X}: {shown:?}");
        }
        for c in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
            assert!(!c.is_control() || steers_terminal(c), "{c:?}");
        }
    }

    #[test]
    fn different_names_look_different_where_that_is_the_point() {
        let names = ["caf\u{e9}", "cafe\u{301}", "a\u{7}", "a\\x07", "a"];
        let shown = names.map(|text| exact(text.as_bytes()).to_string());
        assert_eq!(
            shown,
            ["caf\\u{e9}", "cafe\\u{301}", "a\\x07", "a\\\\x07", "a"]
        );
        assert_eq!(exact(b"\xe9").to_string(), "\\xe9");
    }

    #[test]
    fn a_text_keeps_its_lines_but_not_a_lone_return() {
        assert_eq!(
            text(b"a\r\nb\n\tc\rd\x1b[2J").to_string(),
            "a\nb\n\tc\\rd\\x1b[2J"
        );
    }

    #[test]
    fn a_long_text_is_cut_where_it_was_said() {
        assert_eq!(name(b"abcdef").up_to(3).to_string(), "abc...");
        assert_eq!(name(b"abc").up_to(3).to_string(), "abc");
        assert_eq!(text(b"").up_to(0).to_string(), "");
        assert_eq!(field(b"a b c").up_to(3).to_string(), "\"a b...\"");
    }

    /// Regression: a name such as `x sent=5` looked like another log field.
    #[test]
    fn a_name_is_no_field() {
        for (bytes, shown) in [
            ("/a/b.txt", "/a/b.txt"),
            ("/a/ü", "/a/ü"),
            ("/x sent=5", "\"/x sent=5\""),
            ("/x\" y", "\"/x\\\" y\""),
            ("/x\\\" y", "\"/x\\\\\\\" y\""),
            ("/x\n2026-01-01 INFO", "\"/x\\n2026-01-01 INFO\""),
            ("/\u{1b}[31m", "/\\x1b[31m"),
            ("user=root", "\"user=root\""),
            ("", "\"\""),
        ] {
            assert_eq!(field(bytes.as_bytes()).to_string(), shown);
        }
        assert_eq!(field(b"/\xff").to_string(), "/\\xff");
    }

    #[test]
    fn json_says_the_same_without_what_steers() {
        let line = "{\"a\":\"\u{202e}\u{e0041}\u{9b}\"}\n".to_owned();
        assert_eq!(json(line), "{\"a\":\"\\u202e\\udb40\\udc41\\u009b\"}\n");
        assert_eq!(json("[1,\n2]".to_owned()), "[1,\n2]");
    }
}
