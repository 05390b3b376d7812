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
    /// The first of its algorithms that the server takes. OpenSSH names plain algorithms for
    /// certificates too, so those are compared by the key beneath.
    pub(super) fn algorithm(&self, server: Option<&[String]>) -> Option<usize> {
        let Some(server) = server else {
            return (!self.algorithms.is_empty()).then_some(0);
        };
        let plain = |a: &str| a.replace("-cert-v01@openssh.com", "");
        self.algorithms
            .iter()
            .position(|a| server.iter().any(|s| s == a || *s == plain(a)))
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

/// Escapes a text for a terminal, but keeps its lines.
pub(super) fn escape_lines(text: &[u8]) -> String {
    let lines: Vec<_> = text
        .split(|b| *b == b'\n')
        .take(100)
        .map(|line| crate::error::escape(line.strip_suffix(b"\r").unwrap_or(line)))
        .collect();
    lines.join("\n")
}
