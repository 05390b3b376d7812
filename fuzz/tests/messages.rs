//! Fuzzes every message of the SSH protocol that a peer may send, from random bytes and from
//! mutated valid messages.

use fuzz::{Corpus, parse, some_bytes};
use ssh::msg::*;
use wire::{NameList, RemainingBytes};

/// A decoded message encodes to bytes that decode to the same message.
macro_rules! decode {
    ($bytes:expr, $($message:ident),* $(,)?) => {
        $(
            let mut bytes = $bytes.to_vec();
            for forced in [false, true] {
                if forced && let Some(first) = bytes.first_mut() {
                    *first = $message::NUMBER;
                }
                if let Ok(message) = $message::decode(&bytes) {
                    let again = message.to_bytes();
                    assert_eq!(again.len(), bytes.len());
                    assert_eq!($message::decode(&again).as_ref(), Ok(&message));
                }
            }
        )*
    };
}

fn decode_all(bytes: &[u8]) {
    decode!(
        bytes,
        Disconnect,
        Ignore,
        Unimplemented,
        Debug,
        ServiceRequest,
        ServiceAccept,
        ExtInfo,
        KexInit,
        NewKeys,
        KexEcdhInit,
        KexEcdhReply,
        Ping,
        Pong,
        UserauthRequest,
        UserauthFailure,
        UserauthSuccess,
        UserauthBanner,
        UserauthPkOk,
        UserauthInfoRequest,
        UserauthInfoResponse,
        GlobalRequest,
        RequestSuccess,
        RequestFailure,
        ChannelOpen,
        ChannelOpenConfirmation,
        ChannelOpenFailure,
        ChannelWindowAdjust,
        ChannelData,
        ChannelExtendedData,
        ChannelEof,
        ChannelClose,
        ChannelRequest,
        ChannelSuccess,
        ChannelFailure,
    );
}

fn corpus() -> Corpus {
    let list = NameList::new("curve25519-sha256,none").expect("a list");
    let kexinit = KexInit {
        cookie: [3; 16],
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
    };
    let failure = UserauthFailure {
        methods: list,
        partial_success: true,
    };
    let open = ChannelOpen {
        kind: b"session",
        sender: 1,
        window: 1 << 20,
        max_packet: 1 << 15,
        data: RemainingBytes(b""),
    };
    let data = ChannelData {
        recipient: 0,
        data: b"some data",
    };
    let reply = KexEcdhReply {
        host_key: b"key",
        public: b"public",
        signature: b"signature",
    };
    Corpus(vec![
        ("KEXINIT", kexinit.to_bytes()),
        ("USERAUTH_FAILURE", failure.to_bytes()),
        ("CHANNEL_OPEN", open.to_bytes()),
        ("CHANNEL_DATA", data.to_bytes()),
        ("KEX_ECDH_REPLY", reply.to_bytes()),
    ])
}

#[test]
fn random_bytes() {
    parse(4096, |u| {
        decode_all(&some_bytes(u)?);
        Ok(())
    });
}

#[test]
fn mutated_messages() {
    let corpus = corpus();
    parse(512, |u| {
        decode_all(&corpus.mutant(u)?);
        Ok(())
    });
}
