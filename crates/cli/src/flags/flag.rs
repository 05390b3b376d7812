use std::ffi::OsString;

use crate::flags::argument_error::ArgumentError;
use crate::flags::low::CopyArgs;

/// One row of a table: the complete description of a flag of the subcommand whose arguments are
/// `Args`.
#[derive(Clone, Copy)]
pub(crate) struct Flag<Args: 'static = CopyArgs> {
    /// The letter, if it has one.
    pub(crate) short: Option<char>,
    /// The long name. Every flag has one, except some that are refused.
    pub(crate) long: Option<&'static str>,
    /// The kind of value that the flag takes.
    pub(crate) takes: FlagValueKind,
    /// One line for `-h`, without a full stop.
    pub(crate) help: &'static str,
    /// Whole sentences for the man page and `--help`.
    pub(crate) doc: &'static str,
    /// Compatibility with scp's flag of the same letter.
    pub(crate) scp: ScpCompatibility,
    /// The heading that the flag is listed under.
    pub(crate) group: FlagGroup,
    /// Long names of earlier flags that this flag cancels.
    pub(crate) overrides: &'static [&'static str],
    /// Stores the input in the arguments. An error says why a value is invalid.
    pub(crate) set: fn(&mut Args, FlagInput) -> Result<(), ArgumentError>,
}

/// The kind of value that a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagValueKind {
    /// No value.
    Nothing,
    /// No value; repetition has a meaning.
    Repeats,
    /// A value; the last one given counts.
    Value(&'static str),
    /// A value; all that are given count.
    Values(&'static str),
    /// One of the listed values.
    Choice(&'static str, &'static [&'static str]),
    /// Optional value after `=`; without it, an empty one.
    OptionalValue(&'static str),
    /// Optional value after `=` out of the listed ones; without it, the first.
    OptionalChoice(&'static str, &'static [&'static str]),
}

impl FlagValueKind {
    /// Returns true if the value is the name of a file or directory, which cannot be empty.
    pub(crate) fn names_a_file(self) -> bool {
        matches!(
            self,
            Self::Value("FILE" | "PATH" | "DIR") | Self::Values("FILE" | "PATH" | "DIR")
        )
    }
}

/// A flag's input from the command line.
pub(crate) struct FlagInput {
    /// The flag's long name; empty if it has none.
    pub(crate) long: &'static str,
    /// Number of occurrences.
    pub(crate) times: u8,
    /// The values in order.
    pub(crate) values: Vec<OsString>,
    /// Place of each value on the command line.
    pub(crate) places: Vec<usize>,
}

/// Compatibility of a flag with scp's flag of the same letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScpCompatibility {
    /// scp has the flag with the same meaning.
    Same,
    /// scp has the flag with another meaning; the text describes the difference.
    Differs(&'static str),
    /// scp has the flag; here it is accepted without effect, for this reason.
    NoEffect(&'static str),
    /// scp has the flag; here it is an error, for this reason.
    Refused(&'static str),
    /// scp has no such flag.
    Ours,
}

/// The headings of `--help` and of the man page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagGroup {
    /// Comparing, filtering and deleting.
    Syncing,
    /// Selecting entries of the sources.
    Selecting,
    /// Writing files.
    Copying,
    /// Plans and their shards.
    Shards,
    /// Reaching the host.
    Connection,
    /// Properties of the emulated path.
    Path,
    /// Programs and servers at the two ends of the path.
    Sides,
    /// The served files and the SSH server.
    Serving,
    /// Relaying connections.
    Relaying,
    /// Socket options.
    Sockets,
    /// TLS of a relay.
    Tls,
    /// Selecting measurements.
    Measuring,
    /// Running a wrapped program.
    Wrapping,
    /// Relay pairs.
    Pair,
    /// Operating relays: settings of the whole process.
    Operating,
    /// Output.
    Output,
}

impl<Args: 'static> Flag<Args> {
    /// A row that scp has no counterpart for, with a long name only.
    pub(crate) const fn ours(
        group: FlagGroup,
        (long, takes): (&'static str, FlagValueKind),
        help: &'static str,
        doc: &'static str,
        set: fn(&mut Args, FlagInput) -> Result<(), ArgumentError>,
    ) -> Self {
        Self {
            short: None,
            long: Some(long),
            takes,
            help,
            doc,
            scp: ScpCompatibility::Ours,
            group,
            overrides: &[],
            set,
        }
    }

    /// The name by which clap and other rows refer to the flag.
    pub(crate) fn id(&self) -> String {
        match (self.long, self.short) {
            (Some(long), _) => long.to_owned(),
            (None, Some(short)) => short.to_string(),
            (None, None) => String::new(),
        }
    }

    /// The flag as written in a sentence: `-r`, or `--fsync` if there is no letter.
    pub(crate) fn spelled(&self) -> String {
        match (self.short, self.long) {
            (Some(short), _) => format!("-{short}"),
            (None, Some(long)) => format!("--{long}"),
            (None, None) => String::new(),
        }
    }

    /// The reason for refusing the flag, if it is refused.
    pub(crate) fn refused(&self) -> Option<&'static str> {
        match self.scp {
            ScpCompatibility::Refused(reason) => Some(reason),
            _ => None,
        }
    }
}

impl FlagValueKind {
    /// The placeholder of the value in help texts, if there is one.
    pub(crate) fn value_name(self) -> Option<&'static str> {
        match self {
            Self::Nothing | Self::Repeats => None,
            Self::Value(name)
            | Self::Values(name)
            | Self::OptionalValue(name)
            | Self::Choice(name, _)
            | Self::OptionalChoice(name, _) => Some(name),
        }
    }
}

impl FlagInput {
    /// The last value, as text.
    pub(crate) fn text(&self) -> Result<String, ArgumentError> {
        utf8(self.values.last().cloned().unwrap_or_default())
    }

    /// The last value, unchanged.
    pub(crate) fn os(mut self) -> OsString {
        self.values.pop().unwrap_or_default()
    }

    /// All values, as text.
    pub(crate) fn texts(self) -> Result<Vec<String>, ArgumentError> {
        self.values.into_iter().map(utf8).collect()
    }
}

fn utf8(value: OsString) -> Result<String, ArgumentError> {
    value.into_string().map_err(|_| "is not valid UTF-8".into())
}

impl FlagGroup {
    /// All headings, in the order of display.
    pub(crate) const ALL: [Self; 16] = [
        Self::Syncing,
        Self::Copying,
        Self::Selecting,
        Self::Shards,
        Self::Connection,
        Self::Path,
        Self::Sides,
        Self::Serving,
        Self::Relaying,
        Self::Sockets,
        Self::Tls,
        Self::Measuring,
        Self::Wrapping,
        Self::Pair,
        Self::Operating,
        Self::Output,
    ];

    /// Returns true if flags of this group concern the process and not a single relay.
    pub(crate) fn is_of_all(self) -> bool {
        matches!(self, Self::Operating | Self::Output)
    }

    /// The text of the heading.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Self::Syncing => "Syncing",
            Self::Copying => "Copying",
            Self::Selecting => "Selecting",
            Self::Shards => "Shards",
            Self::Connection => "Connection",
            Self::Path => "Path",
            Self::Sides => "Sides",
            Self::Serving => "Serving",
            Self::Relaying => "Relaying",
            Self::Sockets => "Sockets",
            Self::Tls => "TLS",
            Self::Measuring => "Measuring",
            Self::Wrapping => "Wrapping",
            Self::Pair => "Relay pairs",
            Self::Operating => "Operating",
            Self::Output => "Output",
        }
    }
}
