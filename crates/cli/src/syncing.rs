//! `longhaul sync`: makes a directory equal to another one.

use sync::DeletionLimits;
use transfer::copy::CopyLocation;
use transfer::sync::{SyncEntrySelection, SyncOptions, SyncRequest};

use crate::cp;
use crate::exit::Exit;
use crate::flags::argument_error::ArgumentError;
use crate::flags::high::ResolvedCopyArgs;
use crate::flags::low::{SyncArgs, UsageError, sync_usage};
use crate::selecting;

/// Arguments of `longhaul sync` after the checks that need no connection: those of the copy, and
/// the options of the comparison.
pub(crate) struct ResolvedSyncArgs {
    high: ResolvedCopyArgs,
    options: SyncOptions,
    /// Show one line for each change.
    itemize: bool,
}

impl ResolvedSyncArgs {
    /// Reads the files of filters, and checks the operands.
    ///
    /// # Errors
    /// A file cannot be read, a pattern cannot be parsed, or the operands cannot be synced.
    pub(crate) fn new(args: SyncArgs, high: ResolvedCopyArgs) -> Result<Self, UsageError> {
        let local = |place: Option<&CopyLocation>| matches!(place, Some(CopyLocation::Local(_)));
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
        if args.copy.selection.gitignore && !local_source {
            return Err(sync_usage(
                "--gitignore works for a SRC on this machine only, since its files would have to \
                 be fetched before the rest is listed: leave it out, or use --exclude",
            ));
        }
        let failed = |what: ArgumentError| UsageError(format!("error: {what}\n"));
        let filter = selecting::filter(&args.copy.selection).map_err(failed)?;
        let mut comparison = args.comparison.clone();
        comparison.metadata.permissions = true;
        comparison.metadata.owners = args.copy.numeric_ids;
        Ok(Self {
            options: SyncOptions {
                entries: SyncEntrySelection {
                    filter,
                    gitignore: args.copy.selection.gitignore,
                    one_file_system: args.one_file_system,
                },
                comparison,
                deletions: args.delete.then_some(DeletionLimits {
                    most: args.max_delete,
                    confirmed: args.yes,
                }),
                backup: args.backup_dir,
                dry_run: args.dry_run,
                link_dest: args.link_dest,
                names: args.names,
                list_unchanged: args.copy.verbose > 0,
            },
            itemize: args.itemize || args.dry_run || args.copy.verbose > 0,
            high,
        })
    }
}

/// Runs a sync to its end.
pub(crate) fn run(args: ResolvedSyncArgs) -> Exit {
    let ResolvedSyncArgs {
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
