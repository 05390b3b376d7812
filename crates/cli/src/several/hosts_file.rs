//! Reads the file of `--hosts`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use transfer::operand::{CopyOperand, MOST_HOSTS};

use super::operands::expand;
use crate::flags::argument_error::ArgumentError;

/// Longest file of hosts, in bytes.
const MOST_READ: u64 = 1 << 20;
/// Longest line, in bytes: a path of the kernel's longest (PATH_MAX) behind a user and a host. A line
/// with braces is repeated for each of its hosts.
const LONGEST_LINE: usize = 8192;

/// The path at each host of `--hosts` whose line names none.
pub(super) fn of_all_hosts(destination: &OsStr) -> Result<&Path, ArgumentError> {
    match CopyOperand::parse(destination)? {
        CopyOperand::Local(_) => Ok(Path::new(destination)),
        CopyOperand::Remote(_) => Err(format!(
            "{}: with --hosts the last operand is the path at each host: write it without a host, \
             . for the home directory",
            transfer::escape::name(destination.as_bytes())
        )
        .into()),
    }
}

/// Reads the targets of `--hosts`.
pub(super) fn targets(file: &Path, path: &Path) -> Result<Vec<OsString>, ArgumentError> {
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
        return Err(format!("--hosts: {shown}: the file is longer than 1 MiB").into());
    }
    let mut targets = Vec::new();
    for (number, line) in text.split(|b| *b == b'\n').enumerate() {
        let failed = |why: ArgumentError| format!("--hosts: {shown}: line {}: {why}", number + 1);
        let line = without_comment(line);
        if line.len() > LONGEST_LINE {
            return Err(failed(format!("longer than {LONGEST_LINE} bytes").into()).into());
        }
        if !line.is_empty() {
            targets.extend(line_targets(line, path).map_err(failed)?);
        }
        if targets.len() > MOST_HOSTS {
            return Err(format!("--hosts: {shown}: more than {MOST_HOSTS} hosts").into());
        }
    }
    match targets.is_empty() {
        true => Err(format!("--hosts: {shown}: the file names no host").into()),
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
///
/// # Errors
/// A sentence that shows the line as it is in the file.
fn line_targets(written: &[u8], path: &Path) -> Result<Vec<OsString>, ArgumentError> {
    let line = written;
    let not_a_host = || {
        let line = transfer::escape::name(written);
        format!(
            "{line}: not a host: write one host a line, as host, host:path or \
             scp://host:port/path"
        )
    };
    let is_remote =
        |target: &OsString| matches!(CopyOperand::parse(target), Ok(CopyOperand::Remote(_)));
    let uri = [b"scp://".as_slice(), b"sftp://"]
        .into_iter()
        .find_map(|scheme| line.strip_prefix(scheme));
    let is_port = |path: &[u8]| !path.is_empty() && path.iter().all(u8::is_ascii_digit);
    if let Ok(CopyOperand::Remote(remote)) = CopyOperand::parse(OsStr::from_bytes(line))
        && uri.is_none()
        && is_port(&remote.path.0)
    {
        let (line, host) = (transfer::escape::name(line), &remote.destination);
        let number = transfer::escape::name(&remote.path.0);
        return Err(format!(
            "{line}: {number} would be a path: write scp://{host}:{number} for a port, or \
             {host}:./{number} for a file"
        )
        .into());
    }
    let line = match uri {
        // The path of a URI is relative to the home directory.
        Some(rest) if !rest.contains(&b'/') => [line, b"/", &encoded(path)].concat(),
        Some(_) => line.to_vec(),
        None if line.ends_with(b":") => [line, path.as_os_str().as_bytes()].concat(),
        None if CopyOperand::expand(OsStr::from_bytes(line))
            .is_ok_and(|all| all.iter().all(is_remote)) =>
        {
            line.to_vec()
        }
        None => [line, b":", path.as_os_str().as_bytes()].concat(),
    };
    let targets = expand(OsStr::from_bytes(&line))?;
    match targets.iter().all(is_remote) {
        true => Ok(targets),
        false => Err(not_a_host().into()),
    }
}

/// A path with the characters encoded that have a meaning in a URI.
fn encoded(path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes();
    bytes
        .split(|b| *b == b'%')
        .collect::<Vec<_>>()
        .join(&b"%25"[..])
}
