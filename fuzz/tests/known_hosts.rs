//! Fuzzes known_hosts and RevokedHostKeys: a key is trusted only if a line contains it.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fuzz::{Corpus, assert_shown_safely, parse, some_bytes};
use ssh::key::{PrivateKey, PublicKey};
use transfer::config::AlgorithmList;
use transfer::known_hosts::{HostKeyVerdict, HostName, KnownHosts, RevokedKeys};

fn key(seed: u8) -> PublicKey {
    let key = PrivateKey::from_ed25519_seed(&[seed; 32]).expect("a key");
    key.public().clone()
}

fn corpus() -> Corpus {
    let blob = STANDARD.encode(key(1).blob());
    let other = STANDARD.encode(key(2).blob());
    let lines = [
        format!("host,10.0.0.1 ssh-ed25519 {blob} a comment\n"),
        format!("[host]:2222,*.example.org,!bad.example.org ssh-ed25519 {blob}\n# comment\n"),
        format!("@cert-authority *.example.org ssh-ed25519 {other}\nhost ssh-ed25519 {other}\n"),
        format!("@revoked * ssh-ed25519 {blob}\n"),
        format!(
            "|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg= ssh-ed25519 {blob}\n"
        ),
        "host ssh-rsa AAAA\nhost 2048 35 1234\n\n  \t\nhost\n".to_owned(),
        format!("\u{feff}host ssh-ed25519 {blob}\r\n@revoked\thost ssh-ed25519 {other}\n"),
        format!("host\0 ssh-ed25519 {blob}\n@new host ssh-ed25519 {other} caf\u{e9}\n"),
    ];
    Corpus(
        lines
            .into_iter()
            .map(|l| ("lines", l.into_bytes()))
            .collect(),
    )
}

#[test]
fn lines() {
    let (corpus, shown) = (corpus(), key(1));
    let blob = STANDARD.encode(shown.blob());
    let seen = std::cell::Cell::new(0);
    parse(2048, |u| {
        let mut text = Vec::new();
        for _ in 0..u.int_in_range(1..=3)? {
            text.extend(match u.ratio(1, 8)? {
                true => some_bytes(u)?,
                false => corpus.mutant(u)?,
            });
        }
        let mut known = KnownHosts::default();
        known.add(Path::new("/known_hosts"), &text);
        let port = *u.choose(&[22, 2222])?;
        let host = *u.choose(&["host", "a.example.org", "bad.example.org", "10.0.0.1"])?;
        let name = HostName::new(host, port, None);
        let checked = known.check(&name, &shown, 1_000_000_000, &AlgorithmList::Default);
        let text = String::from_utf8_lossy(&text);
        match checked.verdict {
            HostKeyVerdict::Trusted(place) => {
                seen.set(seen.get() + 1);
                let line = text.split('\n').nth(place.line - 1).unwrap_or_default();
                // White space within base64 is ignored.
                let within = |c: &char| !matches!(c, '\r' | '\u{b}' | '\u{c}');
                let line: String = line.chars().filter(within).collect();
                assert!(line.contains(&blob) && !line.starts_with('@'), "{line:?}");
            }
            HostKeyVerdict::TrustedByCa(_) => panic!("no certificate was shown"),
            HostKeyVerdict::Changed(known) => {
                // An RSA key may be listed under the name of one of its signature algorithms.
                let named = text.contains(&known.key_type) || text.contains("rsa-sha2-");
                assert!(named, "{known:?}");
            }
            HostKeyVerdict::Unreadable(damage) => assert!(damage.line.is_some()),
            HostKeyVerdict::Revoked(_) | HostKeyVerdict::Unknown => {}
        }
        let offer = ["ssh-ed25519".to_owned(), "rsa-sha2-512".to_owned()];
        let mut order = known.prefer(&name, &offer);
        order.sort();
        assert_eq!(order, ["rsa-sha2-512", "ssh-ed25519"]);
        let _ = (known.equally_preferred(&name, &offer), known.knows(&name));
        for (_, names) in known.names_of(&shown) {
            assert_shown_safely(&names.unwrap_or_default(), false);
        }
        Ok(())
    });
    assert!(
        seen.get() > 0,
        "the key was never trusted: nothing was tested"
    );
}

#[test]
fn revoked_keys() {
    let dir = tempfile::tempdir().expect("a folder");
    let file: PathBuf = dir.path().join("revoked");
    let corpus = corpus();
    parse(2048, |u| {
        std::fs::write(&file, corpus.mutant(u)?).expect("written");
        if let Err(why) = RevokedKeys::load([&file]) {
            assert_shown_safely(&why.to_string(), false);
        }
        Ok(())
    });
}
