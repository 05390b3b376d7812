//! `longhaul plan`, and `longhaul cp --plan`: makes a plan, shows its status, proves its target,
//! and copies one shard.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use transfer::operand::{CopyOperand, RemoteOperand};
use transfer::report::{CopyOutcome, CopySummary, EscapedName};
use transfer::shards::{
    self, LeaseClaimResult, LeaseTerms, PlanCreationSettings, PlanError, PlanFolder, PlanOutcome,
    PlanTotals, PlanVerifyResult, ShardCopyResult, ShardCopyTask, ShardLeaseError, ShardOutcome,
    ShardPlanStatus, ShardStatus, SplitFileStatus, VerifyOptions,
};

use crate::congestion;
use crate::cp::{self, PreparedCopy};
use crate::exit::Exit;
use crate::flags::high::{Environment, ResolvedCopyArgs};
use crate::flags::low::{CopyArgs, PlanAction, PlanArgs, UsageError};
use crate::output::{closing, units};
use crate::{failed, show, usage};

/// Seconds after which a lease that is not renewed expires.
const LEASE: u64 = 30;
/// Least size of a range of a split file: that many bytes take longer than the fixed costs of a
/// shard.
const RANGE_SIZE: u64 = 256 << 20;
/// Shards that the status lists.
const LISTED: usize = 20;

impl From<&PlanError> for Exit {
    fn from(error: &PlanError) -> Self {
        match error {
            PlanError::Io(_) => Self::SomeFailed,
            PlanError::Unusable(_) => Self::PlanUnusable,
            PlanError::NoSuchShard(_) => Self::Usage,
        }
    }
}

/// Runs `longhaul plan`.
pub(crate) fn run(args: PlanArgs, world: &Environment) -> Exit {
    match args.action.clone() {
        PlanAction::Make => make(args, world),
        PlanAction::Status(folder) => status(&folder, args.json),
        PlanAction::Verify(folder) => verify(args, &folder, world),
    }
}

/// Runs `longhaul cp --plan`.
pub(crate) fn copy(args: CopyArgs, world: &Environment) -> Exit {
    let (Some(folder), Some(shard)) = (args.plan.clone(), args.shard) else {
        return Exit::Usage;
    };
    let time = Duration::from_secs(args.lease.unwrap_or(LEASE));
    let config = args.config.clone();
    let verifies = args.verify;
    let prepared =
        PlanFolder::open(&folder).and_then(|plan| plan.check_shard(shard).map(|()| plan));
    let plan = match prepared {
        Ok(plan) => Arc::new(plan),
        Err(error) => return told(&error),
    };
    let high = match resolved(args, &plan, world) {
        Ok(high) => high,
        Err(error) => return usage(&error),
    };
    cp::carry_out(high, false, move |request, run| {
        let output = run.output();
        // Without the lease, not even the temporaries may be removed: a follower may use them.
        let on_loss = Arc::new(move |why: &str| {
            output.console().error(why);
            output.console().restore();
            std::process::exit(Exit::ShardIncomplete.code().into());
        });
        let mut has_waited = false;
        let mut warn = |what| {
            has_waited = true;
            run.warn(what);
        };
        let terms = LeaseTerms { time, on_loss };
        let claimed = plan.claim(shard, &terms, run.cancel(), &mut warn);
        let is_complete = matches!(claimed, Ok(LeaseClaimResult::Done(_)));
        if is_complete {
            let when = match has_waited {
                true => "completed meanwhile by another process",
                false => "already complete",
            };
            run.line(&format!("shard {shard}: {when}: nothing to copy"));
        }
        let copy = match claimed {
            Ok(LeaseClaimResult::Held(lease)) => ShardCopyTask::Held(lease),
            Ok(LeaseClaimResult::Done(_)) if plan.needs_seal() => {
                ShardCopyTask::Done(Arc::clone(&plan), terms)
            }
            Ok(LeaseClaimResult::Done(_)) => return Exit::Done,
            Err(ShardLeaseError::Busy(why)) => return run.refuse(&why, Exit::ShardIncomplete),
            Err(ShardLeaseError::Io(why) | ShardLeaseError::Lost(why)) => {
                return run.refuse(&why, Exit::ShardIncomplete);
            }
            Err(ShardLeaseError::Unusable(why)) => return run.refuse(&why, Exit::PlanUnusable),
            Err(ShardLeaseError::Interrupted) => {
                let why = format!("shard {shard}: interrupted before it began: try again");
                return run.refuse(&why, Exit::ShardIncomplete);
            }
        };
        let result = run.with(|connect, progress, events, cancel| {
            shards::copy(copy, &request, connect, progress, events, cancel)
        });
        let which = (shard, config.as_deref(), is_complete);
        finish(run, which, verifies, &plan, &result)
    })
}

