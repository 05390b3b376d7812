//! Examines a program file to decide if a library can be preloaded.

/// Bytes at the beginning of a file that suffice for [`look`].
pub const HEAD: usize = 64 << 10;

/// Kind of a program file by its first bytes, which decides if a library can be preloaded into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutableFormat<'a> {
    /// Dynamically linked.
    Dynamic {
        /// Path of the loader.
        loader: &'a [u8],
        /// Built by Go's compiler: such programs call the kernel directly.
        go: bool,
    },
    /// Statically linked.
    Static {
        /// Built by Go's compiler.
        go: bool,
    },
    /// Built for another processor, or for 32 bits.
    Foreign,
    /// A script with an interpreter line.
    Script {
        /// Path of the interpreter.
        interpreter: &'a [u8],
        /// The single argument that the kernel passes to the interpreter; may be empty.
        argument: &'a [u8],
    },
    /// Another kind of file.
    Unknown,
}

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// Longest path of a loader.
const PATH: usize = 4096;

/// Examines the first [`HEAD`] bytes of a file (elf(5), execve(2)). `own` is the beginning of a
/// program that runs here, for comparison.
pub fn look<'a>(head: &'a [u8], own: &[u8]) -> ExecutableFormat<'a> {
    if let Some(line) = head.strip_prefix(b"#!") {
        return script(line);
    }
    if !head.starts_with(b"\x7fELF") {
        return ExecutableFormat::Unknown;
    }
    // Class, byte order, and machine.
    let kind = |of: &[u8]| {
        Some((
            of.get(4..6)?.first_chunk::<2>().copied()?,
            number::<2>(of, 18)?,
        ))
    };
    if kind(head).is_none() || kind(head) != kind(own) || head.get(4) != Some(&2) {
        return ExecutableFormat::Foreign;
    }
    elf(head).unwrap_or(ExecutableFormat::Unknown)
}

fn script(line: &[u8]) -> ExecutableFormat<'_> {
    let end = line.iter().position(|b| *b == b'\n').unwrap_or(line.len());
    let line = line.get(..end).unwrap_or_default().trim_ascii();
    let end = line.iter().position(|b| matches!(b, b' ' | b'\t'));
    let (interpreter, argument) = line.split_at(end.unwrap_or(line.len()));
    match interpreter {
        [b'/', ..] => ExecutableFormat::Script {
            interpreter,
            argument: argument.trim_ascii(),
        },
        _ => ExecutableFormat::Unknown,
    }
}

/// Reads a number in this machine's byte order, which files of this kind have.
fn number<const N: usize>(of: &[u8], at: usize) -> Option<u64> {
    let bytes: [u8; N] = *of.get(at..)?.first_chunk()?;
    let mut wide = [0; 8];
    match cfg!(target_endian = "big") {
        true => wide.get_mut(8 - N..)?.copy_from_slice(&bytes),
        false => wide.get_mut(..N)?.copy_from_slice(&bytes),
    }
    Some(u64::from_ne_bytes(wide))
}

fn elf(head: &[u8]) -> Option<ExecutableFormat<'_>> {
    let table = usize::try_from(number::<8>(head, 32)?).ok()?;
    let size = usize::try_from(number::<2>(head, 54)?).ok()?;
    let count = usize::try_from(number::<2>(head, 56)?).ok()?;
    let (mut loader, mut dynamic, mut go) = (None, false, false);
    for number_of in 0..count {
        let at = table.checked_add(number_of.checked_mul(size)?)?;
        let part = head.get(at..)?.get(..56)?;
        let offset = usize::try_from(number::<8>(part, 8)?).ok()?;
        let len = usize::try_from(number::<8>(part, 32)?).ok()?;
        let within = || head.get(offset..)?.get(..len);
        match u32::try_from(number::<4>(part, 0)?).ok()? {
            PT_INTERP => {
                let path = within().filter(|path| path.len() <= PATH)?;
                loader = Some(path.strip_suffix(b"\0").unwrap_or(path));
            }
            PT_DYNAMIC => dynamic = true,
            // Go's linker puts the build id into a note named Go.
            PT_NOTE => {
                let named = within().and_then(|note| note.get(12..16));
                go |= named == Some(b"Go\0\0");
            }
            _ => {}
        }
    }
    Some(match loader {
        Some(loader) if dynamic => ExecutableFormat::Dynamic { loader, go },
        _ => ExecutableFormat::Static { go },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn own() -> Vec<u8> {
        let mut own = std::fs::read("/proc/self/exe").unwrap();
        own.truncate(HEAD);
        own
    }

    #[test]
    fn a_test_is_linked_dynamically() {
        let own = own();
        let ExecutableFormat::Dynamic { loader, go } = look(&own, &own) else {
            panic!("{:?}", look(&own, &own));
        };
        assert!(loader.starts_with(b"/lib") && !go, "{loader:?}");
    }

    #[test]
    fn without_a_loader_it_is_static_and_other_machines_are_foreign() {
        let own = own();
        let mut other = own.clone();
        let table = number::<8>(&own, 32).unwrap() as usize;
        let size = number::<2>(&own, 54).unwrap() as usize;
        for n in 0..number::<2>(&own, 56).unwrap() as usize {
            let kind = &mut other[table + n * size..][..4];
            if kind == PT_INTERP.to_ne_bytes() {
                kind.copy_from_slice(&0u32.to_ne_bytes());
            }
        }
        assert_eq!(look(&other, &own), ExecutableFormat::Static { go: false });
        other[18] ^= 0x55;
        assert_eq!(look(&other, &own), ExecutableFormat::Foreign);
        let mut narrow = own.clone();
        narrow[4] = 1;
        assert_eq!(look(&narrow, &own), ExecutableFormat::Foreign);
    }

    #[test]
    fn a_script_names_its_interpreter() {
        for (text, interpreter, argument) in [
            ("#!/bin/sh\nx", "/bin/sh", ""),
            (
                "#! /usr/bin/env  python3 -u \nx",
                "/usr/bin/env",
                "python3 -u",
            ),
            ("#!/bin/sh", "/bin/sh", ""),
        ] {
            let expected = ExecutableFormat::Script {
                interpreter: interpreter.as_bytes(),
                argument: argument.as_bytes(),
            };
            assert_eq!(look(text.as_bytes(), &[]), expected);
        }
        assert_eq!(look(b"#!sh\n", &[]), ExecutableFormat::Unknown);
        assert_eq!(look(b"", &[]), ExecutableFormat::Unknown);
    }

    #[test]
    fn what_is_cut_anywhere_is_no_panic() {
        let own = own();
        for len in (0..4096).chain([own.len() - 1]) {
            let _ = look(&own[..len], &own);
        }
    }
}
