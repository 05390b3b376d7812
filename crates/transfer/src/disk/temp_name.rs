use aws_lc_rs::rand;

/// A new name beside the file of this name, as lanes give it.
pub(crate) fn temp_name(name: &[u8]) -> Vec<u8> {
    schedule::temp_name(name, &mut |random| {
        // A failure leaves zeros: O_EXCL decides, the name only makes meetings rare.
        let _ = rand::fill(random);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_from_each_other() {
        assert_ne!(temp_name(b"a"), temp_name(b"a"));
    }
}
