//! Settings and events of client authentication.

use bytes::Bytes;

/// Authentication method that a client can use: `publickey` and `password` of RFC 4252,
/// `keyboard-interactive` of RFC 4256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuthMethod {
    /// `publickey`.
    PublicKey,
    /// `keyboard-interactive`.
    KeyboardInteractive,
    /// `password`.
    Password,
}

impl AuthMethod {
    /// Returns the method name in SSH.
    pub fn name(self) -> &'static str {
        match self {
            Self::PublicKey => "publickey",
            Self::KeyboardInteractive => "keyboard-interactive",
            Self::Password => "password",
        }
    }
}

/// Key that may be offered; the private key stays with the owner of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedIdentity {
    /// Public key or certificate.
    pub blob: Vec<u8>,
    /// Signature algorithms for this key, best first, as named in the request (`rsa-sha2-512`,
    /// `ssh-ed25519-cert-v01@openssh.com`, ...).
    pub algorithms: Vec<String>,
    /// True if the key can sign without asking the user, so that a query first would only cost a
    /// round trip.
    pub direct: bool,
}

impl OfferedIdentity {
    /// Returns the index of the algorithm to offer first, or the one after `refused`; `None` if
    /// none is left.
    ///
    /// Only RSA keys have a choice, which server-sig-algs decides (RFC 8332 section 3.3). If the
    /// server did not send that, the algorithms are tried one after the other. Other keys are
    /// offered regardless of the list, as OpenSSH does (sshconnect2.c, key_sig_algorithm).
    pub(super) fn algorithm(
        &self,
        server: Option<&[String]>,
        refused: Option<usize>,
    ) -> Option<usize> {
        let rsa = |a: &String| a.starts_with("rsa-sha2-");
        match server {
            Some(server) if self.algorithms.first().is_some_and(rsa) => {
                // The list has plain algorithm names, which include certificates.
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

/// Settings of [`super::UserAuth`]: account, methods and keys to try, and the facts of the
/// transport that signatures cover.
#[derive(Clone, Debug)]
pub struct AuthConfig {
    /// Account name.
    pub user: String,
    /// Methods in the order to try (PreferredAuthentications).
    pub methods: Vec<AuthMethod>,
    /// Keys in the order to offer.
    pub identities: Vec<OfferedIdentity>,
    /// Session identifier: the exchange hash of the first key exchange.
    pub session_id: Bytes,
    /// Blob of the server's host key.
    pub host_key: Bytes,
    /// True if the server supports publickey-hostbound-v00@openssh.com.
    pub hostbound: bool,
    /// server-sig-algs, if the server sent it.
    pub signature_algorithms: Option<Vec<String>>,
    /// Number of password attempts and of keyboard-interactive attempts (NumberOfPasswordPrompts).
    pub max_prompts: u32,
}

/// Prompt of keyboard-interactive (RFC 4256 section 3.2), which the user answers with one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InteractivePrompt {
    /// The server's text, escaped.
    pub text: String,
    /// True if the typed answer may be shown.
    pub echo: bool,
}

/// Event of client authentication: a request to the owner or a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAuthEvent {
    /// Request to sign `data`, answered with [`super::UserAuth::sign`].
    Sign {
        /// Index of the key in [`AuthConfig::identities`].
        identity: usize,
        /// The signature algorithm.
        algorithm: String,
        /// Data to sign.
        data: Vec<u8>,
    },
    /// Request for a password, answered with [`super::UserAuth::password`].
    Password {
        /// Number of the attempt, from 1.
        attempt: u32,
    },
    /// Prompts to show, answered with [`super::UserAuth::answers`].
    Prompts {
        /// Heading, escaped.
        name: String,
        /// Instruction, escaped except for line ends.
        instruction: String,
        /// Prompts in order.
        prompts: Vec<InteractivePrompt>,
    },
    /// Banner of the server, escaped except for line ends.
    Banner(String),
    /// Authentication succeeded; the connection protocol is open.
    Success,
    /// Authentication failed: nothing is left to try.
    Failed {
        /// Methods that the server would still accept.
        server: Vec<String>,
        /// Reason to show instead of the usual one.
        why: Option<String>,
    },
}
