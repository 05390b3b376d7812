//! The part of DER (X.690) that RSA keys need: a SEQUENCE of non-negative INTEGERs.

use zeroize::Zeroizing;

const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;

/// Encodes a SEQUENCE of `integers`, each big-endian with or without leading zeros. Zeroed when
/// dropped.
pub(super) fn sequence(integers: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    // Full capacity at once: a growing vector leaves copies behind that are not zeroed.
    let room = integers.iter().map(|i| i.len() + 8).sum();
    let mut body = Zeroizing::new(Vec::with_capacity(room));
    for integer in integers {
        let zeros = integer.iter().take_while(|b| **b == 0).count();
        let magnitude = integer.get(zeros..).unwrap_or_default();
        let pad = magnitude.first().is_none_or(|b| *b >= 0x80);
        header(&mut body, INTEGER, magnitude.len() + usize::from(pad));
        if pad {
            body.push(0);
        }
        body.extend_from_slice(magnitude);
    }
    let mut whole = Zeroizing::new(Vec::with_capacity(room + 8));
    header(&mut whole, SEQUENCE, body.len());
    whole.extend_from_slice(&body);
    whole
}

fn header(out: &mut Vec<u8>, tag: u8, len: usize) {
    out.push(tag);
    let bytes = len.to_be_bytes();
    let zeros = bytes.iter().take_while(|b| **b == 0).count();
    let short = bytes.get(zeros..).unwrap_or_default();
    match short {
        [] => out.push(0),
        [one] if *one < 0x80 => out.push(*one),
        several => {
            out.push(0x80 | several.len() as u8);
            out.extend_from_slice(several);
        }
    }
}

/// Decodes a SEQUENCE of exactly `N` INTEGERs; returns them big-endian.
pub(super) fn read_sequence<const N: usize>(der: &[u8]) -> Option<[&[u8]; N]> {
    let (mut body, rest) = read(der, SEQUENCE)?;
    let mut integers = [&[][..]; N];
    for integer in &mut integers {
        (*integer, body) = read(body, INTEGER)?;
    }
    (rest.is_empty() && body.is_empty()).then_some(integers)
}

/// Returns the content of the first element, which must have `tag`, and the bytes behind it.
fn read(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let [found, first, rest @ ..] = der else {
        return None;
    };
    let (len, rest) = match first {
        0..0x80 => (usize::from(*first), rest),
        _ => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            if bytes.len() > 4 {
                return None;
            }
            let len = bytes.iter().fold(0, |n, b| n << 8 | usize::from(*b));
            (len, rest)
        }
    };
    rest.split_at_checked(len).filter(|_| *found == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back() {
        let long = vec![0x91; 300];
        let der = sequence(&[&[], &[0, 0, 5], &[0x80], &long]);
        assert_eq!(der[..4], [SEQUENCE, 0x82, 1, 59]);
        let [zero, five, high, back] = read_sequence(&der).unwrap();
        assert_eq!((zero, five, high), (&[0][..], &[5][..], &[0, 0x80][..]));
        assert_eq!(back[1..], long[..]);
        assert!(read_sequence::<3>(&der).is_none());
        for len in 0..der.len() {
            assert!(read_sequence::<4>(&der[..len]).is_none());
        }
    }
}
