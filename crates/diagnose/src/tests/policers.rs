//! Policers, told from random loss by a load below the rate at which packets are lost.

use super::*;

/// A path that loses packets without a queue, and passes these rates over 1, 2, 4 and 8 connections.
fn losing(rates: [f64; 4], loss: f64, restrained: Option<f64>) -> Evidence {
    let mut e = Model::new(0.03, 1e8).evidence(1);
    for ladder in [&mut e.up, &mut e.down] {
        ladder.rungs.retain(|rung| rung.channels == 1);
        for (rung, rate) in ladder.rungs.iter_mut().zip(rates) {
            (rung.rate, rung.loss, rung.loss_ever) = (rate, loss, loss);
            rung.rtt = rung.min_rtt;
        }
    }
    e.up.rungs[0].restrained = restrained.map(|seen| ReducedRateLoad {
        rate: 0.6 * rates[0],
        loss: seen,
        expected: loss,
    });
    e
}

fn first(e: &Evidence) -> DiagnosisFinding {
    diagnose(e).findings.first().expect("a finding").clone()
}

#[test]
fn a_policer_of_which_one_connection_leaves_a_part_is_no_random_loss() {
    let rates = [1.4e6, 2.1e6, 2.35e6, 2.4e6];
    let found = first(&losing(rates, 0.02, Some(0.0)));
    assert_eq!(
        (found.cause, found.limit),
        (LimitCause::Policer, Some(2.4e6))
    );
    // Also if one connection has half of its rate.
    let rates = [1.3e6, 2.1e6, 2.35e6, 2.4e6];
    let found = first(&losing(rates, 0.02, Some(0.001)));
    assert_eq!(found.cause, LimitCause::Policer);
}

#[test]
fn a_policer_for_each_connection_is_told_from_one_for_all() {
    let rates = [2.2e6, 4.6e6, 9.0e6, 18e6];
    let e = losing(rates, 0.02, Some(0.0));
    let found = first(&e);
    assert_eq!(found.cause, LimitCause::FlowPolicer, "{found:#?}");
    let limit = found.limit.expect("a rate");
    assert!((limit / 2.3e6 - 1.0).abs() < 0.05, "{limit}");
    // Downloads cannot be held back by their receiver, and pass at the same rates here.
    let both = diagnose(&e).findings;
    let policers = both.iter().filter(|f| f.cause == LimitCause::FlowPolicer);
    assert_eq!(policers.count(), 2, "{both:#?}");
}

#[test]
fn losses_that_stay_below_the_rate_are_random() {
    let each = [2.2e6, 4.6e6, 9.0e6, 18e6];
    for restrained in [Some(0.018), Some(0.03), None] {
        let found = first(&losing(each, 0.02, restrained));
        assert_eq!(found.cause, LimitCause::Loss, "{found:#?}");
    }
    // More connections bring nothing: without the load below the rate it looks like a policer.
    let flat = [2.2e6, 2.3e6, 2.3e6, 2.3e6];
    let found = diagnose(&losing(flat, 0.02, Some(0.02))).findings;
    assert!(
        found.iter().all(|f| f.cause != LimitCause::Policer),
        "{found:#?}"
    );
    assert_eq!(
        first(&losing(flat, 0.02, Some(0.0))).cause,
        LimitCause::Policer
    );
}

#[test]
fn a_queue_that_overflows_is_no_policer() {
    let mut e = losing([1.4e6, 2.1e6, 2.35e6, 2.4e6], 0.002, Some(0.0));
    for rung in e.up.rungs.iter_mut().chain(&mut e.down.rungs) {
        rung.rtt = rung.min_rtt + 0.012;
    }
    let found = diagnose(&e).findings;
    assert!(
        found.iter().all(|f| f.cause != LimitCause::Policer),
        "{found:#?}"
    );
}

/// A full link of 1 Gbit/s at 1 ms, whose queue holds a round trip, loses packets as a policer does.
#[test]
fn a_short_queue_that_overflows_is_the_link() {
    let mut e = losing([9e7, 11.4e7, 11.3e7, 11.3e7], 0.0014, Some(0.0));
    for rung in e.up.rungs.iter_mut().chain(&mut e.down.rungs) {
        (rung.min_rtt, rung.rtt) = (0.001, 0.0021);
    }
    e.idle = Model::new(0.001, 1e8).e.idle;
    let d = diagnose(&e);
    assert!(d.healthy, "{d:#?}");
}

#[test]
fn a_reason_is_named_if_no_transfer_was_measured() {
    let e = Evidence {
        unseen: vec!["uploads over 1 connection: 0.1 MB in 0.02 s are too little".to_owned()],
        ..Evidence::default()
    };
    let verdict = diagnose(&e).verdict;
    assert!(
        verdict.starts_with("Uploads over 1 connection: ")
            && verdict.ends_with(". No transfer could be measured"),
        "{verdict}"
    );
}

