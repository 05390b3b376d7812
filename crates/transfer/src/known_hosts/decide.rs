//! Decides whether a host key is accepted, with a prompt if necessary.

use std::fmt;
use std::io;
use std::path::Path;

use ssh::key::PublicKey;

use super::{
    HostKeyCheck, HostKeyVerdict, HostName, KnownHostKey, KnownHosts, KnownHostsLinePosition,
    UnreadableKnownHostsEntry,
};
use crate::config::StrictHostKeyChecking as Strict;
use crate::disk::os_words;
use crate::escape;
use crate::prompt::{EchoMode, Prompt, PromptError};

/// The result for an accepted host key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptedHostKey {
    /// True if the host is new and must be added with [`record()`](super::record()).
    pub record: bool,
    /// True if StrictHostKeyChecking=no accepted a wrong key: send no password, answer no
    /// keyboard-interactive prompt, forward no agent.
    pub distrusted: bool,
    /// Texts for the user, each of one or more lines.
    pub warnings: Vec<String>,
}

const UNVERIFIED: &str = "StrictHostKeyChecking=no: the connection is not verified. Password and \
     keyboard-interactive authentication and agent forwarding are disabled to avoid \
     man-in-the-middle attacks.";

/// The reason for refusing a host key; the text is meant for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostKeyError {
    /// The host key differs from the known one.
    Changed {
        /// The host as in its line.
        host: String,
        /// The known key.
        known: Box<KnownHostKey>,
        /// The type of the key that the host showed.
        shown_type: String,
        /// The fingerprint of the key that the host showed.
        shown: String,
    },
    /// The key is revoked.
    Revoked {
        /// The host.
        host: String,
        /// The line or file with the revocation.
        place: KnownHostsLinePosition,
        /// The fingerprint of the key.
        shown: String,
    },
    /// An unreadable line or file may contradict the key.
    Unreadable {
        /// The host.
        host: String,
        /// The line or file.
        damage: UnreadableKnownHostsEntry,
    },
    /// The host is unknown, and no prompt is allowed (StrictHostKeyChecking=yes, batch mode).
    Unknown {
        /// The host.
        host: String,
        /// The key's type in words.
        shown_type: String,
        /// The key's fingerprint.
        shown: String,
        /// The reason why there is no prompt.
        why: String,
    },
    /// The user rejected the key.
    Declined {
        /// The host.
        host: String,
    },
    /// The host's address has another key (CheckHostIP). Contains a sentence with both.
    Address(String),
}

impl AcceptedHostKey {
    /// Goes on despite `error`, but trusts the host with nothing.
    fn unverified(mut self, error: &HostKeyError) -> Self {
        self.distrusted = true;
        self.warnings.push(format!("{error}\n{UNVERIFIED}"));
        self
    }
}

const NOT_RECORDED: &str = "new host keys cannot be recorded (UserKnownHostsFile=none) and are \
                            refused: name a file, or /dev/null";
const NO_ENTRY: &str = "the host name cannot be written to known_hosts: set HostKeyAlias";
const NO_NEW_KEYS: &str =
    "StrictHostKeyChecking=yes refuses new host keys: add it to known_hosts first";

/// Returns the reason why an unknown host is refused without a question.
fn refusal_of_new(strict: Strict, name: &HostName, known: &KnownHosts) -> Option<&'static str> {
    if known.unrecorded {
        return Some(NOT_RECORDED);
    }
    if !name.can_be_recorded() {
        return Some(NO_ENTRY);
    }
    (strict == Strict::Yes).then_some(NO_NEW_KEYS)
}

