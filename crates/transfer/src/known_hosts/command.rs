//! Runs a KnownHostsCommand (ssh_config(5)), whose output counts as lines of known_hosts.

use std::fmt;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ssh::key::PublicKey;

use super::{HostName, KnownHostsError, MAX_FILE};
use crate::config::TokenValues;
use crate::escape;

const OPTION: &str = "KnownHostsCommand";

/// A KnownHostsCommand: the absolute path of a program, and arguments whose tokens are not yet
/// expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHostsCommand {
    program: String,
    arguments: Vec<String>,
}

/// Reason why a value names no command. The message completes a sentence that begins with the
/// option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownHostsCommandError {
    /// A quote is not closed.
    OpenQuote,
    /// The value has no words.
    Empty,
    /// The program is not named by its absolute path.
    Relative,
}

impl fmt::Display for KnownHostsCommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenQuote => "has a quote that is not closed",
            Self::Empty => "names no command",
            Self::Relative => "is not an absolute path",
        })
    }
}

impl std::error::Error for KnownHostsCommandError {}

/// Purpose of a run of the KnownHostsCommand, which the command gets as `%I`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKeyLookupPurpose {
    /// Called before the key exchange, to prefer algorithms of known keys.
    Order,
    /// The key that the host showed, under the host's name.
    HostName,
    /// The key that the host showed, under the host's address (CheckHostIP).
    Address,
}

impl HostKeyLookupPurpose {
    fn name(self) -> &'static str {
        match self {
            Self::Order => "ORDER",
            Self::HostName => "HOSTNAME",
            Self::Address => "ADDRESS",
        }
    }
}

impl KnownHostsCommand {
    /// Parses the option's value; `None` for `none`.
    ///
    /// # Errors
    /// The value names no absolute command. ssh only warns, and goes on without a command that may
    /// revoke a key.
    pub fn parse(text: &str) -> Result<Option<Self>, KnownHostsCommandError> {
        if text.eq_ignore_ascii_case("none") {
            return Ok(None);
        }
        let mut words = split(text)
            .ok_or(KnownHostsCommandError::OpenQuote)?
            .into_iter();
        let program = words.next().ok_or(KnownHostsCommandError::Empty)?;
        if !Path::new(&program).is_absolute() {
            return Err(KnownHostsCommandError::Relative);
        }
        Ok(Some(Self {
            program,
            arguments: words.collect(),
        }))
    }

    /// True if an argument contains the fingerprint of the host key (`%f`).
    pub fn takes_fingerprint(&self) -> bool {
        let without_escapes = self.arguments.iter().map(|a| a.replace("%%", ""));
        without_escapes.into_iter().any(|a| a.contains("%f"))
    }

    /// Runs the command for `name`, and for the key that the host showed unless the lookup is
    /// [`HostKeyLookupPurpose::Order`]. Returns the lines that it printed.
    ///
    /// # Errors
    /// The command could not be run, failed or printed more than 64 MiB, or an argument has an
    /// unknown token. The output then decides nothing, as in ssh.
    pub fn run(
        &self,
        tokens: &TokenValues,
        lookup: HostKeyLookupPurpose,
        name: &HostName,
        key: Option<&PublicKey>,
    ) -> Result<Vec<u8>, KnownHostsError> {
        let none = || "NONE".to_owned();
        let own = [
            ('H', name.entry()),
            ('I', lookup.name().to_owned()),
            ('t', key.map_or_else(none, |k| k.key_type().to_owned())),
            ('f', key.map_or_else(none, PublicKey::fingerprint)),
            ('K', key.map_or_else(none, |k| STANDARD.encode(k.blob()))),
        ];
        let arguments = self.arguments.iter();
        let arguments = arguments.map(|text| tokens.percent_and_variables(OPTION, text, &own));
        let arguments: Vec<String> = arguments.collect::<Result<_, _>>()?;
        let mut child = Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| self.failed(&e))?;
        let output = read_all(&mut child);
        if output.is_err() {
            let _ = child.kill();
        }
        let status = child.wait().map_err(|e| self.failed(&e))?;
        let output = output.map_err(|why| self.failed(&why))?;
        match status.success() {
            true => Ok(output),
            false => {
                let status = status.to_string().replace("exit status: ", "exit status ");
                Err(self.failed(&status))
            }
        }
    }

    fn failed(&self, why: &dyn fmt::Display) -> KnownHostsError {
        let program = escape::name(self.program.as_bytes());
        KnownHostsError::program(format!(
            "{OPTION} {program} failed: {why}; no host key is accepted without its answer. Correct \
             the command, or set KnownHostsCommand=none"
        ))
    }
}

