//! Key pairs and certificates, made by ssh-keygen.

use std::path::{Path, PathBuf};

use crate::process::Run;

/// Key types that ssh-keygen can create and longhaul can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are SSH's own")]
pub enum KeyKind {
    Ed25519,
    Ecdsa256,
    Ecdsa384,
    Ecdsa521,
    Rsa2048,
    Rsa3072,
}

impl KeyKind {
    /// Returns the arguments of ssh-keygen for the type.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Ed25519 => &["-t", "ed25519"],
            Self::Ecdsa256 => &["-t", "ecdsa", "-b", "256"],
            Self::Ecdsa384 => &["-t", "ecdsa", "-b", "384"],
            Self::Ecdsa521 => &["-t", "ecdsa", "-b", "521"],
            Self::Rsa2048 => &["-t", "rsa", "-b", "2048"],
            Self::Rsa3072 => &["-t", "rsa", "-b", "3072"],
        }
    }

    /// Returns a file name for a key of the type.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Ed25519 => "ed25519",
            Self::Ecdsa256 => "ecdsa256",
            Self::Ecdsa384 => "ecdsa384",
            Self::Ecdsa521 => "ecdsa521",
            Self::Rsa2048 => "rsa2048",
            Self::Rsa3072 => "rsa3072",
        }
    }

    /// Returns the host key algorithms that a key of this type supports.
    pub fn host_key_algorithms(self) -> &'static [&'static str] {
        match self {
            Self::Ed25519 => &["ssh-ed25519"],
            Self::Ecdsa256 => &["ecdsa-sha2-nistp256"],
            Self::Ecdsa384 => &["ecdsa-sha2-nistp384"],
            Self::Ecdsa521 => &["ecdsa-sha2-nistp521"],
            Self::Rsa2048 | Self::Rsa3072 => &["rsa-sha2-256", "rsa-sha2-512"],
        }
    }
}

/// File format that ssh-keygen writes a private key in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFormat {
    /// OpenSSH's own format.
    OpenSsh,
    /// PKCS#1 or SEC1 in PEM; ssh-keygen writes Ed25519 keys in OpenSSH's format nevertheless.
    Pem,
    /// PKCS#8 in PEM.
    Pkcs8,
}

/// Key pair that ssh-keygen has written to two files of the test's folder.
#[derive(Debug, Clone)]
pub struct KeyPair {
    /// File of the private key; the public key's file has `.pub` appended.
    pub private: PathBuf,
    /// Type of the key.
    pub kind: KeyKind,
}

impl KeyPair {
    /// Creates a key without a passphrase in OpenSSH's format, as the file `name` in `folder`.
    pub fn generate(folder: &Path, name: &str, kind: KeyKind) -> Self {
        Self::generate_with(folder, name, kind, KeyFormat::OpenSsh, "")
    }

    /// Creates a key.
    ///
    /// # Panics
    /// Panics if ssh-keygen fails.
    pub fn generate_with(
        folder: &Path,
        name: &str,
        kind: KeyKind,
        format: KeyFormat,
        passphrase: &str,
    ) -> Self {
        let private = folder.join(name);
        let format: &[&str] = match format {
            KeyFormat::OpenSsh => &[],
            KeyFormat::Pem => &["-m", "PEM"],
            KeyFormat::Pkcs8 => &["-m", "PKCS8"],
        };
        Run::new("ssh-keygen")
            .args(["-q", "-C", name, "-N", passphrase])
            .args(kind.arguments())
            .args(format)
            .arg("-f")
            .arg(&private)
            .run()
            .expect_code(0);
        Self { private, kind }
    }

    /// Returns the path of the public key file.
    pub fn public(&self) -> PathBuf {
        with_suffix(&self.private, ".pub")
    }

    /// Returns the path of the certificate file that [`Self::certify_user`] or
    /// [`Self::certify_host`] has created.
    pub fn certificate(&self) -> PathBuf {
        with_suffix(&self.private, "-cert.pub")
    }

    /// Returns the public key as in `known_hosts` and `authorized_keys`, without a line end.
    pub fn public_line(&self) -> String {
        let text = std::fs::read_to_string(self.public()).expect("ssh-keygen wrote the public key");
        text.trim().to_owned()
    }

    /// Creates a user certificate for `principal`, signed by `self`.
    pub fn certify_user(&self, key: &Self, principal: &str) {
        self.certify(key, principal, &[]);
    }

    /// Creates a host certificate for the name `host`, signed by `self`.
    pub fn certify_host(&self, key: &Self, host: &str) {
        self.certify(key, host, &["-h"]);
    }

    /// Creates a certificate with additional arguments of ssh-keygen, such as `-V` for its
    /// validity.
    pub fn certify(&self, key: &Self, principal: &str, more: &[&str]) {
        Run::new("ssh-keygen")
            .args(["-q", "-I", "test", "-n", principal, "-s"])
            .arg(&self.private)
            .args(more)
            .arg(key.public())
            .run()
            .expect_code(0);
    }
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
