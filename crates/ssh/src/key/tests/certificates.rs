use super::*;

const YEAR_2030: u64 = 1_893_456_000;

fn validate(name: &str, hostname: &str, now: u64) -> Result<(), CertificateError> {
    let key = public(name);
    let authorities = [public("ca"), public("ca-rsa")];
    let certificate = key.certificate().unwrap();
    certificate.validate_host(hostname, now, |ca| authorities.contains(ca))
}

#[test]
fn host_certificates_of_every_key_are_accepted() {
    for name in KEYS {
        let name = format!("{name}-cert");
        for hostname in ["host.example.org", "HOST.example.org", "a.b.example.net"] {
            assert_eq!(validate(&name, hostname, YEAR_2030), Ok(()), "{name}");
        }
        for hostname in ["host.example.orgx", "example.net", "", "*.example.org"] {
            let refused = CertificateError::OtherPrincipals {
                name: hostname.to_ascii_lowercase(),
            };
            assert_eq!(validate(&name, hostname, YEAR_2030), Err(refused));
        }
    }
    assert_eq!(
        validate("signed-by-rsa-cert", "host.example.org", 1),
        Ok(())
    );
}

#[test]
fn certificates_hold_in_their_time_only() {
    let (from, to) = (1_577_836_800, 2_208_988_800);
    let at = |now| validate("ed25519-cert", "host.example.org", now);
    assert_eq!(at(from), Ok(()));
    assert_eq!(at(to - 1), Ok(()));
    let early = CertificateError::NotYetValid { valid_after: from };
    assert_eq!(at(from - 1), Err(early));
    let late = CertificateError::Expired { valid_before: to };
    assert_eq!(at(to), Err(late));
}

#[test]
fn certificates_that_must_not_be_trusted_are_refused() {
    let refused = |name| validate(name, "host.example.org", YEAR_2030).unwrap_err();
    assert_eq!(refused("user-cert"), CertificateError::NotAHost);
    assert_eq!(
        refused("no-principals-cert"),
        CertificateError::NoPrincipals
    );
    let unknown = CertificateError::CriticalOption {
        name: "surprise@example.org".to_owned(),
    };
    assert_eq!(refused("critical-cert"), unknown);
    let sha1 = CertificateError::BadSignature(KeyError::WrongAlgorithm {
        algorithm: "ssh-rsa".to_owned(),
    });
    assert_eq!(refused("signed-with-sha1-cert"), sha1);
    let key = public("ed25519-cert");
    let certificate = key.certificate().unwrap();
    let untrusted = certificate.validate_host("host.example.org", YEAR_2030, |_| false);
    let fingerprint = public("ca").fingerprint();
    let expected = CertificateError::UntrustedAuthority { fingerprint };
    assert_eq!(untrusted, Err(expected));
}

#[test]
fn a_changed_certificate_is_refused_whichever_byte_it_is() {
    let blob = public_blob("nistp256-cert");
    for i in 0..blob.len() {
        let mut changed = blob.clone();
        changed[i] ^= 1;
        let Ok(key) = PublicKey::from_blob(&changed) else {
            continue;
        };
        let accepted = key.certificate().is_some_and(|certificate| {
            let ca = public("ca");
            let valid = certificate.validate_host("host.example.org", YEAR_2030, |k| *k == ca);
            valid.is_ok()
        });
        assert!(!accepted, "byte {i}");
    }
}

#[test]
fn fields_of_a_certificate_are_read() {
    let key = public("rsa-cert");
    let certificate = key.certificate().unwrap();
    assert_eq!(certificate.kind, CertificateKind::Host);
    assert_eq!(certificate.serial, 7);
    assert_eq!(certificate.key_id, "host rsa");
    assert_eq!(
        certificate.principals,
        ["host.example.org", "*.example.net"]
    );
    assert_eq!(certificate.authority(), &public("ca"));
    assert_eq!(certificate.key(), &public("rsa"));
    let user = public("user-cert");
    let user = user.certificate().unwrap();
    assert_eq!(user.kind, CertificateKind::User);
    assert!(user.extensions.iter().any(|(name, _)| name == "permit-pty"));
}

#[test]
fn a_certificate_as_authority_is_refused() {
    let blob = public_blob("ed25519-cert");
    let ca = string(&public_blob("ca"));
    let at = blob.windows(ca.len()).position(|w| w == ca).unwrap();
    let mut chained = blob[..at].to_vec();
    chained.extend(string(&blob));
    chained.extend_from_slice(&blob[at + ca.len()..]);
    assert!(matches!(
        PublicKey::from_blob(&chained),
        Err(KeyError::Malformed(_))
    ));
}

#[test]
fn certificates_of_users_are_validated_as_those_of_hosts_are() {
    let key = public("user-cert");
    let certificate = key.certificate().unwrap();
    let ca = public("ca");
    let at = |names: &[&str], now| certificate.validate_user(names, now, |key| *key == ca);
    assert_eq!(
        at(&["somebody"], YEAR_2030),
        Ok(UserCertificateTerms::default())
    );
    assert_eq!(
        at(&["x", "somebody"], YEAR_2030),
        Ok(UserCertificateTerms::default())
    );
    for name in ["some*", "SOMEBODY", ""] {
        let refused = CertificateError::OtherPrincipals {
            name: name.to_owned(),
        };
        assert_eq!(at(&[name], YEAR_2030), Err(refused));
    }
    let expired = at(&["somebody"], 2_208_988_800);
    assert!(matches!(expired, Err(CertificateError::Expired { .. })));
    let untrusted = certificate.validate_user(&["somebody"], YEAR_2030, |_| false);
    assert!(matches!(
        untrusted,
        Err(CertificateError::UntrustedAuthority { .. })
    ));
    let host = public("ed25519-cert");
    let host = host.certificate().unwrap();
    let refused = host.validate_user(&["host.example.org"], YEAR_2030, |_| true);
    assert_eq!(refused, Err(CertificateError::NotAUser));
}

#[test]
fn a_certificate_is_opened_by_the_key_that_signed_it_and_no_other() {
    for (name, ca, opens) in [
        ("user-cert", "ca", true),
        ("user-cert", "ed25519", false),
        ("signed-by-rsa-cert", "ca-rsa", true),
        ("signed-with-sha1-cert", "ca-rsa", false),
        // A certificate signs nothing, not even with its key.
        ("ed25519-cert", "ed25519-cert", false),
    ] {
        let key = public(name);
        let covered = key.certificate().unwrap().signed_len();
        let opened = PublicKey::from_signed_blob(key.blob(), covered, &public(ca));
        assert_eq!(opened.is_ok(), opens, "{name} {ca}: {opened:?}");
        for covered in [0, covered - 1, covered + 1, key.blob().len(), usize::MAX] {
            assert!(PublicKey::from_signed_blob(key.blob(), covered, &public(ca)).is_err());
        }
    }
}