/// Reports the end of a shard. `is_complete` is true if nothing of it was left to copy.
fn finish(
    run: &PreparedCopy<'_>,
    (shard, config, is_complete): (u32, Option<&Path>, bool),
    verifies: bool,
    plan: &PlanFolder,
    result: &ShardCopyResult,
) -> Exit {
    let split = verifies && plan.split_files() > 0;
    let exit = match &result.end {
        ShardOutcome::Done => Exit::Done,
        ShardOutcome::Failed => Exit::SomeFailed,
        ShardOutcome::Changed(_) | ShardOutcome::Unwritable => Exit::PlanUnusable,
        ShardOutcome::Superseded(_) => Exit::ShardIncomplete,
        ShardOutcome::Unusable(error) => error.into(),
        ShardOutcome::Stopped => match &result.summary.outcome {
            outcome @ (CopyOutcome::NoConnection(_) | CopyOutcome::Misconfigured(_)) => {
                outcome.into()
            }
            _ => Exit::ShardIncomplete,
        },
    };
    if let ShardOutcome::Superseded(why) = &result.end {
        run.error(why);
    }
    if result.unchanged > 0 && !is_complete {
        let files = units::files(result.unchanged);
        run.line(&format!(
            "shard {shard}: {files} already complete at the target"
        ));
    }
    let mut proof = vec!["plan", "verify"];
    proof.extend(split.then_some("--checksum"));
    let verify = command_for(&proof, config, &[plan.folder().as_os_str()]);
    if split {
        run.warn(format!(
            "split files are not verified by --verify: once all shards are complete, run: {verify}"
        ));
    }
    match is_complete && exit == Exit::Done {
        // The closing line would say that 0 files were copied.
        true => run.summary_event(exit, &result.summary),
        false => run.summary(exit, &result.summary),
    }
    if result.sealed {
        let all = match plan.shards() {
            1 => "the only shard is complete".to_owned(),
            shards => format!("all {shards} shards are complete"),
        };
        run.line(&format!("{all}; to check the copy: {verify}"));
    }
    exit
}

/// Shell command for a plan, with the ssh_config file of this run.
fn command_for(action: &[&str], config: Option<&Path>, rest: &[&OsStr]) -> String {
    let words = ["longhaul"].iter().chain(action).map(OsString::from);
    let config = config.map(|file| ["-F".into(), file.as_os_str().to_owned()]);
    let words = words.chain(config.into_iter().flatten());
    closing::command(words.chain(rest.iter().map(OsString::from)))
}

fn told(error: &PlanError) -> Exit {
    let _ = failed(error);
    error.into()
}

/// Resolves the flags of the command line with the operands of a plan.
fn resolved(
    mut args: CopyArgs,
    plan: &PlanFolder,
    world: &Environment,
) -> Result<ResolvedCopyArgs, UsageError> {
    let operand = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    args.sources = vec![operand(plan.source())];
    args.destination = operand(plan.target());
    args.archive = true;
    ResolvedCopyArgs::resolve(args, world).and_then(congestion::check)
}

