//! Server Dropbear with OpenSSH's sftp-server.

use testkit::KeyKind::{Ecdsa256, Ed25519, Rsa2048};
use testkit::PeerKind;

use crate::scenarios::{Knows, scenarios};

const KIND: PeerKind = PeerKind::Dropbear;

const KNOWS: Knows = Knows {
    ciphers: &["chacha20-poly1305@openssh.com", "aes128-ctr", "aes256-ctr"],
    kex: &[
        "curve25519-sha256",
        "curve25519-sha256@libssh.org",
        "ecdh-sha2-nistp256",
        "ecdh-sha2-nistp384",
        "ecdh-sha2-nistp521",
    ],
    macs: &["hmac-sha2-256"],
    host_keys: &[Ed25519, Ecdsa256, Rsa2048],
};

scenarios!(KIND, KNOWS;);