/// Decides about a host that showed `key`, given the result `checked` of the files, as ssh does
/// (sshconnect.c `check_host_key`). Stricter than ssh for a revoked key with
/// StrictHostKeyChecking=no, and for unreadable lines.
///
/// `address` is shown beside the name.
pub fn decide(
    strict: Strict,
    checked: &HostKeyCheck,
    (name, address): (&HostName, Option<&str>),
    key: &PublicKey,
    known: &KnownHosts,
    prompt: &mut dyn Prompt,
) -> Result<AcceptedHostKey, HostKeyError> {
    let host = escape::name(name.entry().as_bytes()).to_string();
    let shown = key.fingerprint();
    let shown_type = type_name(key.plain().key_type());
    let mut accepted = AcceptedHostKey::default();
    if let Some(why) = &checked.certificate {
        accepted.warnings.push(format!(
            "{host}: {why}; checking the key without its certificate instead"
        ));
    }
    match &checked.verdict {
        HostKeyVerdict::Trusted(_) | HostKeyVerdict::TrustedByCa(_) => {
            accepted.warnings.clear();
            Ok(accepted)
        }
        HostKeyVerdict::Revoked(place) => Err(HostKeyError::Revoked {
            host,
            place: place.clone(),
            shown,
        }),
        HostKeyVerdict::Changed(line) => {
            let error = HostKeyError::Changed {
                host,
                known: Box::new(line.clone()),
                shown_type,
                shown,
            };
            if strict != Strict::No {
                return Err(error);
            }
            Ok(accepted.unverified(&error))
        }
        HostKeyVerdict::Unreadable(damage) => {
            let error = HostKeyError::Unreadable {
                host,
                damage: damage.clone(),
            };
            let as_new = !known.unrecorded && name.can_be_recorded();
            if damage.revokes || strict != Strict::No || !as_new {
                return Err(error);
            }
            Ok(accepted.unverified(&error))
        }
        HostKeyVerdict::Unknown => {
            let unknown = |why: String| HostKeyError::Unknown {
                host: host.clone(),
                shown_type: shown_type.clone(),
                shown: shown.clone(),
                why,
            };
            if let Some(why) = refusal_of_new(strict, name, known) {
                return Err(unknown(why.to_owned()));
            }
            if strict == Strict::Ask {
                let question = question(&host, address, &shown_type, &shown, key, known);
                match confirm(question, &shown, prompt) {
                    Ok(true) => {}
                    Ok(false) | Err(PromptError::Cancelled) => {
                        return Err(HostKeyError::Declined { host });
                    }
                    Err(e) => {
                        return Err(unknown(format!(
                            "{e}; to accept the key, connect once with ssh, or use \
                             -o StrictHostKeyChecking=accept-new"
                        )));
                    }
                }
            }
            accepted.record = true;
            Ok(accepted)
        }
    }
}

/// Decides about the address of a host whose key was accepted by name, given the result `checked`
/// of the files (CheckHostIP; sshconnect.c `check_host_key`). True if the address is new and must
/// be recorded.
///
/// # Errors
/// The address has another key, and the user did not accept that.
pub fn decide_address(
    strict: Strict,
    checked: &HostKeyCheck,
    (name, address): (&HostName, &HostName),
    prompt: &mut dyn Prompt,
) -> Result<bool, HostKeyError> {
    let place = match &checked.verdict {
        HostKeyVerdict::Trusted(_) | HostKeyVerdict::TrustedByCa(_) => return Ok(false),
        HostKeyVerdict::Unknown => return Ok(true),
        HostKeyVerdict::Changed(known) => {
            format!("the address has a different key, {}", known.place)
        }
        HostKeyVerdict::Revoked(place) => format!("the key is revoked for the address, {place}"),
        HostKeyVerdict::Unreadable(damage) => damage.to_string(),
    };
    let (name, address) = (name.entry(), address.entry());
    let [name, address] = [&name, &address].map(|n| escape::name(n.as_bytes()).to_string());
    let text =
        format!("the host key of {name} differs from that of its address {address}: {place}");
    let question =
        format!("Warning: {text}\nAre you sure you want to continue connecting (yes/no)? ");
    let revoked = matches!(&checked.verdict, HostKeyVerdict::Revoked(_));
    match strict {
        Strict::No if !revoked => {
            prompt.show(&format!("Warning: {text}"));
            Ok(false)
        }
        Strict::Ask if !revoked && matches!(confirm(question, "", prompt), Ok(true)) => Ok(false),
        _ => Err(HostKeyError::Address(text)),
    }
}

fn question(
    host: &str,
    address: Option<&str>,
    shown_type: &str,
    shown: &str,
    key: &PublicKey,
    known: &KnownHosts,
) -> String {
    let mut text = match address {
        Some(address) if address != host => {
            format!("The authenticity of host '{host} ({address})' can't be established")
        }
        _ => format!("The authenticity of host '{host}' can't be established"),
    };
    text.push_str(".\n");
    text.push_str(&format!("{shown_type} key fingerprint is {shown}.\n"));
    let names = known.names_of(key);
    if names.is_empty() {
        text.push_str("This key is not known by any other names.\n");
    } else {
        text.push_str("This host key is known by the following other names/addresses:\n");
        for (place, name) in names.iter().take(8) {
            let name = name.as_deref().unwrap_or("[hashed name]");
            text.push_str(&format!("    {place}: {name}\n"));
        }
        if names.len() > 8 {
            text.push_str(&format!(
                "    ({} additional names omitted)\n",
                names.len() - 8
            ));
        }
    }
    text.push_str("Are you sure you want to continue connecting (yes/no/[fingerprint])? ");
    text
}

