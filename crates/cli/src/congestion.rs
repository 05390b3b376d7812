//! Checks that the kernel permits the congestion control that `--congestion` names.

use std::fmt;
use std::fs;

use crate::flags::high::ResolvedCopyArgs;
use crate::flags::low::UsageError;

/// The algorithms that any program may choose, and all available ones, which root may choose
/// (tcp(7)).
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Returns the arguments if the kernel permits their congestion control.
///
/// # Errors
/// The kernel has none of that name, or reserves it for root; the sentence names the possible
/// choices.
pub(crate) fn check(args: ResolvedCopyArgs) -> Result<ResolvedCopyArgs, UsageError> {
    let Some(name) = &args.flags.congestion else {
        return Ok(args);
    };
    match permitted(name) {
        Ok(()) => Ok(args),
        Err(why) => Err(UsageError(format!("error: {why}\n"))),
    }
}

/// Checks that this process may use a congestion control.
///
/// # Errors
/// The kernel has none of that name, or reserves it for root.
pub(crate) fn permitted(name: &str) -> Result<(), CongestionError> {
    sys::may_control_congestion(name)
        .map_err(|_| refused(name, |file| fs::read_to_string(file).ok()))
}

/// A congestion control that this process may not use. The message has no `error:`.
#[derive(Debug)]
pub(crate) struct CongestionError {
    name: String,
    /// The kernel has the algorithm, and reserves it for root.
    is_for_root: bool,
    /// The algorithms that any program may choose.
    allowed: String,
}

impl fmt::Display for CongestionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = wire::escape::name(self.name.as_bytes());
        let why = match self.is_for_root {
            true => {
                "only root may use it until sysctl net.ipv4.tcp_allowed_congestion_control has it"
            }
            false => "the kernel has no such algorithm, or its module is not loaded",
        };
        write!(f, "--congestion: cannot use '{name}': {why}")?;
        match self.allowed.as_str() {
            "" => Ok(()),
            names => write!(f, "; the kernel permits: {names}"),
        }
    }
}

impl std::error::Error for CongestionError {}

fn refused(name: &str, read: impl Fn(&str) -> Option<String>) -> CongestionError {
    let listed = |file| {
        let names = read(file).unwrap_or_default();
        names.split_whitespace().collect::<Vec<_>>().join(", ")
    };
    let (allowed, available) = (listed(ALLOWED), listed(AVAILABLE));
    CongestionError {
        name: name.to_owned(),
        is_for_root: available.split(", ").any(|other| other == name),
        allowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_permitted_is_listed() {
        let read = |file: &str| {
            Some(match file {
                ALLOWED => "reno cubic\n".to_owned(),
                _ => "reno cubic bbr\n".to_owned(),
            })
        };
        assert_eq!(
            refused("bbr", read).to_string(),
            "--congestion: cannot use 'bbr': only root may use it until sysctl \
             net.ipv4.tcp_allowed_congestion_control has it; the kernel permits: reno, cubic"
        );
        assert_eq!(
            refused("vegas\u{1b}", read).to_string(),
            "--congestion: cannot use 'vegas\\x1b': the kernel has no such algorithm, or its module \
             is not loaded; the kernel permits: reno, cubic"
        );
        let nothing = refused("x", |_| None).to_string();
        assert!(nothing.ends_with("its module is not loaded"), "{nothing}");
    }
}
