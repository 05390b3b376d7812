//! Messages of the connection protocol (RFC 4254).

use wire::{RemainingBytes, message};

message! {
    /// SSH_MSG_GLOBAL_REQUEST (RFC 4254 section 4).
    pub struct GlobalRequest<'a> = 80 {
        /// Request name.
        pub name: &'a [u8],
        /// True if a reply is wanted.
        pub want_reply: bool,
        /// Data specific to the request.
        pub data: RemainingBytes<'a>,
    }
}

message! {
    /// SSH_MSG_REQUEST_SUCCESS (RFC 4254 section 4).
    pub struct RequestSuccess<'a> = 81 {
        /// Data specific to the request.
        pub data: RemainingBytes<'a>,
    }
}

message! {
    /// SSH_MSG_REQUEST_FAILURE (RFC 4254 section 4).
    pub struct RequestFailure = 82 {}
}

message! {
    /// SSH_MSG_CHANNEL_OPEN (RFC 4254 section 5.1).
    pub struct ChannelOpen<'a> = 90 {
        /// Channel type.
        pub kind: &'a [u8],
        /// The sender's channel number.
        pub sender: u32,
        /// Initial window in bytes that the sender of this message grants.
        pub window: u32,
        /// Maximum data payload in bytes that the sender of this message accepts.
        pub max_packet: u32,
        /// Data specific to the channel type.
        pub data: RemainingBytes<'a>,
    }
}

message! {
    /// SSH_MSG_CHANNEL_OPEN_CONFIRMATION (RFC 4254 section 5.1).
    pub struct ChannelOpenConfirmation<'a> = 91 {
        /// Channel number of the side that opened the channel.
        pub recipient: u32,
        /// Channel number of the sender of this message.
        pub sender: u32,
        /// Initial window in bytes that the sender of this message grants.
        pub window: u32,
        /// Maximum data payload in bytes that the sender of this message accepts.
        pub max_packet: u32,
        /// Data specific to the channel type.
        pub data: RemainingBytes<'a>,
    }
}

message! {
    /// SSH_MSG_CHANNEL_OPEN_FAILURE (RFC 4254 section 5.1).
    pub struct ChannelOpenFailure<'a> = 92 {
        /// Channel number of the side that opened the channel.
        pub recipient: u32,
        /// Reason code (RFC 4254 section 5.1).
        pub reason: u32,
        /// Text for the user; escape it before display.
        pub description: &'a [u8],
        /// Language tag (RFC 3066), unused.
        pub language: &'a [u8],
    }
}

message! {
    /// SSH_MSG_CHANNEL_WINDOW_ADJUST (RFC 4254 section 5.2).
    pub struct ChannelWindowAdjust = 93 {
        /// Channel number of the recipient.
        pub recipient: u32,
        /// Bytes that the recipient may send in addition.
        pub bytes: u32,
    }
}

message! {
    /// SSH_MSG_CHANNEL_DATA (RFC 4254 section 5.2).
    pub struct ChannelData<'a> = 94 {
        /// Channel number of the recipient.
        pub recipient: u32,
        /// Channel data.
        pub data: &'a [u8],
    }
}

message! {
    /// SSH_MSG_CHANNEL_EXTENDED_DATA (RFC 4254 section 5.2).
    pub struct ChannelExtendedData<'a> = 95 {
        /// Channel number of the recipient.
        pub recipient: u32,
        /// Data type; 1 is standard error.
        pub code: u32,
        /// Channel data.
        pub data: &'a [u8],
    }
}

message! {
    /// SSH_MSG_CHANNEL_EOF (RFC 4254 section 5.3).
    pub struct ChannelEof = 96 {
        /// Channel number of the recipient.
        pub recipient: u32,
    }
}

message! {
    /// SSH_MSG_CHANNEL_CLOSE (RFC 4254 section 5.3).
    pub struct ChannelClose = 97 {
        /// Channel number of the recipient.
        pub recipient: u32,
    }
}

message! {
    /// SSH_MSG_CHANNEL_REQUEST (RFC 4254 section 5.4).
    pub struct ChannelRequest<'a> = 98 {
        /// Channel number of the recipient.
        pub recipient: u32,
        /// Request type.
        pub name: &'a [u8],
        /// True if a reply is wanted.
        pub want_reply: bool,
        /// Data specific to the request.
        pub data: RemainingBytes<'a>,
    }
}

message! {
    /// SSH_MSG_CHANNEL_SUCCESS (RFC 4254 section 5.4).
    pub struct ChannelSuccess = 99 {
        /// Channel number of the recipient.
        pub recipient: u32,
    }
}

message! {
    /// SSH_MSG_CHANNEL_FAILURE (RFC 4254 section 5.4).
    pub struct ChannelFailure = 100 {
        /// Channel number of the recipient.
        pub recipient: u32,
    }
}
