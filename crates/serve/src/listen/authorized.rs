//! Lines of authorized_keys (sshd(8)).

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use ssh::key::PublicKey;

use super::{expiry, patterns};

/// Options that forbid or allow what is never given here: terminals, forwarding, programs of the
/// user's at login.
const WITHOUT_EFFECT: [&str; 13] = [
    "restrict",
    "agent-forwarding",
    "no-agent-forwarding",
    "port-forwarding",
    "no-port-forwarding",
    "permitopen",
    "permitlisten",
    "pty",
    "no-pty",
    "user-rc",
    "no-user-rc",
    "X11-forwarding",
    "no-X11-forwarding",
];

/// From where and when a key is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    pub(super) from: IpAddr,
    pub(super) now: Timestamp,
}

/// The key with this blob, if `text`, the content of an authorized_keys, lets it in under these
/// circumstances. The blob is compared and not read.
///
/// # Errors
/// Why not, one sentence: it is not there, or each of its lines wants something else.
pub(super) fn lets_in(text: &str, blob: &[u8], at: Circumstances) -> Result<PublicKey, String> {
    let mut why = "it is not in authorized_keys".to_owned();
    for (number, line) in (1..).zip(text.lines()) {
        let found = split(line.trim()).filter(|(_, key)| key.blob() == blob);
        let Some((options, key)) = found else {
            continue;
        };
        match check(options, at) {
            Ok(()) => return Ok(key),
            Err(reason) => why = format!("line {number} of authorized_keys {reason}"),
        }
    }
    Err(why)
}

/// Options and key of a line; `None` for a comment and for what is no key.
fn split(line: &str) -> Option<(&str, PublicKey)> {
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    if let Some(key) = read_key(line) {
        return Some(("", key));
    }
    let end = end_of_options(line);
    let (options, rest) = line.split_at(end);
    Some((options, read_key(rest.trim_start())?))
}

/// `type base64 comment`.
fn read_key(text: &str) -> Option<PublicKey> {
    let mut words = text.split_ascii_whitespace();
    let (key_type, encoded) = (words.next()?, words.next()?);
    let key = PublicKey::from_blob(&STANDARD.decode(encoded).ok()?).ok()?;
    (key.key_type() == key_type).then_some(key)
}

/// The first blank that no quotes are around.
fn end_of_options(line: &str) -> usize {
    let mut quoted = false;
    let mut before = 0;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'"' if before != b'\\' => quoted = !quoted,
            b' ' | b'\t' if !quoted => return at,
            _ => {}
        }
        before = byte;
    }
    line.len()
}

/// Checks every option; the reason continues a sentence about the line.
fn check(mut options: &str, at: Circumstances) -> Result<(), String> {
    while !options.is_empty() {
        let (name, value, rest) = next(options)?;
        options = rest;
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match value {
            _ if WITHOUT_EFFECT.iter().any(|known| is(known)) => {}
            Some(list) if is("from") => {
                if !patterns::takes(&list, at.from) {
                    return Err("takes it from another address only (from=)".to_owned());
                }
            }
            Some(time) if is("expiry-time") => {
                let until = expiry::read(&time, &TimeZone::system());
                let until = until.ok_or("has an expiry-time that cannot be read")?;
                if at.now >= until {
                    return Err("has expired (expiry-time=)".to_owned());
                }
            }
            // What cannot be honoured must not be passed over: it may be the forced command that
            // keeps the key from everything else.
            _ => {
                return Err(format!(
                    "has the option {}, which cannot be honoured here",
                    name.escape_debug()
                ));
            }
        }
    }
    Ok(())
}

/// An option: its name, its value without quotes, and what is behind it.
fn next(options: &str) -> Result<(&str, Option<String>, &str), String> {
    let end = options.find([',', '=']).unwrap_or(options.len());
    let (name, rest) = options.split_at(end);
    let Some(quoted) = rest.strip_prefix("=\"") else {
        return match rest.strip_prefix('=') {
            Some(_) => Err("has an option whose value has no quotes".to_owned()),
            None => Ok((name, None, rest.strip_prefix(',').unwrap_or(rest))),
        };
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' if quoted[at..].starts_with("\\\"") => {
                value.push('"');
                chars.next();
            }
            '"' => {
                let rest = &quoted[at + 1..];
                return match rest.strip_prefix(',') {
                    None if !rest.is_empty() => Err("has an option that goes on behind its \
                                                     quotes"
                        .to_owned()),
                    more => Ok((name, Some(value), more.unwrap_or(rest))),
                };
            }
            c => value.push(c),
        }
    }
    Err("has an option whose quotes do not end".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssh::key::PrivateKey;

    fn line(key: &PublicKey) -> String {
        format!(
            "{} {} somebody",
            key.key_type(),
            STANDARD.encode(key.blob())
        )
    }

    fn at(seconds: i64) -> Circumstances {
        Circumstances {
            from: IpAddr::from([192, 0, 2, 1]),
            now: Timestamp::from_second(seconds).unwrap(),
        }
    }

    #[test]
    fn a_key_is_let_in_where_all_its_options_are_met() {
        let key = PrivateKey::generate_ed25519().unwrap();
        let (key, other) = (key.public(), PrivateKey::generate_ed25519().unwrap());
        let plain = line(key);
        let others = line(other.public());
        for (text, allowed) in [
            (plain.clone(), true),
            (format!("# {plain}"), false),
            (others.clone(), false),
            (format!("{others}\n\n#\n  {plain}"), true),
            (format!("restrict {plain}"), true),
            (format!("restrict,pty,no-user-rc {plain}"), true),
            (format!("RESTRICT\t{plain}"), true),
            (format!("from=\"10.*,192.0.2.0/24\" {plain}"), true),
            (format!("from=\"10.*\" {plain}"), false),
            (format!("from=\"10.*\" {plain}\n{plain}"), true),
            (format!("expiry-time=\"20200101Z\" {plain}"), true),
            (format!("expiry-time=\"19700102Z\" {plain}"), false),
            (format!("expiry-time=\"soon\" {plain}"), false),
            (format!("command=\"internal-sftp -R\" {plain}"), false),
            (
                format!("restrict,command=\"a \\\"b\\\", c\" {plain}"),
                false,
            ),
            (format!("cert-authority {plain}"), false),
            (format!("permitopen=\"a b:1\",restrict {plain}"), true),
            (format!("from=192.0.2.1 {plain}"), false),
            (format!("from=\"192.0.2.1 {plain}"), false),
            (format!("from=\"192.0.2.1\"x {plain}"), false),
            (format!("no-such-option {plain}"), false),
            ("ssh-ed25519 AAAA".to_owned(), false),
        ] {
            let found = lets_in(&text, key.blob(), at(1_000_000_000));
            assert_eq!(found.is_ok(), allowed, "{text}: {found:?}");
        }
    }

    #[test]
    fn the_reason_names_line_and_option() {
        let key = PrivateKey::generate_ed25519().unwrap();
        let text = format!("\ncommand=\"x\" {}", line(key.public()));
        let why = lets_in(&text, key.public().blob(), at(0)).unwrap_err();
        assert_eq!(
            why,
            "line 2 of authorized_keys has the option command, which cannot be honoured here"
        );
    }
}
