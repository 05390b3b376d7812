//! A large file that does not compress, and the comparison of two.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use testkit::Seed;

const CHUNK: usize = 32 << 20;

/// Writes a file of `size` bytes.
///
/// # Panics
/// If it cannot be written.
pub(crate) fn make(path: &Path, size: u64) {
    let mut file = File::create(path).expect("a file in memory");
    let mut chunk = Seed::new(1).bytes(CHUNK);
    let mut left = size;
    for number in 0_u64.. {
        if left == 0 {
            return;
        }
        // Each chunk differs, so that two that change places show.
        chunk[..8].copy_from_slice(&number.to_le_bytes());
        let len = left.min(CHUNK as u64);
        file.write_all(&chunk[..len as usize])
            .expect("room in memory");
        left -= len;
    }
}

/// Writes as much as a run will and removes it again, so that its memory is at hand.
///
/// # Panics
/// If it cannot be written.
pub(crate) fn warm(path: &Path, size: u64) {
    let mut file = File::create(path).expect("a file in memory");
    let chunk = vec![0; 1 << 20];
    for _ in 0..size >> 20 {
        file.write_all(&chunk).expect("room in memory");
    }
    std::fs::remove_file(path).expect("our file");
}

/// Whether two files have the same bytes.
///
/// # Panics
/// If they cannot be read.
pub(crate) fn same(left: &Path, right: &Path) -> bool {
    let [mut left, mut right] = [left, right].map(|path| File::open(path).expect("our file"));
    let [mut here, mut there] = [vec![0; 1 << 20], vec![0; 1 << 20]];
    loop {
        let len = left.read(&mut here).expect("our file");
        if len == 0 {
            return right.read(&mut there).expect("our file") == 0;
        }
        if right.read_exact(&mut there[..len]).is_err() || here[..len] != there[..len] {
            return false;
        }
    }
}
