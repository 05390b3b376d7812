//! Tests of unreadable lines and files: none of them may hide a revocation or another key.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ssh::key::PrivateKey;

use super::tests::{check, encoded, key};
use super::*;

fn known(text: &[u8]) -> KnownHosts {
    let mut known = KnownHosts::default();
    known.add(Path::new("/kh"), text);
    known
}

fn of(text: &[u8], seed: u8) -> HostKeyVerdict {
    check(&known(text), "h", 2222, &key(seed))
}

/// Regression test: a comment with one byte that is not UTF-8 hid the line, and the key was
/// accepted.
#[test]
fn a_byte_that_is_no_utf_8_hides_neither_a_revocation_nor_another_key() {
    let key = encoded(&key(1));
    let line = |marker: &str, host: &str| {
        let mut line = format!("{marker}{host} {key} caf").into_bytes();
        line.extend_from_slice(b"\xe9\n");
        line
    };
    for host in ["[h]:2222", "*", "h\u{e9}*,[h]:2222"] {
        assert!(matches!(
            of(&line("@revoked ", host), 1),
            HostKeyVerdict::Revoked(_)
        ));
        assert!(matches!(of(&line("", host), 2), HostKeyVerdict::Changed(_)));
        assert!(matches!(of(&line("", host), 1), HostKeyVerdict::Trusted(_)));
    }
    let mut names = b"caf\xe9,[h]:2222 ".to_vec();
    names.extend_from_slice(key.as_bytes());
    assert!(matches!(of(&names, 2), HostKeyVerdict::Changed(_)));
}

/// Regression test: a key of another type counted as new, so accept-new and no accepted it
/// silently.
#[test]
fn a_key_of_another_type_is_a_changed_key() {
    let rsa = PrivateKey::generate_rsa().unwrap();
    let line = format!("[h]:2222 {}\n", encoded(rsa.public()));
    assert!(
        matches!(of(line.as_bytes(), 1), HostKeyVerdict::Changed(k) if k.key_type == "ssh-rsa")
    );
    // A key of an unknown type counts too.
    let mut blob = Vec::new();
    for field in [b"ssh-future".as_slice(), b"data"] {
        blob.extend_from_slice(&u32::try_from(field.len()).unwrap().to_be_bytes());
        blob.extend_from_slice(field);
    }
    let line = format!("[h]:2222 ssh-future {}\n", STANDARD.encode(blob));
    assert!(matches!(of(line.as_bytes(), 1), HostKeyVerdict::Changed(_)));
    // The error shows the line with a key of the same type.
    let both = format!("{line}[h]:2222 {}\n", encoded(&key(2)));
    let HostKeyVerdict::Changed(shown) = of(both.as_bytes(), 1) else {
        panic!("changed");
    };
    assert_eq!(shown.place.line, 2);
}

#[test]
fn a_line_that_cannot_be_read_fails_closed_for_the_hosts_it_names() {
    let (own, other) = (encoded(&key(1)), encoded(&key(2)));
    let blob = own.split(' ').nth(1).unwrap();
    for line in [
        "[h]:2222".to_owned(),
        "[h]:2222 ssh-ed25519".to_owned(),
        "[h]:2222 ssh-ed25519 AAAA".to_owned(),
        "[h]:2222 ssh-ed25519 AAAA!".to_owned(),
        format!("[h]:2222 ssh-rsa {blob}"),
        format!("@new [h]:2222 {other}"),
        "*,!x ssh-ed25519 ???".to_owned(),
        format!("|1|AAAA|BBBB {other}"),
        format!("{},[h]:2222 {own}", "x".repeat(2000)).replace(blob, "AAAA"),
        format!("\u{feff}[h]:2222 {other}"),
        "\0[h]:2222 ssh-ed25519 AAAA".to_owned(),
    ] {
        assert!(
            matches!(of(line.as_bytes(), 1), HostKeyVerdict::Unreadable(d) if !d.revokes),
            "{line}"
        );
        // Another, readable line for the host counts.
        let right = format!("{line}\n[h]:2222 {own}\n");
        assert!(
            matches!(of(right.as_bytes(), 1), HostKeyVerdict::Trusted(_)),
            "{line}"
        );
    }
    for line in [
        "",
        "# [h]:2222 x",
        " \t",
        "[h]:2222 1024 35 123456789",
        "x ssh-ed25519 !",
        // An unreadable authority certifies nothing.
        "@cert-authority * ssh-ed25519 AAAA",
        "@cert-authority\t* ssh-ed25519 AAAA x",
    ] {
        assert_eq!(of(line.as_bytes(), 1), HostKeyVerdict::Unknown, "{line}");
    }
}

#[test]
fn a_revocation_that_cannot_be_read_revokes_whatever_it_may() {
    let key = encoded(&key(1));
    for (line, other_too) in [
        ("@revoked [h]:2222 ssh-ed25519 AAAA".to_owned(), true),
        ("@revoked *".to_owned(), true),
        (format!("@revoked |1|x {key}"), false),
        (format!("@revoked\t* {key}"), false),
        (format!("@cert-authority @revoked * {key}"), false),
        (format!("@new [h]:2222 {key}"), false),
    ] {
        for known_as in ["", &format!("\n[h]:2222 {key}\n")] {
            let text = format!("{line}{known_as}");
            let refused = |seed| {
                matches!(
                    of(text.as_bytes(), seed),
                    HostKeyVerdict::Revoked(_)
                        | HostKeyVerdict::Unreadable(UnreadableKnownHostsEntry {
                            revokes: true,
                            ..
                        })
                )
            };
            assert!(refused(1), "{text}");
            assert_eq!(refused(2), other_too, "{text}");
        }
    }
}

