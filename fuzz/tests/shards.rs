//! Fuzzes what is read back from a plan's folder: no content causes a panic, no step leads out of
//! the target, and whatever is accepted is written again as it was read.

use arbitrary::{Arbitrary, Result, Unstructured};
use fuzz::{Corpus, parse};
use shard::{
    HolderProcess, Lease, PlanHeader, PlanTotals, PlannedAttributes, PlannedRange, ShardFileRecord,
    ShardState, ShardStepCheck, ShardTotals, ShardWorkerCounts, decode,
};

/// Checksum of the tests: of the mutants, only those pass that it is computed for.
fn sum(bytes: &[u8]) -> String {
    let add = |sum: u64, byte: &u8| sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
    format!("{:064x}", bytes.iter().fold(7, add))
}

fn attributes(u: &mut Unstructured<'_>) -> Result<PlannedAttributes> {
    Ok(PlannedAttributes {
        mode: Option::<u16>::arbitrary(u)?.map(|mode| mode & 0o7777),
        owner: Arbitrary::arbitrary(u)?,
        modified: Arbitrary::arbitrary(u)?,
        nanoseconds: Option::<u32>::arbitrary(u)?.map(|n| n % 1_000_000_000),
    })
}

fn shard(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    ShardFileRecord::Enter(Vec::new(), attributes(u)?).write(&mut bytes);
    let mut depth = 1;
    for n in 0..u.int_in_range(0..=30)? {
        let name = format!("name{n}").into_bytes();
        let record = match u.int_in_range(0..=4)? {
            0 => ShardFileRecord::File(name, u.int_in_range(0..=1 << 40)?, attributes(u)?),
            1 => ShardFileRecord::Symlink(name, attributes(u)?),
            2 if depth > 1 => {
                depth -= 1;
                ShardFileRecord::Leave
            }
            3 => {
                let (offset, len) = (u.int_in_range(0..=1 << 40)?, u.int_in_range(1..=1 << 40)?);
                let range = PlannedRange {
                    size: offset + len,
                    offset,
                    len,
                    shard: Arbitrary::arbitrary(u)?,
                };
                ShardFileRecord::Range(name, range, attributes(u)?)
            }
            _ => {
                depth += 1;
                ShardFileRecord::Enter(name, attributes(u)?)
            }
        };
        record.write(&mut bytes);
    }
    for _ in 0..depth {
        ShardFileRecord::Leave.write(&mut bytes);
    }
    ShardFileRecord::End.write(&mut bytes);
    Ok(bytes)
}

/// Reads records until one is refused, and follows their paths.
fn follow(mut bytes: &[u8]) -> Option<u64> {
    let mut check = ShardStepCheck::default();
    let mut path: Vec<Vec<u8>> = Vec::new();
    let mut again = Vec::new();
    while let Ok(Some((record, len))) = decode(bytes) {
        assert!(len > 0 && len <= bytes.len());
        again.clear();
        record.write(&mut again);
        assert_eq!(again, bytes[..len]);
        bytes = &bytes[len..];
        if check.step(&record).is_err() {
            return None;
        }
        match record {
            ShardFileRecord::Enter(name, _) => path.push(name),
            ShardFileRecord::Leave => drop(path.pop()),
            ShardFileRecord::File(name, ..)
            | ShardFileRecord::Range(name, ..)
            | ShardFileRecord::Symlink(name, _) => {
                let all = path.iter().skip(1).chain([&name]);
                for part in all {
                    assert!(!part.is_empty() && part != b"." && part != b"..");
                    assert!(!part.contains(&b'/') && !part.contains(&0));
                }
            }
            ShardFileRecord::End => {}
        }
        assert!(path.len() <= 4096);
    }
    check.finish().ok().map(|(totals, _)| totals.files)
}

