//! Tests of messages that cross on the way.

use bytes::Bytes;
use wire::RemainingBytes;

use super::super::*;
use super::start;
use crate::msg::{ChannelClose, ChannelRequest};

/// Returns a client's channel 0 that the server has confirmed as its channel 5.
fn opened() -> (Channels, ChannelId) {
    let pool = PacketPool::new(1024, 2);
    let mut channels = Channels::new(EndpointRole::Client, ChannelsConfig::default(), pool);
    let id = channels.open_session();
    let confirmation = ChannelOpenConfirmation {
        recipient: id.0,
        sender: 5,
        window: 1000,
        max_packet: 1000,
        data: RemainingBytes(&[]),
    };
    let payload = Bytes::from(confirmation.to_bytes());
    channels.handle(start(), payload).unwrap();
    while channels.poll_packet().is_some() {}
    (channels, id)
}

/// The server's request was in flight when the channel was closed here (RFC 4254 section 5.3).
#[test]
fn a_request_that_crosses_a_close_is_not_answered() {
    for close in [false, true] {
        let (mut channels, id) = opened();
        if close {
            channels.close(id);
            let packet = channels.poll_packet().unwrap();
            assert_eq!(packet.payload().first(), Some(&ChannelClose::NUMBER));
        }
        let request = ChannelRequest {
            recipient: id.0,
            name: b"keepalive@openssh.com",
            want_reply: true,
            data: RemainingBytes(&[]),
        };
        let payload = Bytes::from(request.to_bytes());
        channels.handle(start(), payload).unwrap();
        assert_eq!(channels.poll_packet().is_none(), close);
    }
}
