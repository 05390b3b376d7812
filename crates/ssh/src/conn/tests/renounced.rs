//! Tests of disabled encryption: only if both ends were told, and only after authentication.

use super::*;
use crate::transport::DisabledProtection::{self, Cipher, CipherAndMac, Nothing};
use std::sync::atomic::{AtomicBool, Ordering};
use wire::BorrowPolicy;

const SECRET: &[u8] = b"what anybody on the path can read";

/// Protection of the data that the test has sent.
struct Outcome {
    /// Cipher and MAC from client to server, as both sides see them.
    chosen: (String, Option<String>),
    /// True if the data was readable on the wire.
    readable: bool,
    /// True if a changed byte of the data was detected.
    noticed: bool,
}

fn is_in(part: &[u8], whole: &[u8]) -> bool {
    whole.windows(part.len()).any(|w| w == part)
}

fn outcome(ours: DisabledProtection, theirs: DisabledProtection) -> Outcome {
    let mut pair = pair(false, |_| {});
    pair.client.renounce(ours);
    pair.server.renounce(theirs);
    let id = pair.open();
    pair.run().unwrap();
    assert!(pair.client.is_authenticated());
    let chosen = [&pair.client, &pair.server].map(|end| {
        let chosen = end.negotiated().unwrap().c2s;
        (
            chosen.cipher.name.to_owned(),
            chosen.mac.map(|m| m.name.to_owned()),
        )
    });
    assert_eq!(chosen[0], chosen[1]);

    pair.client.channels().write(id, SECRET);
    flush(&mut pair.client, &mut pair.up);
    let readable = is_in(SECRET, &pair.up);
    pair.run().unwrap();
    assert_eq!((&pair.received[..], &pair.told[..]), (SECRET, SECRET));

    pair.client.channels().write(id, SECRET);
    flush(&mut pair.client, &mut pair.up);
    let last = pair.up.len() - 30;
    pair.up[last] ^= 1;
    let noticed = pair.run().is_err();
    let [chosen, _] = chosen;
    Outcome {
        chosen,
        readable,
        noticed,
    }
}

#[test]
fn both_were_told_to_do_without_a_cipher_and_the_mac_stays() {
    for (ours, theirs) in [
        (Cipher, Cipher),
        (CipherAndMac, Cipher),
        (Cipher, CipherAndMac),
    ] {
        let outcome = outcome(ours, theirs);
        let mac = Some("hmac-sha2-256".to_owned());
        assert_eq!(outcome.chosen, ("none".to_owned(), mac));
        assert!(outcome.readable && outcome.noticed);
    }
}

#[test]
fn the_mac_goes_only_where_both_were_told_that_too() {
    let outcome = outcome(CipherAndMac, CipherAndMac);
    assert_eq!(outcome.chosen, ("none".to_owned(), None));
    assert!(outcome.readable && !outcome.noticed);
}

#[test]
fn neither_brings_the_other_to_do_without() {
    for told in [Cipher, CipherAndMac] {
        for (ours, theirs) in [(told, Nothing), (Nothing, told)] {
            let outcome = outcome(ours, theirs);
            assert_eq!(outcome.chosen.0, "aes128-gcm@openssh.com");
            assert!(!outcome.readable && outcome.noticed);
        }
    }
}

/// Neither side names `none` before authentication, so an attacker on the path has nothing to
/// select; and the lists are part of what the host key signs.
#[test]
fn nothing_of_it_is_said_before_authentication() {
    let mut pair = pair(false, |_| {});
    pair.client.renounce(CipherAndMac);
    pair.server.renounce(CipherAndMac);
    pair.allowed = false;
    let none = b"none,aes128-gcm";
    let other = b"aes128-gcm@openssh.com,none";
    loop {
        let mut moved = flush(&mut pair.client, &mut pair.up);
        assert!(!is_in(none, &pair.up) && !is_in(other, &pair.up));
        moved |= pair.turn_server().unwrap_or(false);
        moved |= flush(&mut pair.server, &mut pair.down);
        assert!(!is_in(none, &pair.down) && !is_in(other, &pair.down));
        moved |= pair.turn_client().unwrap_or(false);
        if !moved {
            break;
        }
    }
    let chosen = pair.client.negotiated().unwrap().c2s;
    assert_eq!(chosen.cipher.name, "aes128-gcm@openssh.com");
    // Also not in a key exchange that the client starts too early.
    pair.client.rekey().unwrap();
    let _ = pair.run();
    let chosen = pair.server.negotiated().unwrap().s2c;
    assert_eq!(chosen.cipher.name, "aes128-gcm@openssh.com");
}

