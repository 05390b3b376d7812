use aws_lc_rs::rand;

const SUFFIX: &[u8] = b".longhaul";
const RANDOM: usize = 6;
/// NAME_MAX of Linux file systems, and what OpenSSH servers run on.
const LONGEST: usize = 255;

/// `.NAME.XXXXXX.longhaul`, the name cut so that the whole fits a directory entry.
pub(crate) fn temp_name(name: &[u8]) -> Vec<u8> {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut random = [0; RANDOM];
    // A failure leaves zeros: O_EXCL decides, the name only makes meetings rare.
    let _ = rand::fill(&mut random);
    let room = LONGEST - 2 - RANDOM - SUFFIX.len();
    let mut temp = Vec::with_capacity(LONGEST);
    temp.push(b'.');
    temp.extend_from_slice(&name[..name.len().min(room)]);
    temp.push(b'.');
    temp.extend(random.iter().map(|b| LETTERS[usize::from(b % 32)]));
    temp.extend_from_slice(SUFFIX);
    temp
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_still_has_a_temporary() {
        assert_eq!(temp_name(&[b'x'; 255]).len(), 255);
        let temp = temp_name(b"a");
        assert!(temp.starts_with(b".a.") && temp.ends_with(b".longhaul"));
        assert_ne!(temp_name(b"a"), temp_name(b"a"));
    }
}
