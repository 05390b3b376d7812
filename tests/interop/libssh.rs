//! Server with the C library libssh and OpenSSH's sftp-server.

use testkit::KeyKind::{Ecdsa256, Ed25519, Rsa2048};
use testkit::PeerKind;

use crate::scenarios::{Knows, scenarios};

const KIND: PeerKind = PeerKind::Libssh;

const KNOWS: Knows = Knows {
    ciphers: &[
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "chacha20-poly1305@openssh.com",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
    ],
    kex: &[
        "curve25519-sha256",
        "curve25519-sha256@libssh.org",
        "ecdh-sha2-nistp256",
        "ecdh-sha2-nistp384",
        "ecdh-sha2-nistp521",
    ],
    macs: &[
        "hmac-sha2-256-etm@openssh.com",
        "hmac-sha2-512-etm@openssh.com",
        "hmac-sha2-256",
        "hmac-sha2-512",
    ],
    // libssh has one key of each family only.
    host_keys: &[Ed25519, Ecdsa256, Rsa2048],
};

scenarios!(KIND, KNOWS; password_login);