fn read_all(child: &mut Child) -> io::Result<Vec<u8>> {
    let mut output = Vec::new();
    if let Some(stdout) = &mut child.stdout {
        let mut bounded = stdout.take(MAX_FILE + 1);
        bounded.read_to_end(&mut output)?;
    }
    match output.len() as u64 > MAX_FILE {
        true => Err(io::Error::other("its output is longer than 64 MiB")),
        false => Ok(output),
    }
}

/// Splits a command at spaces and tabs outside quotes, as OpenSSH does (misc.c `argv_split`);
/// `None` if a quote is not closed. A backslash escapes quotes and itself, and a space outside
/// quotes.
fn split(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let is_blank = matches!(c, ' ' | '\t');
        if is_blank && quote.is_none() {
            words.extend(word.take());
            continue;
        }
        let word = word.get_or_insert_default();
        match c {
            '\\' => {
                let escaped = |next: &char| {
                    matches!(next, '\'' | '"' | '\\') || quote.is_none() && *next == ' '
                };
                word.push(chars.next_if(escaped).unwrap_or('\\'));
            }
            '"' | '\'' if quote.is_none() => quote = Some(c),
            _ if quote == Some(c) => quote = None,
            _ => word.push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_by_ssh() {
        let rows: &[(&str, Option<&[&str]>)] = &[
            ("/bin/cat /a b", Some(&["/bin/cat", "/a", "b"])),
            ("  /x\t\"a b\"  'c\td' ", Some(&["/x", "a b", "c\td"])),
            (
                r#"/x a\ b "\"" '\'' "a\ b""#,
                Some(&["/x", "a b", "\"", "'", r"a\ b"]),
            ),
            (r"/x a\\b a\b \", Some(&["/x", r"a\b", r"a\b", r"\"])),
            (r#"/x "" a""b "#, Some(&["/x", "", "ab"])),
            ("/x # y", Some(&["/x", "#", "y"])),
            ("", Some(&[])),
            ("/x \"a", None),
            ("/x 'a\"", None),
        ];
        for (text, words) in rows {
            let words =
                words.map(|words| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>());
            assert_eq!(split(text), words, "{text}");
        }
    }

    #[test]
    fn values_that_are_no_command_are_errors() {
        assert_eq!(KnownHostsCommand::parse("None"), Ok(None));
        for text in ["", " ", "cat /k", "\"/bin/cat /k", "~/cat"] {
            assert!(KnownHostsCommand::parse(text).is_err(), "{text}");
        }
    }

    fn run(text: &str) -> Result<String, String> {
        let command = KnownHostsCommand::parse(text).unwrap().unwrap();
        let name = HostName::new("h", 2222, None);
        let tokens = TokenValues::default();
        let output = command.run(&tokens, HostKeyLookupPurpose::Order, &name, None);
        let output = output.map_err(|e| e.to_string())?;
        Ok(String::from_utf8(output).unwrap())
    }

    #[test]
    fn tokens_are_arguments_and_never_words_of_a_shell() {
        let text = "/bin/echo %H '%I %t' %f %K %% \"a  b\" $HOME ;";
        assert_eq!(
            run(text).unwrap(),
            "[h]:2222 ORDER NONE NONE NONE % a  b $HOME ;\n"
        );
        assert!(run("/bin/echo %y").is_err());
        assert!(run("/bin/echo ${LONGHAUL_NO_SUCH_VARIABLE}").is_err());
    }

    #[test]
    fn a_command_that_fails_after_its_lines_decides_nothing() {
        for text in [
            "/bin/sh -c 'echo h ssh-ed25519 AAAA; exit 1'",
            "/bin/sh -c 'kill -9 $$'",
            "/nonexistent/command",
            "/bin/cat /dev/zero",
        ] {
            let error = run(text).unwrap_err();
            assert!(error.starts_with("KnownHostsCommand /"), "{error}");
        }
    }
}
