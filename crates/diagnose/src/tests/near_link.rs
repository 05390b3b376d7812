//! Policers whose rate is near the link's, measured in the lab on 50 Mbit/s at 60 ms.

use super::*;

/// Uploads over one connection that overflowed the link's queue in slow start: rate and rate between
/// losses, and the path just before the losses. No packet was lost at 60 % of the rate.
fn overflowing(rates: (f64, f64), at_losses: (f64, f64)) -> Evidence {
    let mut e = Model::new(0.06, 6e6).evidence(1);
    e.down.rungs.clear();
    e.up.rungs.retain(|rung| rung.channels == 1);
    e.up.rungs.truncate(2);
    let mut at = |rung: usize, rate: f64, loss: (f64, f64)| {
        let rung = &mut e.up.rungs[rung];
        (rung.rate, rung.loss, rung.loss_ever) = (rate, loss.0, loss.1);
        rung.rtt = 0.0612;
    };
    at(0, rates.0, (0.0011, 0.0289));
    at(1, rates.0, (0.0, 0.0188));
    let one = &mut e.up.rungs[0];
    (one.min_rtt, one.between_losses) = (0.0605, Some(rates.1));
    let (rtt, rate) = at_losses;
    one.at_losses = Some(LossConditions { rtt, rate });
    one.restrained = Some(ReducedRateLoad {
        rate: 0.6 * rates.0,
        loss: 0.0,
        expected: 0.0289,
    });
    e
}

/// A load at 98 % of the link's rate: the share that it lost, the round trips just before and in all, and
/// the rate between losses.
fn near_link(e: &mut Evidence, loss: f64, rtts: (f64, f64), between: Option<f64>) {
    let one = &mut e.up.rungs[0];
    let link = one.at_losses.expect("losses").rate;
    one.near_link = Some(NearLinkLoad {
        target: 0.98 * link,
        rate: 0.7 * link,
        rtt: rtts.1,
        loss,
        at_losses: Some(LossConditions {
            rtt: rtts.0,
            rate: link,
        }),
        between_losses: between,
    });
}

/// Returns the first finding about uploads with its rate in MB/s.
fn first_of_uploads(e: &Evidence) -> Option<(LimitCause, f64)> {
    let found = diagnose(e).findings;
    let limit = |f: &DiagnosisFinding| (f.cause, f.limit.unwrap_or(0.0) / 1e6);
    found.first().map(limit)
}

/// Policers of 40, 45 and 47.5 Mbit/s were called healthy, with the rate of the link: slow start filled
/// its queue before their buckets were empty.
#[test]
fn a_policer_just_below_the_link_was_called_healthy() {
    let forty = (
        (4.316e6, 4.894e6),
        (0.1167, 5.957e6),
        (0.01679, (0.06673, 0.06123), Some(4.917e6)),
        4.82,
    );
    let forty_five = (
        (5.02e6, 5.444e6),
        (0.0958, 5.947e6),
        (0.00541, (0.06791, 0.06135), None),
        5.42,
    );
    let nearly_fifty = (
        (5.589e6, 5.753e6),
        (0.075, 5.972e6),
        (0.0033, (0.06461, 0.06182), None),
        5.72,
    );
    for (rates, at_losses, (loss, rtts, between), set) in [forty, forty_five, nearly_fifty] {
        let mut e = overflowing(rates, at_losses);
        assert!(diagnose(&e).healthy);
        assert_eq!(e.link_above_uploads(), Some(at_losses.1));
        near_link(&mut e, loss, rtts, between);
        let (cause, limit) = first_of_uploads(&e).expect("a finding");
        assert_eq!(cause, LimitCause::Policer);
        assert!((limit / set - 1.0).abs() < 0.05, "{limit} for {set}");
    }
}

/// Bug: a policer of 42 Mbit/s at 150 ms was called healthy in 3 of 3 measurements. Its bucket ran empty
/// while slow start began to fill the queue, so that the last round trip before the loss passed less than
/// the rate between losses; two connections filled the link.
#[test]
fn a_policer_was_missed_whose_bucket_empties_as_the_queue_begins() {
    let mut e = Model::new(0.15, 6e6).evidence(1);
    e.down.rungs.clear();
    e.up.rungs.retain(|rung| rung.channels == 1);
    e.up.rungs.truncate(2);
    let measured = [
        (5.004e6, 0.1512, (0.00065, 0.01476), (0.171688, 4.681e6)),
        (4.666e6, 0.1507, (0.0, 0.01829), (0.16732, 5.803e6)),
    ];
    for (rung, (rate, rtt, loss, (at, link))) in e.up.rungs.iter_mut().zip(measured) {
        (rung.rate, rung.rtt, rung.min_rtt) = (rate, rtt, 0.15);
        (rung.loss, rung.loss_ever) = loss;
        rung.at_losses = Some(LossConditions {
            rtt: at,
            rate: link,
        });
    }
    e.up.rungs[0].restrained = Some(ReducedRateLoad {
        rate: 3.011e6,
        loss: 0.0,
        expected: 0.01476,
    });
    assert_eq!(e.link_above_uploads(), Some(5.803e6));
    near_link(&mut e, 0.0087, (0.1555, 0.1511), Some(4.98e6));
    let (cause, limit) = first_of_uploads(&e).expect("a finding");
    assert_eq!(cause, LimitCause::Policer);
    assert!((limit / 5.0 - 1.0).abs() < 0.05, "{limit}");
}

