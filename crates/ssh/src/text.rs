//! Text from a peer, made safe to show: bounded, and with whatever could steer a terminal escaped.

/// Bytes of one line that are shown.
const LINE: usize = 1024;
/// Bytes of a text of several lines that are shown.
const LINES: usize = 16 * 1024;

/// One line: line ends are escaped, too.
pub(crate) fn escape(bytes: &[u8]) -> String {
    escape_up_to(bytes, LINE, false)
}

/// Several lines: `\n` and tabs stay, and a carriage return in front of `\n` is dropped.
pub(crate) fn escape_lines(bytes: &[u8]) -> String {
    escape_up_to(bytes, LINES, true)
}

fn escape_up_to(bytes: &[u8], limit: usize, keep_lines: bool) -> String {
    let shown = bytes.get(..limit).unwrap_or(bytes);
    let mut out = String::with_capacity(shown.len());
    for chunk in shown.utf8_chunks() {
        let mut chars = chunk.valid().chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\n' | '\t' if keep_lines => out.push(c),
                '\r' if keep_lines && chars.peek() == Some(&'\n') => {}
                '\n' | '\r' | '\t' => out.extend(c.escape_default()),
                c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
                c if steers_a_terminal(c) => out.extend(c.escape_unicode()),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    if shown.len() < bytes.len() {
        out.push_str("...");
    }
    out
}

/// C1 controls, line separators, marks that turn the direction of what follows, and what nobody sees.
fn steers_a_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
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
        // Two names that look the same.
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
