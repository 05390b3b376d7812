use super::*;

/// Returns every cipher with every MAC that it can have.
fn suites() -> Vec<(&'static CipherSpec, Option<&'static MacSpec>)> {
    let mut all = Vec::new();
    for cipher in CIPHERS {
        if cipher.is_aead() {
            all.push((cipher, None));
        } else {
            all.extend(MACS.iter().map(|mac| (cipher, Some(mac))));
        }
    }
    assert_eq!(all.len(), 3 + 3 * 4);
    all
}

fn material(cipher: &CipherSpec, mac: Option<&MacSpec>) -> KeyMaterial {
    let bytes = |n: usize, from: u8| (0..n).map(|i| from.wrapping_add(i as u8)).collect();
    KeyMaterial {
        iv: bytes(cipher.iv_len, 0xf3),
        key: bytes(cipher.key_len, 0x11),
        mac_key: bytes(mac.map_or(0, |m| m.key_len), 0x71),
    }
}

fn keys() -> Vec<(String, SealingKey, OpeningKey)> {
    let mut all = vec![("none".to_owned(), SealingKey::plain(), OpeningKey::plain())];
    for (cipher, mac) in suites() {
        let name = format!("{} {}", cipher.name, mac.map_or("", |m| m.name));
        let keys = material(cipher, mac);
        let sealing = SealingKey::new(cipher, mac, &keys).unwrap();
        let opening = OpeningKey::new(cipher, mac, &keys).unwrap();
        all.push((name, sealing, opening));
    }
    all
}

fn lay_out(framing: PacketFraming, payload: &[u8]) -> Vec<u8> {
    let mut packet = framing.head(payload.len()).unwrap().to_vec();
    packet.extend_from_slice(payload);
    packet.resize(framing.packet_len(payload.len()), 0xbb);
    packet
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7) as u8).collect()
}

fn somewhere() -> PacketPosition {
    PacketPosition {
        sequence: u32::MAX - 3,
        packets: 70_000,
        bytes: 16 * 123_456_789,
    }
}

#[test]
fn keys_can_be_shared_by_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<SealingKey>();
    shared::<OpeningKey>();
}

#[test]
fn what_was_sealed_opens_at_every_length() {
    for (name, sealing, opening) in keys() {
        let framing = sealing.framing();
        let mut at = somewhere();
        for len in (0..=600).chain([32768 + 9, 255 * 1024]) {
            let payload = payload(len);
            let mut packet = lay_out(framing, &payload);
            sealing.seal(at, &mut packet).unwrap();
            if name != "none" && len > 40 {
                assert!(!packet.windows(16).any(|w| w == &payload[..16]), "{name}");
            }
            let head = &packet[..opening.head_len()];
            assert_eq!(opening.peek_length(at, head), Ok(packet.len()), "{name}");
            let range = opening.open(at, &mut packet).unwrap();
            assert_eq!(&packet[range], &payload[..], "{name} {len}");
            framing.advance(&mut at, packet.len());
        }
    }
}

#[test]
fn padding_is_the_least_that_is_legal() {
    for (name, sealing, _) in keys() {
        let framing = sealing.framing();
        for len in 0..200 {
            let padding = framing.padding(len);
            let whole = 5 + len + padding;
            let aligned = |padding: usize| {
                (5 + len + padding - framing.aligned_from()).is_multiple_of(framing.block_len())
            };
            assert!(
                (4..32).contains(&padding) && whole >= 16 && aligned(padding),
                "{name}"
            );
            assert!(
                (4..padding).all(|p| !aligned(p) || 5 + len + p < 16),
                "{name}: {padding} for {len} is not the least"
            );
        }
    }
}

