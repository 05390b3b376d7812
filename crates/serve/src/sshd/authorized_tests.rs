use super::*;
use ssh::key::PrivateKey;
use testkit::certificate::{Terms, with_signature};

fn line(key: &PublicKey) -> String {
    format!(
        "{} {} somebody",
        key.key_type(),
        STANDARD.encode(key.blob())
    )
}

fn at(seconds: i64) -> AuthContext {
    AuthContext {
        from: IpAddr::from([192, 0, 2, 1]),
        now: Timestamp::from_second(seconds).unwrap(),
    }
}

fn lines(text: &str) -> KeyFileLines<'_> {
    KeyFileLines {
        text,
        name: "authorized_keys",
        authorities: false,
    }
}

fn plain_key(key: &PublicKey) -> OfferedKey<'_> {
    OfferedKey {
        blob: key.blob(),
        authority: b"",
        signed_len: 0,
    }
}

/// A certificate as the preauth process reports it; a plain key otherwise.
fn certificate(key: &PublicKey) -> OfferedKey<'_> {
    let Some(certificate) = key.certificate() else {
        return plain_key(key);
    };
    OfferedKey {
        blob: key.blob(),
        authority: certificate.authority().blob(),
        signed_len: certificate.signed_len(),
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
        (format!("principals=\"somebody\" {plain}"), true),
        (format!("no-touch-required,verify-required {plain}"), true),
        ("ssh-ed25519 AAAA".to_owned(), false),
    ] {
        let found = lets_in(lines(&text), plain_key(key), "somebody", at(1_000_000_000));
        assert_eq!(found.is_ok(), allowed, "{text}: {found:?}");
    }
}

#[test]
fn the_reason_names_line_and_option() {
    let key = PrivateKey::generate_ed25519().unwrap();
    let text = format!("\ncommand=\"x\" {}", line(key.public()));
    let shown = plain_key(key.public());
    let why = lets_in(lines(&text), shown, "somebody", at(0))
        .unwrap_err()
        .to_string();
    assert_eq!(
        why,
        "line 2 of authorized_keys has the unsupported option command"
    );
}

/// A key and the authority that signs its certificate.
struct Signed {
    key: PrivateKey,
    ca: PrivateKey,
}

impl Signed {
    fn new() -> Self {
        Self {
            key: PrivateKey::generate_ed25519().unwrap(),
            ca: PrivateKey::generate_ecdsa("nistp256").unwrap(),
        }
    }

    fn certificate(&self, terms: &Terms) -> PublicKey {
        PublicKey::from_blob(&terms.sign(self.key.public(), &self.ca)).unwrap()
    }

    /// Offers the certificate to a file with these options before the authority's key.
    fn shown(&self, options: &str, terms: &Terms) -> Result<(), String> {
        let key = self.certificate(terms);
        let text = format!("{options} {}", line(self.ca.public()));
        let found = lets_in(lines(&text), certificate(&key), "alice", at(1_000));
        found.map(drop).map_err(|why| why.to_string())
    }
}

