use std::sync::Arc;

use ssh::key::PrivateKey;
use ssh::transport::AlgorithmProposal;

use super::{Edit, Step};

/// Authentication step that a user has to pass.
#[derive(Clone, Debug)]
pub enum Way {
    /// Prove the possession of the key with this public blob.
    Key(Vec<u8>),
    /// Give this password.
    Password(String),
    /// Answer these keyboard-interactive prompts.
    Prompts(Vec<(String, String)>),
}

impl Way {
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Key(_) => "publickey",
            Self::Password(_) => "password",
            Self::Prompts(_) => "keyboard-interactive",
        }
    }
}

/// Settings of a [`super::SshdModel`]: a server's configuration, and the deviations from it that a
/// test wants.
#[derive(Clone)]
pub struct SshdModelSettings {
    /// softwareversion and comments of the identification string.
    pub software: String,
    /// Algorithms that it offers.
    pub proposal: AlgorithmProposal,
    /// Host key.
    pub host_key: Arc<PrivateKey>,
    /// Authentication steps, all required in this order (AuthenticationMethods).
    pub ways: Vec<Way>,
    /// Banner sent before the first answer to an authentication request.
    pub banner: Option<Vec<u8>>,
    /// RekeyLimit in bytes.
    pub rekey_bytes: Option<u64>,
    /// The server closes the connection if anything follows an authentication request before its
    /// answer, as some servers other than OpenSSH do.
    pub impatient: bool,
    /// Added to the number that the server gives its channel.
    pub channel_offset: u32,
    /// Changes to packets of the first key exchange by number: the identification is 0, KEXINIT 1,
    /// KEX_ECDH_REPLY 2, NEWKEYS 3, EXT_INFO 4.
    pub edits: Vec<(usize, Edit)>,
    /// Messages to inject when the connection reaches a step.
    pub slips: Vec<(Step, Vec<Vec<u8>>)>,
}

impl SshdModelSettings {
    /// Creates the settings of OpenSSH 9.2 as in Debian 12, with an Ed25519 host key; a user who
    /// passes all `ways` is admitted.
    pub fn openssh(host_key: Arc<PrivateKey>, ways: Vec<Way>) -> Self {
        let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect();
        let proposal = AlgorithmProposal {
            kex: names(&[
                "sntrup761x25519-sha512@openssh.com",
                "curve25519-sha256",
                "curve25519-sha256@libssh.org",
                "ecdh-sha2-nistp256",
                "ecdh-sha2-nistp384",
                "ecdh-sha2-nistp521",
            ]),
            host_key: names(&["ssh-ed25519"]),
            ciphers: names(&[
                "chacha20-poly1305@openssh.com",
                "aes128-ctr",
                "aes192-ctr",
                "aes256-ctr",
                "aes128-gcm@openssh.com",
                "aes256-gcm@openssh.com",
            ]),
            macs: names(&[
                "hmac-sha2-256-etm@openssh.com",
                "hmac-sha2-512-etm@openssh.com",
                "hmac-sha2-256",
            ]),
            compress: false,
        };
        Self {
            software: "OpenSSH_9.2p1 Debian-2+deb12u3".to_owned(),
            proposal,
            host_key,
            ways,
            banner: None,
            rekey_bytes: None,
            impatient: false,
            channel_offset: 0,
            edits: Vec::new(),
            slips: Vec::new(),
        }
    }

    /// Injects `payloads` at `step`.
    #[must_use]
    pub fn slip(mut self, step: Step, payloads: Vec<Vec<u8>>) -> Self {
        self.slips.push((step, payloads));
        self
    }

    /// Changes packet `number`.
    #[must_use]
    pub fn edit(mut self, number: usize, edit: Edit) -> Self {
        self.edits.push((number, edit));
        self
    }
}
