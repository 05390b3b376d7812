//! `longhaul bench`: measures, prints the results, and saves them for later copies.

mod files;
mod host;
mod keep;
mod local;
mod machine;
mod once;
mod watch;

use std::fmt::Display;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use jiff::Timestamp;
use measure::bench::{self, BenchResult, KIND, SCHEMA, compare, csv, page, text};

use crate::command_error::CommandError;
use crate::exit::Exit;
use crate::flags::high::Environment;
use crate::flags::low::BenchArgs;
use crate::{failed, print};
use transfer::escape;

/// Longest result that is read, in bytes.
const MOST_RESULT: u64 = 16 << 20;

/// Runs `longhaul bench` to its end.
pub(crate) fn run(args: BenchArgs, world: &Environment) -> Exit {
    if let Some((before, now)) = &args.compare {
        return match (read(before), read(now)) {
            (Ok(before), Ok(now)) => compared(&before, &now),
            (Err(why), _) | (_, Err(why)) => failed(&why),
        };
    }
    let measured = match args.local {
        true => local::run(&args, world),
        false => host::run(&args, world),
    };
    match measured {
        Ok((bench, exit)) => show(&args, &bench, exit),
        Err(exit) => exit,
    }
}

/// Returns an empty result, with this machine described and no rows.
fn begun(limit: f64) -> BenchResult {
    BenchResult {
        kind: KIND.to_owned(),
        schema: SCHEMA,
        date: Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        software: env!("CARGO_PKG_VERSION").to_owned(),
        machine: machine::describe(),
        host: None,
        seconds: 0.0,
        limit_seconds: limit,
        primitives: Vec::new(),
        rows: Vec::new(),
        not_reached: 0,
        named: Vec::new(),
        ratios: Vec::new(),
        advice: Vec::new(),
        warnings: Vec::new(),
        partial: None,
    }
}

fn show(args: &BenchArgs, bench: &BenchResult, exit: Exit) -> Exit {
    let page = match &args.html {
        Some(file) => fs::write(file, page::page(bench))
            .map_err(|error| format!("{}: {error}", file.display()).into()),
        None => Ok(()),
    };
    let text = if args.json {
        serde_json::to_string_pretty(bench).map(|text| text + "\n")
    } else if args.csv {
        Ok(csv::csv(bench))
    } else {
        Ok(text::text(bench))
    };
    let shown = text
        .map_err(CommandError::from)
        .and_then(|text| print(text.as_bytes()));
    match (page.and(shown), exit) {
        (Err(why), Exit::Done) => failed(&why),
        (Err(why), exit) => {
            failed(&why);
            exit
        }
        (Ok(()), exit) => exit,
    }
}

fn compared(before: &BenchResult, now: &BenchResult) -> Exit {
    let changes = compare::compare(before, now);
    if changes.is_empty() {
        return failed(
            "the two results have no measurement in common: compare two runs with the same flags",
        );
    }
    crate::show(compare::shown(&changes).as_bytes())
}

fn read(file: &Path) -> Result<BenchResult, CommandError> {
    let named = |why: &dyn Display| {
        let why = why.to_string();
        format!("{}: {}", file.display(), escape::name(why.as_bytes()))
    };
    let mut text = String::new();
    let opened = File::open(file).map_err(|error| named(&error))?;
    let read = opened.take(MOST_RESULT).read_to_string(&mut text);
    read.map_err(|error| named(&error))?;
    if text.len() as u64 == MOST_RESULT {
        return Err(named(&"is too long for a result of longhaul bench").into());
    }
    Ok(bench::read(&text).map_err(|error| named(&error))?)
}
