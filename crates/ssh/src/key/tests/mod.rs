//! Tests against files made by ssh-keygen; see tests/fixtures/keys/make.sh.

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use wire::{Field, FieldReader};

use super::*;

mod certificates;

const KEYS: [&str; 5] = ["ed25519", "nistp256", "nistp384", "nistp521", "rsa"];

fn file(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/keys/");
    std::fs::read_to_string(format!("{folder}{name}")).unwrap()
}

fn public_blob(name: &str) -> Vec<u8> {
    let line = file(&format!("{name}.pub"));
    STANDARD.decode(line.split(' ').nth(1).unwrap()).unwrap()
}

fn public(name: &str) -> PublicKey {
    PublicKey::from_blob(&public_blob(name)).unwrap()
}

fn pem(name: &str) -> Vec<u8> {
    let text = file(name);
    let lines = text.lines().filter(|l| !l.starts_with('-'));
    STANDARD.decode(lines.collect::<String>()).unwrap()
}

fn string(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    bytes.write(&mut out);
    out
}

/// Returns an unencrypted key in OpenSSH's format (PROTOCOL.key).
fn private(name: &str) -> PrivateKey {
    let blob = pem(name);
    let mut r = FieldReader::new(&blob);
    assert_eq!(r.take(15).unwrap(), b"openssh-key-v1\0");
    for expected in [&b"none"[..], b"none", b""] {
        assert_eq!(r.string().unwrap(), expected);
    }
    assert_eq!(r.u32().unwrap(), 1);
    r.string().unwrap();
    let mut r = FieldReader::new(r.string().unwrap());
    assert_eq!(r.u32().unwrap(), r.u32().unwrap());
    let key_type = r.string().unwrap();
    let mut next = || r.string().unwrap();
    match key_type {
        b"ssh-ed25519" => {
            let _public = next();
            PrivateKey::from_ed25519_seed(next()[..32].try_into().unwrap()).unwrap()
        }
        b"ssh-rsa" => {
            let [n, e, d, iqmp, p, q] = [(); 6].map(|()| next());
            PrivateKey::from_rsa(RsaParts {
                n,
                e,
                d,
                iqmp,
                p,
                q,
            })
            .unwrap()
        }
        _ => {
            let curve = std::str::from_utf8(next()).unwrap();
            let point = next();
            PrivateKey::from_ecdsa(curve, next(), point).unwrap()
        }
    }
}

/// Returns the key, data and signature of a `ssh-keygen -Y sign` file (PROTOCOL.sshsig).
fn sshsig(name: &str) -> (PublicKey, Vec<u8>, Vec<u8>) {
    let blob = pem(&format!("{name}.sig"));
    let mut r = FieldReader::new(&blob);
    assert_eq!(r.take(6).unwrap(), b"SSHSIG");
    assert_eq!(r.u32().unwrap(), 1);
    let key = PublicKey::from_blob(r.string().unwrap()).unwrap();
    let mut data = b"SSHSIG".to_vec();
    for _ in ["namespace", "reserved"] {
        data.extend(string(r.string().unwrap()));
    }
    let hash = r.string().unwrap();
    assert_eq!(hash, b"sha512");
    data.extend(string(hash));
    let message = digest::digest(&digest::SHA512, file("message").as_bytes());
    data.extend(string(message.as_ref()));
    let signature = r.string().unwrap().to_vec();
    r.finish().unwrap();
    (key, data, signature)
}

#[test]
fn fingerprints_are_those_of_ssh_keygen() {
    for name in KEYS {
        let fingerprint = file(&format!("{name}.fingerprint"));
        assert_eq!(public(name).fingerprint(), fingerprint.trim());
        let certified = public(&format!("{name}-cert"));
        assert_eq!(certified.fingerprint(), fingerprint.trim());
        assert_eq!(certified.plain(), &public(name));
    }
}

#[test]
fn signatures_of_ssh_keygen_verify() {
    for name in KEYS {
        let (key, data, signature) = sshsig(name);
        assert_eq!(key, public(name));
        let algorithm = key.algorithms()[0];
        assert_eq!(key.verify(algorithm, &data, &signature), Ok(()), "{name}");

        let mut other = data.clone();
        other[20] ^= 1;
        let refused = key.verify(algorithm, &other, &signature);
        assert_eq!(refused, Err(KeyError::BadSignature), "{name}");
        for i in 0..signature.len() {
            let mut changed = signature.clone();
            changed[i] ^= 1;
            assert!(
                key.verify(algorithm, &data, &changed).is_err(),
                "{name} {i}"
            );
            assert!(key.verify(algorithm, &data, &signature[..i]).is_err());
        }
        let mut longer = signature.clone();
        longer.push(0);
        assert!(key.verify(algorithm, &data, &longer).is_err(), "{name}");
    }
}

