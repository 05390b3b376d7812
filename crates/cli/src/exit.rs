//! Exit codes: their meaning, and the only code that chooses one.

use std::process::ExitCode;

use transfer::bootstrap::BootstrapError;
use transfer::connect::ConnectError;
use transfer::report::CopyOutcome;

/// End of a run as the user sees it, which decides the exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything was copied.
    Done,
    /// Some files failed.
    SomeFailed,
    /// The command line is invalid.
    Usage,
    /// Everything was copied, and deletions were refused.
    Refused,
    /// The plan cannot be used, or its source has changed; another try does not help.
    PlanUnusable,
    /// The shard was not copied to its end; another try helps.
    ShardIncomplete,
    /// No connection could be made, or it was lost for good.
    NoConnection,
    /// A signal ended the run.
    Interrupted,
}

/// Exit codes of `longhaul lab`, in the order of help and man page.
pub(crate) const LAB: &[(&str, &str)] = &[
    (
        "...",
        "the exit code of the command; 128 plus the signal number if a signal ended it",
    ),
    ("2", "invalid command line, or no such path"),
    ("125", "the lab itself failed; the message says why"),
    ("126", "the command exists but cannot be run"),
    ("127", "no such command"),
];

/// Exit codes of `longhaul serve`.
pub(crate) const SERVE: &[(&str, &str)] = &[
    ("0", "the client disconnected, or the server was stopped"),
    (
        "1",
        "cannot serve, or with a single client: protocol error or lost connection; the message \
         says why",
    ),
    ("2", "invalid command line"),
    (
        "130",
        "a second signal ended transfers that were still running",
    ),
];

/// Exit codes of `longhaul dial`.
pub(crate) const DIAL: &[(&str, &str)] = &[
    ("0", "ssh has the socket, or both directions have ended"),
    ("2", "invalid command line"),
    (
        "255",
        "the connection could not be made or handed over, or was lost; the message says why",
    ),
];

/// Exit codes of `longhaul ssh-config`.
pub(crate) const SSH_CONFIG: &[(&str, &str)] = &[
    ("0", "the lines were printed or written"),
    ("1", "nothing was written; the message says why"),
    ("2", "invalid command line"),
];

/// Exit codes of `longhaul bench`.
pub(crate) const BENCH: &[(&str, &str)] = &[
    ("0", "the measurement is complete, within the given time"),
    (
        "1",
        "the measurement ended early, or a result cannot be read or written; partial results are \
         shown and marked",
    ),
    ("2", "invalid command line"),
    ("130", "interrupted; partial results are shown and marked"),
    (
        "255",
        "no connection, or the connection was lost; partial results are shown and marked",
    ),
];

/// Exit codes of `longhaul doctor`.
pub(crate) const DOCTOR: &[(&str, &str)] = &[
    ("0", "the measurement is complete, whatever its verdict"),
    (
        "1",
        "the measurement ended early, or a file cannot be read or written; partial findings are \
         shown and marked",
    ),
    ("2", "invalid command line"),
    ("130", "interrupted; partial findings are shown and marked"),
    ("255", "no connection; the message says why"),
];

/// Exit codes of `longhaul wrap`.
pub(crate) const WRAP: &[(&str, &str)] = &[
    (
        "...",
        "the exit code of the program; with --report, 128 plus the signal number if a signal ended \
         it",
    ),
    ("1", "with --check: the program cannot be wrapped"),
    ("2", "invalid command line"),
    (
        "125",
        "the library or something else that is needed is missing; the message says what",
    ),
    ("126", "the program cannot be wrapped or run"),
    ("127", "no such program"),
];

/// Exit codes of `longhaul relay`.
pub(crate) const RELAY: &[(&str, &str)] = &[
    (
        "0",
        "the relay was stopped, or the connection of standard input and output ended",
    ),
    (
        "1",
        "cannot listen, or the connection of standard input and output was refused or broke; the \
         message says why",
    ),
    ("2", "invalid command line"),
    (
        "130",
        "a second signal ended connections that were still open",
    ),
];

/// All exit codes, in the order of help and man page.
pub(crate) const ALL: [Exit; 8] = [
    Exit::Done,
    Exit::SomeFailed,
    Exit::Usage,
    Exit::Refused,
    Exit::PlanUnusable,
    Exit::ShardIncomplete,
    Exit::NoConnection,
    Exit::Interrupted,
];

