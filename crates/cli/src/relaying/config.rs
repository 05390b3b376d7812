//! The configuration file of `longhaul relay`: the flags of each relay, by their long names. The
//! table of flags defines the valid keys.

use std::ffi::OsString;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::command_error::CommandError;
use crate::config_file::{self, ConfigFileError, ConfigReadError};
use crate::flags::argument_error::ArgumentError;
use crate::flags::flag::{Flag, FlagInput, FlagValueKind};
use crate::flags::low::{RelayArgs, put};
use crate::flags::table::relay_rows;

/// Keys of a `[[relay]]` that are not flags: name, value, description.
pub(crate) const OPERANDS: [(&str, &str, &str); 2] = [
    (
        "listen",
        "\"LISTEN\"",
        "The address to listen on, as on the command line: \"9022\", \"*:9022/tls\", \
         \"unix:PATH\". Required.",
    ),
    (
        "targets",
        "\"TARGET\" or a list of them",
        "The targets of connections; the first that answers is used.",
    ),
];

/// Content of a configuration file as arguments, as if each relay had been given on a command line.
#[derive(Clone, Debug, Default)]
pub(super) struct RelayConfiguration {
    /// Settings of the whole process.
    pub(super) all: RelayArgs,
    pub(super) relays: Vec<RelayArgs>,
}

/// Returns true if a flag may be a key in the file: at the top (`of_all`) or in a `[[relay]]`.
pub(crate) fn is_for_file(flag: &Flag<RelayArgs>, of_all: bool) -> bool {
    let only_typed = ["config", "quiet", "verbose"];
    let long = flag.long.unwrap_or_default();
    flag.group.is_of_all() == of_all && !only_typed.contains(&long)
}

/// Reads a file, and passes each relay's arguments to `settle`.
///
/// # Errors
/// Lines of `FILE:LINE: sentence`, one for each mistake.
pub(super) fn read<T>(
    file: &Path,
    settle: impl Fn(&RelayArgs) -> Result<T, CommandError>,
) -> Result<(RelayArgs, Vec<T>), ConfigReadError> {
    config_file::read(file, |text| parse(text, settle))
}

fn parse<T>(
    text: &str,
    settle: impl Fn(&RelayArgs) -> Result<T, CommandError>,
) -> Result<(RelayArgs, Vec<T>), Vec<ConfigFileError>> {
    let table = DeTable::parse(text).map_err(|e| vec![ConfigFileError::syntax(&e, text)])?;
    let mut reading = RelayConfigReader::default();
    let configuration = reading.whole(table.get_ref());
    let mut settled = Vec::new();
    for (args, at) in configuration.relays.iter().zip(&reading.places) {
        match settle(args) {
            Ok(relay) => settled.push(relay),
            Err(why) => reading.wrongs.push(ConfigFileError {
                at: *at,
                what: why.to_string(),
            }),
        }
    }
    match reading.wrongs.is_empty() {
        true => Ok((configuration.all, settled)),
        false => {
            reading.wrongs.sort_by_key(|wrong| wrong.at);
            Err(reading.wrongs)
        }
    }
}

/// Collects the mistakes of a file, so that all of them are reported at once.
#[derive(Default)]
struct RelayConfigReader {
    wrongs: Vec<ConfigFileError>,
    /// Offset of each relay in the file.
    places: Vec<usize>,
}

impl RelayConfigReader {
    fn wrong(&mut self, at: &Range<usize>, what: impl Into<String>) {
        self.wrongs.push(ConfigFileError {
            at: at.start,
            what: what.into(),
        });
    }

    fn whole(&mut self, table: &DeTable<'_>) -> RelayConfiguration {
        let mut all = RelayArgs::default();
        let mut found = None;
        for (key, value) in table {
            let name = key.get_ref();
            match flag(name) {
                _ if name == "relay" => found = Some(value),
                Some(flag) => self.set(flag, &mut all, value),
                None => self.wrong(
                    &key.span(),
                    format!("unknown option `{}`", wire::escape::name(name.as_bytes())),
                ),
            }
        }
        let mut relays: Vec<RelayArgs> = Vec::new();
        match found.map(|value| (value.span(), value.get_ref())) {
            Some((_, DeValue::Array(tables))) => {
                for table in tables.iter() {
                    let relay = self.relay(&all, table);
                    if let Some(relay) = relay {
                        self.once(&relays, &relay, &table.span());
                        relays.push(relay);
                        self.places.push(table.span().start);
                    }
                }
            }
            Some((at, _)) => self.wrong(&at, "relay must be a [[relay]] table"),
            None => self.wrong(&(0..0), "the file has no [[relay]] table"),
        }
        RelayConfiguration { all, relays }
    }

