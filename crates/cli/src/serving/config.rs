//! Reads and checks a configuration file, and reports each mistake with its line.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use super::options::{Options, UncheckedKeyOptions};
use super::validate;
use crate::config_file::{self, ConfigFileError, ConfigReadError};
use crate::flags::low::ServeArgs;

/// Reads a configuration file for a server with these flags.
///
/// # Errors
/// Lines of `FILE:LINE: sentence`, one for each mistake.
pub(crate) fn read(file: &Path, args: &ServeArgs) -> Result<Options, ConfigReadError> {
    config_file::read(file, |text| parse(text, args))
}

fn parse(text: &str, args: &ServeArgs) -> Result<Options, Vec<ConfigFileError>> {
    let options: Options = toml::from_str(text).map_err(|e| {
        let first = ConfigFileError::syntax(&e, text);
        let mut wrongs = unknown(text);
        wrongs.retain(|wrong| wrong.at != first.at);
        wrongs.push(first);
        wrongs.sort_by_key(|wrong| wrong.at);
        wrongs
    })?;
    let wrongs: Vec<ConfigFileError> = validate::mistakes(&options, args)
        .into_iter()
        .map(|mistake| ConfigFileError {
            at: mistake.offset(text),
            what: mistake.to_string(),
        })
        .collect();
    match wrongs.is_empty() {
        true => Ok(options),
        false => Err(wrongs),
    }
}