#[test]
fn keys_are_new_again_without_a_cipher() {
    let mut pair = pair(false, |theirs| {
        theirs.transport.rekey_bytes = Some(50_000);
    });
    pair.client.renounce(CipherAndMac);
    pair.server.renounce(CipherAndMac);
    let id = pair.open();
    let mut sent = Vec::new();
    for n in 0..20 {
        let part = vec![n; 20_000];
        pair.client.channels().write(id, &part);
        sent.extend(part);
        pair.run().unwrap();
    }
    assert!(pair.received == sent && pair.told == sent);
    let keys = pair.events.iter().filter(|e| *e == "keys").count();
    assert!(keys > 5, "{keys} key exchanges");
    assert!(pair.client.negotiated().unwrap().s2c.cipher.is_none());
}

/// Returns a block of 100,000 borrowed bytes behind `header`.
fn outside(
    there: Arc<dyn wire::ExternalPayloadSource>,
    borrow_policy: BorrowPolicy,
    header: &[u8],
) -> wire::PayloadBlock {
    let pool = PacketPool::new(32 << 10, 4);
    pool.set_borrow_policy(borrow_policy);
    let mut block = wire::PayloadBlock::new(&pool, 32 << 10, header.len(), 100_000);
    block.lie_outside(&there, 0, 100_000);
    block.prepend(header);
    block
}

/// Sends a block of which `lies` of 100,000 bytes are borrowed, over a connection with this
/// protection disabled at both ends.
fn sent_from_outside(renounced: DisabledProtection, lies: usize) -> Result<Pair, Error> {
    let mut pair = pair(false, |_| {});
    pair.client.renounce(renounced);
    pair.server.renounce(renounced);
    let id = pair.open();
    pair.run().unwrap();
    let borrow_policy = match renounced {
        Nothing => BorrowPolicy::UntilSealed,
        Cipher => BorrowPolicy::Never,
        CipherAndMac => BorrowPolicy::UntilSent,
    };
    assert_eq!(pair.client.borrow_policy(), borrow_policy);
    let there = Arc::new(SECRET.repeat(4000)[..lies].to_vec());
    let block = outside(
        there,
        borrow_policy.max(BorrowPolicy::UntilSealed),
        b"a header: ",
    );
    pair.client.channels().write_block(id, block);
    let mut queue = SealedQueue::default();
    queue.fill(&mut pair.client, usize::MAX)?;
    let outside = queue
        .parts()
        .filter(|part| matches!(part, wire::OutputPart::External { .. }));
    assert_eq!(outside.count() > 0, renounced == CipherAndMac);
    // In pieces with arbitrary boundaries.
    let mut len = 1;
    loop {
        let front = queue.parts().next().map(|part| part.to_vec().unwrap());
        let Some(bytes) = front else { break };
        len = (len * 7 + 1) % 40_000;
        let n = bytes.len().min(len);
        pair.up.extend_from_slice(&bytes[..n]);
        queue.written(n);
    }
    assert!(queue.is_empty());
    if let Err(missed) = queue.fill(&mut pair.client, 1) {
        // The peer was told.
        let told = pair.run().map_err(|e| e.to_string());
        let words = "a file was truncated, or became unreadable, while it was sent: copy it again";
        assert_eq!(told, Err(format!("the peer disconnected: {words}")));
        return Err(missed);
    }
    pair.run()?;
    Ok(pair)
}

#[test]
fn what_lies_outside_of_its_packets_is_sent_from_there_or_sealed_like_the_rest() {
    let content = [b"a header: ", &SECRET.repeat(4000)[..100_000]].concat();
    for renounced in [Nothing, Cipher, CipherAndMac] {
        let pair = sent_from_outside(renounced, 100_000).unwrap();
        assert!(pair.received == content, "{renounced:?}");
    }
}

#[test]
fn what_is_not_there_any_more_is_not_sealed_as_something_else() {
    for renounced in [Nothing, Cipher] {
        let error = sent_from_outside(renounced, 99_999).err();
        let Some(Error::Local(crate::error::Local::ExternalPayload(missed))) = error else {
            panic!("{error:?}");
        };
        assert_eq!(
            missed.to_string(),
            "the data to send was removed from the file"
        );
    }
}

