use super::*;

#[test]
fn payload_is_split_over_packets_and_read_back_whole() {
    let pool = PacketPool::new(10, 8);
    let mut block = PayloadBlock::new(&pool, 10, 4, 25);
    assert_eq!(block.room(), 25);
    assert_eq!(block.append(b"abcdefghijklmnopqrstuvwxyz"), 25);
    block.prepend(b"123");
    assert_eq!(block.to_vec(), b"123abcdefghijklmnopqrstuvwxy");
    let lens: Vec<_> = block.packets().map(PacketBuf::len).collect();
    assert_eq!(lens, [9, 10, 9]);
}

#[test]
fn packets_are_made_for_what_there_is() {
    let pool = PacketPool::new(32 << 10, 8);
    let mut block = PayloadBlock::new(&pool, 32 << 10, 100, 128 << 10);
    assert_eq!((block.room(), block.packets().count()), (128 << 10, 0));
    assert_eq!(block.append(&[7; 4096]), 4096);
    let memory: Vec<_> = block.packets().map(PacketBuf::memory_len).collect();
    assert_eq!(memory, [PacketBuf::memory_for(SIZES[1])]);
    assert_eq!(block.room(), (128 << 10) - 4096);
    assert_eq!(block.append(&[8; 40_000]), 40_000);
    assert_eq!((block.len(), block.packets().count()), (44_096, 3));
    block.clear();
    assert_eq!(block.room(), 128 << 10);
    assert_eq!(block.append(&[9; 200_000]), 128 << 10);
    block.prepend(&[1; 100]);
    assert_eq!(block.to_vec()[..101], [&[1; 100][..], &[9]].concat());

    let mut empty = PayloadBlock::new(&pool, 32 << 10, 100, 0);
    empty.prepend(b"header");
    assert_eq!(empty.to_vec(), b"header");
}

#[test]
fn a_short_read_drops_the_packets_behind_it() {
    let pool = PacketPool::new(10, 8);
    let mut block = PayloadBlock::new(&pool, 10, 2, 30);
    assert_eq!(block.grow(30).len(), 4);
    block.truncate(5);
    block.prepend(b"xy");
    assert_eq!((block.len(), block.packets().count()), (7, 1));
    block.truncate(0);
    assert_eq!((block.len(), block.packets().count()), (0, 1));
}

#[test]
fn small_packets_of_a_pool_of_large_ones_have_little_memory() {
    let pool = PacketPool::new(256 << 10, 2);
    let memory = |room| pool.packet(10, room).memory_len();
    for _ in 0..3 {
        assert_eq!(memory(100), PacketBuf::memory_for(SIZES[0]));
        assert_eq!(memory(4096), PacketBuf::memory_for(SIZES[1]));
        assert_eq!(memory(5000), PacketBuf::memory_for(SIZES[2]));
        assert_eq!(memory((32 << 10) - 10), PacketBuf::memory_for(32 << 10));
        assert_eq!(memory((32 << 10) - 9), PacketBuf::memory_for(256 << 10));
    }
    let many: Vec<_> = (0..40).map(|_| pool.packet(0, 32 << 10)).collect();
    drop(many);
    assert_eq!(pool.lock().0.each_ref().map(Vec::len), [1, 1, 1, 16, 1]);
}

#[test]
fn no_packet_has_more_memory_than_a_slot() {
    let pool = PacketPool::new(1000, 2);
    let packets = [pool.packet(0, 10), pool.packet(10, 990)];
    for packet in &packets {
        assert_eq!(packet.memory_len(), PacketBuf::memory_for(1000));
    }
    drop(packets);
    assert_eq!(pool.lock().0.each_ref().map(Vec::len), [0, 0, 0, 0, 2]);
}

#[test]
fn memory_is_used_again() {
    let pool = PacketPool::new(1000, 1);
    let mut packet = pool.packet(0, 1000);
    packet.append(b"x");
    let at = packet.payload().as_ptr();
    drop(packet);
    let mut packet = pool.packet(0, 10);
    packet.append(b"y");
    assert_eq!(packet.payload().as_ptr(), at);
    drop(packet);
    pool.trim();
    assert!(pool.lock().0.iter().all(Vec::is_empty));
}