/// Lists all unknown options; the parser stops at the first.
fn unknown(text: &str) -> Vec<ConfigFileError> {
    type Table = BTreeMap<Spanned<String>, IgnoredAny>;
    /// The `[[key]]` tables of the file, with any content.
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct KeyTables {
        key: Vec<Table>,
    }
    let top: Table = toml::from_str(text).unwrap_or_default();
    let keys: KeyTables = toml::from_str(text).unwrap_or_default();
    let tables = keys
        .key
        .iter()
        .map(|table| (table, UncheckedKeyOptions::ROWS));
    let tables = [(&top, Options::ROWS)].into_iter().chain(tables);
    tables
        .flat_map(|(table, rows)| table.keys().map(move |name| (name, rows)))
        .filter(|(name, rows)| !rows.iter().any(|row| row.name == name.get_ref()))
        .map(|(name, _)| ConfigFileError {
            at: name.span().start,
            what: format!(
                "unknown option `{}`",
                wire::escape::name(name.get_ref().as_bytes())
            ),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_file::line_of;
    use serve::Access;

    fn wrongs(text: &str) -> Vec<(usize, String)> {
        let wrongs = parse(text, &ServeArgs::default()).expect_err(text);
        let told = wrongs.into_iter();
        told.map(|wrong| (line_of(text, wrong.at), wrong.what))
            .collect()
    }

    #[test]
    fn a_whole_file_is_read() {
        let text = "listen = \":2222\"\n\
                    access = \"read-only\"\n\
                    old-clients = true\n\
                    users = [\"alice\"]\n\
                    connections-per-user = 10\n\
                    metrics = \"127.0.0.1:9100\"\n\
                    [[key]]\n\
                    fingerprint = \"SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU\"\n\
                    root = \"/srv/drop/%u\"\n\
                    access = \"write-only\"\n";
        let options = parse(text, &ServeArgs::default()).expect("it is right");
        assert_eq!(options.access, Some(Access::ReadOnly));
        assert_eq!(options.old_clients, Some(true));
        let key = &options.key.expect("one")[0];
        assert_eq!(key.access, Some(Access::WriteOnly));
        assert_eq!(
            parse("", &ServeArgs::default()).expect("nothing is right"),
            Options::default()
        );
    }

    #[test]
    fn each_mistake_has_its_line() {
        for (text, line, word) in [
            ("listen = \":22\"\nlisen = 1\n", 2, "unknown option `lisen`"),
            ("\n\nroot = 3\n", 3, "invalid type"),
            ("access = \"none\"\n", 1, "unknown value"),
            ("listen = \":22\nroot = 1", 1, "invalid basic string"),
            (
                "listen=\":1\"\nlisten=\":2\"\n",
                2,
                "the option listen is set twice",
            ),
            ("unauthenticated = 0\n", 1, "would admit no one"),
            ("\nusers = []\n", 2, "would admit no one"),
            (
                "\nunauthenticated-per-source = 0\nunauthenticated = 1\n",
                2,
                "would admit no one",
            ),
            ("idle-time = 0\n", 1, "between 1 second and a year"),
            (
                "login-time = 99999999999\n",
                1,
                "between 1 second and a year",
            ),
            (
                "#\nmetrics = \"0.0.0.0:9100\"\n",
                2,
                "an address of this machine alone",
            ),
            ("root = \"srv\"\n", 1, "absolute"),
            (
                "root = \"/srv\"\nallow = [\"rsync\"]\n",
                2,
                "cannot be allowed together with a root",
            ),
            (
                "allow = [\"rsync\"]\naccess = \"read-only\"\n",
                1,
                "cannot be allowed together with limited access",
            ),
            (
                "allow = [\"rsync\"]\n[[key]]\nroot = \"/srv\"\n\
                 fingerprint = \"SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU\"\n",
                1,
                "cannot be allowed together with a root",
            ),
            ("trusted-user-ca-keys = \"ca\"\n", 1, "absolute"),
            ("host-keys = [\"key\"]\n", 1, "absolute"),
            ("[[key]]\nroot = \"/\"\n", 1, "fingerprint"),
            ("[[key]]\nmode = 1\n", 2, "unknown option `mode`"),
            (
                "\nciphers = [\"3des-cbc\"]\n",
                2,
                "3des-cbc is not a supported cipher",
            ),
            ("macs = []\n", 1, "no MAC left to offer"),
            ("connections = -1\n", 1, "expected a whole number"),
            ("connections = \"x\"\n", 1, "expected a whole number"),
            ("listen = \"2022x\"\n", 1, "HOST:PORT"),
            (
                "\nroot = \"/no/such\"\n",
                2,
                "root = \"/no/such\": does not exist",
            ),
            (
                "root = \"/dev/null\"\n",
                1,
                "root = \"/dev/null\": is not a directory",
            ),
            ("root = \"/srv/%d\"\n", 1, "unknown token %d"),
            ("authorized-keys = \"%k\"\n", 1, "unknown token %k"),
            ("host-keys = [\"/no/such\"]\n", 1, "does not exist"),
            ("trusted-user-ca-keys = \"/no/such\"\n", 1, "does not exist"),
            (
                "allow = [\"nosuchprogram\"]\n",
                1,
                "cannot allow nosuchprogram",
            ),
            (
                "[[key]]\nfingerprint = \"SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSu!!\"\n",
                1,
                "is not a fingerprint",
            ),
            (
                "[[key]]\nfingerprint = \"SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU\"\n[[key]]\nfingerprint = \"SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU\"\n",
                3,
                "has another [[key]] above: merge the two",
            ),
        ] {
            let found = wrongs(text);
            assert_eq!(found[0].0, line, "{text}: {found:?}");
            assert!(found[0].1.contains(word), "{text}: {found:?}");
        }
        let found = wrongs("lisen = 1\nroot = \"/\"\nacess = 1\n[[key]]\nmode = 1\n");
        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 3, 5], "{found:?}");
        assert_eq!(wrongs("unauthenticated = 0\nidle-time = 0\n").len(), 2);
    }

    /// Lines of valid files, cut, doubled, and mixed with other characters.
    #[test]
    fn a_file_in_any_form_is_read_or_told_where_it_is_wrong() {
        let rows = Options::ROWS.iter();
        let mut words: Vec<String> = rows.map(|row| format!("{} = ", row.name)).collect();
        let more = [
            "0\n",
            "-1",
            "31536001\n",
            "99999999999\n",
            "true\n",
            "\"/srv/%u\"\n",
            "\"full\"\n",
            "[\"rsync\"]\n",
            "[]\n",
            "[[key]]\n",
            "fingerprint = \"SHA256:\"\n",
            "#",
            "[",
            "\"",
            "\n",
            "\\u",
            "'''",
            "{",
            "\u{202e}",
            "\0",
            "é",
        ];
        words.extend(more.map(str::to_owned));
        let test = arbtest::arbtest(|u| {
            let mut text = String::new();
            for _ in 0..u.int_in_range(0..=12)? {
                match u.int_in_range(0..=9)? {
                    0 => text.push(u.arbitrary()?),
                    1 => text.truncate(text.floor_char_boundary(u.int_in_range(0..=text.len())?)),
                    _ => text.push_str(u.choose(&words)?),
                }
            }
            match parse(&text, &ServeArgs::default()) {
                Ok(options) => drop(options.algorithms(false)),
                Err(wrongs) => {
                    assert!(!wrongs.is_empty(), "{text:?}");
                    for wrong in wrongs {
                        let line = line_of(&text, wrong.at);
                        assert!(line <= text.lines().count() + 1, "{text:?}: {line}");
                        assert!(!wrong.what.is_empty(), "{text:?}");
                    }
                }
            }
            Ok(())
        });
        match std::env::var_os("ARBTEST_BUDGET_MS") {
            Some(_) => test.run(),
            None => test.budget_ms(500).run(),
        }
    }
}
