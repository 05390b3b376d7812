//! Settings of authentication, and what it asks of its owner.

use bytes::Bytes;

/// A method (RFC 4252).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// `publickey`.
    PublicKey,
    /// `keyboard-interactive`.
    KeyboardInteractive,
    /// `password`.
    Password,
}

impl Method {
    /// SSH's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::PublicKey => "publickey",
            Self::KeyboardInteractive => "keyboard-interactive",
            Self::Password => "password",
        }
    }
}

/// A key that may be offered; its private half is with the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Public key or certificate.
    pub blob: Vec<u8>,
    /// Signature algorithms it can be used with, best first, as they are named in the request
    /// (`rsa-sha2-512`, `ssh-ed25519-cert-v01@openssh.com`, ...).
    pub algorithms: Vec<String>,
    /// It can sign without asking anybody, so that a query first would be a wasted round trip.
    pub direct: bool,
}

impl Identity {
    /// The algorithm to offer first, or after `refused` was.
    ///
    /// Only RSA keys have a choice, and server-sig-algs decides it (RFC 8332 section 3.3). Where
    /// the server did not send that, they are tried one after the other. Other keys are offered
    /// whatever the list says, as OpenSSH does (sshconnect2.c, key_sig_algorithm).
    pub(super) fn algorithm(
        &self,
        server: Option<&[String]>,
        refused: Option<usize>,
    ) -> Option<usize> {
        let rsa = |a: &String| a.starts_with("rsa-sha2-");
        match server {
            Some(server) if self.algorithms.first().is_some_and(rsa) => {
                // The list names plain algorithms, which stand for certificates too.
                let known = |a: &String| {
                    let plain = a.strip_suffix("-cert-v01@openssh.com").unwrap_or(a);
                    server.iter().any(|s| s == a || s == plain)
                };
                match refused {
                    None => self.algorithms.iter().position(known),
                    Some(_) => None,
                }
            }
            _ => {
                let next = refused.map_or(0, |i| i + 1);
                let choice = self.algorithms.get(next)?;
                (next == 0 || rsa(choice)).then_some(next)
            }
        }
    }
}

/// Settings of [`super::UserAuth`].
#[derive(Clone, Debug)]
pub struct AuthConfig {
    /// The account.
    pub user: String,
    /// In the order to try (PreferredAuthentications).
    pub methods: Vec<Method>,
    /// In the order to offer.
    pub identities: Vec<Identity>,
    /// The first exchange hash.
    pub session_id: Bytes,
    /// The server's host key blob.
    pub host_key: Bytes,
    /// The server takes publickey-hostbound-v00@openssh.com.
    pub hostbound: bool,
    /// server-sig-algs, if the server sent it.
    pub signature_algorithms: Option<Vec<String>>,
    /// Times a password or prompts are asked for (NumberOfPasswordPrompts).
    pub max_prompts: u32,
}

/// A prompt of keyboard-interactive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The server's words, escaped.
    pub text: String,
    /// Whether to show what is typed.
    pub echo: bool,
}

/// What authentication tells or asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthEvent {
    /// Sign `data`; answer with [`super::UserAuth::sign`].
    Sign {
        /// Index into [`AuthConfig::identities`].
        identity: usize,
        /// The signature algorithm.
        algorithm: String,
        /// What to sign.
        data: Vec<u8>,
    },
    /// Answer with [`super::UserAuth::password`].
    Password {
        /// 1 the first time.
        attempt: u32,
    },
    /// Answer with [`super::UserAuth::answers`].
    Prompts {
        /// Heading, escaped.
        name: String,
        /// Text, escaped but for line ends.
        instruction: String,
        /// What to ask.
        prompts: Vec<Prompt>,
    },
    /// The server's greeting, escaped but for line ends.
    Banner(String),
    /// The connection layer is open.
    Success,
    /// Nothing is left to try.
    Failed {
        /// The methods the server would still take.
        server: Vec<String>,
        /// A reason to show instead of the usual one.
        why: Option<String>,
    },
}