    /// Reads a `[[relay]]`; keys above the first one are defaults for all.
    fn relay(&mut self, all: &RelayArgs, table: &Spanned<DeValue<'_>>) -> Option<RelayArgs> {
        let DeValue::Table(rows) = table.get_ref() else {
            self.wrong(&table.span(), "relay must be a [[relay]] table");
            return None;
        };
        let mut args = all.clone();
        let before = self.wrongs.len();
        for (key, value) in rows {
            let name = key.get_ref();
            match flag(name) {
                _ if name == "listen" => match value.get_ref() {
                    DeValue::String(text) => args.entrance = text.clone().into_owned(),
                    _ => self.wrong(&value.span(), "listen must be a string"),
                },
                _ if name == "targets" => match texts(value) {
                    Some(texts) => args.targets = texts,
                    None => self.wrong(
                        &value.span(),
                        "targets must be a string or a list of strings",
                    ),
                },
                Some(flag) if is_for_file(flag, false) => self.set(flag, &mut args, value),
                Some(_) => {
                    let what =
                        format!("{name} concerns all relays: move it above the first [[relay]]");
                    self.wrong(&key.span(), what);
                }
                None => self.wrong(
                    &key.span(),
                    format!("unknown option `{}`", wire::escape::name(name.as_bytes())),
                ),
            }
        }
        if args.entrance.is_empty() {
            self.wrong(
                &table.span(),
                "[[relay]] has no listen option, which is required",
            );
        }
        // Report one mistake once.
        (self.wrongs.len() == before).then_some(args)
    }

    fn once(&mut self, relays: &[RelayArgs], relay: &RelayArgs, at: &Range<usize>) {
        let place = |args: &RelayArgs| {
            let parsed: Result<relay::ListenSpec, _> = args.entrance.parse();
            parsed.map(|entrance| entrance.place).ok()
        };
        let own = place(relay);
        if own == Some(relay::RelayEndpoint::Streams) {
            self.wrong(
                at,
                "listen: standard input and output (-) can be used on the command line only",
            );
        }
        if own.is_some() && relays.iter().any(|other| place(other) == own) {
            self.wrong(
                at,
                format!("listen: another relay listens on {} too", relay.entrance),
            );
        }
    }

    fn set(
        &mut self,
        flag: &'static Flag<RelayArgs>,
        args: &mut RelayArgs,
        value: &Spanned<DeValue<'_>>,
    ) {
        let name = flag.long.unwrap_or_default();
        let done = given(flag, value)
            .map_err(ArgumentError::from)
            .and_then(|given| match given {
                Some(given) => put(flag, args, given),
                None => Ok(()),
            });
        if let Err(why) = done {
            self.wrong(&value.span(), format!("{name}: {why}"));
        }
    }
}

/// The flag with this name in files.
fn flag(name: &str) -> Option<&'static Flag<RelayArgs>> {
    let mut rows = relay_rows().filter(|flag| is_for_file(flag, true) || is_for_file(flag, false));
    rows.find(|flag| flag.long == Some(name))
}

/// Converts a value to the flag's input; `None` for `false`.
fn given(
    flag: &Flag<RelayArgs>,
    value: &Spanned<DeValue<'_>>,
) -> Result<Option<FlagInput>, &'static str> {
    let values = match (flag.takes, value.get_ref()) {
        (FlagValueKind::Nothing, DeValue::Boolean(true)) => Vec::new(),
        (FlagValueKind::Nothing, DeValue::Boolean(false)) => return Ok(None),
        (FlagValueKind::Nothing, _) => return Err("must be true or false"),
        (FlagValueKind::Values(_), _) => {
            texts(value).ok_or("must be a string or a list of strings")?
        }
        (FlagValueKind::Choice(_, choices), _) => {
            let text = text(value).filter(|text| choices.contains(&text.as_str()));
            vec![text.ok_or("is not one of the possible values; see longhaul-relay.conf(5)")?]
        }
        _ => vec![text(value).ok_or("must be a string or a number")?],
    };
    Ok(Some(FlagInput {
        long: flag.long.unwrap_or_default(),
        times: 1,
        values: values.into_iter().map(OsString::from).collect(),
        places: Vec::new(),
    }))
}

