//! The questions that a connection asks while it is opened: trust, credentials, signatures.

use std::net::IpAddr;
use std::time::Duration;

use sftp::ServerInfo;
use ssh::auth::{AuthConfig, AuthMethod, InteractivePrompt, OfferedIdentity};
use ssh::key::{KeyError, PublicKey};
use zeroize::Zeroizing;

use super::error::ConnectError;
use crate::session::LonghaulProbeResult;

/// The values that bind the agent to a connection (session-bind@openssh.com).
#[derive(Clone, Copy, Debug)]
pub struct AgentBinding<'a> {
    /// The server's host key blob.
    pub host_key: &'a [u8],
    /// The exchange hash of the first key exchange.
    pub session_id: &'a [u8],
    /// The server's signature over the session ID.
    pub signature: &'a [u8],
}

/// Answers the questions that arise while a connection opens: is the host trusted, and how does the
/// user log in.
///
/// A call may block on user input. An `Err` ends the connection.
pub trait AuthHandler: Send {
    /// Decides whether to continue with a server that proved to own this host key; `address` is the
    /// peer's address if this is a TCP connection.
    fn host_key(&mut self, blob: &[u8], address: Option<IpAddr>) -> Result<(), ConnectError>;

    /// True if [`AuthHandler::credentials`] may block on something other than user input.
    fn holds(&self) -> bool {
        false
    }

    /// Returns user name, methods and keys, once the host key has been accepted.
    fn credentials(&mut self, binding: AgentBinding<'_>) -> Result<Credentials, ConnectError>;

    /// Signs with the key at `identity` of [`Credentials::identities`]; `None` if that fails, and
    /// the next key is tried.
    fn sign(&mut self, identity: usize, algorithm: &str, data: &[u8]) -> Option<Vec<u8>>;

    /// Returns a password for this attempt; `None` gives up.
    fn password(&mut self, attempt: u32) -> Option<Zeroizing<String>>;

    /// Answers the server's prompts, which are already escaped; `None` gives up.
    fn answers(
        &mut self,
        name: &str,
        instruction: &str,
        prompts: &[InteractivePrompt],
    ) -> Option<Vec<Zeroizing<String>>>;

    /// True if another login would need the user again: a password, a code, a passphrase or a
    /// touch.
    fn needs_person(&self) -> bool;

    /// True if the host key matches the known one, so that the agent may be forwarded to this host.
    fn may_forward(&self) -> bool;

    /// Shows the server's banner, which is already escaped.
    fn banner(&mut self, text: &str);

    /// Notes what the login waits for, such as `the key exchange`.
    fn waits_for(&mut self, _awaited: &str) {}

    /// Shows a warning that must be seen even with quiet output.
    fn danger(&mut self, text: &str);

    /// Returns the error text for a refused login to a server that accepts these methods, without
    /// the host as prefix. The lines are escaped.
    fn denied(&self, server: &[String]) -> String;

    /// Returns the account and the number of keys offered, for a connection that ended during
    /// login.
    fn login(&self) -> String;

    /// Records that authentication succeeded; `key` holds identity and algorithm if that key alone
    /// was sufficient.
    fn authenticated(&mut self, key: Option<(usize, &str)>, server_facts: &ServerFacts);

    /// Records the SFTP server's version and extensions.
    fn server(&mut self, info: &ServerInfo);

    /// Compares the host keys that the server announced with the user's files, and returns those
    /// that it has to prove (UpdateHostKeys).
    fn host_keys_announced(&mut self, _: &[bytes::Bytes]) -> Vec<PublicKey> {
        Vec::new()
    }

    /// True while the server has not answered the request for proofs of its host keys.
    fn awaits_proofs(&self) -> bool {
        false
    }

    /// Records the host keys that the server has proven; an error says why it has proven none.
    fn host_keys_proven(&mut self, _: Result<Vec<PublicKey>, KeyError>) {}

    /// Records whether a longhaul was found at the far end.
    fn far(&mut self, _: &LonghaulProbeResult) {}

    /// Forgets what was predicted: the server refused early data, and the connection starts again
    /// without predictions.
    fn forget(&mut self);

    /// Records that the connection failed while it used zlib that the user had not requested, so
    /// that zlib is not selected again.
    fn zlib_failed(&mut self) {}
}

/// The facts about a server that are stored in host memory.
#[derive(Clone, Debug, Default)]
pub struct ServerFacts {
    /// The server's identification string.
    pub banner: String,
    /// The negotiated key exchange method, which is listed first next time.
    pub kex: String,
    /// The host key algorithm that the server lists first.
    pub host_key_algorithm: String,
    /// The server's host key blob.
    pub host_key: Vec<u8>,
    /// The TCP round trip to the server; `None` without a TCP connection.
    pub rtt: Option<Duration>,
    /// The local and the server's IP address; `None` without a TCP connection.
    pub addresses: Option<(IpAddr, IpAddr)>,
}

/// The user's account and the means to authenticate.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The account name.
    pub user: String,
    /// Authentication methods in the order to try.
    pub methods: Vec<AuthMethod>,
    /// Keys in the order to offer.
    pub identities: Vec<OfferedIdentity>,
    /// True if the first identity alone has authenticated on this host key before, so that requests
    /// can be sent without waiting for the result of authentication.
    pub proven: bool,
    /// True if the host key was verified. With StrictHostKeyChecking=no this may be false, and then
    /// nothing is sent early.
    pub verified: bool,
    /// Maximum number of password prompts.
    pub max_prompts: u32,
}

impl Credentials {
    /// True if the only key is available locally without further questions: a session may then be
    /// opened early, since the server will probably accept the key.
    pub(super) fn is_likely(&self) -> bool {
        let key = self.methods.first() == Some(&AuthMethod::PublicKey);
        key && self.verified && matches!(self.identities.as_slice(), [only] if only.direct)
    }

    /// Converts the credentials to the configuration of the SSH engine.
    pub(super) fn config(
        self,
        binding: AgentBinding<'_>,
        extensions: &ssh::transport::PeerExtensions,
    ) -> AuthConfig {
        AuthConfig {
            user: self.user,
            methods: self.methods,
            identities: self.identities,
            session_id: bytes::Bytes::copy_from_slice(binding.session_id),
            host_key: bytes::Bytes::copy_from_slice(binding.host_key),
            hostbound: extensions.hostbound,
            signature_algorithms: extensions.sig_algs.clone(),
            max_prompts: self.max_prompts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_early_for_a_host_that_is_not_verified() {
        let credentials = |verified| Credentials {
            user: "u".to_owned(),
            methods: vec![AuthMethod::PublicKey],
            identities: vec![OfferedIdentity {
                blob: Vec::new(),
                algorithms: Vec::new(),
                direct: true,
            }],
            proven: false,
            verified,
            max_prompts: 1,
        };
        assert!(credentials(true).is_likely());
        assert!(!credentials(false).is_likely());
    }
}
