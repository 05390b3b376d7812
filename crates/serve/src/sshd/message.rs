//! Messages between the monitor and the processes it has started: docs/design/0007-accounts.md.

use wire::message;

/// Longest message in bytes: the state of a connection and one read of client input behind it.
pub(super) const LONGEST: usize = 64 << 10;
/// Longest exchange hash in bytes: SHA-512.
pub(super) const LONGEST_HASH: usize = 64;

message! {
    /// Asks the monitor to sign an exchange hash with a host key. Answered by [`SignatureReply`].
    pub(super) struct HostKeySignRequest<'a> = 1 {
        /// Blob of the host key.
        pub(super) host_key: &'a [u8],
        pub(super) algorithm: &'a [u8],
        pub(super) hash: &'a [u8],
    }
}

message! {
    /// Asks whether a key could log in to an account. Answered by [`KeyVerdict`].
    pub(super) struct KeyQuery<'a> = 2 {
        pub(super) user: &'a [u8],
        /// Blob of the offered key or certificate.
        pub(super) blob: &'a [u8],
        /// For a certificate: blob of the key that signed it.
        pub(super) authority: &'a [u8],
        /// Number of leading bytes of `blob` that it signed; like `authority` only a hint.
        pub(super) signed_len: u32,
    }
}

message! {
    /// Asks whether a key with this signature may log in to an account. Answered by [`KeyVerdict`].
    pub(super) struct SignatureCheckRequest<'a> = 3 {
        pub(super) user: &'a [u8],
        pub(super) blob: &'a [u8],
        /// For a certificate: blob of the key that signed it.
        pub(super) authority: &'a [u8],
        /// Number of leading bytes of `blob` that it signed; like `authority` only a hint.
        pub(super) signed_len: u32,
        pub(super) algorithm: &'a [u8],
        pub(super) host_bound: bool,
        pub(super) signature: &'a [u8],
    }
}

message! {
    /// Hands over the connection of a client that is logged in; the last message of a preauth
    /// process.
    pub(super) struct ConnectionHandover<'a> = 4 {
        /// Algorithm names of the client's direction, for the log.
        pub(super) kex: &'a [u8],
        pub(super) cipher: &'a [u8],
        /// Empty if the cipher authenticates by itself.
        pub(super) mac: &'a [u8],
        pub(super) state: &'a [u8],
        /// Bytes received and not handled yet.
        pub(super) unread: &'a [u8],
    }
}

message! {
    /// Reports the end of a connection without a login; the last message of a preauth process.
    pub(super) struct EndedWithoutLogin<'a> = 5 {
        pub(super) why: &'a [u8],
    }
}

message! {
    /// Asks the monitor to log a line of a process that does not write to the log itself.
    pub(super) struct LogMessage<'a> = 6 {
        /// 0 for a warning, 1 for lines that are always logged, 2 and 3 for more detail.
        pub(super) level: u8,
        pub(super) text: &'a [u8],
    }
}

message! {
    /// An account process's answer to [`KeyCheckRequest`].
    pub(super) struct KeyCheckReply<'a> = 7 {
        pub(super) allowed: bool,
        /// Reason for the log.
        pub(super) why: &'a [u8],
        /// The accepted `LoginKey` as JSON; empty if refused.
        pub(super) entrant: &'a [u8],
    }
}

message! {
    /// Reports the counters of a session that has ended.
    pub(super) struct SessionEnded = 8 {
        pub(super) files: u64,
        pub(super) sent: u64,
        pub(super) received: u64,
    }
}

message! {
    /// Asks the monitor to prove a host key to the client of this connection. Answered by
    /// [`SignatureReply`].
    pub(super) struct HostKeyProofRequest<'a> = 9 {
        /// Blob of the host key.
        pub(super) host_key: &'a [u8],
        pub(super) algorithm: &'a [u8],
    }
}

message! {
    /// Answers a request to sign; empty if nothing was signed.
    pub(super) struct SignatureReply<'a> = 17 {
        pub(super) blob: &'a [u8],
    }
}

message! {
    /// The monitor's answer to [`KeyQuery`] and [`SignatureCheckRequest`]; the preauth process
    /// learns no reason.
    pub(super) struct KeyVerdict = 18 {
        pub(super) allowed: bool,
        /// The key would be accepted if the account had fewer connections.
        pub(super) full: bool,
    }
}

message! {
    /// Asks an account process whether a key may log in.
    pub(super) struct KeyCheckRequest<'a> = 19 {
        pub(super) blob: &'a [u8],
        /// For a certificate: blob of the key that signed it.
        pub(super) authority: &'a [u8],
        /// Number of leading bytes of `blob` that it signed; like `authority` only a hint.
        pub(super) signed_len: u32,
        /// The client has signed; otherwise the fields below are empty or unused.
        pub(super) proved: bool,
        pub(super) session_id: &'a [u8],
        pub(super) host_key: &'a [u8],
        pub(super) algorithm: &'a [u8],
        pub(super) host_bound: bool,
        pub(super) signature: &'a [u8],
    }
}

message! {
    /// Tells an account process that the client is logged in.
    pub(super) struct BeginSession<'a> = 20 {
        /// The `ServedClientSettings` of this login as JSON.
        pub(super) served: &'a [u8],
        pub(super) state: &'a [u8],
        pub(super) unread: &'a [u8],
    }
}

message! {
    /// Settings of a process as JSON, the first message that it receives.
    pub(super) struct ProcessConfig<'a> = 21 {
        pub(super) json: &'a [u8],
    }
}
