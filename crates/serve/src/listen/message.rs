//! What the monitor and the processes it has started tell each other: docs/design/0007-accounts.md.

use wire::message;

/// The longest message: the state of a connection and a read of the client's behind it.
pub(super) const LONGEST: usize = 64 << 10;
/// The longest exchange hash: SHA-512.
pub(super) const LONGEST_HASH: usize = 64;

message! {
    /// Sign this exchange hash with a host key. Answered by [`Signature`].
    pub(super) struct Sign<'a> = 1 {
        /// The key's blob.
        pub(super) host_key: &'a [u8],
        pub(super) algorithm: &'a [u8],
        pub(super) hash: &'a [u8],
    }
}

message! {
    /// Would this key do for this account? Answered by [`Verdict`].
    pub(super) struct Ask<'a> = 2 {
        pub(super) user: &'a [u8],
        /// The key's.
        pub(super) blob: &'a [u8],
        /// Of a certificate: the blob of the key that has signed it, ...
        pub(super) authority: &'a [u8],
        /// ... and how many bytes at its front. Nobody believes either.
        pub(super) signed_len: u32,
    }
}

message! {
    /// May this account be entered with this proof? Answered by [`Verdict`].
    pub(super) struct Prove<'a> = 3 {
        pub(super) user: &'a [u8],
        pub(super) blob: &'a [u8],
        /// Of a certificate: the blob of the key that has signed it, ...
        pub(super) authority: &'a [u8],
        /// ... and how many bytes at its front. Nobody believes either.
        pub(super) signed_len: u32,
        pub(super) algorithm: &'a [u8],
        pub(super) host_bound: bool,
        pub(super) signature: &'a [u8],
    }
}

message! {
    /// The client is logged in: here is the connection. The last message of a preauth process.
    pub(super) struct LoggedIn<'a> = 4 {
        /// What the client's half is protected by, for the log: names, ...
        pub(super) kex: &'a [u8],
        pub(super) cipher: &'a [u8],
        /// ... and nothing where the cipher has a MAC of its own.
        pub(super) mac: &'a [u8],
        pub(super) state: &'a [u8],
        /// Received and not handled.
        pub(super) unread: &'a [u8],
    }
}

message! {
    /// There will be no login. The last message of a preauth process.
    pub(super) struct Ended<'a> = 5 {
        pub(super) why: &'a [u8],
    }
}

message! {
    /// For the log.
    pub(super) struct Tell<'a> = 6 {
        /// 0 for a warning, 1 for what is always told, 2 and 3 for more.
        pub(super) level: u8,
        pub(super) text: &'a [u8],
    }
}

message! {
    /// Of an account's process, to [`Check`].
    pub(super) struct Answer<'a> = 7 {
        pub(super) allowed: bool,
        /// For the log.
        pub(super) why: &'a [u8],
        /// Who may enter, as JSON; empty for nobody.
        pub(super) entrant: &'a [u8],
    }
}

message! {
    /// A session has ended.
    pub(super) struct Over = 8 {
        pub(super) files: u64,
        pub(super) sent: u64,
        pub(super) received: u64,
    }
}

message! {
    /// Prove to the client of this connection that a host key is here. Answered by [`Signature`].
    pub(super) struct ProveHost<'a> = 9 {
        /// The key's blob.
        pub(super) host_key: &'a [u8],
        pub(super) algorithm: &'a [u8],
    }
}

message! {
    /// Empty where nothing is signed.
    pub(super) struct Signature<'a> = 17 {
        pub(super) blob: &'a [u8],
    }
}

message! {
    pub(super) struct Verdict = 18 {
        pub(super) allowed: bool,
        /// It would be, if the account had fewer connections.
        pub(super) full: bool,
    }
}

message! {
    /// To an account's process: may it be entered with this key?
    pub(super) struct Check<'a> = 19 {
        pub(super) blob: &'a [u8],
        /// Of a certificate: the blob of the key that has signed it, ...
        pub(super) authority: &'a [u8],
        /// ... and how many bytes at its front. Nobody believes either.
        pub(super) signed_len: u32,
        /// Without it the rest says nothing.
        pub(super) proved: bool,
        pub(super) session_id: &'a [u8],
        pub(super) host_key: &'a [u8],
        pub(super) algorithm: &'a [u8],
        pub(super) host_bound: bool,
        pub(super) signature: &'a [u8],
    }
}

message! {
    /// To an account's process: the client is logged in.
    pub(super) struct Begin<'a> = 20 {
        /// What it is served, as JSON.
        pub(super) served: &'a [u8],
        pub(super) state: &'a [u8],
        pub(super) unread: &'a [u8],
    }
}

message! {
    /// What a process is for, as JSON: the first message it gets.
    pub(super) struct Task<'a> = 21 {
        pub(super) json: &'a [u8],
    }
}
