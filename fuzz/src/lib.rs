//! Fuzzers of bytes and operations on stable Rust: one file under `tests/` for each target.
//!
//! A short run is part of `cargo test`; with ARBTEST_BUDGET_MS each target runs that long instead
//! (`make fuzz`). A failure prints the seed of its bytes, and ARBTEST_SEED repeats it. If a key
//! exchange is part of the run, aws-lc-rs draws the ephemeral keys, so that a repetition has the
//! same operations but other bytes on the wire.

mod mutate;
pub mod peers;

use arbitrary::{Result, Unstructured};

pub use mutate::{Corpus, mutate};

/// Runs `property` on random bytes of growing size up to `size`, for ARBTEST_BUDGET_MS or half a
/// second; for targets that parse bytes.
pub fn parse(size: u32, property: impl FnMut(&mut Unstructured<'_>) -> Result<()>) {
    run(500, size, property);
}

/// Runs `property` as [`parse`] does, but for two seconds; for targets that take many steps.
pub fn operate(size: u32, property: impl FnMut(&mut Unstructured<'_>) -> Result<()>) {
    run(2000, size, property);
}

fn run(budget: u64, size: u32, property: impl FnMut(&mut Unstructured<'_>) -> Result<()>) {
    let test = arbtest::arbtest(property).size_max(size);
    match std::env::var_os("ARBTEST_BUDGET_MS") {
        Some(_) => test.run(),
        None => test.budget_ms(budget).run(),
    }
}

/// Returns all remaining bytes, or half of the time only a few.
pub fn some_bytes(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let most = match u.ratio(1, 2)? {
        true => u.len(),
        false => u.len().min(64),
    };
    let len = u.int_in_range(0..=most)?;
    Ok(u.bytes(len.min(u.len()))?.to_vec())
}

/// Panics if `text` contains terminal control characters, or characters that hide or reverse text.
pub fn assert_shown_safely(text: &str, multiline: bool) {
    let bad = text.chars().find(|c| match c {
        '\n' | '\t' => !multiline,
        // Independent copy of the list, so that an entry missing in the program's own table is
        // noticed here.
        '\u{ad}'
        | '\u{61c}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{e0000}'..='\u{e007f}' => true,
        c => c.is_control(),
    });
    assert_eq!(bad, None, "in {text:?}");
}