/// An upload at 60 ms lost 7 % in slow start and nothing later, and was called capped.
#[test]
fn a_connection_that_has_found_its_policers_rate_is_policed() {
    let mut e = losing([2.46e6, 4.9e6, 9.6e6, 19e6], 0.0, None);
    let one = &mut e.up.rungs[0];
    one.loss_ever = 0.073;
    one.restrained = Some(ReducedRateLoad {
        rate: 1.48e6,
        loss: 0.0,
        expected: 0.073,
    });
    let found = diagnose(&e).findings;
    let up = found
        .iter()
        .find(|f| f.direction == Some(DataDirection::Upload));
    let up = up.expect("a finding");
    assert_eq!(up.cause, LimitCause::FlowPolicer, "{found:#?}");
    // Losses below the rate, or a queue, are no policer's.
    e.up.rungs[0].rtt = 1.3 * e.up.rungs[0].min_rtt;
    let found = diagnose(&e).findings;
    let policed = |f: &DiagnosisFinding| {
        f.direction == Some(DataDirection::Upload) && f.cause == LimitCause::FlowPolicer
    };
    assert!(!found.iter().any(policed), "{found:#?}");
}

/// At 600 ms there was no time for four connections, and a policer for each connection was called
/// one for all with the rate of two.
#[test]
fn two_connections_above_the_highest_rate_of_one_share_no_bucket() {
    let two_rungs = |rates: [f64; 2], peak: f64| {
        let mut e = losing([rates[0], rates[1], 0.0, 0.0], 0.06, Some(0.0));
        e.up.rungs.truncate(2);
        e.down.rungs.clear();
        let one = &mut e.up.rungs[0];
        (one.peak, one.min_rtt, one.rtt, one.seconds) = (peak, 0.6, 0.6, 12.0);
        e
    };
    let found = first(&two_rungs([1.932e6, 3.355e6], 2.35e6));
    assert_eq!(found.cause, LimitCause::FlowPolicer, "{found:#?}");
    let limit = found.limit.expect("a rate");
    assert!((limit / 2.41e6 - 1.0).abs() < 0.15, "{limit}");
    // One connection that had all of the common bucket now and then.
    let found = first(&two_rungs([1.5e6, 2.4e6], 2.4e6));
    assert_eq!(found.cause, LimitCause::Policer, "{found:#?}");
    assert!(found.certainty > Certainty::Unsure, "{found:#?}");
    // Without that figure the kind of the policer is open.
    let found = first(&two_rungs([1.932e6, 3.355e6], 0.0));
    assert_eq!(found.certainty, Certainty::Unsure, "{found:#?}");
}

/// One of six runs at 600 ms behind a policer of 2.41 MB/s for all connections.
fn policed_satellite() -> Evidence {
    let mut e = losing([1.81e6, 2.49e6, 0.0, 0.0], 0.0277, Some(0.0));
    e.idle = Model::new(0.6, 1e8).e.idle;
    e.up.rungs.truncate(2);
    e.down.rungs.truncate(1);
    let both = e.up.rungs.iter_mut().chain(&mut e.down.rungs);
    for rung in both {
        (rung.min_rtt, rung.rtt, rung.seconds) = (0.6, 0.6003, 8.4);
    }
    let [one, two] = &mut e.up.rungs[..] else {
        panic!("two rungs");
    };
    (one.peak, one.seconds, one.loss_ever, one.noise) = (1.80e6, 12.0, 0.06468, 0.02);
    (two.peak, two.noise) = (2.51e6, 0.05);
    let again = ThroughputMeasurement {
        channels: 2,
        rate: 2.21e6,
        peak: 2.25e6,
        ..*one
    };
    e.up.rungs.insert(1, again);
    let down = &mut e.down.rungs[0];
    (down.rate, down.peak, down.noise) = (6.7e5, 9.9e5, 0.25);
    (down.loss, down.loss_ever) = (0.00476, 0.00562);
    e
}

/// One connection never reached the policer's rate in 20 round trips, so that two that passed 1.4 times
/// as much were above its highest rate, and the kind of the policer was unsure. Over two channels it
/// reached that rate.
#[test]
fn a_connection_that_missed_the_rate_of_a_policer_in_one_load_left_its_kind_open() {
    let found = first(&policed_satellite());
    assert_eq!(found.cause, LimitCause::Policer, "{found:#?}");
    assert!(found.certainty > Certainty::Unsure, "{found:#?}");
    let limit = found.limit.expect("a rate");
    assert!((limit / 2.41e6 - 1.0).abs() < 0.15, "{limit}");
}

