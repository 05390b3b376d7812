//! The user's settings for copies: `$XDG_CONFIG_HOME/longhaul/config.toml`.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use transfer::detour::MOST_CANDIDATES;
use transfer::operand::SshDestination;

use crate::config_file::{self, ConfigFileError, ConfigReadError};

/// Settings of the user's file, parsed and checked; empty without a file. docs/reference/config.md
/// describes each key.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientConfig {
    /// Candidates of `--via auto`, as written and as hosts.
    pub(crate) via: Vec<(String, Vec<SshDestination>)>,
}

/// Content of the file as TOML, with the place of each value for error messages.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawClientConfig {
    via: Vec<Spanned<String>>,
}

impl ClientConfig {
    /// The file's path; `None` without a home directory.
    pub(crate) fn path() -> Option<PathBuf> {
        Some(
            transfer::LonghaulDirKind::Config
                .path()?
                .join("config.toml"),
        )
    }

    /// Reads the file. A missing one sets nothing.
    ///
    /// # Errors
    /// Lines of `FILE:LINE: sentence`, one for each mistake.
    pub(crate) fn read() -> Result<Self, ConfigReadError> {
        match Self::path() {
            Some(file) => Ok(config_file::read_own(&file, parse)?.unwrap_or_default()),
            None => Ok(Self::default()),
        }
    }
}

fn parse(text: &str) -> Result<ClientConfig, Vec<ConfigFileError>> {
    let written: RawClientConfig =
        toml::from_str(text).map_err(|e| vec![ConfigFileError::syntax(&e, text)])?;
    let mut wrongs = Vec::new();
    let mut config = ClientConfig::default();
    for (nth, value) in written.via.iter().enumerate() {
        let mut wrong = |what: String| {
            let at = value.span().start;
            wrongs.push(ConfigFileError { at, what });
        };
        let name = value.get_ref();
        match SshDestination::parse_list(name) {
            _ if nth >= MOST_CANDIDATES => {
                wrong(format!(
                    "via: more than {MOST_CANDIDATES} hosts: remove some"
                ));
            }
            Ok(_) if name.len() > MOST_NAME => {
                wrong(format!("via: a host name is longer than {MOST_NAME} bytes"))
            }
            Ok(hosts) => config.via.push((name.clone(), hosts)),
            Err(e) => wrong(format!("via: {e}")),
        }
    }
    match wrongs.is_empty() {
        true => Ok(config),
        false => Err(wrongs),
    }
}

/// Longest candidate in bytes.
const MOST_NAME: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_file::line_of;

    #[test]
    fn candidates_are_hosts_or_lists_of_hosts() {
        let config = parse("via = [\"h\", \"user@g:2222\", \"a,b\"]\n").expect("it is right");
        let names: Vec<&str> = config.via.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["h", "user@g:2222", "a,b"]);
        assert_eq!(config.via[1].1[0].port, Some(2222));
        assert_eq!(config.via[2].1.len(), 2);
        assert_eq!(
            parse("").expect("nothing is right"),
            ClientConfig::default()
        );
    }

    #[test]
    fn each_mistake_has_its_line() {
        let nine = format!("via = [{}]", "\"h\", ".repeat(MOST_CANDIDATES + 1));
        for (text, line, word) in [
            ("\nvai = []\n", 2, "unknown option `vai`"),
            ("via = \"h\"\n", 1, "invalid type"),
            ("via = [\n\"h\",\n\"-oProxyCommand=x\"]\n", 3, "host name"),
            ("via = [\"\"]", 1, "empty"),
            (&nine, 1, "more than"),
        ] {
            let wrongs = parse(text).expect_err(text);
            assert_eq!(line_of(text, wrongs[0].at), line, "{text}");
            assert!(wrongs[0].what.contains(word), "{text}: {}", wrongs[0].what);
        }
    }
}
