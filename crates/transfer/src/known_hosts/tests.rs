//! Tests of looking up, deciding about and recording host keys.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ssh::key::PrivateKey;
use zeroize::Zeroizing;

use super::*;
use crate::config::StrictHostKeyChecking as Strict;
use crate::prompt::{EchoMode, Prompt, PromptAnswer, PromptError};

/// Returns a key derived from one byte, so that texts do not change between runs.
pub(super) fn key(seed: u8) -> PublicKey {
    let key = PrivateKey::from_ed25519_seed(&[seed; 32]).unwrap();
    key.public().clone()
}

pub(super) fn encoded(key: &PublicKey) -> String {
    format!("{} {}", key.key_type(), STANDARD.encode(key.blob()))
}

fn known(text: &str) -> KnownHosts {
    let mut known = KnownHosts::default();
    known.add(Path::new("/kh"), text.as_bytes());
    known
}

pub(super) fn check(known: &KnownHosts, host: &str, port: u16, key: &PublicKey) -> HostKeyVerdict {
    let name = HostName::new(host, port, None);
    known
        .check(&name, key, 1_000, &AlgorithmList::Default)
        .verdict
}

fn at(line: usize) -> KnownHostsLinePosition {
    KnownHostsLinePosition {
        file: "/kh".into(),
        line,
    }
}

#[test]
fn names_ports_wildcards_and_negation_decide_which_line_counts() {
    let (a, b) = (encoded(&key(1)), encoded(&key(2)));
    let known = known(&format!(
        "# comment\n\nhost,192.0.2.1 {a} a comment\n[host]:2222 {b}\n*.example.org,!bad.example.org \
         {a}\n  indented\t{b}\nHOST2 {a}\r\nbroken ssh-ed25519 !!!\nlying ssh-rsa {}\n@new x {a}\n",
        STANDARD.encode(key(1).blob())
    ));
    assert_eq!(
        check(&known, "host", 22, &key(1)),
        HostKeyVerdict::Trusted(at(3))
    );
    assert_eq!(
        check(&known, "HOST", 22, &key(1)),
        HostKeyVerdict::Trusted(at(3))
    );
    assert_eq!(
        check(&known, "192.0.2.1", 22, &key(1)),
        HostKeyVerdict::Trusted(at(3))
    );
    assert_eq!(
        check(&known, "host", 2222, &key(2)),
        HostKeyVerdict::Trusted(at(4))
    );
    assert!(
        matches!(check(&known, "host", 2222, &key(1)), HostKeyVerdict::Changed(k) if k.place == at(4))
    );
    assert_eq!(
        check(&known, "x.example.org", 22, &key(1)),
        HostKeyVerdict::Trusted(at(5))
    );
    let none = HostKeyVerdict::Unknown;
    assert_eq!(check(&known, "bad.example.org", 22, &key(1)), none);
    assert_eq!(
        check(&known, "indented", 22, &key(2)),
        HostKeyVerdict::Trusted(at(6))
    );
    assert_eq!(
        check(&known, "host2", 22, &key(1)),
        HostKeyVerdict::Trusted(at(7))
    );
    assert_eq!(check(&known, "#", 22, &key(1)), none);
    // OpenSSH skips these lines; here they fail closed (design rule 12).
    for (host, line) in [("broken", 8), ("lying", 9), ("x", 10)] {
        let found = check(&known, host, 22, &key(1));
        assert!(
            matches!(found, HostKeyVerdict::Unreadable(d) if d.line == Some(line)),
            "{host}"
        );
    }
}

#[test]
fn a_line_without_port_vouches_for_other_ports_only_with_the_very_key() {
    let known = known(&format!("host {}\n", encoded(&key(1))));
    assert_eq!(
        check(&known, "host", 2222, &key(1)),
        HostKeyVerdict::Trusted(at(1))
    );
    // A different key on another port is new, not changed: it may be another machine.
    assert_eq!(
        check(&known, "host", 2222, &key(2)),
        HostKeyVerdict::Unknown
    );
    let alias = HostName::new("host", 2222, Some("Alias"));
    assert_eq!(alias.entry(), "alias");
}

