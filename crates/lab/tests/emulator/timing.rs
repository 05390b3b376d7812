//! Tests of rates and delays.

use std::time::Duration;

use crate::build::Packet;
use crate::{FarToNear, Lab, MS, NearToFar, SECOND};

#[test]
fn a_round_trip_takes_what_was_asked_and_the_time_on_the_wire() {
    let mut lab = Lab::new(&[("rtt", "114ms"), ("rate", "1Gbit")]);
    // 1,448 bytes, and 52 bytes of headers.
    let wire = Duration::from_nanos(12_000);
    lab.offer(NearToFar, MS, &Packet::data(0, 1448));
    lab.run_until(MS + 57 * MS + wire - Duration::from_nanos(1));
    assert_eq!(lab.arrived, []);
    lab.finish();
    let (at, direction, _) = &lab.arrived[0];
    assert_eq!((*at, *direction), (MS + 57 * MS + wire, NearToFar));
    let at = *at;
    lab.offer(FarToNear, at, &Packet::data(0, 0));
    lab.finish();
    assert_eq!(lab.arrived[1].0, at + 57 * MS + Duration::from_nanos(416));
}

#[test]
fn each_direction_has_its_rate() {
    for (payload, bundled) in [(62_264, true), (1448, false), (0, false), (100, false)] {
        let mut lab = Lab::new(&[("rate", "1Gbit/100Mbit"), ("queue", "200kB")]);
        let packet = match bundled {
            true => Packet::bundle(0, payload),
            false => Packet::data(0, payload),
        };
        // Twice the capacity of the faster direction.
        let step = Duration::from_nanos(payload as u64 * 4 + 200);
        let mut now = Duration::ZERO;
        // A shorter time for small packets, which are many.
        let end = if payload > 1000 { SECOND } else { 100 * MS };
        while now < end {
            lab.offer(NearToFar, now, &packet);
            lab.offer(FarToNear, now, &packet);
            lab.arrived.clear();
            now += step;
        }
        for (direction, rate) in [(NearToFar, 1e9), (FarToNear, 1e8)] {
            let bytes = lab.emulator.figures().of(direction).delivered.bytes;
            let share = bytes as f64 * 8.0 / rate / end.as_secs_f64();
            assert!((share - 1.0).abs() < 1e-3, "{payload}: {share}");
        }
        lab.finish();
    }
}

#[test]
fn a_super_packet_is_sent_in_pieces_where_the_link_is_slow() {
    let arrivals = |rate| {
        let mut lab = Lab::new(&[("rate", rate)]);
        lab.offer(NearToFar, Duration::ZERO, &Packet::bundle(0, 44 * 1448));
        lab.finish();
        assert_eq!(lab.segments().len(), 44);
        lab.arrived
    };
    let whole = arrivals("1Gbit");
    assert_eq!(whole.len(), 1);
    assert_eq!(whole[0].0, Duration::from_nanos(44 * 12_000));
    let pieces = arrivals("120Mbit");
    assert_eq!(pieces.len(), 5, "ten segments take a millisecond");
    for (count, (at, _, piece)) in [10, 20, 30, 40, 44].into_iter().zip(&pieces) {
        assert_eq!(*at, count * Duration::from_micros(100));
        assert_eq!(piece.seq + piece.payload as u32, count * 1448);
    }
    assert_eq!(arrivals("1Mbit").len(), 44);
}

#[test]
fn jitter_keeps_the_order_and_its_bounds() {
    let delays = |seed| {
        let mut lab = Lab::new(&[("rtt", "40ms"), ("jitter", "5ms"), ("seed", seed)]);
        let sent = |packet: u32| packet * Duration::from_micros(300);
        for packet in 0..20_000 {
            lab.offer(NearToFar, sent(packet), &Packet::data(packet, 1));
        }
        lab.finish();
        let delay = |(at, _, packet): &(Duration, _, Packet)| *at - sent(packet.seq);
        let delays: Vec<_> = lab.arrived.iter().map(delay).collect();
        assert!(lab.segments().is_sorted());
        delays
    };
    let first = delays("1");
    let (least, most) = (first.iter().min().unwrap(), first.iter().max().unwrap());
    assert!(*least >= 15 * MS && *least < 16 * MS, "{least:?}");
    assert!(*most <= 25 * MS + MS / 100 && *most > 24 * MS, "{most:?}");
    let mean = first.iter().sum::<Duration>() / first.len() as u32;
    assert!(mean.abs_diff(20 * MS) < MS, "{mean:?}");
    assert_eq!(first, delays("1"));
    assert_ne!(first, delays("2"));
}
