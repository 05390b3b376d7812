use arbitrary::Unstructured;

use super::*;

fn parsed(texts: &[&str]) -> SocketOptionSettings {
    let mut sockopts = SocketOptionSettings::default();
    for text in texts {
        sockopts
            .add(text)
            .unwrap_or_else(|why| panic!("{text} {why}"));
    }
    sockopts
}

fn buffers(receive: Option<usize>, send: Option<usize>) -> SocketBufferSizes {
    SocketBufferSizes { send, receive }
}

#[test]
fn sizes_are_for_the_directions_and_legs_that_are_named() {
    let mib = Some(1 << 20);
    for (text, client, server) in [
        // Setting that solved case 1.
        (
            "buffsize:1024kic+1024kos",
            buffers(mib, None),
            buffers(None, mib),
        ),
        (
            "bufsize:64kis",
            buffers(None, None),
            buffers(Some(65536), None),
        ),
        (
            "buffsize:64ski",
            buffers(None, None),
            buffers(Some(65536), None),
        ),
        (
            "buffsize:100",
            buffers(Some(100), Some(100)),
            buffers(Some(100), Some(100)),
        ),
        (
            "buffsize:1i",
            buffers(Some(1), None),
            buffers(Some(1), None),
        ),
        ("buffsize:1oc", buffers(None, Some(1)), buffers(None, None)),
        (
            "buffsize:1ioc",
            buffers(Some(1), Some(1)),
            buffers(None, None),
        ),
        (
            "buffsize:1+2i",
            buffers(Some(2), Some(1)),
            buffers(Some(2), Some(1)),
        ),
        (
            "keepalive+buffsize:1sc",
            buffers(Some(1), Some(1)),
            buffers(Some(1), Some(1)),
        ),
        ("7", buffers(Some(7), Some(7)), buffers(Some(7), Some(7))),
    ] {
        let found = parsed(&[text]);
        let expected = LegSocketBufferSizes { client, server };
        assert_eq!(found.for_all(), expected, "{text}");
        assert_eq!(found.for_connection("h", None, None), expected, "{text}");
    }
}

#[test]
fn maps_say_for_which_connections() {
    let fits = |map: &str, host: &str, to: &str, from: &str| {
        let sockopts = parsed(&[&format!("buffsize:1is:{map}")]);
        let ip = |text: &str| text.parse().ok();
        let found = sockopts.for_connection(host, ip(to), ip(from));
        found.server.receive.is_some()
    };
    for (map, host, to, from, expected) in [
        ("", "h", "", "", true),
        ("*", "h", "", "", true),
        ("tcprelay", "h", "", "", true),
        ("http", "h", "", "", false),
        ("!http", "h", "", "", true),
        ("http,tcprelay", "h", "", "", true),
        (":h", "h", "", "", true),
        (":H", "h", "", "", true),
        (":other", "h", "", "", false),
        (":!h", "h", "", "", false),
        (":!h", "g", "", "", true),
        (":*,!h", "h", "", "", false),
        (":.example.com", "a.example.com", "", "", true),
        (":*.example.com", "a.example.com", "", "", true),
        (":.example.com", "example.com", "", "", false),
        (":192.0.2.0/24", "h", "192.0.2.9", "", true),
        (":192.0.2.0/24", "h", "192.0.3.9", "", false),
        (":[2001:db8::/32]", "h", "2001:db8::1", "", true),
        (":[2001:db8::1]", "h", "2001:db8::1", "", true),
        ("::10.0.0.0/8", "h", "", "10.1.1.1", true),
        ("::10.0.0.0/8", "h", "", "11.1.1.1", false),
        (
            "tcprelay:h:{10.0.0.0/8,!10.1.0.0/16}",
            "h",
            "",
            "10.1.1.1",
            false,
        ),
        (
            "tcprelay:h:{10.0.0.0/8,!10.1.0.0/16}",
            "h",
            "",
            "10.2.1.1",
            true,
        ),
    ] {
        assert_eq!(
            fits(map, host, to, from),
            expected,
            "{map} {host} {to} {from}"
        );
    }
    let for_one = parsed(&["buffsize:1is:*:h"]);
    assert_eq!(for_one.for_all(), LegSocketBufferSizes::default());
}