#[test]
fn a_right_line_anywhere_wins_over_a_wrong_one() {
    let known = known(&format!("h {}\nh {}\n", encoded(&key(1)), encoded(&key(2))));
    assert_eq!(
        check(&known, "h", 22, &key(2)),
        HostKeyVerdict::Trusted(at(2))
    );
    let HostKeyVerdict::Changed(line) = check(&known, "h", 22, &key(3)) else {
        panic!("must be changed");
    };
    assert_eq!(
        (line.place, line.fingerprint),
        (at(1), key(1).fingerprint())
    );
}

#[test]
fn revoked_wins_over_everything() {
    let one = encoded(&key(1));
    let files = known(&format!("h {one}\n@revoked * {one}\n"));
    assert_eq!(
        check(&files, "h", 22, &key(1)),
        HostKeyVerdict::Revoked(at(2))
    );
    assert_eq!(
        check(&files, "h", 2222, &key(1)),
        HostKeyVerdict::Revoked(at(2))
    );
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("revoked");
    fs::write(&list, format!("# stolen\n{one} comment\n")).unwrap();
    let mut listed = known(&format!("h {one}\n"));
    listed.revoke(RevokedKeys::load([&list]).unwrap());
    assert!(matches!(check(&listed, "h", 22, &key(1)), HostKeyVerdict::Revoked(p) if p.line == 2));
    // A truncated list.
    fs::write(&list, b"SSHKRL\n\0\0\0\0\x01").unwrap();
    assert!(RevokedKeys::load([&list]).is_err());
    fs::write(&list, "nonsense").unwrap();
    assert!(RevokedKeys::load([&list]).is_err());
    assert!(RevokedKeys::load([&dir.path().join("missing")]).is_err());
}

#[test]
fn hashed_names_are_found() {
    let salt = b"0123456789abcdefghij";
    let hmac_key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
    let hash = aws_lc_rs::hmac::sign(&hmac_key, b"[hashed.example]:2222");
    let text = format!(
        "|1|{}|{} {}\n|2|x|y {}\n",
        STANDARD.encode(salt),
        STANDARD.encode(hash),
        encoded(&key(1)),
        encoded(&key(1))
    );
    let known = known(&text);
    assert_eq!(
        check(&known, "Hashed.Example", 2222, &key(1)),
        HostKeyVerdict::Trusted(at(1))
    );
    assert!(matches!(
        check(&known, "hashed.example", 2222, &key(2)),
        HostKeyVerdict::Changed(_)
    ));
    assert!(matches!(
        check(&known, "other.example", 2222, &key(1)),
        HostKeyVerdict::Unknown
    ));
    assert_eq!(known.names_of(&key(1)), [(at(1), None)]);
}

#[test]
fn the_key_type_that_is_known_is_asked_for_first() {
    let offer: Vec<String> = HOST_KEY_ALGORITHMS
        .iter()
        .map(|a| a.name.to_owned())
        .collect();
    let name = HostName::new("h", 22, None);
    let unknown = known("").prefer(&name, &offer);
    assert_eq!(unknown, offer);
    let rsa = PrivateKey::generate_rsa().unwrap();
    let files = known(&format!("h {}\n", encoded(rsa.public())));
    let preferred = files.prefer(&name, &offer);
    assert_eq!(&preferred[..2], ["rsa-sha2-512", "rsa-sha2-256"]);
    assert_eq!(preferred.len(), offer.len());
    let both = known(&format!("h {0}\n@cert-authority * {0}\n", encoded(&key(1))));
    let preferred = both.prefer(&name, &offer);
    assert!(preferred[0].contains("-cert-") && !preferred[8].contains("-cert-"));
    assert_eq!(preferred[8], "ssh-ed25519");
}

