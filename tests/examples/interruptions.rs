//! Copies a mixed tree with large files while it is interrupted at seeded random moments, in both
//! directions, and checks each result, everything that was ever visible under a final name, and the
//! bytes sent again. Needs `cargo build --release -p longhaul` and an OpenSSH server on this
//! machine.
//!
//!     cargo run --release -p longhaul-tests --example interruptions -- [--count 100] [--seed 1]
//!         [--copy N] [--keep]
//!
//! `--copy N` repeats only the copy of that number; `--keep` writes the table to
//! results/DATE-interruptions.txt.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use longhaul_tests::interrupted::{Interrupted, Interruption, Shape, Tally};
use testkit::{Run, Seed};

/// Maximum bytes sent again for each interruption.
const MOST_AGAIN: u64 = 64 << 20;
const KINDS: [&str; 5] = [
    "SIGKILL of the client",
    "SIGKILL of the server",
    "connections reset",
    "path dark, 0.5 to 20 s",
    "SIGINT",
];

fn main() -> ExitCode {
    let mut asked = Asked {
        count: 100,
        seed: 1,
        copy: None,
        keep: false,
    };
    if let Err(why) = asked.read(std::env::args().skip(1)) {
        eprintln!("interruptions: {why}");
        return ExitCode::from(2);
    }
    let begun = Instant::now();
    let mut table = Table::default();
    let mut copies = planned(asked.count, asked.seed);
    let mut number = 0;
    while let Some(copy) = copies.pop_front() {
        number += 1;
        if asked.copy.is_some_and(|only| only != number) {
            continue;
        }
        let made = catch_unwind(AssertUnwindSafe(|| copy.make(asked.seed, number)));
        match made {
            Ok(None) => return ExitCode::FAILURE,
            Ok(Some(tally)) => {
                println!("copy {number}, {}: {tally:?}", copy.named());
                table.add(&copy, &tally);
                let missed = copy.interruptions.get(tally.applied.len()..);
                // The copy was complete before these interruptions: another copy gets them.
                if let Some(missed @ [_, ..]) = missed {
                    let interruptions = missed.to_vec();
                    copies.push_back(Copy {
                        up: copy.up,
                        interruptions,
                    });
                }
            }
            Err(_) => {
                println!("copy {number}, {}: FAILED", copy.named());
                table.failed.push(number);
            }
        }
    }
    let text = table.shown(&asked, begun.elapsed());
    print!("\n{text}");
    if asked.keep {
        let date = Run::new("date").args(["-u", "+%Y-%m-%d"]).run().out();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
        let file = root.join(format!("{}-interruptions.txt", date.trim()));
        std::fs::write(&file, text).expect("the folder of results");
        println!("kept in {}", file.display());
    }
    match table.is_kept() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

struct Asked {
    count: usize,
    seed: u64,
    copy: Option<u64>,
    keep: bool,
}

impl Asked {
    fn read(&mut self, mut args: impl Iterator<Item = String>) -> Result<(), String> {
        while let Some(flag) = args.next() {
            if flag == "--keep" {
                self.keep = true;
                continue;
            }
            let number = args.next().and_then(|n| n.parse::<u64>().ok());
            let number = number.ok_or_else(|| format!("{flag} needs a number"))?;
            match flag.as_str() {
                "--count" => self.count = number as usize,
                "--seed" => self.seed = number,
                "--copy" => self.copy = Some(number),
                _ => return Err(format!("what is {flag}?")),
            }
        }
        Ok(())
    }
}

struct Copy {
    up: bool,
    interruptions: Vec<Interruption>,
}

/// Plans equal numbers of each kind and direction, as far as `count` allows. Every third copy is
/// interrupted twice, so that a resumed one is interrupted as well.
fn planned(count: usize, seed: u64) -> VecDeque<Copy> {
    let mut random = Seed::new(seed);
    let mut ways: [Vec<Interruption>; 2] = Default::default();
    for n in 0..count {
        let kind = match n % KINDS.len() {
            0 => Interruption::Kill,
            1 => Interruption::KillServer,
            2 => Interruption::Reset,
            3 => {
                // Above some duration the client reconnects instead of waiting for the path.
                let most = if random.below(2) == 0 { 4000 } else { 20_000 };
                Interruption::Blackout(Duration::from_millis(500 + random.below(most - 500)))
            }
            _ => Interruption::Interrupt,
        };
        ways[n / KINDS.len() % 2].push(kind);
    }
    let mut copies = VecDeque::new();
    for (way, kinds) in ways.iter_mut().enumerate() {
        for n in (1..kinds.len()).rev() {
            kinds.swap(n, random.below(n as u64 + 1) as usize);
        }
        while !kinds.is_empty() {
            let many = if copies.len() % 3 == 2 { 2 } else { 1 };
            let interruptions = kinds.drain(..many.min(kinds.len())).collect();
            copies.push_back(Copy {
                up: way == 0,
                interruptions,
            });
        }
    }
    copies
}

impl Copy {
    fn named(&self) -> String {
        let way = if self.up { "upload" } else { "download" };
        format!("{way} {:?}", self.interruptions)
    }

    fn make(&self, seed: u64, number: u64) -> Option<Tally> {
        let mut random = Seed::new(seed.wrapping_mul(1000) + number);
        let pick = |random: &mut Seed, of: &[u64]| of[random.below(of.len() as u64) as usize];
        let shape = Shape {
            large: 2 + random.below(3) as u32,
            size: 120 << 20,
            small: 400,
            rate: match pick(&mut random, &[20, 60, 120, 0]) {
                0 => None,
                rate => Some(rate * 1_000_000),
            },
            rtt: Duration::from_millis(pick(&mut random, &[0, 4, 40])),
        };
        let copy = Interrupted::new(random.number(), self.up, shape)?;
        Some(copy.copies(&mut random, &self.interruptions))
    }
}

/// Results of interruptions of a kind, in one direction.
#[derive(Default)]
struct Row {
    count: u32,
    /// Bytes sent again by copies with one interruption.
    again: Vec<u64>,
}

#[derive(Default)]
struct Table {
    rows: BTreeMap<(usize, bool), Row>,
    /// Bytes sent again per interruption by copies with several.
    several: Vec<u64>,
    copies: u32,
    failed: Vec<u64>,
}

impl Table {
    fn add(&mut self, copy: &Copy, tally: &Tally) {
        self.copies += 1;
        for how in &tally.applied {
            let kind = match how {
                Interruption::Kill => 0,
                Interruption::KillServer => 1,
                Interruption::Reset => 2,
                Interruption::Blackout(_) => 3,
                Interruption::Interrupt => 4,
            };
            let row = self.rows.entry((kind, copy.up)).or_default();
            row.count += 1;
            if tally.applied.len() == 1 {
                row.again.push(tally.again);
            }
        }
        if tally.applied.len() > 1 {
            self.several.push(tally.again / tally.applied.len() as u64);
        }
    }

    fn most(&self) -> u64 {
        let single = self.rows.values().flat_map(|row| &row.again);
        single.chain(&self.several).copied().max().unwrap_or(0)
    }

    fn is_kept(&self) -> bool {
        self.failed.is_empty() && self.most() <= MOST_AGAIN
    }

    fn shown(&self, asked: &Asked, took: Duration) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let mut out = format!(
            "{} interruptions at random moments (seed {}) of mixed trees of about 250 MB\n\n\
             {:<26}{:<10}{:>6}{:>22}{:>10}\n",
            self.rows.values().map(|row| row.count).sum::<u32>(),
            asked.seed,
            "interruption",
            "way",
            "times",
            "most sent again, MiB",
            "mean"
        );
        let mut line = |what: &str, way: &str, times: u32, again: &[u64]| {
            let most = mib(again.iter().copied().max().unwrap_or(0));
            let mean = mib(again.iter().sum::<u64>()) / again.len().max(1) as f64;
            let _ = writeln!(out, "{what:<26}{way:<10}{times:>6}{most:>22.1}{mean:>10.1}");
        };
        for ((kind, up), row) in &self.rows {
            let way = if *up { "upload" } else { "download" };
            line(KINDS[*kind], way, row.count, &row.again);
        }
        let several = self.several.len() as u32;
        line("two in one copy, each", "both", several, &self.several);
        let _ = writeln!(
            out,
            "\n{} copies in {:.0} s; wrong: {}{}; more than 64 MiB sent again: {}",
            self.copies,
            took.as_secs_f64(),
            self.failed.len(),
            match self.failed.as_slice() {
                [] => String::new(),
                failed => format!(" (copies {failed:?})"),
            },
            match self.most() <= MOST_AGAIN {
                true => "none",
                false => "YES",
            }
        );
        let _ = writeln!(
            out,
            "Sent again: what crossed the path beyond the files' bytes, so SSH's and SFTP's own \
             and what was\nin flight are in it. Each file was compared with its source when it \
             got its name and at the end."
        );
        out
    }
}
