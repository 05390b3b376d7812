//! Prompts the user: on the terminal, or without one through SSH_ASKPASS (OpenSSH's readpass.c).

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use rpassword::ConfigBuilder;
use rustix::process::{Signal, getpid, kill_process};
use zeroize::{Zeroize, Zeroizing};

use crate::escape;

/// The maximum length of an answer, equal to OpenSSH's askpass buffer.
const MAX_ANSWER: usize = 1024;

/// Time that a prompt waits after Ctrl-C for the run to end. A run that ignores Ctrl-C continues
/// then.
const RUN_ENDS: Duration = Duration::from_secs(1);

/// A password, passphrase or other answer; wiped from memory when dropped.
pub type PromptAnswer = Zeroizing<String>;

/// A source of answers. Texts must already be escaped ([`crate::escape`]).
pub trait Prompt {
    /// Asks a question and waits for the answer. `Err(PromptError::Unavailable)` if no prompt is
    /// possible.
    fn ask(&mut self, question: &str, kind: EchoMode) -> Result<PromptAnswer, PromptError>;

    /// Shows a text before the questions that follow (a banner, instructions).
    fn show(&mut self, text: &str);

    /// Notes what the connection waits for, such as `the key exchange`, for a display that shows
    /// that it is being made.
    fn note_wait(&mut self, _awaited: &str) {}
}

/// The visibility of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoMode {
    /// A secret that is not echoed.
    Secret,
    /// An echoed answer: a host key confirmation, or an echoing keyboard-interactive prompt.
    Visible,
}

/// Reason why a question to the user got no answer.
#[derive(Debug)]
pub enum PromptError {
    /// BatchMode is set, or there is neither a terminal nor SSH_ASKPASS.
    Unavailable(&'static str),
    /// The user cancelled: Ctrl-C, Ctrl-D, or a closed dialogue.
    Cancelled,
    /// The terminal or the askpass program failed.
    Io(io::Error),
}

impl fmt::Display for PromptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => f.write_str(why),
            Self::Cancelled => f.write_str("the prompt was cancelled"),
            Self::Io(e) => write!(f, "cannot ask the question or read its answer: {e}"),
        }
    }
}

impl std::error::Error for PromptError {}

/// A prompt for BatchMode, which never asks.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrompt;

impl Prompt for NoPrompt {
    fn ask(&mut self, _: &str, _: EchoMode) -> Result<PromptAnswer, PromptError> {
        Err(PromptError::Unavailable(
            "questions are off in batch mode (-B, BatchMode)",
        ))
    }

    fn show(&mut self, text: &str) {
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// A prompt on the terminal or through SSH_ASKPASS.
#[derive(Clone, Debug)]
pub struct TerminalPrompt {
    askpass: AskpassPolicy,
    program: OsString,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AskpassPolicy {
    Never,
    WithoutTerminal,
    Always,
}

impl TerminalPrompt {
    /// Reads SSH_ASKPASS, SSH_ASKPASS_REQUIRE, DISPLAY and WAYLAND_DISPLAY.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var_os(name).filter(|v| !v.is_empty()))
    }

    /// Reads the variables through `var`; empty values count as unset.
    pub fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Self {
        let display = var("DISPLAY").is_some() || var("WAYLAND_DISPLAY").is_some();
        let require = var("SSH_ASKPASS_REQUIRE").map(|v| v.to_ascii_lowercase());
        let askpass = match require.as_deref().and_then(|v| v.to_str()) {
            Some("never") => AskpassPolicy::Never,
            Some("force") => AskpassPolicy::Always,
            Some("prefer") if display => AskpassPolicy::Always,
            _ if display => AskpassPolicy::WithoutTerminal,
            _ => AskpassPolicy::Never,
        };
        Self {
            askpass,
            program: var("SSH_ASKPASS").unwrap_or_else(|| "ssh-askpass".into()),
        }
    }

    fn ask_program(&self, question: &str) -> Result<PromptAnswer, PromptError> {
        let mut child = Command::new(&self.program)
            .arg(question)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| {
                let program = escape::os(&self.program);
                PromptError::Io(io::Error::other(format!("cannot run {program}: {e}")))
            })?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_ANSWER + 1));
        let read = match child.stdout.take() {
            Some(out) => out.take(MAX_ANSWER as u64 + 1).read_to_end(&mut bytes),
            None => Ok(0),
        };
        let status = child.wait().map_err(PromptError::Io)?;
        read.map_err(PromptError::Io)?;
        if !status.success() {
            return Err(PromptError::Cancelled);
        }
        first_line(&bytes)
    }
}

impl Prompt for TerminalPrompt {
    fn ask(&mut self, question: &str, kind: EchoMode) -> Result<PromptAnswer, PromptError> {
        if self.askpass == AskpassPolicy::Always {
            return self.ask_program(question);
        }
        match OpenOptions::new().read(true).write(true).open("/dev/tty") {
            Ok(terminal) => ask_terminal(terminal, question, kind),
            Err(_) if self.askpass == AskpassPolicy::WithoutTerminal => self.ask_program(question),
            Err(_) => Err(PromptError::Unavailable(
                "no terminal to ask on, and SSH_ASKPASS is not used (it needs DISPLAY or \
                 SSH_ASKPASS_REQUIRE=force)",
            )),
        }
    }

