//! `longhaul sync`: makes a directory equal to another one.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use sync::{DeletionLimits, Filter, FilterBuilder, ListedNames};
use transfer::copy::Place;
use transfer::sync::{SyncOptions, SyncRequest};

use crate::cp;
use crate::exit::Exit;
use crate::flags::high::HighArgs;
use crate::flags::low::{FilterSource, SyncArgs, UsageError, sync_usage};

/// Longest list or file of rules that is read, in bytes: a million long names.
const MOST_READ: u64 = 1 << 30;

/// The arguments of a sync, resolved.
pub(crate) struct HighSync {
    high: HighArgs,
    options: SyncOptions,
    /// Show one line for each change.
    itemize: bool,
}

impl HighSync {
    /// Reads the files of filters, and checks the operands.
    ///
    /// # Errors
    /// A file cannot be read, a pattern cannot be parsed, or the operands cannot be synced.
    pub(crate) fn new(args: SyncArgs, high: HighArgs) -> Result<Self, UsageError> {
        let local = |place: Option<&Place>| matches!(place, Some(Place::Local(_)));
        let local_source = local(high.request.sources.first());
        if local_source && local(Some(&high.request.target)) {
            return Err(sync_usage(
                "both directories are on this machine: sync works to, from and between hosts; \
                 within a machine, rsync -a --delete or cp -a does the same",
            ));
        }
        if high.request.sources.first() == Some(&high.request.target) {
            return Err(sync_usage("SRC and DST are the same directory"));
        }
        for (given, flag) in [
            (args.gitignore, "--gitignore"),
            (args.one_file_system, "--one-file-system"),
        ] {
            if given && !local_source {
                let what = format!("{flag} works for a SRC on this machine only: leave it out");
                return Err(sync_usage(&what));
            }
        }
        let failed = |what: String| UsageError(format!("error: {what}\n"));
        let filter = filter(&args).map_err(failed)?;
        let mut comparison = args.comparison.clone();
        comparison.permissions = true;
        comparison.owners = args.copy.numeric_ids;
        Ok(Self {
            options: SyncOptions {
                filter,
                gitignore: args.gitignore,
                one_file_system: args.one_file_system,
                comparison,
                delete: args.delete,
                limits: DeletionLimits {
                    most: args.max_delete,
                    confirmed: args.yes,
                },
                backup: args.backup_dir,
                dry_run: args.dry_run,
            },
            itemize: args.itemize || args.dry_run || args.copy.verbose > 0,
            high,
        })
    }
}

fn filter(args: &SyncArgs) -> Result<Filter, String> {
    let mut builder = FilterBuilder::default();
    for (_, source) in &args.filters {
        match source {
            FilterSource::Rule(line, origin) => builder.rule(line, origin.clone()),
            FilterSource::File(file) => builder.lines(&read(file)?, file),
        }
        .map_err(|error| error.to_string())?;
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
    builder.build()
}

/// Reads a file, or standard input for `-`.
fn read(file: &Path) -> Result<Vec<u8>, String> {
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
        true => Err(format!("{}: is longer than 1 GiB", file.display())),
        false => Ok(text),
    }
}

/// Runs a sync to its end.
pub(crate) fn run(args: HighSync) -> Exit {
    let HighSync {
        high,
        options,
        itemize,
    } = args;
    cp::carry_out(high, itemize, move |request, run| {
        let mut request = request;
        let Some(source) = request.sources.pop() else {
            return Exit::Usage;
        };
        let request = SyncRequest {
            source,
            target: request.target,
            copy: request.options,
            options,
        };
        let dry = request.options.dry_run;
        let result = run.sync(&request);
        let exit = match Exit::from(&result.summary.outcome) {
            Exit::Done if result.refused.is_some() => Exit::Refused,
            exit => exit,
        };
        run.synced(exit, &result, dry);
        exit
    })
}
