use super::*;

const INPUTS: ExchangeHashInputs<'_> = ExchangeHashInputs {
    v_c: b"SSH-2.0-client",
    v_s: b"SSH-2.0-server",
    i_c: b"\x14client",
    i_s: b"\x14server",
    k_s: b"host key",
    init: b"init",
    reply: b"reply",
};

#[test]
fn both_sides_arrive_at_the_same_secret() {
    for method in KEX_METHODS {
        let (client, init) = ClientKeyExchange::start(method).unwrap();
        let (reply, servers) = respond(method, &init).unwrap();
        let clients = client.finish(&reply).unwrap();
        assert_eq!(clients.encoded(), servers.encoded(), "{}", method.name);
        let hash = exchange_hash(method, INPUTS, &clients);
        assert_eq!(hash.len(), method.hash_len());
        assert_eq!(hash, exchange_hash(method, INPUTS, &servers));
    }
}

#[test]
fn two_exchanges_share_nothing() {
    for method in KEX_METHODS {
        let (_, first) = ClientKeyExchange::start(method).unwrap();
        let (_, second) = ClientKeyExchange::start(method).unwrap();
        assert_ne!(first, second, "{}", method.name);
        let (reply, secret) = respond(method, &first).unwrap();
        let (other_reply, other_secret) = respond(method, &first).unwrap();
        assert_ne!(reply, other_reply, "{}", method.name);
        assert_ne!(secret.encoded(), other_secret.encoded(), "{}", method.name);
    }
}

#[test]
fn values_of_a_wrong_length_are_refused_by_both_sides() {
    for method in KEX_METHODS {
        let (_, init) = ClientKeyExchange::start(method).unwrap();
        let (reply, _) = respond(method, &init).unwrap();
        let wrong = |value: &[u8]| {
            let mut longer = value.to_vec();
            longer.push(0);
            [vec![], value[..32.min(value.len() - 1)].to_vec(), longer]
                .into_iter()
                .chain([value[..value.len() - 1].to_vec(), value[1..].to_vec()])
        };
        for init in wrong(&init) {
            let got = init.len();
            let refused = respond(method, &init).unwrap_err();
            assert!(
                matches!(refused, KexError::WrongLength { got: g, .. } if g == got),
                "{} {got}: {refused:?}",
                method.name
            );
        }
        for reply in wrong(&reply) {
            let (client, _) = ClientKeyExchange::start(method).unwrap();
            assert!(matches!(
                client.finish(&reply),
                Err(KexError::WrongLength { .. })
            ));
        }
    }
}

/// Points of small order give the all-zero secret (RFC 7748 section 6.1).
#[test]
fn x25519_points_of_small_order_are_refused() {
    let mut one = [0; 32];
    one[0] = 1;
    // A point of order 8, from the list in RFC 8731's reference on contributory behaviour.
    let eight = [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4,
        0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49,
        0xb8, 0x00,
    ];
    for method in KEX_METHODS.iter().filter(|m| m.name.contains("25519")) {
        for point in [[0; 32], one, eight] {
            let (client, mut init) = ClientKeyExchange::start(method).unwrap();
            let (mut reply, _) = respond(method, &init).unwrap();
            let end = reply.len() - 32;
            reply[end..].copy_from_slice(&point);
            assert_eq!(client.finish(&reply).unwrap_err(), KexError::BadPoint);
            let end = init.len() - 32;
            init[end..].copy_from_slice(&point);
            assert_eq!(respond(method, &init).unwrap_err(), KexError::BadPoint);
        }
    }
}

#[test]
fn points_off_the_curve_or_in_another_form_are_refused() {
    for method in KEX_METHODS.iter().filter(|m| m.name.contains("nistp")) {
        let (_, init) = ClientKeyExchange::start(method).unwrap();
        let coordinate = (init.len() - 1) / 2;
        let mut off = init.clone();
        off[2 * coordinate] ^= 1;
        let mut hybrid_form = init.clone();
        hybrid_form[0] = 6 | (init[2 * coordinate] & 1);
        let mut zero = vec![0; init.len()];
        zero[0] = 4;
        let mut too_large = vec![0xff; init.len()];
        too_large[0] = 4;
        for bad in [off, hybrid_form, zero, too_large] {
            assert_eq!(
                respond(method, &bad).unwrap_err(),
                KexError::BadPoint,
                "{}",
                method.name
            );
        }
        let mut compressed = init[..=coordinate].to_vec();
        compressed[0] = 2 | (init[2 * coordinate] & 1);
        assert!(respond(method, &compressed).is_err(), "{}", method.name);
    }
}

/// A coefficient of 3329 or more is refused before encapsulation (FIPS 203 section 7.2).
#[test]
fn an_ml_kem_key_that_is_not_reduced_is_refused() {
    let method = method("mlkem768x25519-sha256").unwrap();
    let (_, mut init) = ClientKeyExchange::start(method).unwrap();
    init[..3].copy_from_slice(&[0xff; 3]);
    assert_eq!(
        respond(method, &init).unwrap_err(),
        KexError::BadEncapsulation
    );
}

