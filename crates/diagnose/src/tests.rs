//! Paths made by a small model of TCP and SSH, with seeded noise, and what is said about them.

use crate::*;

mod measured;
mod near_link;
mod policers;

const MIB: f64 = 1_048_576.0;
const RTTS: [f64; 4] = [0.01, 0.06, 0.15, 0.6];

/// Seeded noise.
struct Noise(u64);

impl Noise {
    /// A factor within 3 % of one.
    fn factor(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        0.97 + 0.06 * (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A path and its ends, in bytes and seconds.
#[derive(Clone)]
struct Model {
    link: f64,
    rtt: f64,
    /// Receive and send window of TCP in each direction.
    far_window: f64,
    send_buffer: f64,
    far_send: f64,
    our_window: f64,
    channel: f64,
    /// Rate that loss allows one connection, and its share.
    lossy: Option<(f64, f64)>,
    policer: Option<f64>,
    flow: Option<f64>,
    burst: Option<f64>,
    far_cpu: Option<f64>,
    our_cpu: Option<f64>,
    reorders: bool,
    fixed_window: bool,
    e: Evidence,
}

impl Model {
    fn new(rtt: f64, link: f64) -> Self {
        let large = 1e12;
        let mut e = Evidence {
            idle: Some(MinMedianMax {
                low: rtt,
                median: rtt * 1.01,
                high: rtt * 1.05,
            }),
            tcp: Some(NegotiatedTcpOptions {
                window_scaling: true,
                sack: true,
                timestamps: true,
                mss: 1448,
            }),
            cipher: Some("aes128-gcm@openssh.com".to_owned()),
            ..Evidence::default()
        };
        e.here.kernel = Some((6, 12));
        e.here.tcp_rmem = Some(32 << 20);
        Self {
            link,
            rtt,
            far_window: large,
            send_buffer: large,
            far_send: large,
            our_window: large,
            channel: large,
            lossy: None,
            policer: None,
            flow: None,
            burst: None,
            far_cpu: None,
            our_cpu: None,
            reorders: false,
            fixed_window: false,
            e,
        }
    }

    fn rung(&self, up: bool, (n, m): (u32, u32), noise: &mut Noise) -> ThroughputMeasurement {
        let (c, ch) = (f64::from(n), f64::from(n * m));
        let (window, buffer) = match up {
            true => (self.far_window, self.send_buffer),
            false => (self.our_window, self.far_send),
        };
        let mut limits = vec![
            (self.link, "link"),
            (c * window / self.rtt, "rwnd"),
            (c * buffer / self.rtt, "sndbuf"),
            (ch * self.channel / self.rtt, "channel"),
        ];
        let mut limit = |rate: Option<f64>, name| limits.extend(rate.map(|rate| (rate, name)));
        limit(self.lossy.map(|l| c * l.0), "loss");
        limit(self.policer, "policer");
        limit(self.flow.map(|f| c * f), "flow");
        limit(self.far_cpu.map(|f| c * f), "far cpu");
        limit(self.our_cpu.map(|f| c * f), "our cpu");
        let (rate, by) = limits
            .into_iter()
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap();
        let queues = matches!(by, "link" | "flow");
        let mut rung = ThroughputMeasurement {
            connections: n,
            channels: m,
            rate: rate * noise.factor(),
            noise: 0.03,
            seconds: 3.0,
            min_rtt: self.rtt,
            rtt: self.rtt * noise.factor().max(1.0)
                + if queues { 0.01 + self.rtt * 0.4 } else { 0.0 },
            window: self.channel.min(64.0 * MIB) as u64,
            idle: Some(0.7),
            cpu: 0.3,
            peer_window: Some(match self.fixed_window {
                true => (window as u64, window as u64),
                false => ((window.min(2e9) / 4.0) as u64, window.min(2e9) as u64),
            }),
            ..ThroughputMeasurement::default()
        };
        match by {
            "rwnd" if up => rung.rwnd_limited = 0.9 * noise.factor(),
            "sndbuf" if up => rung.sndbuf_limited = 0.9 * noise.factor(),
            "channel" if up => rung.window_blocked = 0.8 * noise.factor(),
            "loss" => rung.loss = self.lossy.unwrap().1,
            "policer" => rung.loss = 0.03 * noise.factor(),
            "far cpu" if up => rung.held = (rung.rate * self.rtt * 2.0 + 2e6) as u64,
            "far cpu" => rung.silent = 0.6,
            "our cpu" => rung.wanted_cpu = 0.97,
            "link" => rung.loss = 0.0001,
            _ => {}
        }
        if self.reorders {
            (rung.reordered, rung.spurious) = (0.01, 0.9);
        }
        if let Some(before) = self.burst {
            (rung.before_burst, rung.burst) = (Some(before), 20_000_000);
            (rung.repeated, rung.fell_again) = (Some(rung.rate * noise.factor()), true);
        }
        rung
    }

    fn evidence(&self, seed: u64) -> Evidence {
        let mut noise = Noise(seed * 7919 + 1);
        let steps = [(1, 1), (1, 2), (2, 1), (4, 1), (8, 1)];
        let mut ladder = |up| {
            let rungs = steps.map(|step| self.rung(up, step, &mut noise));
            ThroughputScaling {
                rungs: rungs.to_vec(),
                loaded: None,
            }
        };
        let (up, down) = (ladder(true), ladder(false));
        let mut e = self.e.clone();
        e.up.rungs = up.rungs;
        e.down.rungs = down.rungs;
        e
    }
}

/// Fault to set into a model, with the rate that it leaves to one connection.
type Fault = (LimitCause, fn(&mut Model) -> Option<f64>);

/// Rate that faults leave: far below the link's.
fn small(m: &Model) -> f64 {
    m.link / 10.0
}

const FAULTS: &[Fault] = &[
    (LimitCause::MtuBlackHole, |m| {
        m.e.stall = Some(TransferStall {
            seconds: 5.0,
            in_handshake: true,
            ..TransferStall::default()
        });
        Some(0.0)
    }),
    (LimitCause::Middlebox, |m| {
        m.e.stall = Some(TransferStall {
            seconds: 30.0,
            bytes: 50_000_000,
            reset: true,
            ..TransferStall::default()
        });
        Some(0.0)
    }),
    (LimitCause::ChannelWindow, |m| {
        m.channel = small(m) * m.rtt;
        Some(small(m))
    }),
    (LimitCause::FarReceiveBuffer, |m| {
        m.far_window = small(m) * m.rtt;
        Some(small(m))
    }),
    (LimitCause::FixedReceiveBuffer, |m| {
        // A window that never grew from 64 KiB.
        m.far_window = 65_536.0;
        m.fixed_window = true;
        m.link = 655_360.0 / m.rtt;
        Some(small(m))
    }),
    (LimitCause::SendBuffer, |m| {
        m.send_buffer = small(m) * m.rtt;
        Some(small(m))
    }),
    (LimitCause::FarSendBuffer, |m| {
        m.far_send = small(m) * m.rtt;
        m.e.here.tcp_rmem = Some(1 << 30);
        Some(small(m))
    }),
    (LimitCause::ReceiveBuffer, |m| {
        m.our_window = small(m) * m.rtt;
        m.e.here.tcp_rmem = Some((m.our_window * 2.0) as u64);
        Some(small(m))
    }),
    (LimitCause::NoWindowScaling, |m| {
        m.far_window = 65_535.0;
        m.link = 655_350.0 / m.rtt;
        m.e.tcp.as_mut().unwrap().window_scaling = false;
        Some(small(m))
    }),
    (LimitCause::NoSack, |m| {
        lossy(m);
        m.e.tcp.as_mut().unwrap().sack = false;
        Some(small(m))
    }),
    (LimitCause::Loss, |m| {
        lossy(m);
        Some(small(m))
    }),
    (LimitCause::Reordering, |m| {
        lossy(m);
        m.reorders = true;
        Some(small(m))
    }),
    (LimitCause::Policer, |m| {
        m.policer = Some(small(m));
        Some(small(m))
    }),
    (LimitCause::Shaper, |m| {
        m.burst = Some(m.link);
        m.link = small(m);
        Some(m.link)
    }),
    (LimitCause::MarkedClass, |m| {
        m.e.marks = DscpMeasurements {
            noise: vec![1.02, 0.97, 1.01],
            marks: vec![DscpMeasurement {
                class: "CS1".to_owned(),
                ratios: vec![0.1, 0.11, 0.1, 0.1, 0.09],
                rate: small(m),
                unmarked: m.link,
            }],
        };
        Some(small(m))
    }),
    (LimitCause::FlowCap, |m| {
        m.flow = Some(small(m));
        Some(small(m))
    }),
    (LimitCause::FarDisk, |m| {
        m.e.there.disk = Some(small(m));
        Some(small(m))
    }),
    (LimitCause::LocalDisk, |m| {
        m.e.here.disk = Some(small(m));
        Some(small(m))
    }),
    (LimitCause::FarCpu, |m| {
        m.far_cpu = Some(small(m));
        Some(small(m))
    }),
    (LimitCause::LocalCpu, |m| {
        m.our_cpu = Some(small(m));
        Some(small(m))
    }),
    (LimitCause::SlowCipher, |m| {
        m.our_cpu = Some(small(m));
        m.e.cipher = Some("chacha20-poly1305@openssh.com".to_owned());
        m.e.here.cipher_rate = Some(small(m) * 1.1);
        m.e.here.aes_rate = Some(small(m) * 5.0);
        Some(small(m))
    }),
    (LimitCause::FarThrottled, |m| {
        m.far_cpu = Some(small(m));
        m.e.there.throttled = Some(0.8);
        Some(small(m))
    }),
    (LimitCause::Throttled, |m| {
        m.our_cpu = Some(small(m));
        m.e.here.throttled = Some(0.8);
        Some(small(m))
    }),
    (LimitCause::BelowExpectation, |m| {
        m.e.expected = Some(m.link);
        m.link = small(m);
        Some(m.link)
    }),
    (LimitCause::SmallFiles, |m| {
        m.e.small_files = Some(SmallFileRate {
            per_second: 0.25 / m.rtt,
            size: 4096,
        });
        None
    }),
    (LimitCause::SlowAnswers, |m| {
        m.e.server_answer = Some(0.08);
        None
    }),
    (LimitCause::OneChannel, |m| {
        m.e.channels_refused = true;
        None
    }),
    (LimitCause::LoginLimit, |m| {
        m.e.logins = Some((8, 3));
        None
    }),
    (LimitCause::SlowLogin, |m| {
        m.e.login = vec![TimedLoginStep {
            name: "the SFTP server's start".to_owned(),
            seconds: m.rtt * 3.0 + 0.9,
            round_trips: 1.0,
        }];
        None
    }),
    (LimitCause::Bufferbloat, |m| {
        m.e.up.loaded = Some(m.rtt * 2.1 + 0.4);
        None
    }),
];

fn lossy(m: &mut Model) {
    let rate = small(m);
    // The loss at which TCP makes this rate (Mathis et al. 1997).
    let p = (1.22 * 1448.0 / (m.rtt * rate)).powi(2);
    m.lossy = Some((rate, p.clamp(0.001, 0.2)));
}

/// A link that holds few packets, so that loss of a fraction of a percent is what limits.
fn link(rtt: f64) -> f64 {
    10.0 * 1.22 * 1448.0 / (rtt * 0.05)
}

fn with_bloat(e: &mut Evidence, m: &Model) {
    e.up.loaded = m.e.up.loaded;
}

fn diagnosed(m: &Model, seed: u64) -> PathDiagnosis {
    let mut e = m.evidence(seed);
    with_bloat(&mut e, m);
    diagnose(&e)
}

#[test]
fn each_fault_alone_is_named_first_with_its_rate() {
    assert!(FAULTS.len() >= 24);
    for rtt in RTTS {
        for (cause, set) in FAULTS {
            for seed in 1..=5 {
                let mut m = Model::new(rtt, link(rtt));
                let rate = set(&mut m);
                let d = diagnosed(&m, seed);
                let first = &d.findings.first();
                let first = first.unwrap_or_else(|| panic!("{cause:?} at {rtt}: {d:?}"));
                assert_eq!(first.cause, *cause, "at {rtt}: {d:#?}");
                assert!(d.verdict.contains(&cause.to_string()), "{}", d.verdict);
                // Notes are named behind the verdict on a healthy path.
                assert_eq!(d.healthy, cause.is_note(), "{d:#?}");
                assert!(!first.remedies.is_empty());
                match (rate, first.limit) {
                    (Some(set), Some(seen)) => {
                        assert!((seen - set).abs() <= 0.15 * set, "{cause:?} {set} {seen}");
                    }
                    (None, None) => {}
                    other => panic!("{cause:?}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn two_faults_are_both_named_and_the_lower_limit_comes_first() {
    // The second fault leaves three times the rate of the first.
    type Pair = (LimitCause, LimitCause, fn(&mut Model));
    let pairs: [Pair; 6] = [
        (LimitCause::FarDisk, LimitCause::FarReceiveBuffer, |m| {
            m.e.there.disk = Some(small(m));
            m.far_window = 3.0 * small(m) * m.rtt;
        }),
        (LimitCause::Loss, LimitCause::LocalDisk, |m| {
            lossy(m);
            m.e.here.disk = Some(3.0 * small(m));
        }),
        (LimitCause::MarkedClass, LimitCause::SendBuffer, |m| {
            m.e.marks.marks = vec![DscpMeasurement {
                class: "CS1".to_owned(),
                ratios: vec![0.3; 5],
                rate: small(m),
                unmarked: 3.0 * small(m),
            }];
            m.send_buffer = 3.0 * small(m) * m.rtt;
        }),
        (LimitCause::FarCpu, LimitCause::FarDisk, |m| {
            m.far_cpu = Some(small(m));
            m.e.there.disk = Some(3.0 * small(m));
        }),
        (LimitCause::ChannelWindow, LimitCause::FarSendBuffer, |m| {
            m.channel = small(m) * m.rtt;
            m.far_send = 3.0 * small(m) * m.rtt;
            m.e.here.tcp_rmem = Some(1 << 30);
        }),
        (LimitCause::Policer, LimitCause::SlowLogin, |m| {
            m.policer = Some(small(m));
            m.e.login = vec![TimedLoginStep {
                name: "authentication".to_owned(),
                seconds: m.rtt * 3.0 + 2.0,
                round_trips: 2.0,
            }];
        }),
    ];
    for rtt in RTTS {
        for (first, second, set) in &pairs {
            for seed in 1..=5 {
                let mut m = Model::new(rtt, link(rtt));
                set(&mut m);
                // The download of a channel window is not seen here: only this end's is known.
                if *second == LimitCause::FarSendBuffer {
                    let up_only = m.channel;
                    let mut down = m.clone();
                    down.channel = 1e12;
                    let e = down.evidence(seed);
                    m.channel = up_only;
                    let mut both = m.evidence(seed);
                    both.down = e.down;
                    check(&diagnose(&both), *first, *second, rtt);
                    continue;
                }
                check(&diagnosed(&m, seed), *first, *second, rtt);
            }
        }
    }
}

fn check(d: &PathDiagnosis, first: LimitCause, second: LimitCause, rtt: f64) {
    let place = |cause| d.findings.iter().position(|f| f.cause == cause);
    let (a, b) = (place(first), place(second));
    assert_eq!(a, Some(0), "{first:?} at {rtt}: {d:#?}");
    assert!(
        b.is_some() && b > a,
        "{first:?}, {second:?} at {rtt}: {d:#?}"
    );
}

#[test]
fn nothing_is_wrong_with_a_path_that_carries_what_its_link_gives() {
    for (rtt, mbit) in [
        (0.001, 1000.0),
        (0.01, 100.0),
        (0.06, 50.0),
        (0.15, 400.0),
        (0.6, 10.0),
    ] {
        for seed in 1..=20 {
            let m = Model::new(rtt, mbit * 1e6 / 8.0);
            let d = diagnosed(&m, seed);
            assert!(d.healthy && d.findings.is_empty(), "{rtt}: {d:#?}");
            assert!(d.verdict.starts_with("Nothing wrong: the path carries"));
        }
    }
}

#[test]
fn a_faulty_path_is_never_called_healthy() {
    for rtt in RTTS {
        for (cause, set) in FAULTS.iter().filter(|(cause, _)| !cause.is_note()) {
            let mut m = Model::new(rtt, link(rtt));
            set(&mut m);
            let d = diagnosed(&m, 77);
            assert!(
                !d.healthy && !d.verdict.contains("Nothing wrong"),
                "{cause:?}"
            );
        }
    }
}

#[test]
fn without_evidence_the_verdict_is_unsure_and_says_what_is_missing() {
    let d = diagnose(&Evidence::default());
    assert!(!d.healthy && d.certainty == Certainty::Unsure);
    assert!(
        d.verdict == "No transfer could be measured" && d.unseen.len() >= 6,
        "{d:?}"
    );
}

#[test]
fn a_rate_that_varies_more_than_the_difference_makes_the_verdict_unsure() {
    let mut m = Model::new(0.06, link(0.06));
    m.far_window = small(&m) * m.rtt;
    let mut e = m.evidence(3);
    assert_eq!(diagnose(&e).certainty, Certainty::Sure);
    e.up.rungs.iter_mut().for_each(|r| r.noise = 0.5);
    let d = diagnose(&e);
    assert_eq!(d.certainty, Certainty::Unsure);
    assert!(d.verdict.starts_with("Unsure: "), "{}", d.verdict);
}

#[test]
fn an_interrupted_measurement_is_marked() {
    let mut m = Model::new(0.06, link(0.06));
    m.e.partial = Some("interrupted".to_owned());
    m.far_window = small(&m) * m.rtt;
    let d = diagnosed(&m, 1);
    assert!(
        d.verdict.starts_with("Incomplete (interrupted): "),
        "{}",
        d.verdict
    );
    assert!(d.certainty < Certainty::Sure);
}

/// Bug: "Incomplete (the server sent text instead of SFTP: ...): Unsure: no transfer could be measured".
#[test]
fn the_reason_why_nothing_was_measured_stood_in_parentheses() {
    let e = Evidence {
        partial: Some("the server sent text instead of SFTP".to_owned()),
        ..Evidence::default()
    };
    let d = diagnose(&e);
    assert_eq!(
        d.verdict,
        "The server sent text instead of SFTP. No transfer could be measured"
    );
    assert!(!d.healthy && d.certainty == Certainty::Unsure);
}

#[test]
fn no_figure_makes_the_rules_fail() {
    let odd = [
        0.0,
        -1.0,
        f64::NAN,
        f64::INFINITY,
        f64::MAX,
        f64::MIN_POSITIVE,
    ];
    for a in odd {
        for b in odd {
            let rung = |n| ThroughputMeasurement {
                connections: n,
                channels: n,
                rate: a,
                rtt: b,
                min_rtt: a,
                loss: b,
                window: u64::MAX,
                held: u64::MAX,
                before_burst: Some(b),
                burst: u64::MAX,
                peer_window: Some((0, u64::MAX)),
                ..ThroughputMeasurement::default()
            };
            let ladder = ThroughputScaling {
                rungs: vec![rung(1), rung(2), rung(0), rung(u32::MAX)],
                loaded: Some(b),
            };
            let e = Evidence {
                expected: Some(b),
                idle: Some(MinMedianMax {
                    low: a,
                    median: b,
                    high: a,
                }),
                up: ladder.clone(),
                down: ladder,
                ..Evidence::default()
            };
            assert!(!diagnose(&e).verdict.is_empty());
        }
    }
}

/// A round trip between 5 and 800 ms, evenly on a logarithmic scale.
fn any_rtt(seed: u64) -> f64 {
    let mut noise = Noise(seed * 104_729 + 7);
    noise.factor();
    let unit = (noise.factor() - 0.97) / 0.06;
    0.005 * 160_f64.powf(unit)
}

#[test]
fn each_fault_is_named_at_any_round_trip() {
    for seed in 1..=60 {
        let rtt = any_rtt(seed);
        for (cause, set) in FAULTS {
            let mut m = Model::new(rtt, link(rtt));
            let rate = set(&mut m);
            let d = diagnosed(&m, seed);
            let first = d.findings.first().expect("a finding");
            assert_eq!(first.cause, *cause, "at {rtt}: {d:#?}");
            if let Some((rate, seen)) = rate.zip(first.limit) {
                assert!(
                    (seen - rate).abs() <= 0.15 * rate,
                    "{cause:?} {rate} {seen}"
                );
            }
        }
    }
}

#[test]
fn a_dip_on_a_short_path_is_no_shaper() {
    for seed in 1..=50 {
        for (queues, again) in [(false, true), (false, false), (true, false)] {
            let mut m = Model::new(0.0001, 1e9);
            m.far_cpu = (!queues).then_some(4e8);
            m.burst = Some(2e9);
            let mut e = m.evidence(seed);
            for rung in e.up.rungs.iter_mut().chain(&mut e.down.rungs) {
                rung.fell_again = again;
            }
            let d = diagnose(&e);
            let shaper = d.findings.iter().any(|f| f.cause == LimitCause::Shaper);
            assert!(!shaper, "{queues} {again}: {d:#?}");
        }
    }
}

#[test]
fn a_fall_is_a_shaper_only_if_a_second_measurement_confirms_it() {
    let mut m = Model::new(0.05, 1e7);
    m.burst = Some(5e7);
    let confirmed = m.evidence(1);
    let with = |change: fn(&mut ThroughputMeasurement)| {
        let mut e = confirmed.clone();
        change(&mut e.up.rungs[0]);
        change(&mut e.down.rungs[0]);
        let d = diagnose(&e);
        let found = d.findings.iter().find(|f| f.cause == LimitCause::Shaper);
        found.map(|f| f.certainty)
    };
    assert_eq!(with(|_| {}), Some(Certainty::Sure));
    assert_eq!(with(|r| r.fell_again = false), Some(Certainty::Likely));
    assert_eq!(with(|r| r.repeated = Some(5e7)), None);
    assert_eq!(with(|r| r.repeated = None), None);
    // Neither a queue nor a loss: the sender itself was slower.
    assert_eq!(with(|r| r.rtt = r.min_rtt), None);
}

#[test]
fn slow_start_that_ends_with_a_random_loss_is_no_shaper() {
    for rtt in RTTS {
        let mut m = Model::new(rtt, link(rtt));
        lossy(&mut m);
        m.burst = Some(m.link / 2.0);
        let d = diagnosed(&m, 2);
        assert_eq!(d.findings[0].cause, LimitCause::Loss, "{d:#?}");
    }
}

#[test]
fn downloads_without_window_scaling_have_no_small_send_buffer() {
    let mut m = Model::new(0.06, 1e8);
    m.our_window = 65_535.0;
    m.e.tcp.as_mut().unwrap().window_scaling = false;
    let d = diagnosed(&m, 1);
    assert_eq!(d.findings[0].cause, LimitCause::NoWindowScaling, "{d:#?}");
    assert_eq!(d.findings[0].direction, Some(DataDirection::Download));
}

#[test]
fn late_packets_of_a_download_are_not_called_lost() {
    let mut m = Model::new(0.06, link(0.06));
    lossy(&mut m);
    let mut e = m.evidence(1);
    for rung in &mut e.up.rungs {
        (rung.rate, rung.loss, rung.reordered) = (m.link, 0.0, 0.02);
        rung.rtt = 1.5 * m.rtt + 0.01;
    }
    let d = diagnose(&e);
    assert_eq!(d.findings[0].cause, LimitCause::Reordering, "{d:#?}");
}

#[test]
fn one_slow_connection_on_a_short_path_is_a_process_and_no_router() {
    let mut m = Model::new(0.0002, 1e9);
    m.flow = Some(1e8);
    let mut e = m.evidence(1);
    for rung in e.up.rungs.iter_mut().chain(&mut e.down.rungs) {
        rung.rtt = rung.min_rtt;
    }
    let d = diagnose(&e);
    assert_eq!(d.findings[0].cause, LimitCause::FarCpu, "{d:#?}");
    assert!(d.findings[0].certainty < Certainty::Sure);
}

#[test]
fn a_busy_server_without_aes_is_slow_because_of_the_cipher() {
    let mut m = Model::new(0.001, 1e9);
    m.far_cpu = Some(2e8);
    let mut e = m.evidence(7);
    e.cipher = Some("chacha20-poly1305@openssh.com".to_owned());
    e.here.cipher_rate = Some(1e9);
    e.here.aes_rate = Some(4e9);
    let cause = |e: &Evidence| diagnose(e).findings[0].cause;
    assert_eq!(cause(&e), LimitCause::FarCpu);
    e.offers_aes = Some(false);
    assert_eq!(cause(&e), LimitCause::SlowCipher);
}

#[test]
fn a_note_does_not_make_a_path_unhealthy() {
    let mut e = Model::new(0.02, 6e6).evidence(3);
    let tcp = e.tcp.as_mut().unwrap();
    (tcp.timestamps, tcp.mss) = (false, 1200);
    let d = diagnose(&e);
    assert!(d.healthy, "{}", d.verdict);
    assert!(
        d.verdict.contains("; note: missing TCP timestamps"),
        "{}",
        d.verdict
    );
    assert_eq!(d.findings.len(), 2);
}

#[test]
fn a_direction_without_room_for_acknowledgements_is_named() {
    let mut e = Model::new(0.02, 6e6).evidence(3);
    for rung in &mut e.down.rungs {
        rung.rate = 0.01 * e.up.rungs[0].rate;
    }
    for rung in e.up.rungs.iter_mut().filter(|r| r.connections > 1) {
        rung.rate *= 1.2;
    }
    let d = diagnose(&e);
    assert!(
        d.findings.iter().any(|f| f.cause == LimitCause::ReturnPath),
        "{d:#?}"
    );
    // A line with a twentieth of the rate in one direction is sold like that.
    for rung in &mut e.down.rungs {
        rung.rate = 0.05 * e.up.rungs[0].rate;
    }
    let d = diagnose(&e);
    assert!(
        d.findings.iter().all(|f| f.cause != LimitCause::ReturnPath),
        "{d:#?}"
    );
}

#[test]
fn a_link_that_one_channel_fills_is_not_the_channel_windows_fault() {
    let mut e = Model::new(0.13, 14e6).evidence(3);
    for rung in &mut e.up.rungs {
        rung.window_blocked = 0.34;
        rung.rtt = 1.2 * rung.min_rtt;
    }
    e.up.rungs[1].rate = 0.9 * e.up.rungs[0].rate;
    let d = diagnose(&e);
    assert!(
        d.findings
            .iter()
            .all(|f| f.cause != LimitCause::ChannelWindow),
        "{d:#?}"
    );
}

#[test]
fn a_server_that_holds_a_whole_window_is_the_limit_also_behind_a_queue() {
    let mut m = Model::new(0.02, 6e7);
    m.far_cpu = Some(3e6);
    let mut e = m.evidence(5);
    for rung in &mut e.up.rungs {
        (rung.rtt, rung.loss) = (0.045, 0.03);
        rung.window = 2 << 20;
        rung.held = u64::from(rung.channels * rung.connections) * (2 << 20);
    }
    assert_eq!(diagnose(&e).findings[0].cause, LimitCause::FarCpu);
}