fn texts(value: &Spanned<DeValue<'_>>) -> Option<Vec<String>> {
    match value.get_ref() {
        DeValue::Array(values) => values.iter().map(text).collect(),
        _ => text(value).map(|text| vec![text]),
    }
}

fn text(value: &Spanned<DeValue<'_>>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_file::line_of;
    use std::time::Duration;

    fn read(text: &str) -> (RelayArgs, Vec<RelayArgs>) {
        parse(text, |args| Ok(args.clone())).expect(text)
    }

    #[test]
    fn relays_have_what_they_say_and_what_stands_above_them() {
        let (all, relays) = read(
            "threads = 3\nstatus = \"127.0.0.1:9090\"\nbuffer = \"64KiB\"\nallow = [\"::1\"]\n\
             [[relay]]\nlisten = \"9022\"\ntargets = [\"a:22\", \"b:22\"]\nmptcp = true\n\
             [[relay]]\nlisten = \"9023/tls\"\ntargets = \"c:22\"\nbuffer = 4096\n\
             allow = [\"10.0.0.0/8\", \"::1\"]\ntls-min = \"1.3\"\nfastopen = false\n\
             idle-timeout = \"5m\"\n",
        );
        assert_eq!(
            (all.threads, all.status.as_deref()),
            (Some(3), Some("127.0.0.1:9090"))
        );
        let [one, other] = relays.as_slice() else {
            panic!("two");
        };
        assert_eq!((one.buffer, other.buffer), (Some(65536), Some(4096)));
        assert_eq!((one.entrance.as_str(), one.targets.len()), ("9022", 2));
        assert!(one.mptcp && !other.mptcp && !other.fastopen && other.tls.newest_only);
        assert_eq!((one.allow.len(), other.allow.len()), (1, 2));
        assert_eq!(other.idle_timeout, Some(Duration::from_secs(300)));
    }

    #[test]
    fn each_mistake_has_its_line() {
        let relay = "[[relay]]\nlisten = \"1\"\ntargets = \"h:2\"\n";
        for (text, line, word) in [
            ("", 1, "has no [[relay]] table"),
            ("relay = 3\n", 1, "must be a [[relay]] table"),
            ("\nrelay = [3]\n", 2, "must be a [[relay]] table"),
            ("[[relay]]\nlisten = \"1\nx", 3, "key with no value"),
            ("[[relay]]\ntargets = \"h:1\"\n", 1, "has no listen option"),
            (&format!("{relay}bufer = 1\n"), 4, "unknown option `bufer`"),
            (
                &format!("{relay}buffer = \"much\"\n"),
                4,
                "buffer: 'much' is not a size",
            ),
            (
                &format!("{relay}buffer = true\n"),
                4,
                "a string or a number",
            ),
            (&format!("{relay}mptcp = 1\n"), 4, "true or false"),
            (
                &format!("{relay}tls-min = \"1.1\"\n"),
                4,
                "not one of the possible values",
            ),
            (
                &format!("{relay}status = \"127.0.0.1:1\"\n"),
                4,
                "concerns all relays",
            ),
            (
                &format!("{relay}config = \"x\"\n"),
                4,
                "unknown option `config`",
            ),
            (
                &format!("config = \"x\"\n{relay}"),
                1,
                "unknown option `config`",
            ),
            (
                &format!("listen = \"1\"\n{relay}"),
                1,
                "unknown option `listen`",
            ),
            (&format!("{relay}{relay}"), 4, "another relay listens on 1"),
            (
                "[[relay]]\nlisten = \"-\"\n",
                1,
                "standard input and output",
            ),
        ] {
            let wrongs = parse(text, |_| Ok(())).expect_err(text);
            let found: Vec<_> = wrongs
                .iter()
                .map(|w| (line_of(text, w.at), &w.what))
                .collect();
            assert!(
                found.iter().any(|(l, w)| *l == line && w.contains(word)),
                "{text}: {found:?}"
            );
        }
        let text = format!("{relay}\n[[relay]]\nlisten = \"3\"\nrate = \"x\"\nbuffer = \"x\"\n");
        let wrongs = parse(&text, |_| Err::<(), _>("no".into())).expect_err(&text);
        let lines: Vec<_> = wrongs.iter().map(|w| line_of(&text, w.at)).collect();
        assert_eq!(lines, [1, 7, 8]);
    }
}
