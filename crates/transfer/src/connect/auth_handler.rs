//! What a connection asks on its way to being open.

use std::net::IpAddr;
use std::time::Duration;

use sftp::ServerInfo;
use ssh::auth::{AuthConfig, Identity, Method, Prompt};
use zeroize::Zeroizing;

use crate::session::Seen;

/// What a connection is bound to: for the agent (session-bind@openssh.com).
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    /// The server's host key blob.
    pub host_key: &'a [u8],
    /// The first exchange hash.
    pub session_id: &'a [u8],
    /// The server's signature over it.
    pub signature: &'a [u8],
}

/// Answers what a connection asks before it is open: whether to trust the host, who the user is.
///
/// Calls may wait for a person. An `Err` is one sentence that ends the connection.
pub trait AuthHandler: Send {
    /// Decides whether to go on with a server that proved to own this key; `address` is where the
    /// connection leads, if it is a TCP connection.
    fn host_key(&mut self, blob: &[u8], address: Option<IpAddr>) -> Result<(), String>;

    /// Whether [`AuthHandler::credentials`] may wait for other things than a person.
    fn holds(&self) -> bool {
        false
    }

    /// User name, methods and keys, after the host key was taken.
    fn credentials(&mut self, binding: Binding<'_>) -> Result<Credentials, String>;

    /// Signs with the key at `identity` of [`Credentials::identities`]; `None` when it cannot, and
    /// the next one is tried.
    fn sign(&mut self, identity: usize, algorithm: &str, data: &[u8]) -> Option<Vec<u8>>;

    /// A password; `None` gives up.
    fn password(&mut self, attempt: u32) -> Option<Zeroizing<String>>;

    /// Answers to prompts of the server, which are escaped already; `None` gives up.
    fn answers(
        &mut self,
        name: &str,
        instruction: &str,
        prompts: &[Prompt],
    ) -> Option<Vec<Zeroizing<String>>>;

    /// Whether another login would take the person again: a password, a code, a passphrase, a
    /// touch.
    fn needs_person(&self) -> bool;

    /// The host's key is what it should be, so that the agent may be forwarded to it.
    fn may_forward(&self) -> bool;

    /// A greeting, escaped already.
    fn banner(&mut self, text: &str);

    /// What nobody shall overlook, however quiet they want it.
    fn danger(&mut self, text: &str);

    /// The text for a login that was refused by a server that accepts these methods, without the
    /// host in front. The lines are escaped.
    fn denied(&self, server: &[String]) -> String;

    /// The account and the number of keys offered, for a connection that ended during the login.
    fn login(&self) -> String;

    /// Authentication has succeeded; `key` with this identity and algorithm alone if so.
    fn authenticated(&mut self, key: Option<(usize, &str)>, visit: &ServerFacts);

    /// The SFTP server has said what it is.
    fn server(&mut self, info: &ServerInfo);

    /// Whether there is a longhaul at the far end was found out.
    fn far(&mut self, _: &Seen) {}

    /// What was sent early was refused, and the connection begins again step by step.
    fn forget(&mut self);

    /// The connection failed with zlib, for which nobody had asked: it is not chosen again.
    fn zlib_failed(&mut self) {}
}

/// What to remember of a server.
#[derive(Clone, Debug, Default)]
pub struct ServerFacts {
    /// Its identification.
    pub banner: String,
    /// The kex that was negotiated; first on its list.
    pub kex: String,
    /// The host key algorithm that is first on its list.
    pub host_key_algorithm: String,
    /// Its host key blob.
    pub host_key: Vec<u8>,
    /// The round trip of TCP to it, where it was reached by TCP.
    pub rtt: Option<Duration>,
    /// This end's address and the server's, where it was reached by TCP.
    pub addresses: Option<(IpAddr, IpAddr)>,
}

/// Who the user is.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The account.
    pub user: String,
    /// In the order to try.
    pub methods: Vec<Method>,
    /// In the order to offer.
    pub identities: Vec<Identity>,
    /// The first identity has worked alone on this host key before, so that what follows
    /// authentication need not wait for it.
    pub proven: bool,
    /// The host key is what it should be. Nothing leaves early for a host of which that is not known
    /// (StrictHostKeyChecking=no).
    pub verified: bool,
    /// Times to ask for a password.
    pub max_prompts: u32,
}

impl Credentials {
    /// There is one key, and it is at hand: a session may be opened on the hope that it is taken.
    pub(super) fn is_likely(&self) -> bool {
        let key = self.methods.first() == Some(&Method::PublicKey);
        key && self.verified && matches!(self.identities.as_slice(), [only] if only.direct)
    }

    /// As the engine takes it.
    pub(super) fn config(
        self,
        binding: Binding<'_>,
        extensions: &ssh::transport::Extensions,
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
            methods: vec![Method::PublicKey],
            identities: vec![Identity {
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