/// FQ-CoDel loses a packet of a load near the link's rate now and then, from its queue, and a link with
/// random losses as many as at a lower rate.
#[test]
fn a_link_that_passes_a_load_near_its_rate_has_no_policer() {
    let recovering = || overflowing((3.97e6, 4.0e6), (0.136, 5.954e6));
    let mut e = recovering();
    near_link(&mut e, 0.00015, (0.0723, 0.0647), None);
    assert!(diagnose(&e).healthy);
    // Many packets from a full queue.
    near_link(&mut e, 0.01, (0.12, 0.0647), None);
    assert!(diagnose(&e).healthy);
    near_link(&mut e, 0.003, (0.0614, 0.0612), Some(5.0e6));
    let restrained = e.up.rungs[0].restrained.as_mut().expect("a load");
    (restrained.loss, restrained.expected) = (0.003, 0.003);
    let policed = |e: &Evidence| {
        let found = diagnose(e).findings;
        found.iter().any(|f| f.cause == LimitCause::Policer)
    };
    assert!(!policed(&e));
    assert_eq!(e.link_above_uploads(), None);
}

/// Downloads at a similar rate meet the same policer; those that fill the link do not.
#[test]
fn downloads_at_the_rate_of_policed_uploads_are_policed_as_well() {
    let mut e = overflowing((4.316e6, 4.894e6), (0.1167, 5.957e6));
    near_link(&mut e, 0.01679, (0.06673, 0.06123), Some(4.917e6));
    e.down.rungs = e.up.rungs.clone();
    for rung in &mut e.down.rungs {
        (rung.rate, rung.near_link, rung.restrained) = (4.3e6, None, None);
        rung.between_losses = None;
    }
    let policers = |e: &Evidence| {
        let found = diagnose(e).findings;
        let policers = found.iter().filter(|f| f.cause == LimitCause::Policer);
        policers.count()
    };
    assert_eq!(policers(&e), 2, "{:#?}", diagnose(&e));
    for rung in &mut e.down.rungs {
        (rung.rate, rung.rtt, rung.at_losses) = (5.94e6, 0.1, None);
    }
    assert_eq!(policers(&e), 1, "{:#?}", diagnose(&e));
}

/// Two connections that fill the link's queue have a bucket each.
#[test]
fn a_policer_for_each_connection_just_below_the_link_is_named() {
    let mut e = overflowing((4.316e6, 4.894e6), (0.1167, 5.957e6));
    near_link(&mut e, 0.01679, (0.06673, 0.06123), Some(4.917e6));
    (e.up.rungs[1].rate, e.up.rungs[1].rtt) = (5.94e6, 0.1);
    let (cause, limit) = first_of_uploads(&e).expect("a finding");
    assert_eq!(cause, LimitCause::FlowPolicer);
    assert!((limit / 4.82 - 1.0).abs() < 0.05, "{limit}");
}

/// 42 of 50 Mbit/s for each connection at 25 ms: two connections filled the link, and the path was called
/// healthy.
#[test]
fn a_policer_for_each_connection_that_two_pass_by_little_was_called_healthy() {
    let mut e = overflowing((5.008e6, 4.996e6), (0.0609, 5.83e6));
    (e.up.rungs[1].rate, e.up.rungs[1].rtt) = (5.94e6, 0.1);
    let (cause, limit) = first_of_uploads(&e).expect("a finding");
    assert_eq!(cause, LimitCause::FlowPolicer);
    assert!((limit / 5.0 - 1.0).abs() < 0.05, "{limit}");
    // The queue of the link lost the packets of one connection as well.
    e.up.rungs[0].at_losses.as_mut().expect("losses").rtt = 0.1;
    assert!(diagnose(&e).healthy);
}

/// Slices of packets marked EF behind a policer of 0.48 MB/s: the mean of the second half was 0.58, with
/// what the bucket had let pass.
#[test]
fn the_bucket_of_a_policed_class_counted_as_its_rate() {
    let e = Model::new(0.03, 6e6).evidence(1);
    let mut slice = ThroughputMeasurement {
        rate: 0.575e6,
        min_rtt: 0.03,
        rtt: 0.0305,
        between_losses: Some(0.4766e6),
        ..ThroughputMeasurement::default()
    };
    assert_eq!(e.unqueued_rate(&slice), Some(0.4766e6));
    // A shaper delays packets; each slice of the class tells its rate.
    slice.rtt = 0.06;
    assert_eq!(e.unqueued_rate(&slice), None);
}