/// Source that lends its bytes until it is told to be gone.
#[derive(Debug, Default)]
struct Fleeting {
    gone: AtomicBool,
    lent: AtomicBool,
}

impl wire::ExternalPayloadSource for Fleeting {
    fn copy(&self, at: usize, to: &mut [u8]) -> bool {
        let all: Vec<u8> = (0..=250).cycle().skip(at % 251).take(to.len()).collect();
        to.copy_from_slice(&all);
        !self.gone.load(Ordering::Relaxed)
    }

    fn lend(&self, at: usize, len: usize, more: usize, to: &mut dyn FnMut(&[u8])) -> bool {
        self.lent.store(true, Ordering::Relaxed);
        let mut all = vec![0; len + more];
        let there = self.copy(at, &mut all);
        to(&all);
        there
    }
}

/// Source that lends its bytes and then reports that they were incomplete.
#[derive(Debug)]
struct Torn;

impl wire::ExternalPayloadSource for Torn {
    fn copy(&self, _: usize, to: &mut [u8]) -> bool {
        to.fill(7);
        true
    }

    fn lend(&self, _: usize, len: usize, more: usize, to: &mut dyn FnMut(&[u8])) -> bool {
        to(&vec![0; len + more]);
        false
    }
}

/// Regression: headers were encrypted in place and would have been encrypted again, that is,
/// decrypted.
#[test]
fn what_was_sealed_of_no_use_is_sealed_anew() {
    let mut pair = pair(false, |_| {});
    let id = pair.open();
    pair.run().unwrap();
    let block = outside(Arc::new(Torn), BorrowPolicy::UntilSealed, b"a header");
    pair.client.channels().write_block(id, block);
    flush(&mut pair.client, &mut pair.up);
    pair.run().unwrap();
    assert!(pair.received == [b"a header", &[7; 100_000][..]].concat());
}

/// Data may wait long for a window or the socket: the file may have changed by then.
#[test]
fn nothing_lies_outside_while_it_waits() {
    let mut pair = pair(false, |_| {});
    let id = pair.open();
    pair.run().unwrap();
    let fleeting = Arc::new(Fleeting::default());
    let block = outside(fleeting.clone(), BorrowPolicy::UntilSealed, b"");
    pair.client.channels().write_block(id, block);
    let mut queue = SealedQueue::default();
    queue.fill(&mut pair.client, 50_000).unwrap();
    assert!(fleeting.lent.swap(false, Ordering::Relaxed));
    queue.settle(&mut pair.client).unwrap();
    fleeting.gone.store(true, Ordering::Relaxed);
    queue.fill(&mut pair.client, usize::MAX).unwrap();
    assert!(!fleeting.lent.load(Ordering::Relaxed));
    for part in queue.parts() {
        pair.up.extend(part.to_vec().unwrap());
    }
    pair.run().unwrap();
    assert!(pair.received == (0..=250).cycle().take(100_000).collect::<Vec<u8>>());
}

/// A reply may still wait for a window when the client no longer needs it: the file must not stay
/// open for that.
#[test]
fn what_lies_outside_is_let_go_of_with_its_channel() {
    for renounced in [Nothing, CipherAndMac] {
        let mut pair = pair(false, |_| {});
        pair.client.renounce(renounced);
        pair.server.renounce(renounced);
        let (id, other) = (pair.open(), pair.open());
        pair.run().unwrap();
        let borrow_policy = pair.server.borrow_policy();
        let there = Arc::new(SECRET.repeat(4000));
        let block = outside(there.clone(), borrow_policy, b"an answer");
        pair.server.channels().write_block(id, block);
        // Part of it is sealed, and the rest waits.
        let mut queue = SealedQueue::default();
        queue.fill(&mut pair.server, 40_000).unwrap();
        assert!(Arc::strong_count(&there) > 1, "{renounced:?}");
        pair.client.channels().close(id);
        flush(&mut pair.client, &mut pair.up);
        pair.turn_server().unwrap();
        for part in queue.parts() {
            pair.down.extend(part.to_vec().unwrap());
        }
        drop(queue);
        assert_eq!(Arc::strong_count(&there), 1, "{renounced:?}");
        pair.run().unwrap();
        pair.client.channels().write(other, b"and on it goes");
        pair.run().unwrap();
        assert!(pair.told.ends_with(b"and on it goes"), "{renounced:?}");
    }
}
