//! Finds the hosts of a copy: braces, several targets, and files of hosts.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use transfer::copy::{CopyLocation, CopyRequest, HostId, SourceName, TargetDirectory};
use transfer::operand::{CopyOperand, SshDestination};
use transfer::report::EscapedName;

use super::hosts_file;
use super::remote_operand_roles::{RemoteOperandRoles, meaning};
use crate::flags::argument_error::ArgumentError;
use crate::flags::high::{Environment, ResolvedCopyArgs, place};
use crate::flags::low::{CopyArgs, UsageError};

/// A copy with several hosts at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MultiHostCopy {
    /// Sources on several hosts are copied to this machine.
    Gather {
        /// The files of each host get a directory of their own.
        by_host: bool,
        /// Create the target directory.
        create: bool,
    },
    /// Sources on this machine are copied to each of these targets.
    FanOut(Vec<CopyLocation>),
}

/// Operands after expansion.
struct ExpandedOperands {
    sources: Vec<OsString>,
    /// Targets, with more than one in a fan-out.
    targets: Vec<OsString>,
    /// The command names targets among its sources.
    among_sources: bool,
    /// A source had braces.
    braces: bool,
    /// Remote sources follow local ones, and may have been meant as targets.
    may_be_targets: bool,
}

/// Resolves the command line of `longhaul cp`.
///
/// # Errors
/// An operand is invalid, a host is named twice, or the command has two meanings.
pub(crate) fn resolve(
    mut args: CopyArgs,
    world: &Environment,
) -> Result<ResolvedCopyArgs, UsageError> {
    if args.plan.is_some() {
        return ResolvedCopyArgs::resolve(args, world);
    }
    let name = |operand: &OsString| EscapedName(operand.as_bytes().to_vec());
    let sources: Vec<EscapedName> = args.sources.iter().map(name).collect();
    let target = name(&args.destination);
    let operands = operands(&args).map_err(wrong)?;
    let sources = match operands.among_sources {
        true => operands.sources.iter().map(name).collect(),
        false => sources,
    };
    let fans_out = operands.targets.len() > 1 || args.hosts_file.is_some() || args.fan_out;
    args.sources = operands.sources;
    let all_targets = operands.targets.clone();
    let mut targets = operands.targets.into_iter();
    args.destination = targets.next().unwrap_or_default();
    let manifest = args.manifest.is_some();
    let mut high = ResolvedCopyArgs::resolve(args, world)?;
    high.request.options.may_fan_out = operands.may_be_targets;
    high.several = match fans_out {
        true => Some(fan_out(&mut high, targets)?),
        false => gather(&high, operands.braces).map_err(wrong)?,
    };
    if high.several.is_some() && manifest {
        return Err(wrong(
            "--manifest describes the copy of one host: leave it out, or copy each host by a \
             command of its own"
                .to_owned(),
        ));
    }
    (high.sources, high.target) = (sources, target);
    high.typed.targets = all_targets;
    Ok(high)
}

fn wrong(what: impl Display) -> UsageError {
    UsageError(format!("error: {what}\n"))
}

fn operands(args: &CopyArgs) -> Result<ExpandedOperands, ArgumentError> {
    let mut sources = Vec::new();
    for operand in &args.sources {
        sources.extend(expand(operand)?);
    }
    let braces = sources.len() > args.sources.len();
    if let Some(file) = &args.hosts_file {
        let path = hosts_file::of_all_hosts(&args.destination)?;
        let targets = hosts_file::targets(file, path)?;
        return Ok(ExpandedOperands {
            sources,
            targets,
            among_sources: false,
            braces,
            may_be_targets: false,
        });
    }
    let mut targets = expand(&args.destination)?;
    let (mut may_be_targets, mut among_sources) = (false, false);
    if targets.len() == 1 {
        match meaning(args, &sources)? {
            RemoteOperandRoles::TargetsFrom(first) => {
                let last = std::mem::replace(&mut targets, sources.split_off(first));
                targets.extend(last);
                among_sources = true;
            }
            RemoteOperandRoles::Sources { may_fan_out } => may_be_targets = may_fan_out,
        }
    }
    Ok(ExpandedOperands {
        sources,
        targets,
        among_sources,
        braces,
        may_be_targets,
    })
}

/// Expands the braces of an operand, which must not name a host twice.
pub(super) fn expand(operand: &OsStr) -> Result<Vec<OsString>, ArgumentError> {
    let all = CopyOperand::expand(operand)?;
    let mut seen = HashSet::new();
    match all.iter().find(|one| !seen.insert(*one)) {
        Some(twice) => Err(format!(
            "{}: the braces name {} twice: name each host once",
            transfer::escape::name(operand.as_bytes()),
            transfer::escape::name(twice.as_bytes())
        )
        .into()),
        None => Ok(all),
    }
}

/// True if the sources name the same paths on several hosts, as braces do that the shell has
/// expanded.
fn names_each_path_on_each_host(sources: &[CopyLocation]) -> bool {
    let mut of_host: BTreeMap<HostId, Vec<&[u8]>> = BTreeMap::new();
    for source in sources {
        match source {
            CopyLocation::Remote { host, path } => of_host.entry(*host).or_default().push(path),
            CopyLocation::Local(_) => return false,
        }
    }
    let mut all = of_host.values();
    let first = all.next();
    of_host.len() > 1 && all.all(|paths| Some(paths) == first)
}

