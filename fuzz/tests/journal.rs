//! Fuzzes the journal of a copy: no content causes a panic, the state can be written again, and a
//! truncated file yields exactly the records before the cut.

use arbitrary::{Arbitrary, Result, Unstructured};
use fuzz::{Corpus, parse};
use schedule::journal::{JournalEncoder, JournalEntry, JournalRecord, SourceFileStamp, replay};

fn record(u: &mut Unstructured<'_>, next: &mut u64) -> Result<JournalRecord> {
    let known = |u: &mut Unstructured<'_>, next: u64| u.int_in_range(0..=next.max(1));
    Ok(match u.int_in_range(0..=13)? {
        0 => JournalRecord::Run {
            boot: Vec::arbitrary(u)?,
        },
        1 => JournalRecord::Onto {
            into: bool::arbitrary(u)?,
        },
        2 | 3 => {
            let id = *next;
            *next += u.int_in_range(1..=3)?;
            JournalRecord::Begun {
                id,
                target: format!("to/{}", u.int_in_range(0..=40)?).into_bytes(),
                source: SourceFileStamp {
                    size: u64::arbitrary(u)?,
                    ..SourceFileStamp::default()
                },
                tag: u64::arbitrary(u)?,
            }
        }
        4 => {
            let from = u.int_in_range(0..=1000)?;
            JournalRecord::Ranges {
                id: known(u, *next)?,
                durable: bool::arbitrary(u)?,
                mtime: u64::arbitrary(u)?,
                ranges: vec![(from, from + u.int_in_range(1..=50)?)],
            }
        }
        5 => JournalRecord::Done {
            id: known(u, *next)?,
            durable: bool::arbitrary(u)?,
            size: u64::arbitrary(u)?,
            mtime: u64::arbitrary(u)?,
        },
        6 => JournalRecord::Forgotten {
            id: known(u, *next)?,
        },
        7 => JournalRecord::Temp {
            id: known(u, *next)?,
            path: Vec::arbitrary(u)?,
        },
        8 => JournalRecord::Durable {
            files: u.int_in_range(0..=5)?,
        },
        9 => JournalRecord::Boot {
            boot: Vec::arbitrary(u)?,
        },
        12 => JournalRecord::LinkNames {
            seed: u64::arbitrary(u)?,
        },
        11 => JournalRecord::MadeDirectory {
            path: Vec::arbitrary(u)?,
        },
        10 => JournalRecord::Sealed {
            mtime: u64::arbitrary(u)?,
        },
        _ => JournalRecord::Clock {
            files: u.int_in_range(0..=10)?,
            mtime: u64::arbitrary(u)?,
        },
    })
}

fn some(u: &mut Unstructured<'_>) -> Result<(Vec<u8>, Vec<usize>)> {
    let (mut out, mut writer, mut next) = (Vec::new(), JournalEncoder::default(), 0);
    JournalEncoder::header(&mut out);
    let identity = b"a copy".to_vec();
    writer.write(&JournalRecord::Copy { identity }, &mut out);
    let mut ends = vec![out.len()];
    for _ in 0..u.int_in_range(0..=30)? {
        writer.write(&record(u, &mut next)?, &mut out);
        ends.push(out.len());
    }
    Ok((out, ends))
}

#[test]
fn what_was_written_is_read_up_to_a_tear() {
    parse(4096, |u| {
        let (bytes, ends) = some(u)?;
        let whole = replay(&bytes).expect("ours");
        assert_eq!(whole.good, bytes.len());
        let cut = u.int_in_range(ends[0]..=bytes.len())?;
        let torn = replay(&bytes[..cut]).expect("torn is no damage");
        let expected = ends.iter().rev().find(|end| **end <= cut);
        assert_eq!(Some(&torn.good), expected);
        Ok(())
    });
}

#[test]
fn damaged_journals() {
    let corpus = {
        let seed: Vec<u8> = (0..4000u32).map(|n| (n * 31 % 251) as u8).collect();
        let mut u = Unstructured::new(&seed);
        let (mut bytes, _) = some(&mut u).expect("enough bytes");
        let one = bytes.clone();
        let offset = bytes.len() as u64;
        JournalEncoder::default().write(&JournalRecord::Synced { offset }, &mut bytes);
        Corpus(vec![("plain", one), ("synced", bytes)])
    };
    parse(8192, |u| {
        let bytes = corpus.mutant(u)?;
        match replay(&bytes) {
            Ok(replayed) => {
                assert!(replayed.good <= bytes.len());
                let mut state = replayed.state;
                state.started(b"boot".to_vec());
                let target = Vec::arbitrary(u)?;
                state.confine(&target);
                let outside = |(_, entry): (u64, &JournalEntry)| {
                    !entry.target.starts_with(&target)
                        || entry.target[target.len()..]
                            .split(|b| *b == b'/')
                            .any(|p| p == b"..")
                };
                assert!(!state.unfinished().any(outside));
                let known: Vec<u64> = state.unfinished().map(|(id, _)| id).collect();
                for id in known {
                    assert!(id < state.next_id());
                    let entry = state.take(id).expect("known");
                    assert!(entry.proven().windows(2).all(|w| w[0].1 < w[1].0));
                }
            }
            Err(why) => fuzz::assert_shown_safely(&why.to_string(), false),
        }
        Ok(())
    });
}