#[test]
fn a_certificate_is_let_in_where_all_it_says_and_its_line_are_met() {
    let signed = Signed::new();
    let (hers, ca) = (Terms::user(&["alice"]), "cert-authority");
    let critical = |name: &str, value: &str| hers.clone().critical(name, value);
    let bare = |name: &str| {
        let mut terms = hers.clone();
        terms.critical_options.push((name.to_owned(), Vec::new()));
        terms
    };
    let valid = |valid_after, valid_before| Terms {
        valid_after,
        valid_before,
        ..hers.clone()
    };
    let mut known = hers.clone();
    for name in ["permit-pty", "surprise@example.org"] {
        known.extensions.push((name.to_owned(), Vec::new()));
    }
    for (options, terms, wanted) in [
        (ca, hers.clone(), Ok(())),
        ("restrict,CERT-AUTHORITY", hers.clone(), Ok(())),
        (ca, known, Ok(())),
        (ca, Terms::user(&["bob", "alice"]), Ok(())),
        (
            ca,
            Terms::user(&["bob"]),
            Err("does not list alice as a principal"),
        ),
        (
            ca,
            Terms::user(&["Alice", "*"]),
            Err("does not list alice as a principal"),
        ),
        (ca, Terms::user(&[]), Err("names no principal")),
        (
            "cert-authority,principals=\"staff,admins\"",
            Terms::user(&["admins"]),
            Ok(()),
        ),
        (
            "cert-authority,principals=\"staff,admins\"",
            hers.clone(),
            Err("does not list staff or admins as a principal"),
        ),
        // CVE-2026-35414: commas separate the names of the line, and not those of a certificate.
        (
            "cert-authority,principals=\"staff,admins\"",
            Terms::user(&["staff,admins"]),
            Err("does not list staff or admins as a principal"),
        ),
        (
            "cert-authority,principals=\"\"",
            Terms::user(&[""]),
            Err("does not list  as a principal"),
        ),
        (
            ca,
            Terms::host(&["alice"]),
            Err("is a host certificate, not a user certificate"),
        ),
        (ca, valid(1_000, 1_001), Ok(())),
        (
            ca,
            valid(1_001, 2_000),
            Err("is not valid before 1970-01-01 00:16:41 UTC: check the clock of this machine"),
        ),
        (
            ca,
            valid(0, 1_000),
            Err("expired at 1970-01-01 00:16:40 UTC: renew it, or check the clock of this machine"),
        ),
        (
            ca,
            critical("source-address", "192.0.2.0/24,10.0.0.1"),
            Ok(()),
        ),
        (
            ca,
            critical("source-address", "10.0.0.0/8"),
            Err("is for other addresses (source-address)"),
        ),
        (
            ca,
            critical("source-address", "192.0.2.*"),
            Err("has a malformed source-address"),
        ),
        (
            ca,
            bare("source-address"),
            Err("has the malformed option source-address"),
        ),
        (
            ca,
            critical("force-command", "internal-sftp"),
            Err("has the unsupported critical option force-command"),
        ),
        (
            ca,
            critical("surprise@example.org", ""),
            Err("has the unsupported critical option surprise@example.org"),
        ),
        (
            ca,
            critical("verify-required", "x"),
            Err("has the malformed option verify-required"),
        ),
        // Accepted before a signature exists; see the test of touches.
        (ca, bare("verify-required"), Ok(())),
    ] {
        let wanted = wanted.map_err(|why| {
            format!("line 1 of authorized_keys lists its authority, but the certificate {why}")
        });
        assert_eq!(signed.shown(options, &terms), wanted, "{options} {terms:?}");
    }
    for (options, wanted) in [
        (
            "",
            "lists its authority as a plain key, without cert-authority",
        ),
        (
            "principals=\"alice\"",
            "lists its authority as a plain key, without cert-authority",
        ),
        (
            "cert-authority,from=\"10.*\"",
            "accepts the key from other addresses only (from=)",
        ),
        (
            "cert-authority,expiry-time=\"19700101Z\"",
            "has expired (expiry-time=)",
        ),
        (
            "cert-authority,command=\"x\"",
            "has the unsupported option command",
        ),
        (
            "cert-authority=\"yes\"",
            "has the unsupported option cert-authority",
        ),
        (
            "cert-authority,principals=\"a\",principals=\"alice\"",
            "has the unsupported option principals",
        ),
    ] {
        let wanted = Err(format!("line 1 of authorized_keys {wanted}"));
        assert_eq!(signed.shown(options, &hers), wanted, "{options}");
    }
}

#[test]
fn keys_and_certificates_do_not_stand_for_each_other() {
    let signed = Signed::new();
    let key = signed.certificate(&Terms::user(&["alice"]));
    let enter = |text: &str, shown: OfferedKey<'_>| lets_in(lines(text), shown, "alice", at(0));
    let refused = |text: &str, shown: OfferedKey<'_>| {
        enter(text, shown).map(drop).unwrap_err();
    };
    // An authority's line accepts neither the key inside a certificate nor the authority's own key.
    let authority = format!("cert-authority {}", line(signed.ca.public()));
    refused(&authority, plain_key(signed.key.public()));
    refused(&authority, plain_key(signed.ca.public()));
    // A certificate is not accepted through its key's line, or through a line that contains it.
    for text in [line(signed.key.public()), line(&key)] {
        for text in [text.clone(), format!("cert-authority {text}")] {
            refused(&text, certificate(&key));
            // The result is independent of the preauth process's report.
            refused(&text, plain_key(&key));
            let authority = signed.key.public_blob();
            refused(
                &text,
                OfferedKey {
                    authority,
                    ..certificate(&key)
                },
            );
        }
    }
    // One line suffices, and each is checked with its own options.
    let ca = line(signed.ca.public());
    let several = format!(
        "{ca}\ncert-authority,principals=\"x\" {ca}\ncert-authority,from=\"192.0.2.1\" {ca}"
    );
    assert!(enter(&several, certificate(&key)).is_ok());
}

#[test]
fn nothing_is_read_that_the_authority_has_not_signed() {
    let signed = Signed::new();
    let text = format!("cert-authority {}", line(signed.ca.public()));
    let hers = Terms::user(&["alice"]);
    let sound = hers.sign(signed.key.public(), &signed.ca);
    let authority = signed.ca.public_blob();
    let signed_len = certificate(&signed.certificate(&hers)).signed_len;
    let enter = |blob: &[u8], signed_len| {
        let shown = OfferedKey {
            blob,
            authority,
            signed_len,
        };
        let found = lets_in(lines(&text), shown, "alice", at(0)).map(drop);
        found.map_err(|why| why.to_string())
    };
    assert_eq!(enter(&sound, signed_len), Ok(()));
    for at in 0..sound.len() {
        let mut changed = sound.clone();
        changed[at] ^= 1;
        let why = enter(&changed, signed_len).unwrap_err();
        assert!(why.contains("has an invalid signature"), "byte {at}: {why}");
        assert!(enter(&sound, at).is_err() || at == signed_len);
    }
    assert!(enter(&sound, usize::MAX).is_err());
    assert!(enter(&[&sound[..], b"x"].concat(), signed_len).is_err());
    // Signed by another key, which the certificate names or does not name.
    let other = PrivateKey::generate_ed25519().unwrap();
    for named in [authority, other.public_blob()] {
        let front = hers.to_be_signed(signed.key.public(), named);
        let signature = other.sign("ssh-ed25519", &front).unwrap();
        let forged = with_signature(front.clone(), &signature);
        assert!(enter(&forged, front.len()).is_err());
    }
    // Signed by the authority, and naming another key as its signer.
    let front = hers.to_be_signed(signed.key.public(), other.public_blob());
    let signature = signed.ca.sign("ecdsa-sha2-nistp256", &front).unwrap();
    let astray = with_signature(front.clone(), &signature);
    assert!(enter(&astray, front.len()).is_err());
    // Signed by the authority, and not a certificate.
    let signature = signed.ca.sign("ecdsa-sha2-nistp256", b"something").unwrap();
    let no_certificate = with_signature(b"something".to_vec(), &signature);
    assert!(enter(&no_certificate, 9).is_err());
}

