use std::ffi::OsString;

use crate::flags::low::CopyArgs;

/// One row of a table: everything that is known about a flag of the subcommand whose arguments are
/// `Args`.
pub(crate) struct Flag<Args: 'static = CopyArgs> {
    /// The letter, if it has one.
    pub(crate) short: Option<char>,
    /// The long name; what is refused may lack one.
    pub(crate) long: Option<&'static str>,
    /// What follows it.
    pub(crate) takes: ValueKind,
    /// One line for `-h`, without a full stop.
    pub(crate) help: &'static str,
    /// Whole sentences for the man page and `--help`.
    pub(crate) doc: &'static str,
    /// How it stands to scp's flag of the same letter.
    pub(crate) scp: Scp,
    /// The heading that it is listed under.
    pub(crate) group: Group,
    /// Long names of the flags that it takes back when it comes after them.
    pub(crate) overrides: &'static [&'static str],
    /// Puts what was given into the arguments; an error is the reason why a value can't be.
    pub(crate) set: fn(&mut Args, FlagInput) -> Result<(), String>,
}

/// What follows a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    /// Nothing: it is there or not.
    Nothing,
    /// Nothing, but it may be repeated to mean more.
    Repeats,
    /// A value; the last one given counts.
    Value(&'static str),
    /// A value; all that are given count.
    Values(&'static str),
    /// A value out of these.
    Choice(&'static str, &'static [&'static str]),
    /// Alone, or `=` and a value; alone is an empty one.
    OptionalValue(&'static str),
    /// Alone, or `=` and a value out of these; alone means the first.
    OptionalChoice(&'static str, &'static [&'static str]),
}

/// What the command line had for a flag.
pub(crate) struct FlagInput {
    /// The flag's long name; empty if it has none.
    pub(crate) long: &'static str,
    /// How often it was there.
    pub(crate) times: u8,
    /// Its values in order.
    pub(crate) values: Vec<OsString>,
}

/// How a flag stands to scp's flag of the same letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scp {
    /// scp has it and it means the same.
    Same,
    /// scp has it; this is where it differs.
    Differs(&'static str),
    /// scp has it; here it is understood and changes nothing, for this reason.
    NoEffect(&'static str),
    /// scp has it; here it is an error, for this reason.
    Refused(&'static str),
    /// scp has nothing like it.
    Ours,
}

/// The headings of `--help` and of the man page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// What is copied, and how it is written.
    Copying,
    /// How the host is reached.
    Connection,
    /// What the emulated path is like.
    Path,
    /// What runs at its two ends.
    Sides,
    /// What is served, and how.
    Serving,
    /// How connections are relayed.
    Relaying,
    /// What sockets are told.
    Sockets,
    /// How TLS is spoken.
    Tls,
    /// What is measured.
    Measuring,
    /// How a program is run.
    Wrapping,
    /// What facing relays are told.
    Pair,
    /// How relays are operated: of the process as a whole.
    Operating,
    /// What is shown.
    Output,
}

impl<Args: 'static> Flag<Args> {
    /// A row that scp has nothing like, with a long name alone.
    pub(crate) const fn ours(
        group: Group,
        (long, takes): (&'static str, ValueKind),
        help: &'static str,
        doc: &'static str,
        set: fn(&mut Args, FlagInput) -> Result<(), String>,
    ) -> Self {
        Self {
            short: None,
            long: Some(long),
            takes,
            help,
            doc,
            scp: Scp::Ours,
            group,
            overrides: &[],
            set,
        }
    }

    /// The name that clap and the other rows know it by.
    pub(crate) fn id(&self) -> String {
        match (self.long, self.short) {
            (Some(long), _) => long.to_owned(),
            (None, Some(short)) => short.to_string(),
            (None, None) => String::new(),
        }
    }

    /// How it is written in a sentence: `-r`, or `--fsync` where there is no letter.
    pub(crate) fn spelled(&self) -> String {
        match (self.short, self.long) {
            (Some(short), _) => format!("-{short}"),
            (None, Some(long)) => format!("--{long}"),
            (None, None) => String::new(),
        }
    }

    /// Why it is an error, if it is one.
    pub(crate) fn refused(&self) -> Option<&'static str> {
        match self.scp {
            Scp::Refused(reason) => Some(reason),
            _ => None,
        }
    }
}

impl ValueKind {
    /// The name of the value in help texts, if there is one.
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
    pub(crate) fn text(&self) -> Result<String, String> {
        utf8(self.values.last().cloned().unwrap_or_default())
    }

    /// The last value, as it was given.
    pub(crate) fn os(mut self) -> OsString {
        self.values.pop().unwrap_or_default()
    }

    /// All values, as text.
    pub(crate) fn texts(self) -> Result<Vec<String>, String> {
        self.values.into_iter().map(utf8).collect()
    }
}

fn utf8(value: OsString) -> Result<String, String> {
    value
        .into_string()
        .map_err(|_| "is not valid UTF-8".to_owned())
}

impl Group {
    /// All, in the order in which they are shown.
    pub(crate) const ALL: [Self; 13] = [
        Self::Copying,
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

    /// Whether its flags are those of the process, and not of one relay.
    pub(crate) fn is_of_all(self) -> bool {
        matches!(self, Self::Operating | Self::Output)
    }

    /// The heading.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Self::Copying => "Copying",
            Self::Connection => "Connection",
            Self::Path => "Path",
            Self::Sides => "Sides",
            Self::Serving => "Serving",
            Self::Relaying => "Relaying",
            Self::Sockets => "Sockets",
            Self::Tls => "TLS",
            Self::Measuring => "Measuring",
            Self::Wrapping => "Wrapping",
            Self::Pair => "Facing relays",
            Self::Operating => "Operating",
            Self::Output => "Output",
        }
    }
}
