//! `longhaul bench --local`: measures ciphers, compression and checksums on one core and on all.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use measure::bench::{self, BenchResult};
use transfer::bench::primitives;
use transfer::cancel::CancelToken;
use transfer::memory::HostMemoryStore;
use transfer::memory::processor::{self, ProcessorMeasurements};

use super::machine;
use super::watch::BenchProgress;
use crate::exit::Exit;
use crate::flags::high::Environment;
use crate::flags::low::BenchArgs;
use crate::output::console::Console;
use crate::signals;

const TIME: Duration = Duration::from_secs(30);
/// Samples for each primitive: a 95 % confidence interval needs six.
const ROUNDS: u32 = 6;
/// Shorter measurements drown in the noise of clock and scheduler.
const LEAST: Duration = Duration::from_millis(2);

/// Measures this processor to the end.
pub(super) fn run(args: &BenchArgs, world: &Environment) -> Result<(BenchResult, Exit), Exit> {
    let limit = args.time.unwrap_or(TIME);
    let console = Arc::new(Console::new(false));
    let cancel = CancelToken::default();
    let (first, at_once) = (cancel.clone(), Arc::clone(&console));
    let watched = signals::watch(move || first.cancel(), move || at_once.restore());
    if let Err(error) = watched {
        console.warning(&format!(
            "cannot handle signals, so Ctrl-C will end the measurement without a report: {error}"
        ));
    }
    let watch = BenchProgress::new(&console, world, args.login.quiet);
    let mut bench = super::begun(limit.as_secs_f64());
    bench.warnings = machine::quiet();
    let start = Instant::now();
    let (before, own) = (machine::look(), machine::own_time());

    let all = primitives::all();
    let cores = machine::cores();
    let threads: Vec<usize> = match cores {
        1 => vec![1],
        cores => vec![1, cores],
    };
    let mut rows: Vec<bench::PrimitiveResult> = Vec::new();
    for threads in &threads {
        rows.extend(all.iter().map(|primitive| bench::PrimitiveResult {
            kind: primitive.group().to_owned(),
            name: primitive.name(),
            what: primitive.what().to_owned(),
            threads: *threads,
            rates: Vec::new(),
        }));
    }
    let each = (limit / (ROUNDS * rows.len() as u32)).max(LEAST);
    'rounds: for _ in 0..ROUNDS {
        for (at, row) in rows.iter_mut().enumerate() {
            if cancel.is_cancelled() {
                bench.partial = Some("interrupted".to_owned());
                break 'rounds;
            }
            let used = start.elapsed().as_secs_f64();
            let what = format!("{} {}, {} threads", row.name, row.what, row.threads);
            watch.now(&what, used, (limit.as_secs_f64() - used).max(0.0));
            if let Some(primitive) = all.get(at % all.len()) {
                row.rates.push(primitive.measure(row.threads, each));
            }
        }
    }
    rows.retain(|row| !row.rates.is_empty());
    bench.primitives = rows;
    bench.seconds = start.elapsed().as_secs_f64();
    let after = machine::look();
    let seconds = bench.seconds;
    bench
        .warnings
        .extend(bench::machine::after(&before, &after, seconds));
    let ours = machine::own_time() - own;
    if bench.warnings.is_empty() {
        let busy = bench::machine::beside(&before, &after, seconds, ours);
        bench.warnings.extend(busy);
    }
    drop(watch);
    keep(&bench, &console);
    let exit = match bench.partial {
        Some(_) => Exit::Interrupted,
        None => Exit::Done,
    };
    Ok((bench, exit))
}

/// Stores single-core sealing rates, by which copies order the ciphers that they offer.
fn keep(bench: &BenchResult, console: &Console) {
    let sealed = |p: &&bench::PrimitiveResult| p.what == "seal" && p.threads == 1;
    let mut ciphers: Vec<(String, u64)> = Vec::new();
    for row in bench.primitives.iter().filter(sealed) {
        let cipher = row.name.split(' ').next().unwrap_or_default();
        let rate = row.rate().map_or(0, |rate| rate.median as u64);
        match ciphers.iter_mut().find(|(name, _)| name == cipher) {
            // A cipher is rated with its fastest MAC.
            Some((_, known)) => *known = rate.max(*known),
            None => ciphers.push((cipher.to_owned(), rate)),
        }
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let processor = ProcessorMeasurements {
        at: now.map_or(0, |now| now.as_secs()),
        by: concat!("longhaul bench --local ", env!("CARGO_PKG_VERSION")).to_owned(),
        ciphers,
    };
    if bench.partial.is_none()
        && let Some(memories) = HostMemoryStore::of_user()
        && let Err(error) = memories.processors().store(&processor::model(), &processor)
    {
        console.warning(&format!("cannot save the result for later copies: {error}"));
    }
}
