//! Messages of the authentication protocol (RFC 4252, RFC 4256).

use wire::{NameList, RemainingBytes, message};

message! {
    /// SSH_MSG_USERAUTH_REQUEST (RFC 4252 section 5).
    pub struct UserauthRequest<'a> = 50 {
        /// Account name.
        pub user: &'a [u8],
        /// Service to start, `ssh-connection`.
        pub service: &'a [u8],
        /// Method name.
        pub method: &'a [u8],
        /// Data specific to the method.
        pub data: RemainingBytes<'a>,
    }
}

message! {
    /// SSH_MSG_USERAUTH_FAILURE (RFC 4252 section 5.1).
    pub struct UserauthFailure<'a> = 51 {
        /// Methods that may still be tried.
        pub methods: NameList<'a>,
        /// True if the request succeeded but more is required.
        pub partial_success: bool,
    }
}

message! {
    /// SSH_MSG_USERAUTH_SUCCESS (RFC 4252 section 5.1).
    pub struct UserauthSuccess = 52 {}
}

message! {
    /// SSH_MSG_USERAUTH_BANNER (RFC 4252 section 5.4).
    pub struct UserauthBanner<'a> = 53 {
        /// Text for the user; escape it before display.
        pub text: &'a [u8],
        /// Language tag (RFC 3066), unused.
        pub language: &'a [u8],
    }
}

message! {
    /// SSH_MSG_USERAUTH_PK_OK: the key would be accepted (RFC 4252 section 7). Number 60 has
    /// another meaning in each method.
    pub struct UserauthPkOk<'a> = 60 {
        /// Algorithm of the request.
        pub algorithm: &'a [u8],
        /// Key blob of the request.
        pub blob: &'a [u8],
    }
}

message! {
    /// SSH_MSG_USERAUTH_PASSWD_CHANGEREQ: the password is correct but has expired (RFC 4252 section
    /// 8).
    pub struct UserauthPasswdChangereq<'a> = 60 {
        /// Text for the user; escape it before display.
        pub prompt: &'a [u8],
        /// Language tag (RFC 3066), unused.
        pub language: &'a [u8],
    }
}

message! {
    /// SSH_MSG_USERAUTH_INFO_REQUEST (RFC 4256 section 3.2).
    pub struct UserauthInfoRequest<'a> = 60 {
        /// Heading for the user; escape it before display.
        pub name: &'a [u8],
        /// Text for the user; escape it before display.
        pub instruction: &'a [u8],
        /// Language tag (RFC 3066), unused.
        pub language: &'a [u8],
        /// Number of prompts.
        pub count: u32,
        /// Prompts, each a string and a boolean that permits showing the answer.
        pub prompts: RemainingBytes<'a>,
    }
}

message! {
    /// SSH_MSG_USERAUTH_INFO_RESPONSE (RFC 4256 section 3.4).
    pub struct UserauthInfoResponse<'a> = 61 {
        /// Number of answers.
        pub count: u32,
        /// Answers, each a string.
        pub answers: RemainingBytes<'a>,
    }
}