#[test]
fn private_keys_sign_what_their_public_halves_verify() {
    for name in KEYS {
        let key = private(name);
        assert_eq!(key.public(), &public(name));
        let certified = public(&format!("{name}-cert"));
        for (public, verifier) in [(key.public(), key.public()), (&certified, &certified)] {
            for algorithm in public.algorithms() {
                let signature = key.sign(algorithm, b"data").unwrap();
                let verified = verifier.verify(algorithm, b"data", &signature);
                assert_eq!(verified, Ok(()), "{algorithm}");
                let refused = verifier.verify(algorithm, b"date", &signature);
                assert_eq!(refused, Err(KeyError::BadSignature), "{algorithm}");
            }
        }
    }
}

#[test]
fn every_form_of_a_private_key_is_the_same_key() {
    for key in [
        PrivateKey::from_pkcs8(&pem("rsa.PKCS8")),
        PrivateKey::from_rsa_pkcs1(&pem("rsa.PEM")),
    ] {
        assert_eq!(key.unwrap().public(), &public("rsa"));
    }
    for key in [
        PrivateKey::from_pkcs8(&pem("nistp256.PKCS8")),
        PrivateKey::from_ec_der(&pem("nistp256.PEM")),
    ] {
        assert_eq!(key.unwrap().public(), &public("nistp256"));
    }
    assert!(PrivateKey::from_pkcs8(&pem("rsa.PEM")).is_err());
    assert!(PrivateKey::from_pkcs8(b"").is_err());
}

#[test]
fn private_keys_that_do_not_fit_are_refused() {
    let pem = pem("rsa.PEM");
    let [_, n, e, d, p, q, _, _, iqmp] = der::read_sequence(&pem).unwrap();
    let good = RsaParts {
        n,
        e,
        d,
        iqmp,
        p,
        q,
    };
    assert!(PrivateKey::from_rsa(good).is_ok());
    let swapped = RsaParts { p: q, q: p, ..good };
    let empty = RsaParts { p: &[], ..good };
    let wrong = RsaParts { d: n, ..good };
    for bad in [swapped, empty, wrong] {
        assert!(PrivateKey::from_rsa(bad).is_err());
    }
    let other = PrivateKey::generate_ecdsa("nistp256").unwrap();
    let point = &other.public_blob()[other.public_blob().len() - 65..];
    assert!(PrivateKey::from_ecdsa("nistp256", &[7; 32], point).is_err());
    assert!(PrivateKey::from_ecdsa("nistp256", &[7; 33], point).is_err());
    assert!(PrivateKey::from_ecdsa("nistp224", &[7; 28], point).is_err());
}

#[test]
fn new_keys_sign() {
    for key in [
        PrivateKey::generate_ed25519(),
        PrivateKey::generate_ecdsa("nistp521"),
        PrivateKey::generate_rsa(),
    ] {
        let key = key.unwrap();
        let algorithm = key.public().algorithms()[0];
        let signature = key.sign(algorithm, b"x").unwrap();
        assert_eq!(key.public().verify(algorithm, b"x", &signature), Ok(()));
    }
}

#[test]
fn sha1_is_neither_made_nor_verified() {
    let key = private("rsa");
    let wrong = KeyError::WrongAlgorithm {
        algorithm: "ssh-rsa".to_owned(),
    };
    assert_eq!(key.sign("ssh-rsa", b"x"), Err(wrong.clone()));
    let signature = key.sign("rsa-sha2-256", b"x").unwrap();
    let mut sha1 = string(b"ssh-rsa");
    sha1.extend_from_slice(&signature[4 + 12..]);
    assert_eq!(
        key.public().verify("ssh-rsa", b"x", &sha1),
        Err(wrong.clone())
    );
    assert_eq!(key.public().verify("rsa-sha2-256", b"x", &sha1), Err(wrong));
}

#[test]
fn an_algorithm_of_another_key_or_hash_is_refused() {
    let rsa = private("rsa");
    let sha512 = rsa.sign("rsa-sha2-512", b"x").unwrap();
    assert!(rsa.public().verify("rsa-sha2-256", b"x", &sha512).is_err());
    let certificate_name = "rsa-sha2-512-cert-v01@openssh.com";
    assert!(
        rsa.public()
            .verify(certificate_name, b"x", &sha512)
            .is_err()
    );
    assert!(rsa.sign("ssh-ed25519", b"x").is_err());
    assert!(rsa.sign("", b"x").is_err());
}

/// OpenSSH accepts RSA signatures without their leading zeros (ssh-rsa.c).
#[test]
fn an_rsa_signature_without_leading_zeros_verifies() {
    let key = private("rsa");
    let (data, signature) = (0_u32..)
        .map(|i| i.to_be_bytes())
        .map(|data| (data, key.sign("rsa-sha2-256", &data).unwrap()))
        .find(|(_, signature)| signature[4 + 12 + 4] == 0)
        .unwrap();
    let mut stripped = string(b"rsa-sha2-256");
    stripped.extend(string(&signature[4 + 12 + 4 + 1..]));
    let verified = key.public().verify("rsa-sha2-256", &data, &stripped);
    assert_eq!(verified, Ok(()));
}

#[test]
fn short_rsa_keys_are_refused() {
    let refused = PublicKey::from_blob(&public_blob("rsa1024"));
    assert_eq!(refused.unwrap_err(), KeyError::RsaSize { bits: 1024 });
}

