//! Tests of super-packets that lose segments. `Packet::checked` checks every frame that arrives.

use std::time::Duration;

use crate::build::{ACK, CWR, FIN, PSH, Packet};
use crate::{Lab, NearToFar};

#[test]
fn parts_cover_exactly_what_was_kept() {
    for (v6, seq, payload) in [
        (false, 5, 44 * 1448),
        (true, 5, 44 * 1448),
        (false, u32::MAX - 9_000, 20_000),
        (true, 0, 1449),
    ] {
        let mut lab = Lab::new(&[("loss", "20%"), ("queue", "100MB"), ("duplicate", "5%")]);
        let whole = Packet {
            v6,
            flags: ACK | CWR | PSH | FIN,
            gso_ecn: true,
            id: 65_530,
            ..Packet::bundle(seq, payload)
        };
        let all = whole.segments();
        for _ in 0..200 {
            lab.offer(NearToFar, Duration::ZERO, &whole);
        }
        lab.finish();
        let (mut first, mut last) = (0, 0);
        for (_, _, part) in &lab.arrived {
            let segments = part.segments();
            let at = all
                .iter()
                .position(|seq| *seq == part.seq)
                .expect("on a boundary");
            let end = at + segments.len();
            assert_eq!(segments, all[at..end]);
            let expected = match end == all.len() {
                true => payload - at * 1448,
                false => segments.len() * 1448,
            };
            assert_eq!(part.payload, expected);
            assert_eq!(part.flags & CWR != 0, at == 0);
            assert_eq!(part.gso_ecn, at == 0 && segments.len() > 1);
            assert_eq!(part.flags & (PSH | FIN) != 0, end == all.len());
            assert_eq!(part.flags & ACK, ACK);
            if !v6 {
                assert_eq!(part.id, 65_530u16.wrapping_add(at as u16));
            }
            first += usize::from(at == 0);
            last += usize::from(end == all.len());
        }
        assert!((100..200).contains(&first) && (100..200).contains(&last));
        let figures = lab.emulator.figures().of(NearToFar);
        assert_eq!(lab.segments().len() as u64, figures.delivered.packets);
        let headers = if v6 { 72 } else { 52 };
        let each = headers * all.len() + payload;
        assert_eq!(figures.offered.bytes, 200 * each as u64);
    }
}

#[test]
fn what_is_no_sound_packet_passes_as_it_is_or_is_dropped() {
    let sound = Packet::bundle(0, 10_000).bytes();
    let mut emulator = lab::Emulator::new(&crate::path(&[("loss", "0.0001%"), ("bleach", "")]));
    let mut lengths = Vec::new();
    for len in 0..200 {
        let mut frame = emulator.memory();
        frame.room()[..len].copy_from_slice(&sound[..len]);
        frame.set_len(len);
        emulator.offer(NearToFar, Duration::ZERO, frame);
    }
    while let Some((_, frame)) = emulator.poll(Duration::from_secs(1)) {
        lengths.push(frame.bytes().len());
        emulator.recycle(frame);
    }
    assert_eq!(lengths, (11..200).collect::<Vec<_>>());
    assert_eq!(emulator.figures().of(NearToFar).drops.malformed.packets, 11);
}