fn make(args: PlanArgs, world: &Environment) -> Exit {
    let (Some(folder), Some(shards)) = (args.folder, args.shards) else {
        return Exit::Usage;
    };
    let operand = |word: &OsString| {
        CopyOperand::parse(word)
            .map(|operand| kept(word, operand))
            .map_err(|error| UsageError(format!("error: {error}\n")))
    };
    let source = args.copy.sources.first().cloned().unwrap_or_default();
    let operands = operand(&source).and_then(|s| Ok((s, operand(&args.copy.destination)?)));
    let (source_operand, target_operand) = match operands {
        Ok(operands) => operands,
        Err(error) => return usage(&error),
    };
    // One end must be remote, and only one: other copies do not write ranges.
    let one_end = is_remote(&source) != is_remote(&args.copy.destination);
    let least_range = args.range_size.unwrap_or(RANGE_SIZE);
    if let Some(why) = overlap(&source, &args.copy.destination) {
        return usage(&UsageError(format!("error: {why}\n")));
    }
    let local_target = match CopyOperand::parse(&args.copy.destination) {
        Ok(CopyOperand::Local(path)) => Some(path),
        _ => None,
    };
    let mut copy = args.copy;
    let config = copy.config.clone();
    // The target is not connected to.
    copy.destination = OsString::from(".");
    copy.archive = true;
    let high = match ResolvedCopyArgs::resolve(copy, world).and_then(congestion::check) {
        Ok(high) => high,
        Err(error) => return usage(&error),
    };
    cp::carry_out(high, false, move |request, run| {
        let Some(source) = request.sources.into_iter().next() else {
            return Exit::Usage;
        };
        let request = PlanCreationSettings {
            least_range: one_end.then_some(least_range),
            source,
            source_operand,
            target_operand,
            local_target,
            shards,
            folder: folder.clone(),
        };
        let (outcome, summary) = run.with(|connect, progress, events, cancel| {
            shards::make(&request, connect, progress, events, cancel)
        });
        planned(
            run,
            &outcome,
            &summary,
            (&folder, config.as_deref(), shards),
        )
    })
}

/// Reports the end of planning.
fn planned(
    run: &PreparedCopy<'_>,
    outcome: &PlanOutcome,
    summary: &CopySummary,
    (folder, config, shards): (&Path, Option<&Path>, u32),
) -> Exit {
    let name = EscapedName::from(folder);
    match outcome {
        PlanOutcome::Written {
            totals,
            directories,
            split,
            sizes: (least, most),
            replaced,
        } => {
            let ranges = match split {
                0 => String::new(),
                split => {
                    let files = units::counted(*split, "file", "files");
                    format!("; {files} split over several shards")
                }
            };
            let before = match replaced {
                true => "the older plan was replaced: ",
                false => "",
            };
            let sizes = match shards {
                1 => units::size(*most),
                _ => format!("{} to {}", units::size(*least), units::size(*most)),
            };
            let with = |shard: &str| {
                let plan: [&OsStr; 4] = [
                    OsStr::new("--plan"),
                    folder.as_os_str(),
                    OsStr::new("--shard"),
                    OsStr::new(shard),
                ];
                command_for(&["cp"], config, &plan)
            };
            let copy = match shards {
                1 => format!("copy it with: {}", with("0")),
                _ => format!("copy each with: {} (N from 0 to {})", with("N"), shards - 1),
            };
            let text = format!(
                "{name}: {before}{} of {sizes}: {}, {}{ranges}\n{copy}\n",
                units::counted(shards.into(), "shard", "shards"),
                all(*totals),
                units::counted(directories + 1, "directory", "directories"),
            );
            run.print(&text)
        }
        PlanOutcome::Unchanged(totals) => {
            let text = format!("{name}: the plan is up to date: {}\n", all(*totals));
            run.print(&text)
        }
        PlanOutcome::Incomplete => {
            let exit = Exit::from(&summary.outcome);
            run.failures(summary);
            let exit = match exit {
                Exit::Done => Exit::Interrupted,
                exit => exit,
            };
            run.refuse(&format!("{name}: no plan was written"), exit)
        }
        PlanOutcome::Refused(why) => run.refuse(why, Exit::PlanUnusable),
        PlanOutcome::Failed(error) => run.refuse(&error.to_string(), error.into()),
    }
}