impl Exit {
    /// The numeric exit code. 255 is ssh's for its own errors; 130 is the shell's for SIGINT;
    /// 65 and 75 are EX_DATAERR and EX_TEMPFAIL of sysexits(3).
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::SomeFailed => 1,
            Self::Usage => 2,
            Self::Refused => 25,
            Self::PlanUnusable => 65,
            Self::ShardIncomplete => 75,
            Self::NoConnection => 255,
            Self::Interrupted => 130,
        }
    }

    /// The meaning of a code, without a full stop.
    pub(crate) const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "everything was copied",
            Self::SomeFailed => "some files failed; the end of the output names each",
            Self::Usage => {
                "invalid command line, or invalid settings in ssh_config (scp says 1 or 255)"
            }
            Self::Refused => {
                "sync: everything was copied, and nothing was deleted, for the stated reason (as in \
                 rsync)"
            }
            Self::PlanUnusable => {
                "plan: the plan is damaged or of another version, the source has changed since it \
                 was made, or this plan cannot complete a split file: another try does not help"
            }
            Self::ShardIncomplete => {
                "cp --plan: the shard is not complete, because a signal stopped it or another \
                 worker copies it: try again"
            }
            Self::NoConnection => {
                "no connection: it could not be made, was refused, or was lost for good"
            }
            Self::Interrupted => {
                "interrupted by SIGINT, SIGTERM or SIGHUP, or the reader of --json closed its \
                 pipe"
            }
        }
    }
}

impl From<&CopyOutcome> for Exit {
    fn from(outcome: &CopyOutcome) -> Self {
        match outcome {
            CopyOutcome::Complete => Self::Done,
            CopyOutcome::Partial => Self::SomeFailed,
            CopyOutcome::NoConnection(_) => Self::NoConnection,
            CopyOutcome::Misconfigured(_) => Self::Usage,
            CopyOutcome::Interrupted => Self::Interrupted,
        }
    }
}

impl From<&ConnectError> for Exit {
    fn from(error: &ConnectError) -> Self {
        match error.is_misconfiguration() {
            true => Self::Usage,
            false => Self::NoConnection,
        }
    }
}

impl From<&BootstrapError> for Exit {
    fn from(error: &BootstrapError) -> Self {
        match error {
            BootstrapError::Connection(error) => error.into(),
            BootstrapError::Lost(_) => Self::NoConnection,
            BootstrapError::Interrupted => Self::Interrupted,
            BootstrapError::NoCommands | BootstrapError::Other(_) => Self::SomeFailed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// The section on exit codes in `--help`.
pub(crate) fn help() -> String {
    let mut text = String::from("Exit codes:\n");
    for exit in ALL {
        text.push_str(&format!("  {:<4} {}\n", exit.code(), exit.meaning()));
    }
    text
}

#[cfg(test)]
mod tests {
    use transfer::session::QuestionError;

    use super::*;

    #[test]
    fn codes_are_those_promised() {
        assert_eq!(ALL.map(Exit::code), [0, 1, 2, 25, 65, 75, 255, 130]);
    }

    /// Bug: `longhaul bootstrap` exited with 1 if the host could not be reached or a setting was
    /// wrong, because the error had no cause.
    #[test]
    fn a_bootstrap_without_a_connection_exited_like_one_that_failed() {
        let of = |error: BootstrapError| Exit::from(&error);
        let unreachable = ConnectError::unreachable("h: connection refused");
        assert_eq!(of(unreachable.into()), Exit::NoConnection);
        let setting = ConnectError::configuration("h: Port 0 is not a port");
        assert_eq!(of(setting.into()), Exit::Usage);
        let lost = QuestionError::Lost("the server closed the connection".to_owned());
        assert_eq!(of(lost.into()), Exit::NoConnection);
        assert_eq!(of(QuestionError::Interrupted.into()), Exit::Interrupted);
        assert_eq!(of("the host has no sh".into()), Exit::SomeFailed);
    }

    #[test]
    fn help_lists_each() {
        for exit in ALL {
            let line = help()
                .lines()
                .find(|l| l.contains(exit.meaning()))
                .map(str::to_owned);
            assert!(
                line.unwrap()
                    .trim_start()
                    .starts_with(&exit.code().to_string())
            );
        }
    }
}
