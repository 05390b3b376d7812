use zeroize::Zeroizing;

use super::der;

/// Numbers of an RSA key as in OpenSSH's private key format, big-endian, with or without leading
/// zeros.
#[derive(Clone, Copy)]
pub struct RsaParts<'a> {
    /// Modulus.
    pub n: &'a [u8],
    /// Public exponent.
    pub e: &'a [u8],
    /// Private exponent.
    pub d: &'a [u8],
    /// Inverse of `q` modulo `p`.
    pub iqmp: &'a [u8],
    /// First prime.
    pub p: &'a [u8],
    /// Second prime.
    pub q: &'a [u8],
}

impl RsaParts<'_> {
    /// Encodes the key as an RSAPrivateKey (RFC 8017 appendix A.1.2), which also has `d` modulo `p
    /// - 1` and `q - 1`. The decoder has to check that the numbers match.
    pub(super) fn to_pkcs1(self) -> Zeroizing<Vec<u8>> {
        let dp = remainder(self.d, self.p);
        let dq = remainder(self.d, self.q);
        let Self {
            n,
            e,
            d,
            iqmp,
            p,
            q,
        } = self;
        der::sequence(&[&[0], n, e, d, p, q, &dp, &dq, iqmp])
    }
}

/// Computes `d` modulo `prime - 1` for an odd `prime`, by binary long division. Time and memory
/// accesses depend only on the lengths, not on the secret numbers.
fn remainder(d: &[u8], prime: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut divisor = Zeroizing::new(Vec::with_capacity(prime.len() + 1));
    // One more byte, since twice the remainder may need another bit.
    divisor.push(0);
    divisor.extend_from_slice(prime);
    if let Some(last) = divisor.last_mut() {
        *last &= 0xfe;
    }
    let mut remainder = Zeroizing::new(vec![0; divisor.len()]);
    let mut less = Zeroizing::new(vec![0; divisor.len()]);
    for bit in d
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |i| byte >> i & 1))
    {
        let mut carry = bit;
        for byte in remainder.iter_mut().rev() {
            (*byte, carry) = (*byte << 1 | carry, *byte >> 7);
        }
        let mut borrow = 0;
        let pairs = remainder.iter().zip(divisor.iter()).rev();
        for (out, (a, b)) in less.iter_mut().rev().zip(pairs) {
            let difference = u16::from(*a).wrapping_sub(u16::from(*b) + borrow);
            *out = difference as u8;
            borrow = difference >> 15;
        }
        // All ones if the divisor was larger, which keeps the remainder.
        let keep = 0_u8.wrapping_sub(borrow as u8);
        for (byte, less) in remainder.iter_mut().zip(less.iter()) {
            *byte = (*byte & keep) | (*less & !keep);
        }
    }
    remainder
}

#[cfg(test)]
mod tests {
    use super::remainder;

    #[test]
    fn remainders_are_those_of_integers() {
        for (d, prime) in [
            (0_u64, 3_u64),
            (1, 3),
            (2, 3),
            (65537, 257),
            (u64::MAX, 0xffff_fffb),
        ] {
            for prime_len in [4, 8] {
                let prime_bytes = prime.to_be_bytes();
                let got = remainder(&d.to_be_bytes(), &prime_bytes[8 - prime_len..]);
                let got = got.iter().fold(0, |n, b| n << 8 | u64::from(*b));
                assert_eq!(got, d % (prime - 1), "{d} {prime}");
            }
        }
    }
}
