//! Tests of sealing and opening with helper threads.

use wire::PayloadBlock;

use super::*;
use crate::channel::LARGE_DATA;

/// Returns a helper that is idle except every third time.
fn helper() -> CryptoHelpers {
    let busy = std::sync::atomic::AtomicU32::new(0);
    let idle = move || {
        let n = busy.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        !n.is_multiple_of(3)
    };
    CryptoHelpers::new(idle, |work| {
        let thread = std::thread::Builder::new().spawn(work);
        drop(thread.unwrap());
    })
}

fn move_all(queue: &mut SealedQueue, conn: &mut Connection, to: &mut BytesMut) -> bool {
    let before = to.len();
    loop {
        queue.fill(conn, 100_000).unwrap();
        let bytes: Vec<u8> = queue
            .parts()
            .flat_map(|part| part.to_vec().unwrap())
            .collect();
        // A socket accepts an arbitrary number of bytes.
        let n = bytes.len().div_ceil(2);
        queue.written(n);
        to.extend_from_slice(&bytes[..n]);
        if n == 0 {
            assert!(queue.is_empty());
            return to.len() != before;
        }
    }
}

#[test]
fn data_come_in_order_whoever_seals_and_opens_them_and_through_new_keys() {
    for (cipher, rekey, large) in [
        ("aes128-gcm@openssh.com", 3_000_000, false),
        ("aes128-gcm@openssh.com", 2_000_000, true),
        ("chacha20-poly1305@openssh.com", 700_000, false),
        ("chacha20-poly1305@openssh.com", 2_000_000, true),
        ("aes256-ctr", 1_500_000, false),
    ] {
        let mut pair = pair(false, |theirs| {
            theirs.transport.rekey_bytes = Some(rekey);
            theirs.transport.proposal.ciphers = vec![cipher.to_owned()];
        });
        pair.client = {
            let mut ours = config(Vec::new(), false);
            ours.transport.proposal.ciphers = vec![cipher.to_owned()];
            Connection::client(ours, PacketPool::new(LARGE_DATA, 4), random()).unwrap()
        };
        if large {
            for end in [&mut pair.client, &mut pair.server] {
                end.channels().set_max_packet(LARGE_DATA as u32);
            }
        }
        let (mut up, mut down) = (SealedQueue::default(), SealedQueue::default());
        up.set_helper(helper());
        down.set_helper(helper());
        pair.client.set_helper(helper());
        pair.server.set_helper(helper());
        let id = pair.open();
        let mut sent = Vec::new();
        for n in 0..12_u8 {
            let len = 900_000 + usize::from(n) * 1_001;
            let part: Vec<u8> = (0..len).map(|i| (i % 251) as u8 ^ n).collect();
            let channels = pair.client.channels();
            let mut block =
                PayloadBlock::new(&channels.pool(), channels.packet_room(id), 0, part.len());
            assert_eq!(block.append(&part), part.len());
            channels.write_block(id, block);
            sent.extend(part);
            loop {
                let mut moved = move_all(&mut up, &mut pair.client, &mut pair.up);
                // The data arrives in parts.
                let rest = pair.up.split_off(pair.up.len() * 2 / 3);
                moved |= pair.turn_server().unwrap();
                pair.up.unsplit(rest);
                moved |= pair.turn_server().unwrap();
                moved |= move_all(&mut down, &mut pair.server, &mut pair.down);
                moved |= pair.turn_client().unwrap();
                if !moved {
                    break;
                }
            }
        }
        assert!(pair.received == sent && pair.told == sent, "{cipher}");
        let keys = pair.events.iter().filter(|e| *e == "keys").count();
        assert!(keys > 3, "{cipher}: {keys} key exchanges");
    }
}

#[test]
fn a_packet_that_was_changed_is_noticed_and_what_came_before_it_counts() {
    let mut pair = pair(false, |_| {});
    let id = pair.open();
    pair.run().unwrap();
    pair.server
        .set_helper(CryptoHelpers::new(|| true, |work| work()));
    let part = vec![7; 600_000];
    pair.client.channels().write(id, &part);
    let mut up = SealedQueue::default();
    move_all(&mut up, &mut pair.client, &mut pair.up);
    let at = pair.up.len() * 3 / 4;
    pair.up[at] ^= 1;
    let error = pair.turn_server().unwrap_err();
    assert!(
        error.to_string().contains("MAC verification failed"),
        "{error}"
    );
    while let Some(event) = pair.server.poll_event() {
        if let ConnectionEvent::Channel(ChannelEvent::Data(_, bytes)) = event {
            pair.received.extend_from_slice(&bytes);
        }
    }
    let got = pair.received.len();
    assert!((300_000..500_000).contains(&got), "{got} bytes");
    assert!(pair.received.iter().all(|b| *b == 7));
}
