//! Escaped and length-limited display of text from a peer, based on [`wire::escape`].

/// Maximum bytes shown of a single line.
const LINE: usize = 1024;
/// Maximum bytes shown of a text of several lines.
const LINES: usize = 16 * 1024;

/// Escapes a single line, line ends included.
pub(crate) fn escape(bytes: &[u8]) -> String {
    wire::escape::name(bytes).up_to(LINE).to_string()
}

/// Escapes a text of several lines: `\n` and tabs stay, and a carriage return before `\n` is
/// dropped.
pub(crate) fn escape_lines(bytes: &[u8]) -> String {
    wire::escape::text(bytes).up_to(LINES).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escapes_are_shown_and_not_obeyed() {
        let title = escape(b"a\x1b]0;owned\x07\r\nb\x7f");
        assert_eq!(title, "a\\x1b]0;owned\\x07\\r\\nb\\x7f");
        assert_eq!(escape("\u{9b}2J".as_bytes()), "\\u{9b}2J");
        assert_eq!(escape("x\u{202e}y".as_bytes()), "x\\u{202e}y");
        // Two names that look identical.
        assert_eq!(escape("ro\u{200d}ot".as_bytes()), "ro\\u{200d}ot");
        assert_eq!(escape(b"\xff\xc3"), "\\xff\\xc3");
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        assert_eq!(
            escape("Grüße, bob's \"key\" \\o/".as_bytes()),
            "Grüße, bob's \"key\" \\o/"
        );
    }

    #[test]
    fn lines_keep_their_ends_and_nothing_else() {
        assert_eq!(escape_lines(b"a\r\n\tb\rc\x1b\n"), "a\n\tb\\rc\\x1b\n");
    }

    #[test]
    fn text_is_bounded() {
        let text = escape(&[b'a'; 5000]);
        assert_eq!(text.len(), LINE + 3);
        assert!(text.ends_with("a..."));
        assert!(escape_lines(&[0; 1 << 20]).len() <= 4 * LINES + 3);
    }
}
