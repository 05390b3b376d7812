//! sshd built from OpenSSH's newest source: `openssh/sbin/sshd` in the folder that `LONGHAUL_PEERS`
//! names. Without it these tests report the skip and pass.

use testkit::KeyKind::{Ecdsa256, Ecdsa384, Ecdsa521, Ed25519, Rsa2048};
use testkit::PeerKind;

use crate::scenarios::{Knows, scenarios};

const KIND: PeerKind = PeerKind::NewestOpenSsh;

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
        "mlkem768x25519-sha256",
        "sntrup761x25519-sha512",
        "sntrup761x25519-sha512@openssh.com",
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
    host_keys: &[Ed25519, Ecdsa256, Ecdsa384, Ecdsa521, Rsa2048],
};

scenarios!(KIND, KNOWS; password_login);