struct Script(Vec<&'static str>, Vec<String>);

impl Prompt for Script {
    fn ask(&mut self, question: &str, _: EchoMode) -> Result<PromptAnswer, PromptError> {
        self.1.push(question.to_owned());
        if self.0.is_empty() {
            return Err(PromptError::Unavailable("nobody is there"));
        }
        Ok(Zeroizing::new(self.0.remove(0).to_owned()))
    }

    fn show(&mut self, _: &str) {}
}

fn decided(
    strict: Strict,
    known: &KnownHosts,
    key: &PublicKey,
    answers: &[&'static str],
) -> (Result<AcceptedHostKey, HostKeyError>, Vec<String>) {
    let name = HostName::new("h", 2222, None);
    let checked = known.check(&name, key, 1_000, &AlgorithmList::Default);
    let mut script = Script(answers.to_vec(), Vec::new());
    let address = Some("192.0.2.1");
    let result = decide(strict, &checked, (&name, address), key, known, &mut script);
    (result, script.1)
}

#[test]
fn a_new_host_is_asked_about_taken_or_refused() {
    let none = known("");
    let new = key(1);
    let (refused, asked) = decided(Strict::Yes, &none, &new, &["yes"]);
    assert!(matches!(refused, Err(HostKeyError::Unknown { .. })) && asked.is_empty());
    for strict in [Strict::AcceptNew, Strict::No] {
        let (taken, asked) = decided(strict, &none, &new, &[]);
        assert!(taken.is_ok_and(|a| a.record && !a.distrusted) && asked.is_empty());
    }
    let (taken, asked) = decided(Strict::Ask, &none, &new, &["what", "YES"]);
    assert!(taken.unwrap().record);
    assert_eq!(
        asked[0],
        format!(
            "The authenticity of host '[h]:2222 (192.0.2.1)' can't be established.\nED25519 key \
             fingerprint is {}.\nThis key is not known by any other names.\nAre you sure you \
             want to continue connecting (yes/no/[fingerprint])? ",
            new.fingerprint()
        )
    );
    assert_eq!(asked[1], "Please type 'yes', 'no' or the fingerprint: ");
    let fingerprint: &'static str = new.fingerprint().leak();
    assert!(decided(Strict::Ask, &none, &new, &[fingerprint]).0.is_ok());
    let other: &'static str = key(2).fingerprint().leak();
    for answers in [&["no"][..], &[""], &[other, "no"]] {
        let (refused, _) = decided(Strict::Ask, &none, &new, answers);
        assert!(matches!(refused, Err(HostKeyError::Declined { .. })));
    }
    let (refused, _) = decided(Strict::Ask, &none, &new, &[]);
    let refused = refused.unwrap_err().to_string();
    // With what to do: a script has no terminal.
    let remedy = "nobody is there; to accept the key, connect once with ssh, or use \
                  -o StrictHostKeyChecking=accept-new";
    assert!(refused.ends_with(remedy), "{refused}");
}

#[test]
fn a_changed_key_stops_with_fingerprints_file_and_line() {
    let known = known(&format!("\n[h]:2222 {}\n", encoded(&key(1))));
    for strict in [Strict::Ask, Strict::AcceptNew, Strict::Yes] {
        let (refused, asked) = decided(strict, &known, &key(2), &["yes"]);
        let text = refused.unwrap_err().to_string();
        assert!(asked.is_empty());
        for part in [
            "/kh:2",
            &key(1).fingerprint(),
            &key(2).fingerprint(),
            "ssh-keygen -f \"/kh\" -R \"[h]:2222\"",
        ] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }
    let (taken, _) = decided(Strict::No, &known, &key(2), &[]);
    let taken = taken.unwrap();
    assert!(taken.distrusted && !taken.record && taken.warnings[0].contains("HAS CHANGED"));
    let (taken, _) = decided(Strict::Yes, &known, &key(1), &[]);
    assert_eq!(taken, Ok(AcceptedHostKey::default()));
}

#[test]
fn a_revoked_key_is_refused_even_without_checking() {
    let known = known(&format!("@revoked * {}\n", encoded(&key(1))));
    let (refused, _) = decided(Strict::No, &known, &key(1), &["yes"]);
    assert!(matches!(refused, Err(HostKeyError::Revoked { .. })));
}

#[test]
fn a_new_host_that_cannot_be_recorded_is_refused() {
    let new = key(1);
    let none = KnownHosts::load(&[], &[]);
    for strict in [Strict::Yes, Strict::Ask, Strict::AcceptNew, Strict::No] {
        let (refused, asked) = decided(strict, &none, &new, &["yes"]);
        assert!(matches!(refused, Err(HostKeyError::Unknown { .. })) && asked.is_empty());
        // As a pattern, the name would match other hosts.
        let name = HostName::new("h", 22, Some("a*"));
        let files = known("");
        let checked = files.check(&name, &new, 1_000, &AlgorithmList::Default);
        let mut script = Script(vec!["yes"], Vec::new());
        let result = decide(strict, &checked, (&name, None), &new, &files, &mut script);
        assert!(result.is_err());
    }
}

/// Regression test: "Permanently added" was printed although known_hosts could not be written.
#[test]
fn that_a_host_was_added_is_said_only_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let name = HostName::new("h", 2222, None);
    let said = |file: &Path| {
        let result = record(file, &name, &key(1), false);
        (result.is_ok(), recorded(&name, &key(1), file, &result))
    };
    let (written, text) = said(&dir.path().join("kh"));
    assert!(
        written && text.starts_with("Permanently added '[h]:2222'"),
        "{text}"
    );
    let (written, text) = said(dir.path());
    assert!(!written && !text.contains("ermanently added"), "{text}");
    assert!(text.contains(dir.path().to_str().unwrap()), "{text}");
}

#[test]
fn the_address_behind_a_name_has_the_same_key_where_that_is_asked_for() {
    let files = known(&format!(
        "h {}\n192.0.2.1 {}\n",
        encoded(&key(1)),
        encoded(&key(2))
    ));
    let name = HostName::new("h", 22, None);
    let of = |strict, address, answers: &[&'static str]| {
        let address = HostName::new(address, 22, None);
        let checked = files.check(&address, &key(1), 1_000, &AlgorithmList::Default);
        let mut script = Script(answers.to_vec(), Vec::new());
        decide_address(strict, &checked, (&name, &address), &mut script)
    };
    for strict in [Strict::Yes, Strict::Ask, Strict::AcceptNew, Strict::No] {
        assert_eq!(
            of(strict, "192.0.2.2", &[]),
            Ok(true),
            "a new one is recorded"
        );
        let expected = matches!(strict, Strict::No);
        assert_eq!(of(strict, "192.0.2.1", &["no"]).is_ok(), expected);
    }
    assert_eq!(of(Strict::Ask, "192.0.2.1", &["yes"]), Ok(false));
}

#[test]
fn a_new_host_is_added_once_on_a_line_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("new/known_hosts");
    let name = HostName::new("h", 2222, None);
    record(&file, &name, &key(1), false).unwrap();
    record(&file, &name, &key(1), false).unwrap();
    let line = format!("[h]:2222 {}\n", encoded(&key(1)));
    assert_eq!(fs::read_to_string(&file).unwrap(), line);
    let folder = fs::metadata(file.parent().unwrap()).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    fs::write(&file, "unfinished").unwrap();
    record(&file, &name, &key(1), false).unwrap();
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        format!("unfinished\n{line}")
    );
    // A name with a dot, which a base64 hash cannot contain.
    record(&file, &HostName::new("h.2", 22, None), &key(1), true).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.lines().nth(2).unwrap().starts_with("|1|") && !text.contains("h.2"));
    let known = KnownHosts::load(std::slice::from_ref(&file), &[]);
    assert!(matches!(check(&known, "h.2", 22, &key(1)), HostKeyVerdict::Trusted(p) if p.line == 3));
    record(Path::new("/dev/null"), &name, &key(1), false).unwrap();
}