#[test]
fn a_forged_ciphertext_gives_another_secret() {
    for method in KEX_METHODS.iter().filter(|m| m.is_post_quantum()) {
        let (client, init) = ClientKeyExchange::start(method).unwrap();
        let (mut reply, servers) = respond(method, &init).unwrap();
        reply[10] ^= 1;
        let clients = client.finish(&reply).unwrap();
        assert_ne!(clients.encoded(), servers.encoded(), "{}", method.name);
    }
}

#[test]
fn every_input_changes_the_exchange_hash() {
    let method = method("curve25519-sha256").unwrap();
    let secret = SharedSecret::from_mpint(&[0x80, 1]);
    let hash = |inputs| exchange_hash(method, inputs, &secret);
    let hashes = std::collections::BTreeSet::from([
        hash(INPUTS),
        hash(ExchangeHashInputs { v_c: b"", ..INPUTS }),
        hash(ExchangeHashInputs { v_s: b"", ..INPUTS }),
        hash(ExchangeHashInputs { i_c: b"", ..INPUTS }),
        hash(ExchangeHashInputs { i_s: b"", ..INPUTS }),
        hash(ExchangeHashInputs { k_s: b"", ..INPUTS }),
        hash(ExchangeHashInputs {
            init: b"",
            ..INPUTS
        }),
        hash(ExchangeHashInputs {
            reply: b"",
            ..INPUTS
        }),
        exchange_hash(method, INPUTS, &SharedSecret::from_string(&[0x80, 1])),
    ]);
    assert_eq!(hashes.len(), 9);
}

/// The hybrid methods' K is a string even if its first bit is set, the others' is an mpint.
#[test]
fn the_secret_is_encoded_as_its_method_says() {
    assert_eq!(
        SharedSecret::from_mpint(&[0x80]).encoded(),
        [0, 0, 0, 2, 0, 0x80]
    );
    assert_eq!(
        SharedSecret::from_mpint(&[0, 0, 7]).encoded(),
        [0, 0, 0, 1, 7]
    );
    assert_eq!(
        SharedSecret::from_string(&[0x80]).encoded(),
        [0, 0, 0, 1, 0x80]
    );
    let len = |name| {
        let method = method(name).unwrap();
        let (_, init) = ClientKeyExchange::start(method).unwrap();
        respond(method, &init).unwrap().1.encoded().len()
    };
    assert_eq!(len("mlkem768x25519-sha256"), 4 + 32);
    assert_eq!(len("sntrup761x25519-sha512"), 4 + 64);
}

/// Compares with hashes and keys that tests/fixtures/cipher/make.py made.
#[test]
fn keys_are_derived_as_another_implementation_derives_them() {
    let secret: Vec<u8> = (0x81..0x81 + 32).collect();
    let vectors = include_str!("../../tests/fixtures/cipher/derived.txt");
    for line in vectors.lines() {
        let [name, hash, key] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let method = method(name).unwrap();
        let secret = if method.is_post_quantum() {
            SharedSecret::from_string(&secret)
        } else {
            SharedSecret::from_mpint(&secret)
        };
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let h = exchange_hash(method, INPUTS, &secret);
        assert_eq!(hex(&h), hash, "{name}");
        for len in [0, 1, 31, 32, 33, 64, 65, 200] {
            let derived = derive(method, &secret, &h, b"session", b'C', len);
            assert_eq!(hex(&derived), key[..2 * len], "{name} {len}");
        }
    }
    assert_eq!(vectors.lines().count(), 4);
}

#[test]
fn each_direction_has_keys_of_its_own() {
    use crate::cipher::{CIPHERS, MACS};
    let method = &KEX_METHODS[0];
    let secret = SharedSecret::from_string(&[7; 32]);
    let cipher = CIPHERS.iter().find(|c| c.name == "aes256-ctr").unwrap();
    let keys = |direction| {
        derive_keys(
            method,
            &secret,
            b"hash",
            b"session",
            direction,
            cipher,
            MACS.first(),
        )
    };
    let expected = |letter, len| derive(method, &secret, b"hash", b"session", letter, len);
    let to_server = keys(KeyDirection::ToServer);
    assert_eq!(to_server.iv, *expected(b'A', 16));
    assert_eq!(to_server.key, *expected(b'C', 32));
    assert_eq!(to_server.mac_key, *expected(b'E', 32));
    let to_client = keys(KeyDirection::ToClient);
    assert_eq!(to_client.iv, *expected(b'B', 16));
    assert_eq!(to_client.key, *expected(b'D', 32));
    assert_eq!(to_client.mac_key, *expected(b'F', 32));
}
