//! Bursts in the samples of a load.

use super::*;

/// Samples of a load of so many seconds, whose rate at each time is `rate`, in MB/s.
fn samples(seconds: f64, rate: impl Fn(f64) -> f64) -> (Vec<LoadMark>, Instant) {
    let start = Instant::now();
    let steps = PARTS * FINER;
    let step = seconds / steps as f64;
    let mut moved = 0.0;
    let mut marks = Vec::new();
    for at in 0..=steps {
        let counters = LoadCounters {
            moved: moved as u64,
            ..LoadCounters::default()
        };
        let time = step * at as f64;
        marks.push((start + Duration::from_secs_f64(time), counters));
        moved += rate(time) * 1e6 * step;
    }
    (marks, start + Duration::from_secs_f64(seconds))
}

fn burst_of(seconds: f64, min_rtt: f64, rate: impl Fn(f64) -> f64) -> Option<f64> {
    let (marks, end) = samples(seconds, rate);
    lasting_burst(&marks, end, min_rtt, true).0
}

/// Returns a rate of 5 MB/s that is `fast` MB/s until a time.
fn falling(fast: f64, until: f64) -> impl Fn(f64) -> f64 {
    move |time| if time < until { fast } else { 5.0 }
}

/// A load was faster for a quarter of a second on a busy machine, and was called shaped.
#[test]
fn a_moment_of_speed_is_no_burst() {
    assert_eq!(burst_of(4.8, 0.02, falling(12.0, 0.25)), None);
    // Nor in a short load, of which a moment is a large part.
    assert_eq!(burst_of(0.8, 0.0001, falling(12.0, 0.25)), None);
}

#[test]
fn a_burst_of_half_a_second_is_found_with_its_rate() {
    let found = burst_of(4.8, 0.03, falling(25.0, 0.5)).expect("a burst");
    assert!((15.0..26.0).contains(&(found / 1e6)), "{found}");
    assert!(burst_of(12.0, 0.03, falling(25.0, 3.0)).is_some());
}

/// TCP sends a volley per round trip: what one of them does is no rate.
#[test]
fn a_volley_of_a_long_path_is_no_burst() {
    assert_eq!(burst_of(12.0, 0.6, falling(12.0, 0.5)), None);
    assert!(burst_of(12.0, 0.6, falling(25.0, 2.0)).is_some());
}

/// Two connections are compared with the highest rate that one had from a policer, which is its
/// rate, and not with the burst that passed before.
#[test]
fn the_peak_of_a_load_begins_with_its_first_lost_packet() {
    let (marks, end) = samples(12.0, |time| match time {
        time if time < 1.0 => 10.0,
        time if time < 5.0 => 2.4,
        _ => 1.5,
    });
    let mut marks = divided(&marks, end, PARTS);
    assert_eq!(peak(&marks, true), 0.0);
    for mark in marks.iter_mut().skip(3) {
        mark.1.retransmitted = 7;
    }
    let found = peak(&marks, true) / 2.4e6;
    assert!((0.97..1.03).contains(&found), "{found}");
}

/// Bug: in a load of 4 s, a policer of 2.4 MB/s whose bucket of 300 kB had filled after a loss was said
/// to pass 2.9 MB/s, the rate over half a second.
#[test]
fn the_bucket_of_a_policer_counted_as_its_rate() {
    let (marks, end) = samples(4.0, |time| match time {
        time if time < 0.3 => 10.0,
        time if time < 1.0 => 1.2,
        time if time < 1.6 => 2.9,
        _ => 2.3,
    });
    let mut marks = divided(&marks, end, PARTS);
    for mark in marks.iter_mut().skip(2) {
        mark.1.retransmitted = 7;
    }
    let found = peak(&marks, true) / 2.4e6;
    assert!((0.95..1.1).contains(&found), "{found}");
}

/// Losses of the retransmission counter at these times in a load at 6 MB/s, with a round trip of 60 ms
/// that a queue makes longer between two times.
fn losing(losses: &[f64], queue: (f64, f64)) -> Option<diagnose::LossConditions> {
    let (mut marks, _) = samples(4.8, |time| if time < 0.3 { 3.0 } else { 6.0 });
    let start = marks[0].0;
    for (time, counters) in &mut marks {
        let passed = (*time - start).as_secs_f64();
        counters.retransmitted = losses.iter().filter(|at| **at < passed).count() as u64;
    }
    let rtts = (0..480).map(|at| {
        let time = f64::from(at) / 100.0;
        let waits = time > queue.0 && time < queue.1;
        let rtt = if waits { 0.150 } else { 0.061 };
        (start + Duration::from_secs_f64(time), rtt)
    });
    at_losses::at_losses(&marks, &rtts.collect::<Vec<_>>(), 0.06, true)
}

/// Packets that a queue lost in the beginning were no different from random losses.
#[test]
fn the_queue_before_a_loss_is_found_with_its_rate() {
    assert_eq!(losing(&[], (0.5, 0.9)), None);
    // Repairs of the following round trips belong to the same series.
    let found = losing(&[0.7, 0.75, 0.85], (0.5, 0.8)).expect("losses");
    assert_eq!(found.rtt, 0.150);
    assert!((found.rate / 6e6 - 1.0).abs() < 0.05, "{found:?}");
    // Most of these losses came without a queue.
    let found = losing(&[0.7, 1.5, 2.5, 3.5], (0.5, 0.8)).expect("losses");
    assert_eq!(found.rtt, 0.061);
}

/// Bug: a policed class of 0.48 MB/s was said to pass 0.58, since the bucket that had filled before the
/// slice counted as its rate.
#[test]
fn the_rate_between_losses_has_no_part_of_the_bucket() {
    let rate = |time: f64| match time {
        time if time < 0.1 => 5.0,
        time if time < 0.9 => 0.48,
        // A bucket that was full again in between.
        time if time < 1.1 => 0.1,
        _ => 0.48,
    };
    let lossy = |losses: &[f64], rtt: f64| {
        let (mut marks, _) = samples(1.6, rate);
        let start = marks[0].0;
        for (time, counters) in &mut marks {
            let passed = (*time - start).as_secs_f64();
            counters.retransmitted = losses.iter().filter(|at| **at < passed).count() as u64;
        }
        between_losses::between_losses(&marks, &[(start, rtt)], 0.03)
    };
    let found = lossy(&[0.1, 0.15, 0.5, 0.88, 1.5], 0.0305).expect("losses far apart") / 0.48e6;
    assert!((0.97..1.03).contains(&found), "{found}");
    // One series of losses tells no rate, nor does a load without losses.
    assert_eq!(lossy(&[0.1, 0.12, 0.14], 0.0305), None);
    assert_eq!(lossy(&[], 0.0305), None);
    // The bucket may not be empty when a full queue drops packets.
    assert_eq!(lossy(&[0.1, 0.15, 0.5, 0.88, 1.5], 0.06), None);
}
