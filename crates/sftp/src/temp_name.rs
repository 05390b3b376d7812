/// Maximum length of a file name in bytes on Linux (NAME_MAX).
const NAME_MAX: usize = 255;
const SUFFIX: &[u8] = b".longhaul";
const RANDOM: usize = 10;
/// Bytes of the target's name in a temporary's.
const ROOM: usize = NAME_MAX - 2 - RANDOM - SUFFIX.len();
/// Alphabet of 32 characters, 5 bits each, without vowels that spell words and letters that look
/// like digits.
const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Returns a random name for a temporary beside `target`: `.NAME.XXXXXXXXXX.longhaul`, with 50
/// random bits and at most 255 bytes.
pub fn temp_name(target: &[u8], random: &mut dyn FnMut(&mut [u8])) -> Vec<u8> {
    let mut bytes = [0u8; RANDOM];
    random(&mut bytes);
    named(target, bytes)
}

/// Returns the temporary's name that belongs to `tag`, whose lowest 50 bits replace the random ones
/// of [`temp_name`]. The tag is random and was recorded before the file is created.
pub fn tagged_name(target: &[u8], tag: u64) -> Vec<u8> {
    let mut bytes = [0u8; RANDOM];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = (tag >> (5 * at)) as u8;
    }
    named(target, bytes)
}

fn named(target: &[u8], bytes: [u8; RANDOM]) -> Vec<u8> {
    let (dir, name, max) = parts(target);
    let mut path = dir.to_vec();
    path.push(b'.');
    path.extend_from_slice(shortened(name, max));
    path.push(b'.');
    path.extend(bytes.iter().map(|b| LETTERS[usize::from(b & 31)]));
    path.extend_from_slice(SUFFIX);
    path
}

/// Splits a path into what precedes the temporary's dot and the name, and returns the bytes of the
/// name for which the temporary has room.
///
/// A Windows server accepts `C:\dir\file`. On other systems a backslash is part of the name, the
/// temporary is in the same directory either way, and what precedes the backslash counts too.
fn parts(target: &[u8]) -> (&[u8], &[u8], usize) {
    let after_last = |is: fn(&u8) -> bool| target.iter().rposition(is).map_or(0, |i| i + 1);
    let slash = after_last(|b| *b == b'/');
    let either = after_last(|b| matches!(b, b'/' | b'\\'));
    // A longer name exists on a Windows server only.
    if target.len() - slash > NAME_MAX {
        let (dir, name) = target.split_at(either);
        return (dir, name, ROOM);
    }
    match ROOM.checked_sub(either - slash).filter(|max| *max > 0) {
        Some(max) => {
            let (dir, name) = target.split_at(either);
            (dir, name, max)
        }
        None => {
            let (dir, name) = target.split_at(slash);
            (dir, name, ROOM)
        }
    }
}

/// Returns the target's part of `name` if [`temp_name`] or [`tagged_name`] could have made `name`,
/// which has no directory. The part is shortened if the target's name was long.
pub fn final_name_in(name: &[u8]) -> Option<&[u8]> {
    let middle = name.strip_prefix(b".")?.strip_suffix(SUFFIX)?;
    let (front, letters) = middle.split_at_checked(middle.len().checked_sub(RANDOM)?)?;
    let target = front
        .strip_suffix(b".")
        .filter(|target| !target.is_empty())?;
    let ours = letters.iter().all(|letter| LETTERS.contains(letter));
    (ours && !name.contains(&b'/')).then_some(target)
}

/// Returns true if [`temp_name`] or [`tagged_name`] could have made `name`, which has no directory.
pub fn is_temp_name(name: &[u8]) -> bool {
    final_name_in(name).is_some()
}

/// Returns the first `max` bytes, fewer if that would split a UTF-8 character: some file systems
/// refuse names that are not UTF-8.
fn shortened(name: &[u8], max: usize) -> &[u8] {
    let Some(cut) = name.get(..max) else {
        return name;
    };
    match std::str::from_utf8(cut) {
        Err(e) if e.error_len().is_none() => cut.get(..e.valid_up_to()).unwrap_or(cut),
        _ => cut,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(target: &[u8]) -> Vec<u8> {
        temp_name(target, &mut |b| b.fill(33))
    }

    #[test]
    fn a_temporary_lies_beside_its_target() {
        assert_eq!(name(b"a/b.c"), b"a/.b.c.1111111111.longhaul");
        assert_eq!(name(b"b"), b".b.1111111111.longhaul");
        assert_eq!(name(b"/b"), b"/.b.1111111111.longhaul");
    }

    #[test]
    fn a_temporary_is_known_by_its_name() {
        for name in [
            b".b.c.1111111111.longhaul".as_slice(),
            b".b.0123456xyz.longhaul",
        ] {
            assert!(is_temp_name(name), "{name:?}");
        }
        for name in [
            b"b.1111111111.longhaul".as_slice(),
            b".b.111111111.longhaul",
            b".b.11111111111.longhaul",
            b".b.111111111A.longhaul",
            b".b.111111111i.longhaul",
            b"a/.b.1111111111.longhaul",
            b"..1111111111.longhaul/x",
            b".1111111111.longhaul",
            b".b.1111111111",
            b".longhaul",
            b"",
        ] {
            assert!(!is_temp_name(name), "{name:?}");
        }
        let made = tagged_name("ä".repeat(127).as_bytes(), 5);
        assert!(is_temp_name(&made));
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let long = "ä".repeat(127);
        let short = name(long.as_bytes());
        assert!(short.len() <= 255);
        assert!(std::str::from_utf8(&short).is_ok());
        assert_eq!(name(&[b'x'; 255]).len(), 255);
    }

    /// Bug: the name of a temporary was longer than the system permits if the target's name was
    /// long and had a backslash.
    #[test]
    fn a_long_name_with_a_backslash_has_a_temporary_that_fits() {
        for at in [0, 5, 100, 232, 233, 234, 240, 254] {
            let mut target = vec![b'x'; 255];
            target[at] = b'\\';
            let made = name(&[b"dir/", &*target].concat());
            assert_eq!(made.len(), 4 + 255, "{at}");
            assert!(made.starts_with(b"dir/") && made.ends_with(SUFFIX));
        }
        let windows = [b"C:\\", &[b'd'; 200][..], b"\\", &[b'e'; 100], b"\\file"].concat();
        let dir = windows.strip_suffix(b"file").expect("ours");
        assert_eq!(name(&windows), [dir, b".file.1111111111.longhaul"].concat());
    }
}
