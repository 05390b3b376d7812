//! Decides which operands of a copy are sources, and which are targets.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use transfer::operand::CopyOperand;

use crate::flags::argument_error::ArgumentError;
use crate::flags::low::CopyArgs;

/// Roles of the remote operands of a copy whose last operand names one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemoteOperandRoles {
    /// All but the last one are sources, as in scp.
    Sources {
        /// Remote sources follow local ones, and may have been meant as targets.
        may_fan_out: bool,
    },
    /// The operands from this number on are targets.
    TargetsFrom(usize),
}

/// Decides between scp's meaning and a fan-out.
///
/// Without `--fan-out`, remote operands behind local ones are targets only if each of them is a
/// directory by its form, and there is no `-r`: scp refuses directories as sources.
///
/// All other forms are copies in scp, which takes local and remote sources together. They are
/// refused only if they look like a fan-out: a remote source has the path of the target, as when
/// the shell has expanded `host{1,2}:path`; or it is a home directory; or, without `-r`, it is a
/// directory by its form.
///
/// # Errors
/// The command line may be meant both ways, and the wrong one would copy other files.
pub(super) fn meaning(
    args: &CopyArgs,
    sources: &[OsString],
) -> Result<RemoteOperandRoles, ArgumentError> {
    let in_scp = RemoteOperandRoles::Sources { may_fan_out: false };
    let path = |operand: &OsStr| match CopyOperand::parse(operand) {
        Ok(CopyOperand::Remote(remote)) => Some(remote.path.0),
        _ => None,
    };
    let no_fan_out = || match args.fan_out {
        true => Err(
            "--fan-out: name sources on this machine first, then the targets: longhaul cp \
             --fan-out SOURCE... HOST:... HOST:..."
                .into(),
        ),
        false => Ok(in_scp),
    };
    let Some(target) = path(&args.destination) else {
        return no_fan_out();
    };
    let Some(first) = sources.iter().position(|source| path(source).is_some()) else {
        return Ok(in_scp);
    };
    let behind = sources.iter().skip(first).map(|source| path(source));
    let Some(behind) = behind.collect::<Option<Vec<_>>>() else {
        return no_fan_out();
    };
    let refused = |at: usize, advice: &str| {
        let operand = sources.get(first + at).map(|one| one.as_bytes());
        let operand = transfer::escape::name(operand.unwrap_or_default());
        Err(format!(
            "the operand {operand} would be read as a source, because only the last one is the \
             destination, as in scp: {}",
            advice.replace("OPERAND", &operand.to_string())
        )
        .into())
    };
    if first == 0 {
        // The shell has expanded host{1,2}:path behind a source on another host.
        let expanded = behind.first() != Some(&target) && behind.last() == Some(&target);
        return match args.fan_out || !expanded {
            true => no_fan_out(),
            false => refused(
                behind.len() - 1,
                "only local files can be copied to several targets at once; run one command for \
                 each target",
            ),
        };
    }
    if args.fan_out {
        return Ok(RemoteOperandRoles::TargetsFrom(first));
    }
    let recursive = args.recursive || args.archive;
    let all_are_directories = behind
        .iter()
        .chain([&target])
        .all(|path| is_directory(path));
    if !recursive && all_are_directories {
        return Ok(RemoteOperandRoles::TargetsFrom(first));
    }
    let may_be_target = |path: &Vec<u8>| {
        let like_a_target = match recursive {
            true => is_home(path),
            false => is_directory(path),
        };
        like_a_target || without_slashes(path) == without_slashes(&target)
    };
    match behind.iter().position(may_be_target) {
        Some(at) => refused(
            at,
            "to copy to all of the hosts, add --fan-out; to copy from OPERAND, write it before the \
             local files",
        ),
        None => Ok(RemoteOperandRoles::Sources { may_fan_out: true }),
    }
}

/// True if a remote path is a home directory.
fn is_home(path: &[u8]) -> bool {
    matches!(without_slashes(path), b"" | b"." | b"~") && !path.starts_with(b"/")
}

/// The path without slashes at its end.
fn without_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/');
    path.get(..end.map_or(0, |last| last + 1)).unwrap_or(path)
}

/// True if a remote path is a home directory, or is a directory by its last component.
fn is_directory(path: &[u8]) -> bool {
    path.ends_with(b"/")
        || matches!(
            path.rsplit(|b| *b == b'/').next(),
            Some(b"." | b".." | b"~")
        )
}
