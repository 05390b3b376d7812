//! Fuzzes the escaping of names: no control characters come through, and different names stay
//! different.

use fuzz::{assert_shown_safely, parse, some_bytes};
use transfer::escape;

#[test]
fn names_and_texts() {
    let edges = [
        "\u{9b}",
        "\u{202e}",
        "\r\n",
        "\r",
        "\x1b",
        "\u{200b}",
        "\\n",
        "\u{e0001}",
        "\u{ad}",
    ];
    parse(4096, |u| {
        let mut bytes = some_bytes(u)?;
        for _ in 0..u.int_in_range(0..=4)? {
            let at = u.int_in_range(0..=bytes.len())?;
            bytes.splice(at..at, u.choose(&edges)?.bytes());
        }
        assert_shown_safely(&escape::name(&bytes).to_string(), false);
        assert_shown_safely(&escape::text(&bytes).to_string(), true);
        let plain: Vec<u8> = bytes.iter().map(|b| b'!' + b % 90).collect();
        assert_eq!(escape::name(&plain).to_string().into_bytes(), plain);
        Ok(())
    });
}