#[test]
fn a_changed_byte_anywhere_is_refused() {
    for (name, sealing, opening) in keys().into_iter().skip(1) {
        let at = somewhere();
        let mut packet = lay_out(sealing.framing(), &payload(50));
        sealing.seal(at, &mut packet).unwrap();
        for i in 0..packet.len() {
            for bit in [1, 0x80] {
                let mut changed = packet.clone();
                changed[i] ^= bit;
                // A changed length is detected when it is read, or changes the packet's size, or
                // fails the tag.
                assert!(opening.open(at, &mut changed).is_err(), "{name} byte {i}");
            }
        }
        for len in 0..packet.len() {
            assert!(opening.open(at, &mut packet[..len].to_vec()).is_err());
        }
        packet.push(0);
        assert!(opening.open(at, &mut packet).is_err(), "{name}");
    }
}

#[test]
fn a_length_changed_together_with_the_buffer_is_refused() {
    for (name, sealing, opening) in keys().into_iter().skip(1) {
        let at = somewhere();
        let mut packet = lay_out(sealing.framing(), &payload(200));
        sealing.seal(at, &mut packet).unwrap();
        for bit in 0..32 {
            let mut changed = packet.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            if let Ok(len) = opening.peek_length(at, &changed) {
                changed.resize(len, 0);
                assert!(opening.open(at, &mut changed).is_err(), "{name} bit {bit}");
            }
        }
    }
}

#[test]
fn a_packet_out_of_its_place_is_refused() {
    for (name, sealing, opening) in keys().into_iter().skip(1) {
        let framing = sealing.framing();
        let at = somewhere();
        let mut packet = lay_out(framing, &payload(50));
        sealing.seal(at, &mut packet).unwrap();
        let mut later = at;
        framing.advance(&mut later, packet.len());
        assert!(opening.open(later, &mut packet.clone()).is_err(), "{name}");
        assert!(
            opening
                .open(PacketPosition::default(), &mut packet)
                .is_err(),
            "{name}"
        );
    }
}

#[test]
fn position_moves_by_the_enciphered_bytes() {
    for (name, sealing, _) in keys() {
        let framing = sealing.framing();
        let mut at = PacketPosition {
            sequence: u32::MAX,
            ..PacketPosition::default()
        };
        framing.advance(&mut at, framing.packet_len(100));
        let apart = !name.contains("none") && (!name.contains("ctr") || name.contains("etm"));
        let body = 5 + 100 + framing.padding(100) - if apart { 4 } else { 0 };
        let expected = PacketPosition {
            sequence: 0,
            packets: 1,
            bytes: body as u64,
        };
        assert_eq!(at, expected, "{name}");
    }
}

#[test]
fn lengths_out_of_bounds_are_refused_before_anything_is_received() {
    let opening = OpeningKey::plain();
    for length in [0, 1, 4, 5, 11, 13, MAX_PACKET_LENGTH as u32 + 4, u32::MAX] {
        let peeked = opening.peek_length(PacketPosition::default(), &length.to_be_bytes());
        let expected = PacketOpenError::BadLength {
            packet_length: length,
        };
        assert_eq!(peeked, Err(expected));
    }
    assert_eq!(
        opening.peek_length(PacketPosition::default(), &[0, 0, 0, 12]),
        Ok(16)
    );
    let short = PacketOpenError::Short { needed: 4, got: 3 };
    assert_eq!(
        opening.peek_length(PacketPosition::default(), &[0; 3]),
        Err(short)
    );
}

#[test]
fn padding_that_does_not_fit_is_refused() {
    let opening = OpeningKey::plain();
    for (padding_length, fits) in [(0, false), (3, false), (4, true), (11, true), (12, false)] {
        let mut packet = [0; 16];
        packet[3] = 12;
        packet[4] = padding_length;
        let opened = opening.open(PacketPosition::default(), &mut packet);
        if fits {
            assert_eq!(opened, Ok(5..16 - usize::from(padding_length)));
        } else {
            assert_eq!(opened, Err(PacketOpenError::BadPadding { padding_length }));
        }
    }
}

#[test]
fn a_buffer_that_is_no_packet_is_not_sealed() {
    for (name, sealing, _) in keys() {
        for len in [0, 3, 4, 5, 20] {
            let mut packet = vec![0; len];
            let refused = Err(PacketSealError::BadLayout { len });
            assert_eq!(
                sealing.seal(PacketPosition::default(), &mut packet),
                refused,
                "{name}"
            );
        }
        assert!(sealing.framing().head(MAX_PACKET_LENGTH).is_err());
    }
}

