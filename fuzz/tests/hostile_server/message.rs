//! Well-formed messages with a few choices for each field.

use arbitrary::Arbitrary;
use fuzz::peers::host_key;
use ssh::msg::*;
use wire::{Field, NameList, RemainingBytes};

#[derive(Arbitrary, Debug, Clone, Copy)]
pub(crate) enum Message {
    Disconnect {
        reason: u32,
        text: Text,
    },
    Ignore {
        text: Text,
    },
    Unimplemented {
        sequence: u32,
    },
    Debug {
        show: bool,
        text: Text,
    },
    ServiceRequest,
    ServiceAccept {
        text: Text,
    },
    ExtInfo {
        count: u8,
        name: Text,
        value: Text,
    },
    KexInit {
        lists: Text,
    },
    NewKeys,
    KexReply {
        text: Text,
    },
    Ping {
        text: Text,
    },
    Pong {
        text: Text,
    },
    Failure {
        methods: Text,
        partial: bool,
    },
    Success,
    Banner {
        text: Text,
    },
    PkOk {
        right: bool,
    },
    InfoRequest {
        count: u8,
        prompts: u8,
        text: Text,
    },
    Global {
        want_reply: bool,
        text: Text,
    },
    GlobalAnswer {
        success: bool,
    },
    Open {
        kind: Text,
        sender: u8,
        window: u32,
        max_packet: u32,
    },
    Confirm {
        channel: u8,
        sender: u8,
        window: u32,
        max_packet: u32,
    },
    OpenFailure {
        channel: u8,
        text: Text,
    },
    Adjust {
        channel: u8,
        bytes: u32,
    },
    Data {
        channel: u8,
        len: u16,
    },
    Extended {
        channel: u8,
        code: u8,
        len: u16,
    },
    Eof {
        channel: u8,
    },
    Close {
        channel: u8,
    },
    Request {
        channel: u8,
        name: Text,
        want_reply: bool,
        number: u32,
    },
    Answer {
        channel: u8,
        success: bool,
    },
    Unknown {
        number: u8,
    },
}

#[derive(Arbitrary, Debug, Clone, Copy)]
pub(crate) enum Text {
    Empty,
    Escapes,
    Userauth,
    Methods,
    SigAlgs,
    Agent,
    Session,
    ExitStatus,
    ExitSignal,
    Keepalive,
    Long,
}

impl Text {
    fn str(self) -> &'static str {
        static LONG: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| "x".repeat(20_000));
        match self {
            Self::Empty => "",
            Self::Escapes => "\x1b]0;t\x07\u{9b}\u{202e}\n",
            Self::Userauth => "ssh-userauth",
            Self::Methods => "publickey,keyboard-interactive,password",
            Self::SigAlgs => "server-sig-algs",
            Self::Agent => "auth-agent@openssh.com",
            Self::Session => "session",
            Self::ExitStatus => "exit-status",
            Self::ExitSignal => "exit-signal",
            Self::Keepalive => "keepalive@openssh.com",
            Self::Long => &LONG,
        }
    }

    fn bytes(self) -> &'static [u8] {
        self.str().as_bytes()
    }

    fn list(self) -> NameList<'static> {
        NameList::new(self.str()).unwrap_or_else(|_| NameList::new("none").expect("a list"))
    }
}

