//! Filters of `longhaul cp` and `longhaul sync` from their flags and files.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use sync::{Filter, FilterBuilder, ListedNames};
use transfer::copy::{CopyLocation, SourceFilter};

use crate::flags::argument_error::ArgumentError;
use crate::flags::high::ResolvedCopyArgs;
use crate::flags::low::{SelectionArgs, UncompiledFilterRule, UsageError};

/// Longest list or file of rules that is read, in bytes: a million long names.
const MOST_READ: u64 = 1 << 30;

/// Adds the filter to a copy.
///
/// # Errors
/// A file cannot be read, or a pattern cannot be parsed.
pub(crate) fn select(mut high: ResolvedCopyArgs) -> Result<ResolvedCopyArgs, UsageError> {
    let args = &high.flags.selection;
    if args.is_all() {
        return Ok(high);
    }
    let sources = &high.request.sources;
    if args.gitignore && !sources.iter().all(|s| matches!(s, CopyLocation::Local(_))) {
        let what = "--gitignore works for sources on this machine only: leave it out";
        return Err(UsageError(format!("error: {what}\n")));
    }
    let failed = |what: ArgumentError| UsageError(format!("error: {what}\n"));
    let filter = filter(args).map_err(failed)?;
    high.request.options.filter = Some(SourceFilter::new(filter, args.gitignore));
    Ok(high)
}

/// Builds a filter.
///
/// # Errors
/// A file cannot be read, or a pattern cannot be parsed.
pub(crate) fn filter(args: &SelectionArgs) -> Result<Filter, ArgumentError> {
    let mut builder = FilterBuilder::default();
    for (_, source) in &args.filters {
        match source {
            UncompiledFilterRule::Rule(line, origin) => builder.rule(line, origin.clone()),
            UncompiledFilterRule::File(file) => builder.lines(&read(file)?, file),
        }?;
    }
    if let Some(file) = &args.files_from {
        let names = ListedNames::parse(&read(file)?);
        builder.listed(names.map_err(|error| format!("{}: {error}", file.display()))?);
    }
    if let Some(size) = args.min_size {
        builder.at_least(size);
    }
    if let Some(size) = args.max_size {
        builder.at_most(size);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(0));
    if let Some(moment) = args.newer {
        builder.newer_than(moment.seconds(now) - 1);
    }
    if let Some(moment) = args.older {
        builder.older_than(moment.seconds(now) + 1);
    }
    Ok(builder.build()?)
}

/// Reads a file, or standard input for `-`.
fn read(file: &Path) -> Result<Vec<u8>, ArgumentError> {
    let mut text = Vec::new();
    let read = match file == Path::new("-") {
        true => io::stdin().lock().take(MOST_READ).read_to_end(&mut text),
        false => fs::File::open(file).and_then(|f| f.take(MOST_READ).read_to_end(&mut text)),
    };
    let failed = |error: io::Error| {
        format!(
            "{}: cannot be read: {}",
            file.display(),
            transfer::disk::os_words(&error)
        )
    };
    read.map_err(failed)?;
    match text.len() as u64 == MOST_READ {
        true => Err(format!(
            "{}: the file is longer than 1 GiB, the limit for lists and patterns",
            file.display()
        )
        .into()),
        false => Ok(text),
    }
}