#[test]
fn key_material_of_a_wrong_length_is_refused() {
    for (cipher, mac) in suites() {
        let good = material(cipher, mac);
        let mut short = good.clone();
        short.key.pop();
        assert!(SealingKey::new(cipher, mac, &short).is_err());
        assert!(OpeningKey::new(cipher, mac, &short).is_err());
        let mut long = good.clone();
        long.iv.push(0);
        assert!(SealingKey::new(cipher, mac, &long).is_err());
        let other_mac = if mac.is_some() { None } else { MACS.first() };
        assert!(SealingKey::new(cipher, other_mac, &good).is_err());
        if mac.is_some() {
            let mut short = good.clone();
            short.mac_key.pop();
            assert!(OpeningKey::new(cipher, mac, &short).is_err());
        }
    }
}

#[test]
fn the_order_of_ciphers_follows_the_processor() {
    let with = preferred_order(true);
    let without = preferred_order(false);
    assert_eq!(with.first(), Some(&"aes128-gcm@openssh.com"));
    assert_eq!(without.first(), Some(&"chacha20-poly1305@openssh.com"));
    assert_eq!(with.len(), CIPHERS.len());
    assert_eq!(without.len(), CIPHERS.len());
    assert!(with.iter().all(|name| cipher(name).is_some()));
    assert!(cipher("none").is_none() && mac("none").is_none());
}

/// Compares with packets that tests/fixtures/cipher/make.py sealed with another library.
#[test]
fn packets_are_sealed_as_another_implementation_seals_them() {
    let at = PacketPosition {
        sequence: 0xffff_fffe,
        packets: 70_000,
        bytes: 16 * 123_456_789,
    };
    let payload: Vec<u8> = (0..40).collect();
    let vectors = include_str!("../../tests/fixtures/cipher/sealed.txt");
    let mut seen = 0;
    for line in vectors.lines() {
        let [name, mac_name, expected] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let (cipher, mac) = (cipher(name).unwrap(), mac(mac_name));
        let keys = material(cipher, mac);
        let sealing = SealingKey::new(cipher, mac, &keys).unwrap();
        let mut packet = lay_out(sealing.framing(), &payload);
        sealing.seal(at, &mut packet).unwrap();
        let hex: String = packet.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, expected, "{name} {mac_name}");
        seen += 1;
    }
    assert_eq!(seen, suites().len());
}

#[test]
fn what_is_sealed_from_elsewhere_is_what_is_sealed_where_it_lies() {
    let mut able = 0;
    for (name, sealing, _) in keys() {
        for len in [0, 1, 15, 16, 17, 1000, 40_000] {
            let mut whole = lay_out(sealing.framing(), &payload(len));
            let tag_len = sealing.framing().tag_len();
            for inside in [5, 6, 20, 21, 33] {
                if inside > whole.len() - tag_len {
                    continue;
                }
                let mut head = whole[..inside].to_vec();
                let from = &whole[inside..whole.len() - tag_len];
                let mut to = vec![0; from.len() + tag_len];
                let sealed = sealing.seal_from(somewhere(), &mut head, from, &mut to);
                assert_eq!(sealed.is_ok(), sealing.seals_from_elsewhere(), "{name}");
                if sealed.is_ok() {
                    able += 1;
                    let mut there = whole.clone();
                    sealing.seal(somewhere(), &mut there).unwrap();
                    assert!([head, to].concat() == there, "{name} {len} {inside}");
                }
            }
            // Lengths that do not match.
            whole.push(0);
            let (head, rest) = whole.split_at_mut(5);
            let mut to = vec![0; rest.len()];
            for from in [&rest[..rest.len() - 1], &rest[..0], rest] {
                let (from, mut head) = (from.to_vec(), head.to_vec());
                let bad = sealing.seal_from(somewhere(), &mut head, &from, &mut to);
                assert!(bad.is_err(), "{name} {len}");
            }
        }
    }
    assert!(able > 50);
}
