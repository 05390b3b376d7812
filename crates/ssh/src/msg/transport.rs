//! Transport messages (RFC 4253, RFC 8308, RFC 5656).

use wire::{NameList, Rest, message};

message! {
    /// RFC 4253 section 11.1.
    pub struct Disconnect<'a> = 1 {
        /// One of the codes of section 11.1.
        pub reason: u32,
        /// For people; from the peer, so escape before showing.
        pub description: &'a [u8],
        /// RFC 3066 tag, unused.
        pub language: &'a [u8],
    }
}

message! {
    /// RFC 4253 section 11.2.
    pub struct Ignore<'a> = 2 {
        /// Anything.
        pub data: &'a [u8],
    }
}

message! {
    /// RFC 4253 section 11.4.
    pub struct Unimplemented = 3 {
        /// Sequence number of the packet that was not understood.
        pub sequence: u32,
    }
}

message! {
    /// RFC 4253 section 11.3.
    pub struct Debug<'a> = 4 {
        /// Whether the sender wants it shown.
        pub always_display: bool,
        /// For people; escape before showing.
        pub text: &'a [u8],
        /// RFC 3066 tag, unused.
        pub language: &'a [u8],
    }
}

message! {
    /// RFC 4253 section 10.
    pub struct ServiceRequest<'a> = 5 {
        /// `ssh-userauth` or `ssh-connection`.
        pub name: &'a [u8],
    }
}

message! {
    /// RFC 4253 section 10.
    pub struct ServiceAccept<'a> = 6 {
        /// As requested.
        pub name: &'a [u8],
    }
}

message! {
    /// RFC 8308 section 2.3.
    pub struct ExtInfo<'a> = 7 {
        /// How many name/value pairs follow.
        pub count: u32,
        /// The pairs, each two strings.
        pub pairs: Rest<'a>,
    }
}

message! {
    /// RFC 4253 section 7.1.
    pub struct KexInit<'a> = 20 {
        /// Random bytes.
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
        /// A guessed key exchange packet follows (RFC 4253 section 7).
        pub first_kex_packet_follows: bool,
        /// Zero.
        pub reserved: u32,
    }
}

message! {
    /// RFC 4253 section 7.3.
    pub struct NewKeys = 21 {}
}

message! {
    /// RFC 5656 section 4; the hybrid methods put their own public value here.
    pub struct KexEcdhInit<'a> = 30 {
        /// The client's ephemeral public value.
        pub public: &'a [u8],
    }
}

message! {
    /// RFC 5656 section 4.
    pub struct KexEcdhReply<'a> = 31 {
        /// The host key blob K_S.
        pub host_key: &'a [u8],
        /// The server's ephemeral public value.
        pub public: &'a [u8],
        /// Signature over the exchange hash.
        pub signature: &'a [u8],
    }
}

message! {
    /// ping@openssh.com (OpenSSH PROTOCOL section 1.9).
    pub struct Ping<'a> = 192 {
        /// Sent back as it is.
        pub data: &'a [u8],
    }
}

message! {
    /// The answer of [`Ping`].
    pub struct Pong<'a> = 193 {
        /// What the ping held.
        pub data: &'a [u8],
    }
}