    fn show(&mut self, text: &str) {
        let terminal = OpenOptions::new().write(true).open("/dev/tty");
        match terminal.and_then(|mut t| writeln!(t, "{text}")) {
            Ok(()) => {}
            Err(_) => {
                let _ = writeln!(io::stderr(), "{text}");
            }
        }
    }
}

fn ask_terminal(
    mut terminal: File,
    question: &str,
    kind: EchoMode,
) -> Result<PromptAnswer, PromptError> {
    match kind {
        EchoMode::Secret => {
            let config = ConfigBuilder::new()
                .input_file_path("/dev/tty")
                .output_file_path("/dev/tty")
                .build();
            let answer = rpassword::prompt_password_with_config(question, config);
            answer.map(Zeroizing::new).map_err(|e| match e.kind() {
                io::ErrorKind::Interrupted => {
                    // Ctrl-C was read as a character. It is meant for the whole run, which should
                    // end before the server receives an empty answer.
                    let _ = kill_process(getpid(), Signal::INT);
                    std::thread::sleep(RUN_ENDS);
                    PromptError::Cancelled
                }
                io::ErrorKind::UnexpectedEof => PromptError::Cancelled,
                _ => PromptError::Io(e),
            })
        }
        EchoMode::Visible => {
            terminal
                .write_all(question.as_bytes())
                .map_err(PromptError::Io)?;
            let mut line = Zeroizing::new(Vec::with_capacity(MAX_ANSWER));
            let mut byte = [0];
            // Reads byte by byte, since data after the line belong to the next reader.
            loop {
                match terminal.read(&mut byte) {
                    Ok(0) if line.is_empty() => return Err(PromptError::Cancelled),
                    Ok(0) => break,
                    Ok(_) if byte == *b"\n" => break,
                    Ok(_) if line.len() < MAX_ANSWER => line.push(byte[0]),
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(PromptError::Io(e)),
                }
            }
            byte.zeroize();
            first_line(&line)
        }
    }
}

fn first_line(bytes: &[u8]) -> Result<PromptAnswer, PromptError> {
    let line = bytes.split(|b| matches!(b, b'\r' | b'\n')).next();
    let line = line.unwrap_or_default();
    if line.len() > MAX_ANSWER {
        let why = format!("the answer is longer than {MAX_ANSWER} bytes");
        return Err(PromptError::Io(io::Error::new(
            io::ErrorKind::InvalidData,
            why,
        )));
    }
    match std::str::from_utf8(line) {
        Ok(line) => Ok(Zeroizing::new(line.to_owned())),
        Err(_) => Err(PromptError::Io(io::Error::new(
            io::ErrorKind::InvalidData,
            "the answer is not UTF-8",
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn person(vars: &[(&str, &str)]) -> TerminalPrompt {
        TerminalPrompt::from_vars(|name| {
            let found = vars.iter().find(|(n, v)| *n == name && !v.is_empty());
            found.map(|(_, v)| v.into())
        })
    }

    #[test]
    fn askpass_is_used_when_openssh_would() {
        let askpass = |vars: &[(&str, &str)]| person(vars).askpass;
        let display = ("DISPLAY", ":0");
        assert_eq!(askpass(&[]), AskpassPolicy::Never);
        assert_eq!(askpass(&[display]), AskpassPolicy::WithoutTerminal);
        assert_eq!(
            askpass(&[("WAYLAND_DISPLAY", "w")]),
            AskpassPolicy::WithoutTerminal
        );
        assert_eq!(askpass(&[("DISPLAY", "")]), AskpassPolicy::Never);
        let require = |how| ("SSH_ASKPASS_REQUIRE", how);
        assert_eq!(askpass(&[display, require("never")]), AskpassPolicy::Never);
        assert_eq!(
            askpass(&[display, require("prefer")]),
            AskpassPolicy::Always
        );
        assert_eq!(askpass(&[require("prefer")]), AskpassPolicy::Never);
        assert_eq!(askpass(&[require("FORCE")]), AskpassPolicy::Always);
    }

    #[test]
    fn askpass_gives_its_first_line_and_a_cancelled_one_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let script = |name: &str, body: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
            let mut asked = person(&[("SSH_ASKPASS_REQUIRE", "force")]);
            asked.program = path.into();
            asked.ask("the question", EchoMode::Secret)
        };
        let answer = script("yes", "echo \"answer to $1\"; echo more");
        assert_eq!(*answer.unwrap(), "answer to the question");
        let cancelled = script("no", "exit 1");
        assert!(matches!(cancelled, Err(PromptError::Cancelled)));
        let endless = script("endless", "exec head -c 5000 /dev/zero | tr '\\0' x");
        assert!(matches!(
            endless,
            Err(PromptError::Io(_) | PromptError::Cancelled)
        ));
    }

    #[test]
    fn batch_mode_asks_nobody() {
        let refused = NoPrompt.ask("?", EchoMode::Secret);
        assert!(matches!(refused, Err(PromptError::Unavailable(_))));
    }
}
