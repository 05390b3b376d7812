//! Copies a mixed tree with large files while it is interrupted at seeded random moments, both
//! ways, and says how much was sent again: `cargo run -p longhaul-tests --example interruptions
//! [COUNT] [SEED]`. Needs `cargo build -p longhaul` and an OpenSSH server on this machine.

use std::time::Duration;

use longhaul_tests::interrupted::{Interrupted, Interruption};
use testkit::Seed;

/// In one copy.
const EACH: u32 = 5;
const MOST_AGAIN: u64 = 64 << 20;

fn main() {
    let number = |nth| {
        std::env::args()
            .nth(nth)
            .and_then(|n| n.parse::<u64>().ok())
    };
    let (count, seed) = (number(1).unwrap_or(100) as u32, number(2).unwrap_or(1));
    let mut random = Seed::new(seed);
    let (mut done, mut worst, mut copies) = (0, 0, 0);
    while done < count {
        let up = copies % 2 == 0;
        let Some(copy) = Interrupted::new(random.number(), up, (4, 120 << 20), 300, 80_000_000)
        else {
            return;
        };
        let interruptions: Vec<Interruption> = (0..EACH)
            .map(|_| match random.below(6) {
                0 | 1 => Interruption::Kill,
                2 => Interruption::Interrupt,
                3 => Interruption::KillServer,
                4 => Interruption::Reset,
                _ => Interruption::Blackout(Duration::from_millis(500 + random.below(3000))),
            })
            .collect();
        let tally = copy.copies(&mut random, &interruptions);
        let each = tally.again / u64::from(tally.interruptions.max(1));
        worst = worst.max(each);
        done += tally.interruptions;
        copies += 1;
        println!(
            "{done}: up {up}, {interruptions:?}: {tally:?}, {} MB each",
            each / 1_000_000
        );
        assert!(each <= MOST_AGAIN, "more than 64 MiB was sent again");
    }
    println!("{done} interruptions, {copies} copies, all right; at most {worst} bytes sent again");
}
