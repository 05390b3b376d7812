//! Detects programs built by Go's compiler. They call the kernel without the C library, even if
//! dynamically linked, so no preloaded library sees their connections.
//!
//! Marks are a note with the owner `Go`, which comes first in its segment unless an external linker
//! was used (cgo, `-linkmode=external`, `-B`) and wrote its notes before it; certain sections; and
//! the module data that `go version` reads. Each can be missing: a build id may be empty, and
//! sections stripped.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const WRITABLE: u32 = 2;
/// Maximum bytes of notes, section names or data that are read.
const MOST: u64 = 1 << 20;
/// Maximum number of program headers and sections that are examined; a program has some forty.
const MOST_PARTS: u64 = 512;
/// Magic before the module information (debug/buildinfo).
const BUILD_INFO: &[u8] = b"\xff Go buildinf:";
const SECTIONS: [&[u8]; 4] = [
    b".go.buildinfo",
    b".note.go.buildid",
    b".gopclntab",
    b".gosymtab",
];

/// Returns true if a program was built by Go's compiler; false for files other than 64-bit ELF.
pub(super) fn is_go(path: &Path) -> bool {
    let Ok(file) = File::open(path) else {
        return false;
    };
    let read = |at: u64, len: u64| {
        let mut bytes = vec![0; usize::try_from(len.min(MOST)).ok()?];
        let mut there = 0;
        while there < bytes.len() {
            match file.read_at(bytes.get_mut(there..)?, at.checked_add(there as u64)?) {
                Ok(0) => break,
                Ok(n) => there += n,
                Err(_) => return None,
            }
        }
        bytes.truncate(there);
        Some(bytes)
    };
    has_marks(&read).unwrap_or(false)
}

/// Searches for the marks. `read` returns bytes from an offset on.
fn has_marks(read: &impl Fn(u64, u64) -> Option<Vec<u8>>) -> Option<bool> {
    let head = read(0, 64)?;
    if !head.starts_with(b"\x7fELF\x02") {
        return Some(false);
    }
    let (parts, size) = (number::<8>(&head, 32)?, number::<2>(&head, 54)?);
    for nth in 0..number::<2>(&head, 56)?.min(MOST_PARTS) {
        let part = read(parts.checked_add(nth * size)?, 56)?;
        let (offset, len) = (number::<8>(&part, 8)?, number::<8>(&part, 32)?);
        let (kind, flags) = (number::<4>(&part, 0)? as u32, number::<4>(&part, 4)? as u32);
        let align = number::<8>(&part, 48)?;
        let found = match kind {
            PT_NOTE => has_note(&read(offset, len)?, align),
            PT_LOAD if flags & WRITABLE != 0 => {
                let data = read(offset, len)?;
                data.windows(BUILD_INFO.len())
                    .any(|part| part == BUILD_INFO)
            }
            _ => false,
        };
        if found {
            return Some(true);
        }
    }
    has_section(&head, read)
}

/// Searches the notes of a segment for Go's (elf(5)): lengths of owner and content, a type, owner,
/// content.
fn has_note(notes: &[u8], align: u64) -> bool {
    let padded = |len: u64| len.checked_next_multiple_of(if align == 8 { 8 } else { 4 });
    let mut at = 0;
    let mut walk = || {
        let rest = notes.get(usize::try_from(at).ok()?..)?;
        let (owner_len, len) = (number::<4>(rest, 0)?, number::<4>(rest, 4)?);
        let owner = rest.get(12..)?.get(..usize::try_from(owner_len).ok()?)?;
        let owner_end = (12_u64).checked_add(owner_len)?;
        at += padded(padded(owner_end)?.checked_add(len)?)?;
        Some(owner == b"Go\0\0" || owner == b"Go\0")
    };
    std::iter::from_fn(&mut walk).any(|is_go| is_go)
}

fn has_section(head: &[u8], read: &impl Fn(u64, u64) -> Option<Vec<u8>>) -> Option<bool> {
    let (sections, size) = (number::<8>(head, 40)?, number::<2>(head, 58)?);
    let (count, names) = (number::<2>(head, 60)?, number::<2>(head, 62)?);
    if sections == 0 || names >= count {
        return Some(false);
    }
    let place = |nth: u64| read(sections.checked_add(nth * size)?, 64);
    let table = place(names)?;
    let table = read(number::<8>(&table, 24)?, number::<8>(&table, 32)?)?;
    let is_go = |nth: u64| {
        let section = place(nth)?;
        let name = table.get(usize::try_from(number::<4>(&section, 0)?).ok()?..)?;
        Some(SECTIONS.contains(&name.split(|b| *b == 0).next()?))
    };
    Some((0..count.min(MOST_PARTS)).any(|nth| is_go(nth) == Some(true)))
}

/// Reads a number in this machine's byte order.
fn number<const N: usize>(of: &[u8], at: usize) -> Option<u64> {
    let bytes: [u8; N] = *of.get(at..)?.first_chunk()?;
    let mut wide = [0; 8];
    match cfg!(target_endian = "big") {
        true => wide.get_mut(8 - N..)?.copy_from_slice(&bytes),
        false => wide.get_mut(..N)?.copy_from_slice(&bytes),
    }
    Some(u64::from_ne_bytes(wide))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(owner: &[u8], content: usize) -> Vec<u8> {
        let mut note = Vec::new();
        note.extend((owner.len() as u32).to_ne_bytes());
        note.extend((content as u32).to_ne_bytes());
        note.extend(4_u32.to_ne_bytes());
        note.extend(owner);
        note.resize(
            note.len().next_multiple_of(4) + content.next_multiple_of(4),
            7,
        );
        note
    }

    /// Regression: only the first note of a segment was examined, and an external linker's comes
    /// before Go's.
    #[test]
    fn the_note_of_go_is_found_behind_others() {
        let (gnu, go) = (note(b"GNU\0", 20), note(b"Go\0\0", 83));
        for (notes, is_go) in [
            (vec![], false),
            (gnu.clone(), false),
            (go.clone(), true),
            ([&gnu[..], &go].concat(), true),
            ([&gnu[..], &note(b"FreeBSD\0", 4), &go, &gnu].concat(), true),
        ] {
            assert_eq!(has_note(&notes, 4), is_go);
            for len in 0..notes.len() {
                let _ = has_note(&notes[..len], 8);
            }
        }
    }

    #[test]
    fn a_test_is_not_made_by_go_and_what_is_cut_is_no_panic() {
        let path = std::env::current_exe().unwrap();
        assert!(!is_go(&path));
        let bytes = std::fs::read(&path).unwrap();
        for len in (0..4096).step_by(7) {
            let _ = has_marks(&|at, n| {
                let at = usize::try_from(at).ok()?;
                let rest = bytes.get(..len)?.get(at..)?;
                Some(rest.get(..n as usize).unwrap_or(rest).to_vec())
            });
        }
    }
}