/// One connection missed the rate of a common bucket in both of its loads, of 1.83 and 1.84 MB/s, and two
/// passed 1.24 times as much.
#[test]
fn two_connections_that_pass_a_quarter_more_left_the_kind_of_a_policer_open() {
    let mut e = policed_satellite();
    let measured = [(1.83e6, 1.81e6), (1.84e6, 1.86e6), (2.27e6, 2.49e6)];
    for (rung, (rate, peak)) in e.up.rungs.iter_mut().zip(measured) {
        (rung.rate, rung.peak) = (rate, peak);
    }
    let found = first(&e);
    assert_eq!(found.cause, LimitCause::Policer, "{found:#?}");
    assert!(found.certainty > Certainty::Unsure, "{found:#?}");
    let limit = found.limit.expect("a rate");
    assert!((limit / 2.41e6 - 1.0).abs() < 0.15, "{limit}");
}

/// At 600 ms two connections with a bucket each passed only 1.49 times as much as one, and the kind of
/// the policer was unsure, although one connection had stayed below their rate in two loads.
#[test]
fn two_loads_of_one_connection_below_the_rate_of_two_left_the_kind_of_a_policer_open() {
    let mut e = policed_satellite();
    let measured = [(2.14e6, 2.42e6), (2.19e6, 1.99e6), (3.19e6, 3.57e6)];
    for (rung, (rate, peak)) in e.up.rungs.iter_mut().zip(measured) {
        (rung.rate, rung.peak) = (rate, peak);
    }
    e.down.rungs.clear();
    let found = first(&e);
    assert_eq!(found.cause, LimitCause::FlowPolicer, "{found:#?}");
    assert!(found.certainty > Certainty::Unsure, "{found:#?}");
    let limit = found.limit.expect("a rate");
    assert!((limit / 2.41e6 - 1.0).abs() < 0.15, "{limit}");
    // One load may have missed the rate of a common bucket.
    e.up.rungs.remove(1);
    assert_eq!(first(&e).certainty, Certainty::Unsure);
}

/// A download over one connection had a quarter of the rate that uploads found in more time, and its
/// losses were called random, although those of uploads ended below their rate.
#[test]
fn losses_of_one_download_were_called_random_behind_a_policer() {
    let mut e = policed_satellite();
    let lossy = |e: &Evidence| {
        let found = diagnose(e).findings;
        found.iter().any(|f| f.cause == LimitCause::Loss)
    };
    assert!(!lossy(&e));
    // Without the load below the rate, the losses may be random.
    e.up.rungs[0].restrained = None;
    assert!(lossy(&e));
}

/// A bucket of 4.2 MB/s at 220 ms passed 3.0 MB/s over 4.5 s, and 3.7 MB/s for a moment. In many round
/// trips the mean is closer.
#[test]
fn the_rate_of_a_policer_is_the_highest_one_if_there_were_few_round_trips() {
    let limit = |min_rtt: f64| {
        let mut e = losing([2.8e6, 2.97e6, 0.0, 0.0], 0.05, Some(0.0));
        e.up.rungs.truncate(2);
        e.down.rungs.clear();
        e.idle = Model::new(min_rtt, 1e8).e.idle;
        for (rung, peak) in e.up.rungs.iter_mut().zip([3.69e6, 3.21e6]) {
            (rung.peak, rung.min_rtt, rung.rtt) = (peak, min_rtt, min_rtt);
            rung.seconds = 4.5;
        }
        let found = first(&e);
        assert_eq!(found.cause, LimitCause::Policer, "{found:#?}");
        found.limit.expect("a rate")
    };
    assert_eq!(limit(0.22), 3.69e6);
    assert_eq!(limit(0.03), 2.97e6);
}

/// Uploads lost 0.3 % at random, too few to be tried below their rate, and downloads 0.5 %. By chance a
/// second connection brought nothing to the downloads, which were called policed.
#[test]
fn downloads_that_lose_as_uploads_do_are_not_policed() {
    let mut e = losing([1.455e6, 1.858e6, 4.435e6, 0.0], 0.0033, None);
    e.up.rungs.truncate(3);
    e.down.rungs.truncate(2);
    for (rung, rate) in e.down.rungs.iter_mut().zip([2.51e6, 1.77e6]) {
        (rung.rate, rung.loss, rung.loss_ever) = (rate, 0.0054, 0.004);
    }
    let found = diagnose(&e).findings;
    assert!(
        found.iter().all(|f| f.cause == LimitCause::Loss),
        "{found:#?}"
    );
    // A policer drops far more.
    for rung in &mut e.down.rungs {
        (rung.loss, rung.loss_ever) = (0.05, 0.05);
    }
    let found = diagnose(&e).findings;
    assert!(
        found.iter().any(|f| f.cause == LimitCause::Policer),
        "{found:#?}"
    );
}

#[test]
fn a_policer_is_named_although_the_connection_has_found_its_rate() {
    for rtt in RTTS {
        let mut m = Model::new(rtt, 1e8);
        m.policer = Some(2.5e6);
        let mut e = m.evidence(4);
        for rung in e.up.rungs.iter_mut().chain(&mut e.down.rungs) {
            (rung.loss, rung.loss_ever) = (0.0, 0.04);
        }
        let d = diagnose(&e);
        assert_eq!(d.findings[0].cause, LimitCause::Policer, "{d:#?}");
    }
}