impl Message {
    pub(crate) fn encode(self, key: &[u8]) -> Vec<u8> {
        let language = b"".as_slice();
        let zeros = vec![0; 40_000];
        match self {
            Self::Disconnect { reason, text } => Disconnect {
                reason,
                description: text.bytes(),
                language,
            }
            .to_bytes(),
            Self::Ignore { text } => Ignore { data: text.bytes() }.to_bytes(),
            Self::Unimplemented { sequence } => Unimplemented { sequence }.to_bytes(),
            Self::Debug { show, text } => Debug {
                always_display: show,
                text: text.bytes(),
                language,
            }
            .to_bytes(),
            Self::ServiceRequest => ServiceRequest {
                name: b"ssh-userauth",
            }
            .to_bytes(),
            Self::ServiceAccept { text } => ServiceAccept { name: text.bytes() }.to_bytes(),
            Self::ExtInfo { count, name, value } => {
                let mut pairs = Vec::new();
                for _ in 0..count % 80 {
                    name.bytes().write(&mut pairs);
                    value
                        .bytes()
                        .get(..value.bytes().len().min(40))
                        .unwrap_or_default()
                        .write(&mut pairs);
                }
                ExtInfo {
                    count: u32::from(count % 80),
                    pairs: RemainingBytes(&pairs),
                }
                .to_bytes()
            }
            Self::KexInit { lists } => {
                let list = lists.list();
                KexInit {
                    cookie: [1; 16],
                    kex: list,
                    host_key: list,
                    cipher_c2s: list,
                    cipher_s2c: list,
                    mac_c2s: list,
                    mac_s2c: list,
                    compression_c2s: list,
                    compression_s2c: list,
                    language_c2s: list,
                    language_s2c: list,
                    first_kex_packet_follows: false,
                    reserved: 0,
                }
                .to_bytes()
            }
            Self::NewKeys => NewKeys {}.to_bytes(),
            Self::KexReply { text } => KexEcdhReply {
                host_key: host_key().public_blob(),
                public: text.bytes(),
                signature: text.bytes(),
            }
            .to_bytes(),
            Self::Ping { text } => Ping { data: text.bytes() }.to_bytes(),
            Self::Pong { text } => Pong { data: text.bytes() }.to_bytes(),
            Self::Failure { methods, partial } => UserauthFailure {
                methods: methods.list(),
                partial_success: partial,
            }
            .to_bytes(),
            Self::Success => UserauthSuccess {}.to_bytes(),
            Self::Banner { text } => UserauthBanner {
                text: text.bytes(),
                language,
            }
            .to_bytes(),
            Self::PkOk { right } => UserauthPkOk {
                algorithm: b"ssh-ed25519",
                blob: if right { key } else { b"another" },
            }
            .to_bytes(),
            Self::InfoRequest {
                count,
                prompts,
                text,
            } => {
                let mut data = Vec::new();
                for _ in 0..prompts % 40 {
                    text.bytes().write(&mut data);
                    true.write(&mut data);
                }
                UserauthInfoRequest {
                    name: text.bytes(),
                    instruction: text.bytes(),
                    language,
                    count: u32::from(if count < 64 { count } else { prompts % 40 }),
                    prompts: RemainingBytes(&data),
                }
                .to_bytes()
            }
            Self::Global { want_reply, text } => GlobalRequest {
                name: text.bytes(),
                want_reply,
                data: RemainingBytes(text.bytes()),
            }
            .to_bytes(),
            Self::GlobalAnswer { success: true } => RequestSuccess {
                data: RemainingBytes(b""),
            }
            .to_bytes(),
            Self::GlobalAnswer { success: false } => RequestFailure {}.to_bytes(),
            Self::Open {
                kind,
                sender,
                window,
                max_packet,
            } => ChannelOpen {
                kind: kind.bytes(),
                sender: sender.into(),
                window,
                max_packet,
                data: RemainingBytes(b""),
            }
            .to_bytes(),
            Self::Confirm {
                channel,
                sender,
                window,
                max_packet,
            } => ChannelOpenConfirmation {
                recipient: u32::from(channel % 4),
                sender: u32::from(sender % 4),
                window,
                max_packet,
                data: RemainingBytes(b""),
            }
            .to_bytes(),
            Self::OpenFailure { channel, text } => ChannelOpenFailure {
                recipient: u32::from(channel % 4),
                reason: 1,
                description: text.bytes(),
                language,
            }
            .to_bytes(),
            Self::Adjust { channel, bytes } => ChannelWindowAdjust {
                recipient: u32::from(channel % 4),
                bytes,
            }
            .to_bytes(),
            Self::Data { channel, len } => ChannelData {
                recipient: u32::from(channel % 4),
                data: zeros.get(..usize::from(len)).unwrap_or(&zeros),
            }
            .to_bytes(),
            Self::Extended { channel, code, len } => ChannelExtendedData {
                recipient: u32::from(channel % 4),
                code: u32::from(code % 3),
                data: zeros.get(..usize::from(len)).unwrap_or(&zeros),
            }
            .to_bytes(),
            Self::Eof { channel } => ChannelEof {
                recipient: u32::from(channel % 4),
            }
            .to_bytes(),
            Self::Close { channel } => ChannelClose {
                recipient: u32::from(channel % 4),
            }
            .to_bytes(),
            Self::Request {
                channel,
                name,
                want_reply,
                number,
            } => ChannelRequest {
                recipient: u32::from(channel % 4),
                name: name.bytes(),
                want_reply,
                data: RemainingBytes(&number.to_be_bytes()),
            }
            .to_bytes(),
            Self::Answer {
                channel,
                success: true,
            } => ChannelSuccess {
                recipient: u32::from(channel % 4),
            }
            .to_bytes(),
            Self::Answer { channel, .. } => ChannelFailure {
                recipient: u32::from(channel % 4),
            }
            .to_bytes(),
            Self::Unknown { number } => vec![number, 0, 0, 0, 0],
        }
    }
}
