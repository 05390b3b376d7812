//! Tests that forked account processes draw different random numbers, even if the fork server had
//! drawn some before, which it does not.
//!
//! The test has its own main, because only a process with a single thread can be forked.

use std::collections::BTreeSet;
use std::io::{self, PipeReader, Read as _, Write as _};
use std::process::ExitCode;

use aws_lc_rs::rand::{self, SystemRandom};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};

const COPIES: usize = 8;

/// Bytes that a copy reports: numbers that its original drew before, numbers of its own, and a
/// signature, whose nonce would reveal the key if another signature shared it.
const LEN: usize = 32 + 64 + 64;

fn main() -> io::Result<ExitCode> {
    let before = draw::<32>();
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let key = EcdsaKeyPair::generate(algorithm).map_err(io::Error::other)?;
    let said = |write: &mut dyn io::Write| -> io::Result<()> {
        write.write_all(&before)?;
        write.write_all(&draw::<64>())?;
        let signature = key.sign(&SystemRandom::new(), b"the same for all");
        write.write_all(signature.map_err(io::Error::other)?.as_ref())
    };
    let mut copies: Vec<PipeReader> = Vec::new();
    for _ in 0..COPIES {
        let (read, mut write) = io::pipe()?;
        if let sys::ForkSide::Child(_) = sys::fork()? {
            let told = said(&mut write).and_then(|()| write.flush());
            std::process::exit(i32::from(told.is_err()));
        }
        copies.push(read);
    }
    let mut all = Vec::new();
    for mut copy in copies {
        let mut told = Vec::new();
        copy.read_to_end(&mut told)?;
        all.push(told);
    }
    // The original draws too, after its copies.
    let mut told = Vec::new();
    said(&mut told)?;
    all.push(told);
    assert!(all.iter().all(|told| told.len() == LEN), "{all:?}");
    let different = |from: usize, to: usize| {
        let parts = all.iter().map(|told| &told[from..to]);
        parts.collect::<BTreeSet<_>>().len()
    };
    // The processes are copies; otherwise the test shows nothing.
    assert_eq!(different(0, 32), 1);
    assert_eq!(different(32, 96), COPIES + 1, "random numbers were shared");
    assert_eq!(different(96, 128), COPIES + 1, "nonces were shared");
    println!("{} copies draw numbers of their own", COPIES);
    Ok(ExitCode::SUCCESS)
}

fn draw<const N: usize>() -> [u8; N] {
    let mut drawn = [0; N];
    rand::fill(&mut drawn).expect("the system gives random numbers");
    drawn
}
