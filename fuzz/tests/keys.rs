//! Fuzzes public keys, certificates, signatures and key exchange replies from a peer.

use std::sync::Arc;

use fuzz::{Corpus, assert_shown_safely, mutate, parse, some_bytes};
use ssh::kex::{ClientKeyExchange, KEX_METHODS, respond};
use ssh::key::{CertificateError, HOST_KEY_ALGORITHMS, PrivateKey, PublicKey};
use testkit::certificate::Terms;

fn keys() -> Vec<PrivateKey> {
    let mut keys = vec![PrivateKey::from_ed25519_seed(&[1; 32]).expect("a key")];
    for curve in ["nistp256", "nistp384", "nistp521"] {
        keys.push(PrivateKey::generate_ecdsa(curve).expect("a key"));
    }
    keys.push(PrivateKey::generate_rsa().expect("a key"));
    keys
}

#[test]
fn blobs_and_certificates() {
    let keys = keys();
    let authority = keys[0].public();
    let (mut corpus, mut lens) = (Vec::new(), Vec::new());
    for key in &keys {
        corpus.push(("key", key.public_blob().to_vec()));
        let blob = Terms::host(&["host"]).sign(key.public(), &keys[0]);
        let read = PublicKey::from_blob(&blob).expect("a sound certificate");
        let sound = read.certificate().expect("a certificate");
        sound.verify_signature().expect("a sound signature");
        lens.push(sound.signed_len());
        PublicKey::from_signed_blob(&blob, sound.signed_len(), authority).expect("the same");
        corpus.push(("certificate", blob));
    }
    let sound: Vec<Vec<u8>> = corpus.iter().map(|(_, b)| b.clone()).collect();
    let corpus = Corpus(corpus);
    parse(2048, |u| {
        let blob = match u.ratio(1, 8)? {
            true => some_bytes(u)?,
            false => corpus.mutant(u)?,
        };
        // As a server reads a certificate: it parses only what the authority has signed.
        let len = match u.ratio(1, 4)? {
            true => u.int_in_range(0..=blob.len() + 1)?,
            false => *u.choose(&lens)?,
        };
        if let Ok(opened) = PublicKey::from_signed_blob(&blob, len, authority) {
            assert!(sound.contains(&blob), "forged");
            let certificate = opened.certificate().expect("nothing else is opened");
            let refused = certificate.validate_user(&["host"], 5, |_| true);
            assert_eq!(refused, Err(CertificateError::NotAUser));
        }
        let Ok(key) = PublicKey::from_blob(&blob) else {
            return Ok(());
        };
        assert_eq!(key.blob(), blob);
        assert!(key.fingerprint().starts_with("SHA256:"));
        let _ = key.algorithms();
        if let Some(certificate) = key.certificate() {
            let verified = certificate.verify_signature();
            assert!(verified.is_err() || sound.contains(&blob), "forged");
            let trusted = certificate.validate_host("host", 5, |_| true);
            assert!(trusted.is_err() || verified.is_ok());
            let user = certificate.validate_user(&["host"], 5, |_| true);
            assert!(user.is_err(), "a host's certificate lets a user in");
            assert!(certificate.key().certificate().is_none());
        }
        Ok(())
    });
}

#[test]
fn signatures() {
    const DATA: &[u8] = b"what was signed";
    let mut signed = Vec::new();
    for key in keys() {
        let algorithms: Vec<String> = key
            .public()
            .algorithms()
            .iter()
            .map(|a| (*a).into())
            .collect();
        for algorithm in algorithms {
            let signature = key.sign(&algorithm, DATA).expect("a signature");
            assert_eq!(key.public().verify(&algorithm, DATA, &signature), Ok(()));
            signed.push((key.public().clone(), algorithm, signature));
        }
    }
    parse(1024, |u| {
        let (key, algorithm, signature) = u.choose(&signed)?;
        let other = u.choose(HOST_KEY_ALGORITHMS)?.name;
        let claimed = if u.ratio(1, 4)? { other } else { algorithm };
        let forged = match u.ratio(1, 8)? {
            true => some_bytes(u)?,
            false => mutate(u, signature)?,
        };
        let result = key.verify(claimed, DATA, &forged);
        // An ECDSA signature has a second form (r, n - s), which no mutation here produces.
        let same = forged == *signature && claimed == algorithm;
        assert_eq!(result.is_ok(), same, "{claimed}: {result:?}");
        if let Err(error) = result {
            assert_shown_safely(&error.to_string(), false);
        }
        Ok(())
    });
}

#[test]
fn key_exchange_values() {
    let methods: Vec<_> = KEX_METHODS.iter().collect();
    let mut corpus = Vec::new();
    for method in &methods {
        let (_, init) = ClientKeyExchange::start(method).expect("a client");
        let (reply, _) = respond(method, &init).expect("a server");
        corpus.push((*method, init, reply));
    }
    let corpus = Arc::new(corpus);
    parse(2048, |u| {
        let (method, init, reply) = u.choose(&corpus)?;
        let (init, reply) = match u.ratio(1, 8)? {
            true => (some_bytes(u)?, some_bytes(u)?),
            false => (mutate(u, init)?, mutate(u, reply)?),
        };
        if let Ok((client, _)) = ClientKeyExchange::start(method) {
            let _ = client.finish(&reply);
        }
        let _ = respond(method, &init);
        Ok(())
    });
}

#[test]
fn private_keys_in_der() {
    let rsa = include_bytes!("corpus/rsa.pkcs1.der");
    let ec = include_bytes!("corpus/ec.sec1.der");
    let pkcs8 = include_bytes!("corpus/ed25519.pkcs8.der");
    let corpus = Corpus(vec![
        ("PKCS#1", rsa.to_vec()),
        ("SEC 1", ec.to_vec()),
        ("PKCS#8", pkcs8.to_vec()),
    ]);
    assert!(PrivateKey::from_rsa_pkcs1(rsa).is_ok());
    assert!(PrivateKey::from_ec_der(ec).is_ok());
    assert!(PrivateKey::from_pkcs8(pkcs8).is_ok());
    parse(512, |u| {
        let der = corpus.mutant(u)?;
        for key in [
            PrivateKey::from_rsa_pkcs1(&der),
            PrivateKey::from_ec_der(&der),
            PrivateKey::from_pkcs8(&der),
        ]
        .into_iter()
        .flatten()
        {
            let _ = key.public().fingerprint();
        }
        Ok(())
    });
}
