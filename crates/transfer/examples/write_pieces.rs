//! Measures the processor time of writing 1 GiB to a new file, by write size:
//!
//!     cargo run --release -p longhaul-transfer --example write_pieces -- FOLDER
//!
//! Each size runs five times, in turns, and the medians are printed. In a virtual machine whose
//! host reclaims free memory, some runs include the cost of getting it back.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

const SIZE: u64 = 1 << 30;
const ROUNDS: usize = 5;
const KIB: [usize; 5] = [255, 128, 256, 512, 1024];

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1);
    let folder = folder.ok_or_else(|| io::Error::other("say in which folder"))?;
    let folder = tempfile::tempdir_in(folder)?;
    let file = folder.path().join("file");
    let mut taken = KIB.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (kib, taken) in KIB.iter().zip(&mut taken) {
            taken.push(write(&file, kib << 10)?);
            fs::remove_file(&file)?;
        }
    }
    for (kib, mut taken) in KIB.iter().zip(taken) {
        taken.sort_by(f64::total_cmp);
        println!("{kib:5} KiB: {:.3} s", taken[ROUNDS / 2]);
    }
    Ok(())
}

/// Returns the processor time in seconds.
fn write(path: &Path, piece: usize) -> io::Result<f64> {
    let file = File::create_new(path)?;
    let bytes: Vec<u8> = (0..piece).map(|n| (n % 251) as u8).collect();
    let before = clock_gettime(ClockId::ProcessCPUTime);
    let mut at = 0;
    while at < SIZE {
        file.write_all_at(&bytes, at)?;
        at += piece as u64;
    }
    let after = clock_gettime(ClockId::ProcessCPUTime);
    let nanoseconds =
        (after.tv_sec - before.tv_sec) * 1_000_000_000 + after.tv_nsec - before.tv_nsec;
    Ok(nanoseconds as f64 / 1e9)
}