/// Returns a block of packets of 100 bytes that borrows `len` bytes at offset 7 of a source, and
/// those bytes.
fn outside(len: usize) -> (PayloadBlock, Vec<u8>) {
    let pool = PacketPool::new(100, 8);
    assert!(!PayloadBlock::new(&pool, 100, 20, len).may_lie_outside());
    pool.set_borrow_policy(BorrowPolicy::UntilSent);
    let bytes: Vec<u8> = (0..=255).cycle().take(len + 7).collect();
    let there: Arc<dyn ExternalPayloadSource> = Arc::new(bytes.clone());
    let mut block = PayloadBlock::new(&pool, 100, 20, len);
    assert!(block.may_lie_outside());
    block.lie_outside(&there, 7, len + 1000);
    assert!(block.lies_outside() && !block.may_lie_outside());
    (block, bytes[7..].to_vec())
}

#[test]
fn what_lies_outside_is_cut_into_packets_as_what_is_read() {
    for len in [1, 79, 80, 81, 180, 1000] {
        let (mut block, bytes) = outside(len);
        assert_eq!((block.len(), block.room()), (len, 0));
        assert_eq!(block.append(b"more"), 0);
        block.prepend(b"a header");
        let all = [b"a header", &bytes[..]].concat();
        assert_eq!(block.to_vec(), all);
        let pool = PacketPool::new(100, 8);
        let mut read = PayloadBlock::new(&pool, 100, 20, len);
        read.append(&bytes);
        read.prepend(b"a header");
        let lens = |block: &PayloadBlock| block.packets().map(PacketBuf::len).collect::<Vec<_>>();
        assert_eq!(lens(&block), lens(&read));
        let gathered = block.packets.iter_mut().flat_map(|packet| {
            packet.gather().unwrap();
            packet.payload()
        });
        let gathered: Vec<u8> = gathered.copied().collect();
        assert_eq!(gathered, all);
    }
}

#[test]
fn what_lies_outside_is_split_and_cut_short_without_being_read() {
    let all = |packet: &PacketBuf| -> Vec<u8> {
        let parts = packet.parts(0, 0).into_iter();
        parts.flat_map(|part| part.to_vec().unwrap()).collect()
    };
    let pool = PacketPool::new(100, 8);
    for n in [0, 1, 8, 9, 50, 88] {
        let (mut block, bytes) = outside(80);
        block.prepend(b"a header");
        let whole = [b"a header", &bytes[..]].concat();
        let mut packet = block.pop_front().unwrap();
        let front = packet.split_front(n, &pool);
        assert_eq!(front.len(), n);
        assert_eq!(
            (all(&front), all(&packet)),
            (whole[..n].to_vec(), whole[n..].to_vec())
        );
        assert_eq!(front.lies_outside(), n > 8);

        let (mut block, _) = outside(80);
        block.prepend(b"a header");
        block.truncate(n);
        assert_eq!(block.to_vec(), whole[..n]);
    }
}

#[test]
fn what_lies_outside_is_taken_in_with_what_follows_it() {
    let pool = PacketPool::new(100, 8);
    pool.set_borrow_policy(BorrowPolicy::UntilSealed);
    let there: Arc<dyn ExternalPayloadSource> = Arc::new((0..100).collect::<Vec<u8>>());
    let mut block = PayloadBlock::new(&pool, 100, 20, 70);
    block.lie_outside(&there, 10, 70);
    block.prepend(b"a header");
    let mut packet = block.pop_front().unwrap();
    // The source has no further bytes behind them.
    assert!(!packet.take_in(5, (21, 16), |_, _, _| panic!("nothing is lent")));
    // The packet does not have that much room.
    assert!(!packet.take_in(5, (0, 1000), |_, _, _| panic!("nothing is lent")));
    let taken = packet.take_in(5, (20, 16), |front, from, to| {
        assert_eq!(
            (&front[5..], from.len(), to.len()),
            (&b"a header"[..], 90, 106)
        );
        to[..90].copy_from_slice(from);
    });
    assert!(taken && !packet.lies_outside() && packet.room() == 0);
    let all = [b"a header", &(10..80).collect::<Vec<u8>>()[..]].concat();
    assert_eq!(packet.payload(), all);
    assert_eq!(
        packet.with_room(0, 20)[78..],
        (80..100).collect::<Vec<u8>>()
    );
}

#[test]
fn what_is_not_there_any_more_cannot_be_gathered() {
    let pool = PacketPool::new(100, 8);
    pool.set_borrow_policy(BorrowPolicy::UntilSent);
    let there: Arc<dyn ExternalPayloadSource> = Arc::new(vec![1; 49]);
    let mut block = PayloadBlock::new(&pool, 100, 20, 50);
    block.lie_outside(&there, 0, 50);
    assert!(block.pop_front().unwrap().gather().is_err());
}