/// Resolves the targets of a fan-out behind the first one.
fn fan_out(
    high: &mut ResolvedCopyArgs,
    rest: impl Iterator<Item = OsString>,
) -> Result<MultiHostCopy, UsageError> {
    let local = |place: &CopyLocation| matches!(place, CopyLocation::Local(_));
    if !high.request.sources.iter().all(local) {
        return Err(wrong(
            "several targets need sources on this machine: copy to one of the hosts first, and \
             from there to the others"
                .to_owned(),
        ));
    }
    let port = high.flags.port;
    let mut targets = vec![high.request.target.clone()];
    for target in rest {
        let operand = CopyOperand::parse(&target).map_err(wrong)?;
        targets.push(place(operand, port, &mut high.hosts));
    }
    let mut seen = HashSet::new();
    for target in &targets {
        let CopyLocation::Remote { host, .. } = target else {
            continue;
        };
        if !seen.insert(*host) {
            let name = high.hosts.get(host.0).map(SshDestination::to_string);
            return Err(wrong(format!(
                "{}: the host is named twice as a target: name each host once",
                name.unwrap_or_default()
            )));
        }
    }
    Ok(MultiHostCopy::FanOut(targets))
}

/// Recognizes sources on several hosts whose target is this machine.
fn gather(high: &ResolvedCopyArgs, braces: bool) -> Result<Option<MultiHostCopy>, ArgumentError> {
    let CopyRequest {
        sources, target, ..
    } = &high.request;
    let by_host = high.flags.by_host;
    let remote = |place: &CopyLocation| matches!(place, CopyLocation::Remote { .. });
    let gathers = !remote(target) && sources.iter().all(remote);
    if by_host && !gathers {
        return Err(
            "--by-host: needs sources on hosts and a target on this machine: leave it out".into(),
        );
    }
    // The contents of several directories are merged by one copy, which compares all names.
    let merges = |place: &CopyLocation| SourceName::of(place) == SourceName::Contents;
    let many = high.hosts.len() > 1;
    let parallel = gathers && many && !sources.iter().any(merges);
    if by_host {
        folders(&high.hosts)?;
    }
    Ok((by_host || parallel).then_some(MultiHostCopy::Gather {
        by_host,
        create: by_host || braces || names_each_path_on_each_host(sources),
    }))
}

/// Names of the hosts' directories with `--by-host`: host names, with user and port where these
/// alone differ.
pub(super) fn folders(hosts: &[SshDestination]) -> Result<Vec<OsString>, ArgumentError> {
    let mut seen = HashSet::new();
    let unique = hosts.iter().all(|host| seen.insert(&host.host));
    let folder = |host: &SshDestination| {
        let name = match unique {
            true => host.host.clone(),
            false => host.to_string(),
        };
        match name.as_str() {
            "." | ".." => {
                Err(format!("--by-host: {name} cannot be the name of a directory").into())
            }
            _ if name.contains('/') => Err(format!(
                "--by-host: {name}: a name with a slash cannot be the name of a directory"
            )
            .into()),
            _ => Ok(OsString::from_vec(name.into_bytes())),
        }
    };
    hosts.iter().map(folder).collect()
}

/// Copies that a request with several hosts consists of, one for each host.
pub(super) fn parts(
    several: &MultiHostCopy,
    request: &CopyRequest,
    hosts: &[SshDestination],
) -> Result<Vec<(HostId, CopyRequest)>, ArgumentError> {
    match several {
        MultiHostCopy::FanOut(targets) => {
            let part = |target: &CopyLocation| match target {
                CopyLocation::Remote { host, path } => Some((
                    *host,
                    CopyRequest {
                        target: alone(path),
                        ..request.clone()
                    },
                )),
                CopyLocation::Local(_) => None,
            };
            Ok(targets.iter().filter_map(part).collect())
        }
        MultiHostCopy::Gather { by_host, create } => {
            let folders = match by_host {
                true => folders(hosts)?,
                false => Vec::new(),
            };
            let part = |at: usize| {
                let of_host = |source: &CopyLocation| match source {
                    CopyLocation::Remote { host, path } if host.0 == at => Some(alone(path)),
                    _ => None,
                };
                let mut part = CopyRequest {
                    sources: request.sources.iter().filter_map(of_host).collect(),
                    ..request.clone()
                };
                if let (CopyLocation::Local(path), Some(folder)) =
                    (&request.target, folders.get(at))
                {
                    part.target = CopyLocation::Local(path.join(folder));
                }
                part.options.target_directory = shared_target(&part.target, *create);
                (HostId(at), part)
            };
            Ok((0..hosts.len()).map(part).collect())
        }
    }
}

/// Looks which of the target's directories the command makes, before the first copy begins.
fn shared_target(target: &CopyLocation, create: bool) -> TargetDirectory {
    let is_missing = |path: &Path| !path.as_os_str().is_empty() && path.symlink_metadata().is_err();
    let (is_new, parent_is_new) = match target {
        CopyLocation::Local(path) => (is_missing(path), path.parent().is_some_and(is_missing)),
        CopyLocation::Remote { .. } => (false, false),
    };
    TargetDirectory::Shared {
        is_new,
        parent_is_new: parent_is_new && create,
    }
}

/// A path on the only host of a copy.
fn alone(path: &[u8]) -> CopyLocation {
    CopyLocation::Remote {
        host: HostId(0),
        path: path.to_vec(),
    }
}

#[cfg(test)]
#[path = "operands_tests.rs"]
mod tests;
