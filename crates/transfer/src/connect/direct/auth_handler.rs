//! The authentication handler of direct connections.

use std::net::IpAddr;

use sftp::ServerInfo;
use ssh::auth::{AuthMethod, InteractivePrompt, OfferedIdentity};
use ssh::key::{PrivateKey, PublicKey};
use zeroize::Zeroizing;

use crate::connect::auth_handler::{AgentBinding, AuthHandler, Credentials, ServerFacts};
use crate::connect::error::{ConnectError, ConnectStep, ResponsibleParty};

/// Accepts only the host key that the control channel announced, and offers only a key for one
/// login. No prompts are shown.
pub(super) struct DirectAuthHandler {
    user: String,
    host_key: PublicKey,
    key: PrivateKey,
}

impl DirectAuthHandler {
    pub(super) fn new(user: String, host_key: PublicKey, key: PrivateKey) -> Self {
        Self {
            user,
            host_key,
            key,
        }
    }
}

impl AuthHandler for DirectAuthHandler {
    fn host_key(&mut self, blob: &[u8], _: Option<IpAddr>) -> Result<(), ConnectError> {
        match blob == self.host_key.blob() {
            true => Ok(()),
            false => Err(ConnectError::new(
                ResponsibleParty::Path,
                ConnectStep::HostKey,
                "the host key on the port of the direct connection is not the one that the far \
                 end announced: another machine may be intercepting the connection",
            )),
        }
    }

    fn credentials(&mut self, _: AgentBinding<'_>) -> Result<Credentials, ConnectError> {
        let algorithms = self.key.public().algorithms();
        Ok(Credentials {
            user: self.user.clone(),
            methods: vec![AuthMethod::PublicKey],
            identities: vec![OfferedIdentity {
                blob: self.key.public_blob().to_vec(),
                algorithms: algorithms.into_iter().map(str::to_owned).collect(),
                direct: true,
            }],
            // The far end has confirmed this key.
            proven: true,
            verified: true,
            max_prompts: 0,
        })
    }

    fn sign(&mut self, _: usize, algorithm: &str, data: &[u8]) -> Option<Vec<u8>> {
        self.key.sign(algorithm, data).ok()
    }

    fn password(&mut self, _: u32) -> Option<Zeroizing<String>> {
        None
    }

    fn answers(
        &mut self,
        _: &str,
        _: &str,
        _: &[InteractivePrompt],
    ) -> Option<Vec<Zeroizing<String>>> {
        None
    }

    fn needs_person(&self) -> bool {
        false
    }

    fn may_forward(&self) -> bool {
        false
    }

    fn banner(&mut self, _: &str) {}

    fn danger(&mut self, _: &str) {}

    fn denied(&self, _: &[String]) -> String {
        "permission denied: the one-time key was not accepted".to_owned()
    }

    fn login(&self) -> String {
        "with a one-time key".to_owned()
    }

    fn authenticated(&mut self, _: Option<(usize, &str)>, _: &ServerFacts) {}

    fn server(&mut self, _: &ServerInfo) {}

    fn forget(&mut self) {}
}
