//! Messages of the connection protocol (RFC 4254).

use wire::{Rest, message};

message! {
    /// RFC 4254 section 4.
    pub struct GlobalRequest<'a> = 80 {
        /// Which.
        pub name: &'a [u8],
        /// Whether an answer is wanted.
        pub want_reply: bool,
        /// By name.
        pub data: Rest<'a>,
    }
}

message! {
    /// RFC 4254 section 4.
    pub struct RequestSuccess<'a> = 81 {
        /// By request.
        pub data: Rest<'a>,
    }
}

message! {
    /// RFC 4254 section 4.
    pub struct RequestFailure = 82 {}
}

message! {
    /// RFC 4254 section 5.1.
    pub struct ChannelOpen<'a> = 90 {
        /// Channel type.
        pub kind: &'a [u8],
        /// The sender's number for it.
        pub sender: u32,
        /// Bytes the receiver of this may send.
        pub window: u32,
        /// Largest data payload.
        pub max_packet: u32,
        /// By type.
        pub data: Rest<'a>,
    }
}

message! {
    /// RFC 4254 section 5.1.
    pub struct ChannelOpenConfirmation<'a> = 91 {
        /// The opener's number.
        pub recipient: u32,
        /// The sender's number.
        pub sender: u32,
        /// Bytes the receiver of this may send.
        pub window: u32,
        /// Largest data payload.
        pub max_packet: u32,
        /// By type.
        pub data: Rest<'a>,
    }
}

message! {
    /// RFC 4254 section 5.1.
    pub struct ChannelOpenFailure<'a> = 92 {
        /// The opener's number.
        pub recipient: u32,
        /// One of the codes of section 5.1.
        pub reason: u32,
        /// For people; escape before showing.
        pub description: &'a [u8],
        /// RFC 3066 tag, unused.
        pub language: &'a [u8],
    }
}

message! {
    /// RFC 4254 section 5.2.
    pub struct ChannelWindowAdjust = 93 {
        /// The receiver's number.
        pub recipient: u32,
        /// Bytes more that it may send.
        pub bytes: u32,
    }
}

message! {
    /// RFC 4254 section 5.2.
    pub struct ChannelData<'a> = 94 {
        /// The receiver's number.
        pub recipient: u32,
        /// The data.
        pub data: &'a [u8],
    }
}

message! {
    /// RFC 4254 section 5.2.
    pub struct ChannelExtendedData<'a> = 95 {
        /// The receiver's number.
        pub recipient: u32,
        /// 1 is standard error.
        pub code: u32,
        /// The data.
        pub data: &'a [u8],
    }
}

message! {
    /// RFC 4254 section 5.3.
    pub struct ChannelEof = 96 {
        /// The receiver's number.
        pub recipient: u32,
    }
}

message! {
    /// RFC 4254 section 5.3.
    pub struct ChannelClose = 97 {
        /// The receiver's number.
        pub recipient: u32,
    }
}

message! {
    /// RFC 4254 section 5.4.
    pub struct ChannelRequest<'a> = 98 {
        /// The receiver's number.
        pub recipient: u32,
        /// Which.
        pub name: &'a [u8],
        /// Whether an answer is wanted.
        pub want_reply: bool,
        /// By name.
        pub data: Rest<'a>,
    }
}

message! {
    /// RFC 4254 section 5.4.
    pub struct ChannelSuccess = 99 {
        /// The receiver's number.
        pub recipient: u32,
    }
}

message! {
    /// RFC 4254 section 5.4.
    pub struct ChannelFailure = 100 {
        /// The receiver's number.
        pub recipient: u32,
    }
}
