//! Escapes text for HTML and SVG.

use wire::escape::{name, steers_terminal};

/// Replaces the five special characters of HTML, and escapes those of [`steers_terminal`]: control
/// characters are invalid in XML, and direction marks would reorder the text after them.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            c if steers_terminal(c) => {
                out.push_str(&name(c.encode_utf8(&mut [0; 4]).as_bytes()).to_string());
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn nothing_of_a_text_is_markup() {
        assert_eq!(
            escaped("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;"
        );
        assert_eq!(escaped("a\x1b[31mb\nc"), "a\\x1b[31mb c");
    }
}
