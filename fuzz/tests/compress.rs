//! Fuzzes zlib data from a peer: output never exceeds the limit, and compressed data decompresses
//! to its original.

use fuzz::{mutate, parse, some_bytes};
use ssh::compress::{Deflate, Inflate};

#[test]
fn inflated_bytes_stay_within_the_limit() {
    parse(16 * 1024, |u| {
        let limit = u.int_in_range(0..=40_000)?;
        let mut inflate = Inflate::new(limit);
        let mut deflate = Deflate::new();
        for _ in 0..u.int_in_range(1..=6)? {
            let payload = match u.ratio(1, 4)? {
                true => vec![u.arbitrary()?; u.int_in_range(0..=300_000)?],
                false => some_bytes(u)?,
            };
            let mut packet = Vec::new();
            deflate.deflate(&payload, &mut packet).expect("deflates");
            let sent = match u.int_in_range(0..=3)? {
                0 => mutate(u, &packet)?,
                1 => some_bytes(u)?,
                _ => packet.clone(),
            };
            let mut out = Vec::new();
            let result = inflate.inflate(&sent, &mut out);
            assert!(out.len() <= limit, "{} of {limit}", out.len());
            if sent != packet {
                return Ok(());
            }
            assert_eq!(result.is_ok(), payload.len() <= limit);
            if result.is_err() {
                return Ok(());
            }
            assert!(out == payload);
        }
        Ok(())
    });
}
