/// Parameters of a signature algorithm, an entry of [`HOST_KEY_ALGORITHMS`].
#[derive(Debug, PartialEq, Eq)]
pub struct KeyAlgorithm {
    /// Algorithm name for negotiation and USERAUTH_REQUEST.
    pub name: &'static str,
    /// Key type at the front of the key's blob.
    pub key_type: &'static str,
    /// Type of the certified key if the blob is a certificate, else the key type.
    pub plain_type: &'static str,
    /// Algorithm name at the front of a signature.
    pub signature: &'static str,
}

impl KeyAlgorithm {
    /// Returns true if the key blob is a certificate.
    pub fn is_certificate(&self) -> bool {
        self.key_type != self.plain_type
    }

    const fn plain(name: &'static str) -> Self {
        Self {
            name,
            key_type: name,
            plain_type: name,
            signature: name,
        }
    }

    const fn certificate(name: &'static str, plain_type: &'static str) -> Self {
        Self {
            name,
            key_type: name,
            plain_type,
            signature: plain_type,
        }
    }

    /// Creates an entry for RSA, which has one key type and two signature algorithms (RFC 8332).
    const fn rsa(signature: &'static str) -> Self {
        Self {
            name: signature,
            key_type: RSA,
            plain_type: RSA,
            signature,
        }
    }

    const fn rsa_certificate(name: &'static str, signature: &'static str) -> Self {
        Self {
            name,
            key_type: "ssh-rsa-cert-v01@openssh.com",
            plain_type: RSA,
            signature,
        }
    }
}

pub(super) const ED25519: &str = "ssh-ed25519";
pub(super) const RSA: &str = "ssh-rsa";
pub(super) const SK_ED25519: &str = "sk-ssh-ed25519@openssh.com";
pub(super) const SK_ECDSA: &str = "sk-ecdsa-sha2-nistp256@openssh.com";

/// All supported signature algorithms of host and user keys, in our order of preference, which is
/// OpenSSH's (myproposal.h). `ssh-rsa` is not supported, since its signatures use SHA-1.
pub static HOST_KEY_ALGORITHMS: &[KeyAlgorithm] = &[
    KeyAlgorithm::certificate("ssh-ed25519-cert-v01@openssh.com", ED25519),
    KeyAlgorithm::certificate(
        "ecdsa-sha2-nistp256-cert-v01@openssh.com",
        "ecdsa-sha2-nistp256",
    ),
    KeyAlgorithm::certificate(
        "ecdsa-sha2-nistp384-cert-v01@openssh.com",
        "ecdsa-sha2-nistp384",
    ),
    KeyAlgorithm::certificate(
        "ecdsa-sha2-nistp521-cert-v01@openssh.com",
        "ecdsa-sha2-nistp521",
    ),
    KeyAlgorithm::certificate("sk-ssh-ed25519-cert-v01@openssh.com", SK_ED25519),
    KeyAlgorithm::certificate("sk-ecdsa-sha2-nistp256-cert-v01@openssh.com", SK_ECDSA),
    KeyAlgorithm::rsa_certificate("rsa-sha2-512-cert-v01@openssh.com", "rsa-sha2-512"),
    KeyAlgorithm::rsa_certificate("rsa-sha2-256-cert-v01@openssh.com", "rsa-sha2-256"),
    KeyAlgorithm::plain(ED25519),
    KeyAlgorithm::plain("ecdsa-sha2-nistp256"),
    KeyAlgorithm::plain("ecdsa-sha2-nistp384"),
    KeyAlgorithm::plain("ecdsa-sha2-nistp521"),
    KeyAlgorithm::plain(SK_ED25519),
    KeyAlgorithm::plain(SK_ECDSA),
    KeyAlgorithm::rsa("rsa-sha2-512"),
    KeyAlgorithm::rsa("rsa-sha2-256"),
];

/// Returns the algorithm with this name.
pub fn algorithm(name: &str) -> Option<&'static KeyAlgorithm> {
    HOST_KEY_ALGORITHMS.iter().find(|a| a.name == name)
}

/// Returns the type of the certified key for a certificate type.
pub(super) fn certified_type(key_type: &str) -> Option<&'static str> {
    HOST_KEY_ALGORITHMS
        .iter()
        .find(|a| a.is_certificate() && a.key_type == key_type)
        .map(|a| a.plain_type)
}
