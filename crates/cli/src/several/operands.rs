//! Finds the hosts of a copy: braces, several targets, and files of hosts.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use transfer::copy::{CopyRequest, HostId, Place, SourceName, TargetDirectory};
use transfer::operand::{Destination, MOST_HOSTS, Operand};
use transfer::report::Name;

use crate::flags::high::{Environment, HighArgs, place};
use crate::flags::low::{CopyArgs, UsageError};

/// Longest file of hosts, in bytes.
const MOST_READ: u64 = 1 << 20;

/// A copy with several hosts at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Several {
    /// Sources on several hosts are copied to this machine.
    Gather {
        /// The files of each host get a directory of their own.
        by_host: bool,
        /// Create the target directory.
        create: bool,
    },
    /// Sources on this machine are copied to each of these targets.
    FanOut(Vec<Place>),
}

/// Operands after expansion.
struct Operands {
    sources: Vec<OsString>,
    /// Targets, with more than one in a fan-out.
    targets: Vec<OsString>,
    /// A source had braces.
    braces: bool,
}

/// Resolves the command line of `longhaul cp`.
///
/// # Errors
/// An operand is invalid, a host is named twice, or the command has two meanings.
pub(crate) fn resolve(mut args: CopyArgs, world: &Environment) -> Result<HighArgs, UsageError> {
    if args.plan.is_some() {
        return HighArgs::resolve(args, world);
    }
    let name = |operand: &OsString| Name(operand.as_bytes().to_vec());
    let sources: Vec<Name> = args.sources.iter().map(name).collect();
    let target = name(&args.destination);
    let operands = operands(&args).map_err(wrong)?;
    let fans_out = operands.targets.len() > 1 || args.hosts_file.is_some() || args.fan_out;
    args.sources = operands.sources;
    let all_targets = operands.targets.clone();
    let mut targets = operands.targets.into_iter();
    args.destination = targets.next().unwrap_or_default();
    let manifest = args.manifest.is_some();
    let mut high = HighArgs::resolve(args, world)?;
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

fn wrong(what: String) -> UsageError {
    UsageError(format!("error: {what}\n"))
}

fn operands(args: &CopyArgs) -> Result<Operands, String> {
    let mut sources = Vec::new();
    for operand in &args.sources {
        sources.extend(expand(operand)?);
    }
    let braces = sources.len() > args.sources.len();
    if let Some(file) = &args.hosts_file {
        let path = of_all_hosts(&args.destination)?;
        let targets = hosts_file(file, path)?;
        return Ok(Operands {
            sources,
            targets,
            braces,
        });
    }
    let mut targets = expand(&args.destination)?;
    if targets.len() == 1
        && let Some(first) = first_target(args, &sources)?
    {
        let last = std::mem::replace(&mut targets, sources.split_off(first));
        targets.extend(last);
    }
    Ok(Operands {
        sources,
        targets,
        braces,
    })
}

/// Expands the braces of an operand, which must not name a host twice.
fn expand(operand: &OsStr) -> Result<Vec<OsString>, String> {
    let all = Operand::expand(operand).map_err(|error| error.to_string())?;
    let mut seen = HashSet::new();
    match all.iter().find(|one| !seen.insert(*one)) {
        Some(twice) => Err(format!(
            "{}: the braces name {} twice: name each host once",
            transfer::escape::name(operand.as_bytes()),
            transfer::escape::name(twice.as_bytes())
        )),
        None => Ok(all),
    }
}

/// The path at each host of `--hosts` whose line names none.
fn of_all_hosts(destination: &OsStr) -> Result<&Path, String> {
    match Operand::parse(destination).map_err(|error| error.to_string())? {
        Operand::Local(_) => Ok(Path::new(destination)),
        Operand::Remote(_) => Err(format!(
            "{}: names a host, but --hosts lists the hosts: give only the path on each host (. for \
             the home directory)",
            transfer::escape::name(destination.as_bytes())
        )),
    }
}

/// Reads the targets of `--hosts`.
fn hosts_file(file: &Path, path: &Path) -> Result<Vec<OsString>, String> {
    let shown = transfer::escape::path(file).to_string();
    let mut text = Vec::new();
    let read = |text: &mut Vec<u8>| -> io::Result<()> {
        let source: Box<dyn io::Read> = match file == Path::new("-") {
            true => Box::new(io::stdin()),
            false => Box::new(File::open(file)?),
        };
        source.take(MOST_READ + 1).read_to_end(text).map(drop)
    };
    read(&mut text).map_err(|error| {
        let why = crate::output::console::without_numbers(&error.to_string());
        format!("--hosts: {shown}: {why}")
    })?;
    if text.len() as u64 > MOST_READ {
        return Err(format!("--hosts: {shown}: the file is longer than 1 MiB"));
    }
    let mut targets = Vec::new();
    for (number, line) in text.split(|b| *b == b'\n').enumerate() {
        let failed = |why: String| format!("--hosts: {shown}: line {}: {why}", number + 1);
        let line = without_comment(line);
        if !line.is_empty() {
            targets.extend(line_targets(line, path).map_err(failed)?);
        }
        if targets.len() > MOST_HOSTS {
            return Err(format!("--hosts: {shown}: more than {MOST_HOSTS} hosts"));
        }
    }
    match targets.is_empty() {
        true => Err(format!("--hosts: {shown}: the file lists no host")),
        false => Ok(targets),
    }
}

/// A line without its comment and the blanks around it.
fn without_comment(line: &[u8]) -> &[u8] {
    let starts = |at: usize| at == 0 || line[at - 1].is_ascii_whitespace();
    let hash = (0..line.len()).find(|at| line[*at] == b'#' && starts(*at));
    line[..hash.unwrap_or(line.len())].trim_ascii()
}

/// Targets that a line of `--hosts` names: `host`, `host:path` or a URI.
fn line_targets(line: &[u8], path: &Path) -> Result<Vec<OsString>, String> {
    let uri = [b"scp://".as_slice(), b"sftp://"]
        .into_iter()
        .find_map(|scheme| line.strip_prefix(scheme));
    let line = match uri {
        // The path of a URI is relative to the home directory.
        Some(rest) if !rest.contains(&b'/') => [line, b"/", &encoded(path)].concat(),
        Some(_) => line.to_vec(),
        None if line.ends_with(b":") => [line, path.as_os_str().as_bytes()].concat(),
        None if matches!(
            Operand::parse(OsStr::from_bytes(line)),
            Ok(Operand::Remote(_))
        ) =>
        {
            line.to_vec()
        }
        None => [line, b":", path.as_os_str().as_bytes()].concat(),
    };
    let targets = expand(OsStr::from_bytes(&line))?;
    for target in &targets {
        match Operand::parse(target) {
            Ok(Operand::Remote(_)) => {}
            Ok(Operand::Local(_)) => {
                let line = transfer::escape::name(&line).to_string();
                return Err(format!("{line}: not a host: write host or host:path"));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(targets)
}

/// A path with the characters encoded that have a meaning in a URI.
fn encoded(path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes();
    bytes
        .split(|b| *b == b'%')
        .collect::<Vec<_>>()
        .join(&b"%25"[..])
}

/// Finds the first of several targets among the sources: remote operands behind local ones that are
/// directories by their form. As sources they would be refused without `-r`.
fn first_target(args: &CopyArgs, sources: &[OsString]) -> Result<Option<usize>, String> {
    let remote = |operand: &OsStr| matches!(Operand::parse(operand), Ok(Operand::Remote(_)));
    let first = sources.iter().position(|source| remote(source));
    let none = || match args.fan_out && (first == Some(0) || !remote(&args.destination)) {
        true => Err(
            "--fan-out: name sources on this machine first, then the targets: \
             longhaul cp --fan-out SOURCE... HOST:... HOST:..."
                .to_owned(),
        ),
        false => Ok(None),
    };
    let Some(first) = first.filter(|first| *first > 0) else {
        return none();
    };
    let (_, behind) = sources.split_at(first);
    let mut targets = behind.iter().chain([&args.destination]);
    if !targets.clone().all(|target| remote(target)) {
        return none();
    }
    if args.fan_out {
        return Ok(Some(first));
    }
    if !targets.all(|target| is_directory(target)) {
        return Ok(None);
    }
    if args.recursive || args.archive {
        return Err(
            "with -r, a remote directory before the last operand may be a source or a target: add \
             --fan-out to copy to every host, or copy from each source by a command of its own"
                .to_owned(),
        );
    }
    Ok(Some(first))
}

/// True if an operand has no path, or a path that ends with a slash.
fn is_directory(operand: &OsStr) -> bool {
    let bytes = operand.as_bytes();
    bytes.ends_with(b":") || bytes.ends_with(b"/") || !bytes.contains(&b':')
}

/// Resolves the targets of a fan-out behind the first one.
fn fan_out(
    high: &mut HighArgs,
    rest: impl Iterator<Item = OsString>,
) -> Result<Several, UsageError> {
    let local = |place: &Place| matches!(place, Place::Local(_));
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
        let operand = Operand::parse(&target).map_err(|error| wrong(error.to_string()))?;
        targets.push(place(operand, port, &mut high.hosts));
    }
    let mut seen = HashSet::new();
    for target in &targets {
        let Place::Remote { host, .. } = target else {
            continue;
        };
        if !seen.insert(*host) {
            let name = high.hosts.get(host.0).map(Destination::to_string);
            return Err(wrong(format!(
                "{}: the host is named twice as a target: name each host once",
                name.unwrap_or_default()
            )));
        }
    }
    Ok(Several::FanOut(targets))
}

/// Recognizes sources on several hosts whose target is this machine.
fn gather(high: &HighArgs, braces: bool) -> Result<Option<Several>, String> {
    let CopyRequest {
        sources, target, ..
    } = &high.request;
    let by_host = high.flags.by_host;
    let remote = |place: &Place| matches!(place, Place::Remote { .. });
    let gathers = !remote(target) && sources.iter().all(remote);
    if by_host && !gathers {
        return Err(
            "--by-host: needs sources on hosts and a target on this machine: leave it out"
                .to_owned(),
        );
    }
    // The contents of several directories are merged by one copy, which compares all names.
    let merges = |place: &Place| SourceName::of(place) == SourceName::Contents;
    let many = high.hosts.len() > 1;
    let parallel = gathers && many && !sources.iter().any(merges);
    if by_host {
        folders(&high.hosts)?;
    }
    Ok((by_host || parallel).then_some(Several::Gather {
        by_host,
        create: by_host || braces,
    }))
}

/// Names of the hosts' directories with `--by-host`: host names, with user and port where these
/// alone differ.
pub(super) fn folders(hosts: &[Destination]) -> Result<Vec<OsString>, String> {
    let mut seen = HashSet::new();
    let unique = hosts.iter().all(|host| seen.insert(&host.host));
    let folder = |host: &Destination| {
        let name = match unique {
            true => host.host.clone(),
            false => host.to_string(),
        };
        match name.as_str() {
            "." | ".." => Err(format!(
                "--by-host: {name} cannot be the name of a directory"
            )),
            _ if name.contains('/') => Err(format!(
                "--by-host: {name}: a name with a slash cannot be the name of a directory"
            )),
            _ => Ok(OsString::from_vec(name.into_bytes())),
        }
    };
    hosts.iter().map(folder).collect()
}

/// Copies that a request with several hosts consists of, one for each host.
pub(super) fn parts(
    several: &Several,
    request: &CopyRequest,
    hosts: &[Destination],
) -> Result<Vec<(HostId, CopyRequest)>, String> {
    match several {
        Several::FanOut(targets) => {
            let part = |target: &Place| match target {
                Place::Remote { host, path } => Some((
                    *host,
                    CopyRequest {
                        target: alone(path),
                        ..request.clone()
                    },
                )),
                Place::Local(_) => None,
            };
            Ok(targets.iter().filter_map(part).collect())
        }
        Several::Gather { by_host, create } => {
            let folders = match by_host {
                true => folders(hosts)?,
                false => Vec::new(),
            };
            let part = |at: usize| {
                let of_host = |source: &Place| match source {
                    Place::Remote { host, path } if host.0 == at => Some(alone(path)),
                    _ => None,
                };
                let mut part = CopyRequest {
                    sources: request.sources.iter().filter_map(of_host).collect(),
                    ..request.clone()
                };
                if let (Place::Local(path), Some(folder)) = (&request.target, folders.get(at)) {
                    part.target = Place::Local(path.join(folder));
                }
                part.options.target_directory = match create {
                    true => TargetDirectory::Created,
                    false => TargetDirectory::Existing,
                };
                (HostId(at), part)
            };
            Ok((0..hosts.len()).map(part).collect())
        }
    }
}

/// A path on the only host of a copy.
fn alone(path: &[u8]) -> Place {
    Place::Remote {
        host: HostId(0),
        path: path.to_vec(),
    }
}

#[cfg(test)]
#[path = "operands_tests.rs"]
mod tests;
