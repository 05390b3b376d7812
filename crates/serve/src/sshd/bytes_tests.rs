//! Fuzzes the parsers of authorized_keys and of messages from other processes.

use std::net::IpAddr;

use arbitrary::{Result, Unstructured};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use ssh::key::PrivateKey;

use super::authorized::{AuthContext, KeyFileLines, OfferedKey, lets_in};
use super::message::{
    BeginSession, ConnectionHandover, EndedWithoutLogin, HostKeySignRequest, KeyCheckReply,
    KeyCheckRequest, KeyQuery, KeyVerdict, LogMessage, ProcessConfig, SessionEnded,
    SignatureCheckRequest, SignatureReply,
};
use super::options::UncheckedKeyOptions;
use super::{expiry, patterns};

fn run(property: impl FnMut(&mut Unstructured<'_>) -> Result<()>) {
    let test = arbtest::arbtest(property).size_max(2048);
    match std::env::var_os("ARBTEST_BUDGET_MS") {
        Some(_) => test.run(),
        None => test.budget_ms(500).run(),
    }
}

/// Builds a text from the words of such files, joined, doubled and cut.
fn text(u: &mut Unstructured<'_>, words: &[&str]) -> Result<String> {
    let mut text = String::new();
    for _ in 0..u.int_in_range(0..=20)? {
        match u.int_in_range(0..=9)? {
            0 => text.push(u.arbitrary()?),
            1 => text.truncate(text.floor_char_boundary(u.int_in_range(0..=text.len())?)),
            _ => text.push_str(u.choose(words)?),
        }
    }
    Ok(text)
}

const OPTIONS: [&str; 26] = [
    "restrict",
    "cert-authority",
    "principals=\"",
    "from=\"",
    "expiry-time=\"",
    "command=\"",
    "no-pty",
    "touch-required",
    "verify-required",
    "permitopen=\"a:1\"",
    "20200101",
    "99991231235959Z",
    "192.0.2.0/24",
    "2001:db8::/32",
    "192.0.2.*",
    "!",
    "*",
    "?",
    "/",
    "\\\"",
    "\"",
    "=",
    ",",
    " ",
    "\t",
    "\\",
];

fn address(u: &mut Unstructured<'_>) -> Result<IpAddr> {
    Ok(match u.arbitrary()? {
        true => IpAddr::from(u.arbitrary::<[u8; 4]>()?),
        false => IpAddr::from(u.arbitrary::<[u8; 16]>()?),
    })
}

fn circumstances(u: &mut Unstructured<'_>) -> Result<AuthContext> {
    let now = Timestamp::from_second(u.int_in_range(0..=4_000_000_000)?);
    Ok(AuthContext::new(address(u)?, now.expect("a year of ours")))
}

#[test]
fn options_of_a_key_in_any_form() {
    run(|u| {
        let (text, at) = (text(u, &OPTIONS)?, circumstances(u)?);
        if UncheckedKeyOptions::read(&text, at).is_ok() {
            // A rejected option appears at most between quotes.
            assert!(text.contains('"') || !text.contains("command"), "{text}");
        }
        Ok(())
    });
}

#[test]
fn patterns_and_times_in_any_form() {
    run(|u| {
        let (text, address) = (text(u, &OPTIONS)?, address(u)?);
        let taken = patterns::takes(&text, address);
        // A list that ends with a pattern against everything matches nothing.
        assert!(!patterns::takes(&format!("{text},!*"), address), "{text}");
        // A list of networks gives equal results in both functions.
        if let Some(found) = patterns::in_networks(&text, address) {
            assert_eq!(taken, found, "{text}");
        }
        let offset = jiff::tz::offset(u.int_in_range(-12..=14)?);
        if expiry::read(&text, &TimeZone::fixed(offset)).is_some() {
            assert!(text.len() <= 15, "{text}");
        }
        Ok(())
    });
}

#[test]
fn lines_of_authorized_keys_in_any_form_let_nobody_else_in() {
    let [theirs, other] = [0; 2].map(|_| {
        let key = PrivateKey::generate_ed25519().expect("a key");
        key.public_blob().to_vec()
    });
    let key = format!("ssh-ed25519 {}", STANDARD.encode(&theirs));
    let lines = [key.as_str(), "\n", "#", "\r\n", "ssh-ed25519 AAAA"];
    let words = [&lines[..], &OPTIONS[..]].concat();
    run(|u| {
        let text = text(u, &words)?;
        let authorities = u.arbitrary()?;
        let lines = match authorities {
            true => KeyFileLines::of_authorities(&text),
            false => KeyFileLines::of_account(&text),
        };
        let at = circumstances(u)?;
        let some = u.bytes(u.len().min(64))?.to_vec();
        for (blob, authority) in [
            (other.as_slice(), [].as_slice()),
            (&some, &[]),
            // Claims to be a certificate, and is not signed.
            (&some, &theirs),
            (&theirs, &theirs),
        ] {
            let shown = OfferedKey::new(blob, authority, u.arbitrary()?);
            assert!(lets_in(lines, shown, "alice", at).is_err(), "{text}");
        }
        let shown = OfferedKey::new(&theirs, &[], 0);
        if lets_in(lines, shown, "alice", at).is_ok() {
            assert!(text.contains(&key) && !authorities, "{text}");
        }
        Ok(())
    });
}

#[test]
fn messages_between_processes_in_any_form() {
    macro_rules! each {
        ($bytes:expr, $($message:ident)*) => {
            $(if let Ok(message) = $message::decode($bytes) {
                // The encoding is equal except for bools, which have many encodings.
                let again = message.to_bytes();
                assert_eq!(again.len(), $bytes.len(), stringify!($message));
                assert!($message::decode(&again).is_ok_and(|same| same.to_bytes() == again));
            })*
        };
    }
    run(|u| {
        // Strings with their lengths, so that some messages are valid.
        let mut bytes = vec![*u.choose(&[1, 2, 3, 4, 5, 6, 7, 8, 17, 18, 19, 20, 21])?];
        for _ in 0..u.int_in_range(0..=9)? {
            match u.int_in_range(0..=4)? {
                0 => bytes.push(u.int_in_range(0..=2)?),
                1 => bytes.extend(u.arbitrary::<[u8; 4]>()?),
                2 => bytes.extend(u.arbitrary::<[u8; 8]>()?),
                _ => {
                    let len = u.int_in_range(0..=u.len().min(40))?;
                    bytes.extend((len as u32).to_be_bytes());
                    bytes.extend(u.bytes(len.min(u.len()))?);
                }
            }
        }
        if u.ratio(1, 4)? {
            bytes.truncate(u.int_in_range(0..=bytes.len())?);
        }
        each!(&bytes, HostKeySignRequest KeyQuery SignatureCheckRequest ConnectionHandover EndedWithoutLogin LogMessage KeyCheckReply SessionEnded);
        each!(&bytes, SignatureReply KeyVerdict KeyCheckRequest BeginSession ProcessConfig);
        Ok(())
    });
}