/// Asks for `yes`, `no` or the exact fingerprint, as ssh does.
fn confirm(question: String, shown: &str, prompt: &mut dyn Prompt) -> Result<bool, PromptError> {
    let mut question = question;
    // A program that always gives the same answer must not cause an endless loop.
    for _ in 0..10 {
        let answer = prompt.ask(&question, EchoMode::Visible)?;
        let answer = answer.trim();
        match answer.to_ascii_lowercase().as_str() {
            "yes" => return Ok(true),
            "no" | "" => return Ok(false),
            _ if answer == shown => return Ok(true),
            _ => question = "Please type 'yes', 'no' or the fingerprint: ".into(),
        }
    }
    Err(PromptError::Cancelled)
}

/// Reports that a new host's key was added to `file`, or why it was not and the consequence.
pub fn recorded(name: &HostName, key: &PublicKey, file: &Path, result: &io::Result<()>) -> String {
    let host = name.entry();
    let host = escape::name(host.as_bytes());
    match result {
        Ok(()) => format!(
            "Permanently added '{host}' ({}) to the list of known hosts.",
            type_name(key.plain().key_type())
        ),
        Err(e) => format!(
            "{}: cannot add the host key of {host}: {}; it is trusted for this run only",
            escape::path(file),
            os_words(e)
        ),
    }
}

/// Returns OpenSSH's name of a key type: `ED25519`, `ECDSA`, `RSA`, `ED25519-SK`.
fn type_name(key_type: &str) -> String {
    match key_type {
        "ssh-ed25519" => "ED25519".into(),
        "ssh-rsa" => "RSA".into(),
        "sk-ssh-ed25519@openssh.com" => "ED25519-SK".into(),
        "sk-ecdsa-sha2-nistp256@openssh.com" => "ECDSA-SK".into(),
        ecdsa if ecdsa.starts_with("ecdsa-") => "ECDSA".into(),
        other => escape::name(other.as_bytes()).to_string(),
    }
}

impl fmt::Display for KnownHostsLinePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", escape::path(&self.file), self.line)
    }
}

impl fmt::Display for UnreadableKnownHostsEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, why) = (escape::path(&self.file), &self.why);
        match self.line {
            Some(line) => write!(f, "{file}, line {line}: {why}"),
            None => write!(f, "{file}: cannot read it: {why}"),
        }
    }
}

impl HostKeyError {
    /// Says how to remove a known key.
    fn forget(host: &str, place: &KnownHostsLinePosition) -> String {
        match place.is_command_output() {
            true => "correct what KnownHostsCommand prints".to_owned(),
            false => format!(
                "remove the old one with\n  ssh-keygen -f \"{}\" -R \"{host}\"",
                escape::path(&place.file)
            ),
        }
    }
}

impl fmt::Display for HostKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed {
                host,
                known,
                shown_type,
                shown,
            } => write!(
                f,
                "REMOTE HOST IDENTIFICATION HAS CHANGED: the host key of {host} is not the \
                 known one.\nSomeone could be eavesdropping right now (man-in-the-middle \
                 attack), or the host has a new key.\n  received:   {shown_type} {shown}\n  \
                 known:      {} {}, in {}\nAsk the host's administrator. If the new key is \
                 right, {}",
                type_name(&known.key_type),
                known.fingerprint,
                known.place,
                Self::forget(host, &known.place),
            ),
            Self::Revoked { host, place, shown } => write!(
                f,
                "the host key of {host} ({shown}) is revoked in {place}: the key may be stolen; \
                 do not connect, and ask the host's administrator"
            ),
            Self::Unreadable { host, damage } => {
                write!(
                    f,
                    "{damage}, so the key of {host} cannot be checked and is not accepted. "
                )?;
                f.write_str(match damage.line {
                    Some(_) => "Correct or remove this line",
                    None => {
                        "Make the file readable, or name other files (UserKnownHostsFile, \
                         GlobalKnownHostsFile)"
                    }
                })
            }
            Self::Unknown {
                host,
                shown_type,
                shown,
                why,
            } => write!(
                f,
                "unknown {shown_type} host key of {host} ({shown}): {why}"
            ),
            Self::Declined { host } => write!(
                f,
                "host key verification failed: you did not accept the key of {host}"
            ),
            Self::Address(text) => write!(f, "{text} (CheckHostIP)"),
        }
    }
}

impl std::error::Error for HostKeyError {}
