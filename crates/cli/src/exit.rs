//! Exit codes: their meaning, and the only code that chooses one.

use std::process::ExitCode;

use transfer::report::Outcome;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything was copied.
    Done,
    /// Some files failed.
    SomeFailed,
    /// The command line is invalid.
    Usage,
    /// No connection could be made, or it was lost for good.
    NoConnection,
    /// A signal ended the run.
    Interrupted,
}

/// Exit codes of `longhaul lab`, in the order of help and man page.
pub(crate) const LAB: &[(&str, &str)] = &[
    (
        "...",
        "that of the command; 128 and the number of the signal that ended it",
    ),
    ("2", "invalid command line, or there is no such path"),
    ("125", "the lab itself failed, and says why"),
    ("126", "the command is there and cannot be run"),
    ("127", "there is no such command"),
];

/// Exit codes of `longhaul serve`.
pub(crate) const SERVE: &[(&str, &str)] = &[
    ("0", "the client has gone, or the server was ended"),
    (
        "1",
        "it cannot be served, or the one client broke the protocol or the connection; it says why",
    ),
    ("2", "invalid command line"),
    (
        "130",
        "a second signal has ended what was still being transferred",
    ),
];

/// Exit codes of `longhaul dial`.
pub(crate) const DIAL: &[(&str, &str)] = &[
    ("0", "ssh has the socket, or both ways have ended"),
    ("2", "invalid command line"),
    (
        "255",
        "no connection: it could not be made or handed over, or it broke; it says why",
    ),
];

/// Exit codes of `longhaul ssh-config`.
pub(crate) const SSH_CONFIG: &[(&str, &str)] = &[
    ("0", "the lines are printed, or written"),
    ("1", "nothing was written; it says why"),
    ("2", "invalid command line"),
];

/// Exit codes of `longhaul bench`.
pub(crate) const BENCH: &[(&str, &str)] = &[
    ("0", "everything was measured that there was time for"),
    (
        "1",
        "it ended before its time, or a result cannot be read or written; what was measured is \
         shown and marked",
    ),
    ("2", "invalid command line"),
    ("130", "interrupted; what was measured is shown and marked"),
    (
        "255",
        "no connection, or it was lost; what was measured is shown and marked",
    ),
];

/// Exit codes of `longhaul wrap`.
pub(crate) const WRAP: &[(&str, &str)] = &[
    (
        "...",
        "that of the program; with --report, 128 and the number of the signal that ended it",
    ),
    ("1", "with --check: the program cannot be wrapped"),
    ("2", "invalid command line"),
    (
        "125",
        "the library is not there, or something else is missing; it says what",
    ),
    ("126", "the program cannot be wrapped, or not be run"),
    ("127", "there is no such program"),
];

/// Exit codes of `longhaul relay`.
pub(crate) const RELAY: &[(&str, &str)] = &[
    (
        "0",
        "the relay was ended, or the one connection of standard input and output came to its end",
    ),
    (
        "1",
        "it cannot listen, or the one connection was refused or broke; it says why",
    ),
    ("2", "invalid command line"),
    (
        "130",
        "a second signal has ended connections that were still there",
    ),
];

/// All exit codes, in the order of help and man page.
pub(crate) const ALL: [Exit; 5] = [
    Exit::Done,
    Exit::SomeFailed,
    Exit::Usage,
    Exit::NoConnection,
    Exit::Interrupted,
];

impl Exit {
    /// The numeric exit code. 255 is ssh's for its own errors; 130 is the shell's for SIGINT.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::SomeFailed => 1,
            Self::Usage => 2,
            Self::NoConnection => 255,
            Self::Interrupted => 130,
        }
    }

    /// The meaning of a code, without a full stop.
    pub(crate) const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "everything was copied",
            Self::SomeFailed => "some files failed; the end of the output names each",
            Self::Usage => "invalid command line (scp says 1)",
            Self::NoConnection => {
                "no connection: it could not be made, was refused, or was lost for good"
            }
            Self::Interrupted => {
                "interrupted by SIGINT, SIGTERM or SIGHUP, or nobody reads the events of --json"
            }
        }
    }
}

impl From<&Outcome> for Exit {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Complete => Self::Done,
            Outcome::Partial => Self::SomeFailed,
            Outcome::NoConnection(_) => Self::NoConnection,
            Outcome::Interrupted => Self::Interrupted,
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
    use super::*;

    #[test]
    fn codes_are_those_promised() {
        assert_eq!(ALL.map(Exit::code), [0, 1, 2, 255, 130]);
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
