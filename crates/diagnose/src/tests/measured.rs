//! Figures that were measured in the lab and got a wrong verdict.

use super::*;

fn rungs(ladder: &mut ThroughputLadder, rates: &[f64]) {
    ladder.rungs.retain(|rung| rung.channels == 1);
    ladder.rungs.truncate(rates.len());
    for (rung, rate) in ladder.rungs.iter_mut().zip(rates) {
        rung.rate = *rate;
    }
}

/// A full return path of 1 Mbit/s at 10 ms was called a shaper, and a queue.
#[test]
fn acknowledgements_that_fill_the_return_path_are_the_limit_of_any_number_of_connections() {
    let mut e = Model::new(0.01, 6e6).evidence(3);
    rungs(&mut e.up, &[1.26e6, 1.34e6]);
    rungs(&mut e.down, &[49_800.0]);
    let one = &mut e.up.rungs[0];
    (one.before_burst, one.burst, one.repeated) = (Some(2.16e6), 2_631_804, Some(1.26e6));
    for rung in &mut e.up.rungs {
        (rung.rtt, rung.acknowledgements) = (0.14, 520.0);
    }
    e.up.loaded = Some(0.192);
    let d = diagnose(&e);
    assert_eq!(d.findings[0].cause, Cause::ReturnPath, "{d:#?}");
    assert!(
        d.findings.iter().all(|f| f.cause != Cause::Shaper),
        "{d:#?}"
    );
}

/// Linux counts a reordering only if the late packet arrives before it is sent again: at 10 ms,
/// packets that were 40 ms late were called lost.
#[test]
fn packets_that_were_all_sent_again_in_vain_are_late_ones() {
    let mut m = Model::new(0.01, link(0.01));
    lossy(&mut m);
    let mut e = m.evidence(1);
    for rung in &mut e.up.rungs {
        (rung.loss, rung.spurious, rung.vain) = (0.0025, 0.925, 0.03);
    }
    let d = diagnose(&e);
    let up = d.findings.iter();
    let up = up.filter(|f| f.direction == Some(DataDirection::Upload));
    let causes: Vec<_> = up.map(|f| f.cause).collect();
    assert_eq!(causes, [Cause::Reordering], "{d:#?}");
}

/// At 600 ms a channel window held back the first connection, so that the burst ended later.
#[test]
fn a_burst_that_ends_behind_the_first_measurement_is_a_shaper() {
    let mut e = Model::new(0.6, 2.4e6).evidence(2);
    e.up.rungs.truncate(3);
    let [one, channels, two] = &mut e.up.rungs[..] else {
        panic!("three rungs");
    };
    (one.rate, one.rtt, one.window_blocked) = (3.45e6, 0.6, 0.9);
    (channels.rate, channels.before_burst, channels.burst) = (2.07e6, Some(4.85e6), 18_141_156);
    (two.rate, two.rtt) = (2.38e6, 0.95);
    let d = diagnose(&e);
    assert_eq!(d.findings[0].cause, Cause::Shaper, "{d:#?}");
    assert_eq!(d.findings[0].limit, Some(2.38e6));
}

#[test]
fn a_path_on_which_more_connections_bring_much_less_is_not_healthy() {
    let mut e = Model::new(0.1, 6e6).evidence(2);
    rungs(&mut e.up, &[6e6, 3e6]);
    let d = diagnose(&e);
    assert!(!d.healthy, "{d:#?}");
    assert!(d.verdict.starts_with("Unsure"), "{}", d.verdict);
}

/// Two packets in 3,000 were lost, and none of them lately.
#[test]
fn a_connection_that_recovers_from_a_rare_loss_is_not_limited_by_the_network() {
    let mut e = Model::new(0.09, 4e7).evidence(2);
    rungs(&mut e.up, &[1.56e6, 4.85e6]);
    rungs(&mut e.down, &[]);
    for rung in &mut e.up.rungs {
        (rung.rtt, rung.loss, rung.loss_ever) = (rung.min_rtt, 0.0, 0.00056);
    }
    let d = diagnose(&e);
    assert_eq!(d.findings[0].cause, Cause::Loss, "{d:#?}");
}

#[test]
fn a_finding_that_is_unsure_is_not_named_behind_a_sure_one() {
    let mut m = Model::new(0.15, link(0.15));
    lossy(&mut m);
    let mut e = m.evidence(1);
    e.down.rungs.truncate(3);
    for (rung, rate) in e.down.rungs.iter_mut().zip([2.0, 2.0, 2.3]) {
        (rung.rate, rung.loss, rung.noise) = (rate * 1e5, 0.01, 0.1);
    }
    let d = diagnose(&e);
    assert!(!d.verdict.contains("then by a policer"), "{}", d.verdict);
}

/// One pair of a policed class was unsure, although the other classes passed as unmarked packets
/// do.
#[test]
fn one_pair_of_a_class_tells_if_the_other_classes_pass() {
    let mark = |class: &str, ratio: f64| DscpMeasurement {
        class: class.to_owned(),
        ratios: vec![ratio],
        rate: ratio * 2.4e6,
        unmarked: 2.4e6,
    };
    let certainty = |noise: f64, other: f64| {
        let mut e = Model::new(0.06, 2.4e6).evidence(2);
        e.marks.noise = vec![noise];
        e.marks.marks = vec![mark("CS1", 0.27), mark("AF21", other), mark("EF", 1.0)];
        let all = diagnose(&e).findings;
        let marked = all.iter().find(|f| f.cause == Cause::MarkedClass);
        marked.map(|f| f.certainty)
    };
    assert_eq!(certainty(1.0, 1.01), Some(Certainty::Likely));
    assert_eq!(certainty(1.4, 1.01), Some(Certainty::Unsure));
    assert_eq!(certainty(1.0, 0.75), Some(Certainty::Unsure));
}