#[test]
fn many_at_once_do_not_damage_each_other_s_lines() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("known_hosts");
    std::thread::scope(|scope| {
        for n in 0..8 {
            let file = &file;
            scope.spawn(move || {
                for host in 0..4 {
                    let name = HostName::new(&format!("h{host}"), 22, None);
                    record(file, &name, &key(n), n % 2 == 0).unwrap();
                }
            });
        }
    });
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 32);
    let known = KnownHosts::load(std::slice::from_ref(&file), &[]);
    assert!(matches!(
        check(&known, "h3", 22, &key(7)),
        HostKeyVerdict::Trusted(_)
    ));
}

/// Runs ssh-keygen; `None` with a message if it is not installed.
fn ssh_keygen(args: &[&str]) -> Option<()> {
    match Command::new("ssh-keygen").args(args).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "ssh-keygen {args:?}: {said}");
            Some(())
        }
        Err(e) => {
            eprintln!("skipped: ssh-keygen cannot be run: {e}");
            None
        }
    }
}

#[test]
fn what_ssh_keygen_hashed_is_found_and_what_we_hashed_it_finds() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("known_hosts");
    fs::write(&file, format!("h,192.0.2.1 {}\n", encoded(&key(1)))).unwrap();
    let path = file.to_str().unwrap();
    if ssh_keygen(&["-q", "-H", "-f", path]).is_none() {
        return;
    }
    assert!(!fs::read_to_string(&file).unwrap().contains("192.0.2.1"));
    let known = KnownHosts::load(std::slice::from_ref(&file), &[]);
    for host in ["h", "192.0.2.1"] {
        assert!(matches!(
            check(&known, host, 22, &key(1)),
            HostKeyVerdict::Trusted(_)
        ));
    }
    record(&file, &HostName::new("ours", 2222, None), &key(2), true).unwrap();
    ssh_keygen(&["-q", "-F", "[ours]:2222", "-f", path]);
}