/// Regression test: an RSA key in another encoding (a number with leading zeros) escaped its
/// revocation.
#[test]
fn a_revoked_rsa_key_is_known_however_its_numbers_are_written() {
    let key = PrivateKey::generate_rsa().unwrap();
    let mut r = wire::FieldReader::new(key.public_blob());
    let mut blob = Vec::new();
    for at in 0..3 {
        let field = r.string().unwrap();
        let zeros = if at == 0 { 0 } else { 3 };
        blob.extend_from_slice(&u32::try_from(field.len() + zeros).unwrap().to_be_bytes());
        blob.extend_from_slice(&[0, 0, 0][..zeros]);
        blob.extend_from_slice(field);
    }
    let line = format!("ssh-rsa {}\n", STANDARD.encode(blob));
    let marked = known(format!("@revoked * {line}").as_bytes());
    assert!(matches!(
        check(&marked, "h", 22, key.public()),
        HostKeyVerdict::Revoked(_)
    ));
    let same = known(format!("h {line}").as_bytes());
    assert!(matches!(
        check(&same, "h", 22, key.public()),
        HostKeyVerdict::Trusted(_)
    ));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("revoked");
    std::fs::write(&file, line).unwrap();
    let mut listed = known(b"");
    listed.revoke(RevokedKeys::load([&file]).unwrap());
    assert!(matches!(
        check(&listed, "h", 22, key.public()),
        HostKeyVerdict::Revoked(_)
    ));
}

#[test]
fn lists_of_revoked_keys_that_cannot_be_read_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("revoked");
    let good = encoded(&key(1));
    let write = |text: &[u8]| {
        std::fs::write(&file, text).unwrap();
        RevokedKeys::load([&file]).is_ok()
    };
    assert!(write(format!("# c\n\n {good} caf").as_bytes()));
    assert!(write(&[good.as_bytes(), b" \xe9\r\n"].concat()));
    for text in [
        good.replace(' ', ""),
        format!("\0{good}"),
        format!("\u{feff}{good}"),
        format!("h {good}"),
        good.replace("AAAA", "AAA"),
        good.encode_utf16()
            .flat_map(u16::to_be_bytes)
            .map(char::from)
            .collect(),
    ] {
        assert!(!write(text.as_bytes()), "{text:?}");
    }
    let folder = dir.path().to_owned();
    assert!(RevokedKeys::load([&folder]).is_err());
}

#[test]
fn files_that_cannot_be_read_leave_no_host_new() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("good"), format!("[h]:2222 {}\n", encoded(&key(1)))).unwrap();
    let load = |user: &[PathBuf]| KnownHosts::load(user, &[]);
    let folder = dir.path().to_owned();
    let found = check(&load(std::slice::from_ref(&folder)), "h", 2222, &key(1));
    assert!(matches!(found, HostKeyVerdict::Unreadable(d) if d.line.is_none()));
    let both = load(&[folder, at("good")]);
    assert!(matches!(
        check(&both, "h", 2222, &key(1)),
        HostKeyVerdict::Trusted(_)
    ));
    for nothing in [at("missing"), at("good").join("x"), "/dev/null".into()] {
        assert_eq!(
            check(&load(&[nothing]), "h", 2222, &key(1)),
            HostKeyVerdict::Unknown
        );
    }
}

#[test]
fn white_space_and_names_of_signatures_are_read_as_openssh_reads_them() {
    let key = encoded(&key(1));
    let (kind, blob) = key.split_once(' ').unwrap();
    let (front, back) = blob.split_at(8);
    for line in [
        format!("[h]:2222 {key}\r"),
        format!("\t[h]:2222\t{kind}\t{blob}\t\t"),
        format!("[h]:2222 {kind} {front}\u{c}\u{b}{back}"),
        format!("[h]:2222 {key}\0 behind"),
    ] {
        assert!(
            matches!(of(line.as_bytes(), 1), HostKeyVerdict::Trusted(_)),
            "{line}"
        );
    }
    // A carriage return does not separate words.
    assert_eq!(
        of(format!("[h]:2222\r{key}").as_bytes(), 1),
        HostKeyVerdict::Unknown
    );
    let rsa = PrivateKey::generate_rsa().unwrap();
    let line = encoded(rsa.public()).replace("ssh-rsa ", "rsa-sha2-512 ");
    let known = known(format!("h {line}").as_bytes());
    assert!(matches!(
        check(&known, "h", 22, rsa.public()),
        HostKeyVerdict::Trusted(_)
    ));
}

/// Bug: "/kh:1: cannot read it: no valid key: the entry may list another host key of h" had to be read
/// twice.
#[test]
fn an_unreadable_line_is_named_with_what_to_do() {
    let damage = match of(b"h ssh-ed25519 AAAA", 1) {
        HostKeyVerdict::Unreadable(damage) => damage,
        HostKeyVerdict::Unknown => match of(b"[h]:2222 ssh-ed25519 AAAA", 1) {
            HostKeyVerdict::Unreadable(damage) => damage,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let host = "h".to_owned();
    assert_eq!(
        HostKeyError::Unreadable { host, damage }.to_string(),
        "/kh, line 1: the host key there is not valid, so the key of h cannot be checked and is not \
         accepted. Correct or remove this line"
    );
}
