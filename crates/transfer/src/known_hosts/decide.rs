use std::fmt;
use std::path::Path;

use ssh::key::PublicKey;

use super::{Checked, HostName, KnownHosts, KnownKey, Place, Verdict};
use crate::config::StrictHostKeyChecking as Strict;
use crate::escape;
use crate::prompt::{Kind, Prompt, PromptError};

/// The host key is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// The host is new: add it with [`record()`](super::record()).
    pub record: bool,
    /// The key was not what it should be and StrictHostKeyChecking=no takes it all the same:
    /// send no password, answer no keyboard-interactive prompt, forward no agent.
    pub distrusted: bool,
    /// What to tell the user, each of one or more lines.
    pub warnings: Vec<String>,
}

/// The host key is not taken; the text is what the user needs to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostKeyError {
    /// The host has another key than before.
    Changed {
        /// The host as its line has it.
        host: String,
        /// What the host is known by.
        known: Box<KnownKey>,
        /// What it showed.
        shown_type: String,
        /// Its fingerprint.
        shown: String,
    },
    /// The key is revoked.
    Revoked {
        /// The host.
        host: String,
        /// Where that is said.
        place: Place,
        /// The fingerprint.
        shown: String,
    },
    /// The host is not known, and nobody may be asked (StrictHostKeyChecking=yes, batch mode).
    Unknown {
        /// The host.
        host: String,
        /// The key's type in words.
        shown_type: String,
        /// Its fingerprint.
        shown: String,
        /// Why that ends it.
        why: String,
    },
    /// The user said no.
    Declined {
        /// The host.
        host: String,
    },
}

/// Whether to go on with a host that showed `key`, on which the files say `checked`.
///
/// `address` is what is shown beside the name.
pub fn decide(
    strict: Strict,
    checked: &Checked,
    (name, address): (&HostName, Option<&str>),
    key: &PublicKey,
    known: &KnownHosts,
    prompt: &mut dyn Prompt,
) -> Result<Accepted, HostKeyError> {
    let host = escape::name(name.entry().as_bytes()).to_string();
    let shown = key.fingerprint();
    let shown_type = type_name(key.plain().key_type());
    let mut accepted = Accepted::default();
    if let Some(why) = &checked.certificate {
        accepted
            .warnings
            .push(format!("{host}: {why}; its bare key is checked instead"));
    }
    match &checked.verdict {
        Verdict::Trusted(_) | Verdict::TrustedByCa(_) => {
            accepted.warnings.clear();
            Ok(accepted)
        }
        Verdict::Revoked(place) => Err(HostKeyError::Revoked {
            host,
            place: place.clone(),
            shown,
        }),
        Verdict::Changed(line) => {
            let error = HostKeyError::Changed {
                host,
                known: Box::new(line.clone()),
                shown_type,
                shown,
            };
            if strict != Strict::No {
                return Err(error);
            }
            accepted.distrusted = true;
            accepted.warnings.push(format!(
                "{error}\nStrictHostKeyChecking=no: going on, without password, \
                 keyboard-interactive authentication and agent forwarding, so that whoever it is \
                 learns no secret."
            ));
            Ok(accepted)
        }
        Verdict::Unknown { others } => {
            let unknown = |why: String| HostKeyError::Unknown {
                host: host.clone(),
                shown_type: shown_type.clone(),
                shown: shown.clone(),
                why,
            };
            match strict {
                Strict::Yes => {
                    return Err(unknown(
                        "StrictHostKeyChecking=yes refuses new hosts".into(),
                    ));
                }
                Strict::AcceptNew | Strict::No => {}
                Strict::Ask => {
                    let question =
                        question(&host, address, &shown_type, &shown, key, others, known);
                    match confirm(question, &shown, prompt) {
                        Ok(true) => {}
                        Ok(false) | Err(PromptError::Cancelled) => {
                            return Err(HostKeyError::Declined { host });
                        }
                        Err(e) => return Err(unknown(e.to_string())),
                    }
                }
            }
            accepted.record = true;
            accepted.warnings.push(format!(
                "Permanently added '{host}' ({shown_type}) to the list of known hosts."
            ));
            Ok(accepted)
        }
    }
}

fn question(
    host: &str,
    address: Option<&str>,
    shown_type: &str,
    shown: &str,
    key: &PublicKey,
    others: &[KnownKey],
    known: &KnownHosts,
) -> String {
    let mut text = match address {
        Some(address) if address != host => {
            format!("The authenticity of host '{host} ({address})' can't be established")
        }
        _ => format!("The authenticity of host '{host}' can't be established"),
    };
    text.push_str(if others.is_empty() {
        ".\n"
    } else {
        "\nbut keys of different type are already known for this host.\n"
    });
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

/// `yes`, `no` or the very fingerprint, as readers of ssh's question know it.
fn confirm(question: String, shown: &str, prompt: &mut dyn Prompt) -> Result<bool, PromptError> {
    let mut question = question;
    // A dialogue that always answers the same must not go on for ever.
    for _ in 0..10 {
        let answer = prompt.ask(&question, Kind::Visible)?;
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

/// As OpenSSH names key types: `ED25519`, `ECDSA`, `RSA`, `ED25519-SK`.
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

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", escape::path(&self.file), self.line)
    }
}

impl HostKeyError {
    fn forget(host: &str, file: &Path) -> String {
        format!("ssh-keygen -f \"{}\" -R \"{host}\"", escape::path(file))
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
                "REMOTE HOST IDENTIFICATION HAS CHANGED: the host key of {host} is not the one \
                 that is known.\n\
                 Someone could be eavesdropping right now (man-in-the-middle attack), or the host \
                 has been given a new key.\n  \
                 shown now:  {shown_type} {shown}\n  \
                 known:      {} {}, in {}\n\
                 Ask the host's administrator. If the new key is right, remove the old one with\n  \
                 {}",
                type_name(&known.key_type),
                known.fingerprint,
                known.place,
                Self::forget(host, &known.place.file),
            ),
            Self::Revoked { host, place, shown } => write!(
                f,
                "the host key of {host} ({shown}) is revoked, by {place}: this may be someone who \
                 has stolen it"
            ),
            Self::Unknown {
                host,
                shown_type,
                shown,
                why,
            } => write!(
                f,
                "the {shown_type} host key of {host} ({shown}) is not known: {why}"
            ),
            Self::Declined { host } => write!(f, "the host key of {host} was not accepted"),
        }
    }
}

impl std::error::Error for HostKeyError {}