#[test]
fn a_certificate_counts_for_the_hosts_it_names_while_it_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (ca, host) = (path("ca"), path("host"));
    if ssh_keygen(&["-q", "-t", "ed25519", "-N", "", "-f", &ca]).is_none() {
        return;
    }
    ssh_keygen(&["-q", "-t", "ecdsa", "-N", "", "-f", &host]);
    let sign = [
        "-q",
        "-h",
        "-s",
        &ca,
        "-I",
        "id",
        "-n",
        "h,h2",
        "-V",
        "20200101Z:20300101Z",
    ];
    ssh_keygen(&[&sign[..], &[&format!("{host}.pub")]].concat());
    let public = |file: &str| {
        let text = fs::read_to_string(file).unwrap();
        let blob = text.split(' ').nth(1).unwrap().trim().to_owned();
        PublicKey::from_blob(&STANDARD.decode(blob).unwrap()).unwrap()
    };
    let certified = public(&format!("{host}-cert.pub"));
    let authority = encoded(&public(&format!("{ca}.pub")));
    let in_2025 = 1_750_000_000;
    let checked = |text: &str, host: &str, now| {
        let name = HostName::new(host, 2222, None);
        known(text).check(&name, &certified, now, &AlgorithmList::Default)
    };
    let trusted = format!("@cert-authority *,[*]:* {authority}\n");
    let good = checked(&trusted, "h", in_2025);
    assert_eq!(good.verdict, HostKeyVerdict::TrustedByCa(at(1)));
    assert_eq!(good.certificate, None);
    // A signature algorithm that CASignatureAlgorithms does not contain.
    let name = HostName::new("h", 2222, None);
    let none = AlgorithmList::chosen("CASignatureAlgorithms", "rsa-sha2-512", None);
    let refused = known(&trusted).check(&name, &certified, in_2025, &none);
    assert_eq!(refused.verdict, HostKeyVerdict::Unknown);
    let other = checked(&trusted, "h3", in_2025);
    assert!(matches!(other.verdict, HostKeyVerdict::Unknown));
    assert!(matches!(
        other.certificate,
        Some(CertificateError::OtherPrincipals { .. })
    ));
    let expired = checked(&trusted, "h", 2_000_000_000);
    assert!(matches!(
        expired.certificate,
        Some(CertificateError::Expired { .. })
    ));
    let elsewhere = checked(&format!("@cert-authority x {authority}\n"), "h", in_2025);
    assert!(matches!(
        elsewhere.certificate,
        Some(CertificateError::UntrustedAuthority { .. })
    ));
    let bare = format!("[h]:2222 {}\n", encoded(certified.plain()));
    assert_eq!(
        checked(&bare, "h", in_2025).verdict,
        HostKeyVerdict::Trusted(at(1))
    );
    // Without an authority, the line without the port decides by its plain key, regardless of the
    // port's line.
    let by_name = format!(
        "[h]:2222 {}\nh {}\n",
        encoded(&key(9)),
        encoded(certified.plain())
    );
    let found = checked(&by_name, "h", in_2025).verdict;
    assert_eq!(found, HostKeyVerdict::Trusted(at(2)));
    let revoked = format!("{trusted}@revoked * {authority}\n");
    assert_eq!(
        checked(&revoked, "h", in_2025).verdict,
        HostKeyVerdict::Revoked(at(2))
    );
}
