/// The ones' complement sum of 16-bit words (RFC 1071), not yet folded.
pub(super) fn sum(bytes: &[u8]) -> u32 {
    let mut words = bytes.chunks_exact(2);
    let mut sum: u32 = words
        .by_ref()
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    if let [last] = words.remainder() {
        sum += u32::from(*last) << 8;
    }
    sum
}

/// Folds the carries into 16 bits.
pub(super) fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The checksum after one of the words it covers has changed (RFC 1624, equation 3).
pub(super) fn replace_word(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(u32::from(!checksum) + u32::from(!old) + u32::from(new))
}

/// The sum, not the checksum, after one of its words has changed, as in a partial checksum.
pub(super) fn replace_in_sum(sum: u16, old: u16, new: u16) -> u16 {
    fold(u32::from(sum) + u32::from(!old) + u32::from(new))
}

/// The checksum of `bytes`, with `pseudo` as the sum of a pseudo header.
pub(super) fn checksum(pseudo: u32, bytes: &[u8]) -> u16 {
    !fold(pseudo + sum(bytes))
}