#[test]
fn what_is_not_understood_is_refused() {
    for (text, word) in [
        ("", "empty option"),
        ("buffsize", "lacks the size"),
        ("buffsize:", "not a size"),
        ("buffsize:k", "not a size"),
        ("buffsize:1m", "k (kilo)"),
        ("buffsize:1kk", "each once"),
        ("buffsize:0", "between"),
        ("buffsize:2000000k", "between"),
        ("buffsize:99999999999999999999999", "not a size"),
        ("buffsize:1+", "empty option"),
        ("buffsize:1:a:b:c:d", "more parts"),
        ("buffsize:1::a b", "neither a host name"),
        ("linger:1", "takes none"),
        ("linger", "linger"),
        ("noshut", "noshut"),
        ("keepalive:7", "takes none"),
        ("nodelay", "unknown option"),
    ] {
        let refused = SocketOptionSettings::default().add(text).expect_err(text);
        assert!(refused.to_string().contains(word), "{text}: {refused}");
    }
}

/// Every value of the grammar has the meaning of its parts, in any order of its letters.
#[test]
fn letters_mean_the_same_in_any_order() {
    arbtest::arbtest(|u| {
        let number = u.int_in_range(1..=100_000_usize)?;
        let mut letters: Vec<char> = Vec::new();
        for letter in "kiosc".chars() {
            if u.arbitrary()? {
                letters.insert(u.int_in_range(0..=letters.len())?, letter);
            }
        }
        let text: String = letters.iter().collect();
        let found = parsed(&[&format!("buffsize:{number}{text}")]).for_all();
        let has = |letter| letters.contains(&letter);
        let bytes = number * if has('k') { 1024 } else { 1 };
        for (leg, own, other) in [(found.client, 'c', 's'), (found.server, 's', 'c')] {
            let of_leg = has(own) || !has(other);
            let receive = of_leg && (has('i') || !has('o'));
            let send = of_leg && (has('o') || !has('i'));
            assert_eq!(leg.receive, receive.then_some(bytes), "{number}{text}");
            assert_eq!(leg.send, send.then_some(bytes), "{number}{text}");
        }
        Ok(())
    })
    .budget_ms(300);
}

/// Arbitrary text causes no panic, and every accepted value can be evaluated.
#[test]
fn strange_texts_do_no_harm() {
    fn text(u: &mut Unstructured<'_>) -> arbitrary::Result<String> {
        const PARTS: &[&str] = &[
            "buffsize",
            ":",
            "1",
            "k",
            "i",
            "+",
            "!",
            "[",
            "]",
            "{",
            "}",
            ",",
            "*",
            ".",
            "::1",
            "10.0.0.0/8",
            "no",
            "share",
            "\u{e9}",
            "999999999999999999999",
        ];
        let mut text = String::new();
        for _ in 0..u.int_in_range(0..=20)? {
            text.push_str(u.choose(PARTS)?);
        }
        Ok(text)
    }
    arbtest::arbtest(|u| {
        let mut sockopts = SocketOptionSettings::default();
        let text = text(u)?;
        if sockopts.add(&text).is_ok() {
            sockopts.for_all();
            sockopts.for_connection("h.example", "::1".parse().ok(), None);
            sockopts.largest();
        }
        Ok(())
    })
    .budget_ms(300);
}

#[test]
fn buffers_that_do_harm_are_told() {
    let told = |asked, limit, auto| warning(asked, limit, auto, "rmem_max", "receive");
    // Defaults of stock Linux.
    let both = told(1 << 20, 212_992, Some(6 << 20)).unwrap();
    assert!(
        both.contains("reduced to 208 KiB by net.core.rmem_max"),
        "{both}"
    );
    assert!(both.contains("up to 3072 KiB: remove the option"), "{both}");
    let small = told(8192, 212_992, Some(6 << 20)).unwrap();
    assert!(
        small.starts_with("the receive buffer is fixed at 8 KiB"),
        "{small}"
    );
    assert_eq!(told(4 << 20, 4 << 20, Some(6 << 20)), None);
    let cut = told(8 << 20, 4 << 20, Some(6 << 20)).unwrap();
    assert!(
        cut.ends_with("by net.core.rmem_max: raise that sysctl"),
        "{cut}"
    );
}