/// Returns why two operands cannot be a plan's, as far as their names tell: both are one directory,
/// or the target lies in the source.
fn overlap(source: &OsStr, target: &OsStr) -> Option<&'static str> {
    let (source, target) = match (
        CopyOperand::parse(source).ok()?,
        CopyOperand::parse(target).ok()?,
    ) {
        (CopyOperand::Local(source), CopyOperand::Local(target)) => {
            (std::fs::canonicalize(source).ok()?, real_place(&target)?)
        }
        (CopyOperand::Remote(source), CopyOperand::Remote(target))
            if source.destination == target.destination =>
        {
            let path = |operand: &RemoteOperand| -> PathBuf {
                let path = Path::new(OsStr::from_bytes(&operand.path.0));
                path.components()
                    .filter(|part| *part != Component::CurDir)
                    .collect()
            };
            (path(&source), path(&target))
        }
        _ => return None,
    };
    match target.strip_prefix(&source).ok()?.as_os_str().is_empty() {
        true => Some(shards::SAME_DIRECTORY),
        // Further components may lead out of the source again.
        false if target.components().any(|part| part == Component::ParentDir) => None,
        false => Some(shards::TARGET_INSIDE),
    }
}

/// Canonical path of an entry of this machine that may not exist yet.
fn real_place(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|existing| {
        let real = std::fs::canonicalize(existing).ok()?;
        let below = path.strip_prefix(existing).ok()?;
        Some(match below.as_os_str().is_empty() {
            true => real,
            false => real.join(below),
        })
    })
}

/// True if an operand names a host.
fn is_remote(word: &OsString) -> bool {
    matches!(CopyOperand::parse(word), Ok(CopyOperand::Remote(_)))
}

fn all(totals: PlanTotals) -> String {
    let mut text = units::files(totals.files);
    if totals.symlinks > 0 {
        let links = units::counted(totals.symlinks, "link", "links");
        text.push_str(&format!(", {links}"));
    }
    format!("{text}, {}", units::size(totals.bytes))
}

/// Returns an operand for the plan. A local path is made absolute, since workers start in other
/// folders.
fn kept(word: &OsString, operand: CopyOperand) -> Vec<u8> {
    match operand {
        CopyOperand::Local(path) => {
            let path: PathBuf = std::path::absolute(&path).unwrap_or(path);
            path.as_os_str().as_bytes().to_vec()
        }
        CopyOperand::Remote(_) => word.as_bytes().to_vec(),
    }
}

fn status(folder: &Path, json: bool) -> Exit {
    let status = match PlanFolder::open(folder).and_then(|plan| plan.status()) {
        Ok(status) => status,
        Err(error) => return told(&error),
    };
    if json {
        let text = serde_json::to_string(&status).unwrap_or_default();
        return show(format!("{text}\n").as_bytes());
    }
    show(status_text(&status).as_bytes())
}