#[test]
fn authorities_sign_with_sha2_alone() {
    let ca = PrivateKey::generate_rsa().unwrap();
    let key = PrivateKey::generate_ed25519().unwrap();
    let text = format!("cert-authority {}", line(ca.public()));
    let front = Terms::user(&["alice"]).to_be_signed(key.public(), ca.public_blob());
    for (said, allowed) in [
        ("rsa-sha2-512", true),
        ("rsa-sha2-256", true),
        ("ssh-rsa", false),
        ("rsa-sha2-512-cert-v01@openssh.com", false),
    ] {
        let by = if allowed { said } else { "rsa-sha2-256" };
        let signature = ca.sign(by, &front).unwrap();
        let proper = &signature[4 + by.len()..];
        let length = (said.len() as u32).to_be_bytes();
        let renamed = [&length, said.as_bytes(), proper].concat();
        let shown = with_signature(front.clone(), &renamed);
        let shown = OfferedKey {
            blob: &shown,
            authority: ca.public_blob(),
            signed_len: front.len(),
        };
        let found = lets_in(lines(&text), shown, "alice", at(0));
        assert_eq!(found.is_ok(), allowed, "{said}: {found:?}");
    }
}

#[test]
fn a_list_of_authorities_has_nothing_else() {
    let signed = Signed::new();
    let key = signed.certificate(&Terms::user(&["alice"]));
    let ca = line(signed.ca.public());
    for (text, user, allowed) in [
        (ca.clone(), "alice", true),
        (format!("# ours\n{ca}"), "alice", true),
        (ca.clone(), "bob", false),
        (format!("cert-authority {ca}"), "alice", false),
        (format!("principals=\"alice\" {ca}"), "alice", false),
    ] {
        let lines = KeyFileLines {
            text: &text,
            name: "trusted-user-ca-keys",
            authorities: true,
        };
        let found = lets_in(lines, certificate(&key), user, at(0));
        assert_eq!(found.is_ok(), allowed, "{text}: {found:?}");
        let bare = lets_in(lines, plain_key(signed.ca.public()), user, at(0));
        assert!(bare.is_err());
    }
}

#[test]
fn a_security_key_is_touched_unless_line_and_certificate_say_otherwise() {
    let touch = |present, verified| Some(SecurityKeyFlags { present, verified });
    let (nobody, somebody, owner) = (touch(false, false), touch(true, false), touch(true, true));
    let signed = Signed::new();
    let plain = |options: &str| {
        let text = format!("{options} {}", line(signed.key.public()));
        let shown = plain_key(signed.key.public());
        lets_in(lines(&text), shown, "alice", at(0)).unwrap()
    };
    let certified = |options: &str, untouched: bool, verified: bool| {
        let mut terms = Terms::user(&["alice"]);
        if untouched {
            let name = "no-touch-required".to_owned();
            terms.extensions.push((name, Vec::new()));
        }
        if verified {
            let name = "verify-required".to_owned();
            terms.critical_options.push((name, Vec::new()));
        }
        let key = signed.certificate(&terms);
        let text = format!("{options} {}", line(signed.ca.public()));
        lets_in(lines(&text), certificate(&key), "alice", at(0)).unwrap()
    };
    let (ca, both) = ("cert-authority", "cert-authority,no-touch-required");
    for (admitted, touches) in [
        // No security key; not touched; touched; touched with user verification.
        (plain("restrict"), [true, false, true, true]),
        (plain("no-touch-required"), [true, true, true, true]),
        (plain("verify-required"), [false, false, false, true]),
        (certified(ca, false, false), [true, false, true, true]),
        (certified(ca, true, false), [true, false, true, true]),
        (certified(both, false, false), [true, false, true, true]),
        (certified(both, true, false), [true, true, true, true]),
        (certified(ca, false, true), [false, false, false, true]),
        (
            certified("cert-authority,verify-required", false, false),
            [false, false, false, true],
        ),
    ] {
        let found = [None, nobody, somebody, owner].map(|t| admitted.check_touch(t).is_ok());
        assert_eq!(found, touches, "{admitted:?}");
    }
}