fn corpus(make: impl Fn(&mut Unstructured<'_>) -> Result<Vec<u8>>) -> Corpus {
    let seeds = [31u32, 77, 5].map(|step| {
        let seed: Vec<u8> = (0..4000u32).map(|n| (n * step % 251) as u8).collect();
        (
            "plain",
            make(&mut Unstructured::new(&seed)).expect("enough bytes"),
        )
    });
    Corpus(seeds.to_vec())
}

#[test]
fn records_lead_nowhere_else() {
    let corpus = corpus(shard);
    let mut whole = 0;
    parse(8192, |u| {
        let sound = shard(u)?;
        assert!(follow(&sound).is_some());
        whole += u64::from(follow(&corpus.mutant(u)?).is_some());
        follow(&Vec::<u8>::arbitrary(u)?);
        Ok(())
    });
    assert!(whole > 0, "no mutant was whole");
}

fn header(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let file = |u: &mut Unstructured<'_>| -> Result<ShardTotals> {
        Ok(ShardTotals {
            len: Arbitrary::arbitrary(u)?,
            sum: sum(&u.int_in_range(0..=9u8)?.to_be_bytes()),
            totals: PlanTotals {
                files: u.int_in_range(0..=1 << 40)?,
                symlinks: u.int_in_range(0..=1 << 40)?,
                bytes: u.int_in_range(0..=1 << 50)?,
            },
        })
    };
    let mut shards = vec![file(u)?];
    for _ in 0..u.int_in_range(0..=5)? {
        shards.push(file(u)?);
    }
    let header = PlanHeader {
        source: [b"s".to_vec(), Vec::arbitrary(u)?].concat(),
        target: [b"t".to_vec(), Vec::arbitrary(u)?].concat(),
        directories: Arbitrary::arbitrary(u)?,
        tree: file(u)?,
        shards,
    };
    Ok(header.write(sum).into_bytes())
}

#[test]
fn headers_are_bounded_and_survive_their_text() {
    let corpus = corpus(header);
    parse(4096, |u| {
        let sound = header(u)?;
        let (read, _) = PlanHeader::parse(&sound, sum).expect("ours");
        assert_eq!(read.write(sum).into_bytes(), sound);
        // A mutant whose checksum is right as well reaches the rest of the parser.
        let mut mutant = corpus.mutant(u)?;
        if let Some(at) = mutant.windows(5).rposition(|bytes| bytes == b"\nend ") {
            mutant.truncate(at + 1);
            let end = format!("end {}\n", sum(&mutant));
            mutant.extend_from_slice(end.as_bytes());
        }
        match PlanHeader::parse(&mutant, sum) {
            Ok((header, _)) => {
                assert!(!header.shards.is_empty() && header.totals().is_some());
                assert_eq!(header.write(sum).into_bytes(), mutant);
            }
            Err(error) => fuzz::assert_shown_safely(&error.to_string(), false),
        }
        Ok(())
    });
}

fn lease(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let word = |u: &mut Unstructured<'_>| -> Result<String> {
        let text = String::arbitrary(u)?;
        Ok(text.chars().take(60).collect())
    };
    let lease = Lease {
        plan: sum(b"plan"),
        shard: Arbitrary::arbitrary(u)?,
        fence: Arbitrary::arbitrary(u)?,
        state: *u.choose(&[
            ShardState::Running,
            ShardState::Stopped,
            ShardState::Failed,
            ShardState::Done,
        ])?,
        beat: Arbitrary::arbitrary(u)?,
        seconds: u.int_in_range(1..=86_400)?,
        place: HolderProcess {
            host: word(u)?,
            boot: word(u)?,
            namespace: word(u)?,
            process: Arbitrary::arbitrary(u)?,
            start: Arbitrary::arbitrary(u)?,
        },
        figures: ShardWorkerCounts {
            bytes: Arbitrary::arbitrary(u)?,
            ..ShardWorkerCounts::default()
        },
        reason: Vec::arbitrary(u)?,
    };
    Ok(lease.write().into_bytes())
}

#[test]
fn leases_are_bounded_and_survive_their_text() {
    let corpus = corpus(lease);
    parse(4096, |u| {
        let sound = lease(u)?;
        let read = Lease::parse(&sound).expect("ours");
        assert_eq!(read.write().into_bytes(), sound);
        if let Some(lease) = Lease::parse(&corpus.mutant(u)?) {
            assert!((1..=86_400).contains(&lease.seconds));
            assert!(lease.place.host.len() <= 256);
        }
        Ok(())
    });
}
