//! Random names of temporaries.

use aws_lc_rs::rand;

/// Returns a random name for a temporary beside the file `name`, in the format that lanes use.
pub(crate) fn temp_name(name: &[u8]) -> Vec<u8> {
    schedule::temp_name(name, &mut |random| {
        // A failure leaves zeros: O_EXCL prevents collisions, randomness only makes them rare.
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