#[test]
fn blobs_cut_or_lengthened_are_refused() {
    for name in KEYS {
        for name in [name.to_owned(), format!("{name}-cert")] {
            let blob = public_blob(&name);
            for len in 0..blob.len() {
                // A blob cut right after the name could be of an unknown type, but not of a known
                // one.
                assert!(PublicKey::from_blob(&blob[..len]).is_err(), "{name} {len}");
            }
            let mut longer = blob.clone();
            longer.push(0);
            assert!(PublicKey::from_blob(&longer).is_err(), "{name}");
        }
    }
}

#[test]
fn a_point_of_another_curve_or_form_is_refused() {
    let blob = public_blob("nistp256");
    let point_at = blob.len() - 65;
    let mut compressed = blob.clone();
    compressed[point_at] = 2;
    assert!(PublicKey::from_blob(&compressed).is_err());
    let mut other = string(b"ecdsa-sha2-nistp384");
    other.extend_from_slice(&blob[4 + 19..]);
    assert!(PublicKey::from_blob(&other).is_err());
    // A point off the curve is detected when it is used.
    let mut off = blob;
    *off.last_mut().unwrap() ^= 1;
    let (_, data, signature) = sshsig("nistp256");
    let refused = PublicKey::from_blob(&off).unwrap();
    let refused = refused.verify("ecdsa-sha2-nistp256", &data, &signature);
    assert_eq!(refused, Err(KeyError::BadSignature));
}

#[test]
fn keys_of_unknown_types_are_kept_for_the_agent() {
    let mut blob = string(b"future@example.org");
    blob.extend_from_slice(b"whatever");
    let key = PublicKey::from_blob(&blob).unwrap();
    assert!(!key.is_usable());
    assert_eq!(key.algorithms(), ["future@example.org"]);
    assert_eq!(key.blob(), blob);
    assert!(key.verify("future@example.org", b"x", b"").is_err());
}

/// Returns a signature as a security key makes it, from an ordinary key of the same kind.
fn security_key(key: &PrivateKey, sk_type: &str, flags: u8, data: &[u8]) -> (PublicKey, Vec<u8>) {
    let application = b"ssh:";
    let plain = key.public_blob();
    let mut blob = string(sk_type.as_bytes());
    blob.extend_from_slice(&plain[4 + key.public().key_type().len()..]);
    blob.extend(string(application));
    let counted = [flags, 0, 0, 0, 9];
    let mut signed = digest::digest(&digest::SHA256, application)
        .as_ref()
        .to_vec();
    signed.extend_from_slice(&counted);
    signed.extend_from_slice(digest::digest(&digest::SHA256, data).as_ref());
    let signature = key.sign(key.public().key_type(), &signed).unwrap();
    let mut sk_signature = string(sk_type.as_bytes());
    sk_signature.extend_from_slice(&signature[4 + key.public().key_type().len()..]);
    sk_signature.extend_from_slice(&counted);
    (PublicKey::from_blob(&blob).unwrap(), sk_signature)
}

#[test]
fn signatures_of_security_keys_verify() {
    for (name, sk_type) in [
        ("ed25519", "sk-ssh-ed25519@openssh.com"),
        ("nistp256", "sk-ecdsa-sha2-nistp256@openssh.com"),
    ] {
        let (key, signature) = security_key(&private(name), sk_type, 5, b"data");
        assert_eq!(key.verify(sk_type, b"data", &signature), Ok(()), "{name}");
        assert!(key.verify(sk_type, b"date", &signature).is_err());
        for (flags, present, verified) in [(0, false, false), (1, true, false), (5, true, true)] {
            let (key, signature) = security_key(&private(name), sk_type, flags, b"data");
            let touch = key.verify_touch(sk_type, b"data", &signature);
            assert_eq!(touch, Ok(Some(SecurityKeyFlags { present, verified })));
        }
        let mut other_counter = signature.clone();
        *other_counter.last_mut().unwrap() ^= 1;
        assert!(key.verify(sk_type, b"data", &other_counter).is_err());
    }
}

#[test]
fn the_table_has_no_name_twice_and_no_sha1() {
    for (i, row) in HOST_KEY_ALGORITHMS.iter().enumerate() {
        assert_eq!(algorithm(row.name), Some(row));
        assert!(
            HOST_KEY_ALGORITHMS[i + 1..]
                .iter()
                .all(|r| r.name != row.name)
        );
        assert_ne!(row.signature, "ssh-rsa");
        assert_eq!(row.is_certificate(), row.name.contains("-cert-"));
    }
}

#[test]
fn bits_of_a_modulus_are_told_of_rsa_alone() {
    for (name, bits) in [("ed25519", false), ("nistp256", false), ("rsa", true)] {
        assert_eq!(public(name).rsa_bits().is_some(), bits, "{name}");
    }
    let made = PrivateKey::generate_rsa().unwrap();
    assert_eq!(made.public().rsa_bits(), Some(3072));
}
