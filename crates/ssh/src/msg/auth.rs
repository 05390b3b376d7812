//! Messages of authentication (RFC 4252, RFC 4256).

use wire::{NameList, Rest, message};

message! {
    /// RFC 4252 section 5.
    pub struct UserauthRequest<'a> = 50 {
        /// The account.
        pub user: &'a [u8],
        /// `ssh-connection`.
        pub service: &'a [u8],
        /// The method.
        pub method: &'a [u8],
        /// By method.
        pub data: Rest<'a>,
    }
}

message! {
    /// RFC 4252 section 5.1.
    pub struct UserauthFailure<'a> = 51 {
        /// What may still be tried.
        pub methods: NameList<'a>,
        /// The request was right, but more is needed.
        pub partial_success: bool,
    }
}

message! {
    /// RFC 4252 section 5.1.
    pub struct UserauthSuccess = 52 {}
}

message! {
    /// RFC 4252 section 5.4.
    pub struct UserauthBanner<'a> = 53 {
        /// For people; escape before showing.
        pub text: &'a [u8],
        /// RFC 3066 tag, unused.
        pub language: &'a [u8],
    }
}

message! {
    /// RFC 4252 section 7: this key would do. The number means something else in each method.
    pub struct UserauthPkOk<'a> = 60 {
        /// As in the request.
        pub algorithm: &'a [u8],
        /// As in the request.
        pub blob: &'a [u8],
    }
}

message! {
    /// RFC 4252 section 8: the password is right but has expired.
    pub struct UserauthPasswdChangereq<'a> = 60 {
        /// For people; escape before showing.
        pub prompt: &'a [u8],
        /// RFC 3066 tag, unused.
        pub language: &'a [u8],
    }
}

message! {
    /// RFC 4256 section 3.2.
    pub struct UserauthInfoRequest<'a> = 60 {
        /// For people; escape before showing.
        pub name: &'a [u8],
        /// For people; escape before showing.
        pub instruction: &'a [u8],
        /// RFC 3066 tag, unused.
        pub language: &'a [u8],
        /// How many prompts follow.
        pub count: u32,
        /// Each a string and whether to show what is typed.
        pub prompts: Rest<'a>,
    }
}

message! {
    /// RFC 4256 section 3.4.
    pub struct UserauthInfoResponse<'a> = 61 {
        /// How many answers follow.
        pub count: u32,
        /// Each a string.
        pub answers: Rest<'a>,
    }
}