fn status_text(status: &ShardPlanStatus) -> String {
    let counts = &status.shards;
    let mut states = Vec::new();
    for (count, state) in [
        (counts.done, "done"),
        (counts.running, "running"),
        (counts.stopped, "stopped"),
        (counts.failed, "failed"),
        (counts.open, "not started"),
    ] {
        if count > 0 {
            states.push(format!("{count} {state}"));
        }
    }
    let mut text = format!(
        "{} -> {}: {} of {} in complete shards\n{}: {}\n",
        status.source,
        status.target,
        units::size(status.bytes_done),
        units::size(status.bytes),
        units::counted(counts.total, "shard", "shards"),
        states.join(", "),
    );
    for shard in status.unfinished.iter().take(LISTED) {
        text.push_str(&shard_line(shard));
    }
    push_more(&mut text, status.unfinished.len());
    for file in status.unfinished_files.iter().take(LISTED) {
        text.push_str(&split_file_line(file));
    }
    push_more(&mut text, status.unfinished_files.len());
    if counts.done == counts.total && !status.sealed {
        text.push_str(
            "not finished: the times of directories are not set, and split files may still have \
             temporary names: run any shard again, which sets both\n",
        );
    }
    text
}

fn push_more(text: &mut String, count: usize) {
    if let Some(more) = count.checked_sub(LISTED).filter(|n| *n > 0) {
        text.push_str(&format!("and {more} more: see --json\n"));
    }
}

fn split_file_line(file: &SplitFileStatus) -> String {
    let missing: Vec<String> = file.missing_shards.iter().map(u32::to_string).collect();
    let shown = missing.get(..LISTED).unwrap_or(&missing);
    let more = match missing.len() > shown.len() {
        true => ", ...",
        false => "",
    };
    format!(
        "{}: {} of {} ranges complete, {} of {}; missing: {} {}{more}\n",
        file.path,
        file.ranges_done,
        file.ranges,
        units::size(file.bytes_done),
        units::size(file.bytes),
        match missing.len() {
            1 => "shard",
            _ => "shards",
        },
        shown.join(", "),
    )
}

fn shard_line(shard: &ShardStatus) -> String {
    let mut text = format!("shard {}: {}", shard.shard, shard.state);
    if let (Some(host), Some(process)) = (&shard.host, shard.process) {
        let host = EscapedName(host.clone().into_bytes());
        let is = if shard.state == "running" {
            "is"
        } else {
            "was"
        };
        text.push_str(&format!("; its process {is} {process} on {host}"));
    }
    if let Some(seconds) = shard.seconds_ago {
        text.push_str(&format!(", last seen {seconds} s ago"));
    }
    if shard.workers > 1 {
        text.push_str(&format!(", worker {}", shard.workers));
    }
    if shard.changed > 0 {
        let changed = units::counted(shard.changed, "entry", "entries");
        text.push_str(&format!(", {changed} changed since the plan was made"));
    }
    if let Some(reason) = &shard.reason {
        text.push_str(&format!(": {reason}"));
    }
    text.push('\n');
    text
}

fn verify(args: PlanArgs, folder: &Path, world: &Environment) -> Exit {
    let plan = match PlanFolder::open(folder) {
        Ok(plan) => plan,
        Err(error) => return told(&error),
    };
    let options = VerifyOptions {
        checksum: args.checksum,
    };
    let high = match resolved(args.copy, &plan, world) {
        Ok(high) => high,
        Err(error) => return usage(&error),
    };
    cp::carry_out(high, false, move |request, run| {
        let PlanVerifyResult {
            summary,
            sound,
            unusable,
        } = run.with(|connect, progress, events, cancel| {
            shards::verify(&plan, options, &request, connect, progress, events, cancel)
        });
        let exit = match unusable {
            true => Exit::PlanUnusable,
            false => Exit::from(&summary.outcome),
        };
        run.failures(&summary);
        run.summary_event(exit, &summary);
        if exit != Exit::Done {
            return exit;
        }
        let how = match options.checksum {
            true => "equal to their sources by checksum",
            false => "as planned by type, size and time",
        };
        let target = EscapedName(plan.target().to_vec());
        let all = all(sound);
        let directories = units::counted(plan.directories() + 1, "directory", "directories");
        run.print(&format!(
            "{target}: complete: {all}, {directories}, {how}\n"
        ))
    })
}
