//! Messages of the transport protocol (RFC 4253, RFC 8308, RFC 5656).

use wire::{NameList, RemainingBytes, message};

message! {
    /// SSH_MSG_DISCONNECT (RFC 4253 section 11.1).
    pub struct Disconnect<'a> = 1 {
        /// Reason code (RFC 4253 section 11.1).
        pub reason: u32,
        /// Text for the user; from the peer, so escape it before display.
        pub description: &'a [u8],
        /// Language tag (RFC 3066), unused.
        pub language: &'a [u8],
    }
}

message! {
    /// SSH_MSG_IGNORE (RFC 4253 section 11.2).
    pub struct Ignore<'a> = 2 {
        /// Arbitrary bytes.
        pub data: &'a [u8],
    }
}

message! {
    /// SSH_MSG_UNIMPLEMENTED (RFC 4253 section 11.4).
    pub struct Unimplemented = 3 {
        /// Sequence number of the packet that was not understood.
        pub sequence: u32,
    }
}

message! {
    /// SSH_MSG_DEBUG (RFC 4253 section 11.3).
    pub struct Debug<'a> = 4 {
        /// True if the sender wants the text to be shown.
        pub always_display: bool,
        /// Text for the user; escape it before display.
        pub text: &'a [u8],
        /// Language tag (RFC 3066), unused.
        pub language: &'a [u8],
    }
}

message! {
    /// SSH_MSG_SERVICE_REQUEST (RFC 4253 section 10).
    pub struct ServiceRequest<'a> = 5 {
        /// Service name, `ssh-userauth` or `ssh-connection`.
        pub name: &'a [u8],
    }
}

message! {
    /// SSH_MSG_SERVICE_ACCEPT (RFC 4253 section 10).
    pub struct ServiceAccept<'a> = 6 {
        /// Service name of the request.
        pub name: &'a [u8],
    }
}

message! {
    /// SSH_MSG_EXT_INFO (RFC 8308 section 2.3).
    pub struct ExtInfo<'a> = 7 {
        /// Number of name/value pairs.
        pub count: u32,
        /// Pairs of two strings each.
        pub pairs: RemainingBytes<'a>,
    }
}

message! {
    /// SSH_MSG_KEXINIT (RFC 4253 section 7.1).
    pub struct KexInit<'a> = 20 {
        /// Random cookie.
        pub cookie: [u8; 16],
        /// Key exchange methods and indicators.
        pub kex: NameList<'a>,
        /// Host key algorithms.
        pub host_key: NameList<'a>,
        /// Ciphers, client to server.
        pub cipher_c2s: NameList<'a>,
        /// Ciphers, server to client.
        pub cipher_s2c: NameList<'a>,
        /// MACs, client to server.
        pub mac_c2s: NameList<'a>,
        /// MACs, server to client.
        pub mac_s2c: NameList<'a>,
        /// Compression, client to server.
        pub compression_c2s: NameList<'a>,
        /// Compression, server to client.
        pub compression_s2c: NameList<'a>,
        /// Languages, unused.
        pub language_c2s: NameList<'a>,
        /// Languages, unused.
        pub language_s2c: NameList<'a>,
        /// True if a guessed key exchange packet follows (RFC 4253 section 7).
        pub first_kex_packet_follows: bool,
        /// Reserved, zero.
        pub reserved: u32,
    }
}

message! {
    /// SSH_MSG_NEWKEYS (RFC 4253 section 7.3).
    pub struct NewKeys = 21 {}
}

message! {
    /// SSH_MSG_KEX_ECDH_INIT (RFC 5656 section 4); hybrid methods use it for their own public
    /// value.
    pub struct KexEcdhInit<'a> = 30 {
        /// The client's ephemeral public value.
        pub public: &'a [u8],
    }
}

message! {
    /// SSH_MSG_KEX_ECDH_REPLY (RFC 5656 section 4).
    pub struct KexEcdhReply<'a> = 31 {
        /// Host key blob K_S.
        pub host_key: &'a [u8],
        /// The server's ephemeral public value.
        pub public: &'a [u8],
        /// Signature over the exchange hash.
        pub signature: &'a [u8],
    }
}

message! {
    /// SSH2_MSG_PING of ping@openssh.com (OpenSSH PROTOCOL section 1.9).
    pub struct Ping<'a> = 192 {
        /// Data that the reply returns unchanged.
        pub data: &'a [u8],
    }
}

message! {
    /// SSH2_MSG_PONG, the reply to [`Ping`].
    pub struct Pong<'a> = 193 {
        /// Data of the ping.
        pub data: &'a [u8],
    }
}
