//! Tests of path options, and of the messages about impossible ones.

use std::time::Duration;

use lab::path::{
    BitRate, Dscp, LimitScope, NAMED, NetworkPathSpec, OPTIONS, QueueCapacity, TcpBufferSettings,
};

fn build(options: &[(&str, &str)]) -> Result<NetworkPathSpec, String> {
    NetworkPathSpec::build(None, options.iter().copied()).map_err(|error| error.to_string())
}

fn one(name: &str, value: &str) -> Result<NetworkPathSpec, String> {
    build(&[(name, value)])
}

#[test]
fn units() {
    for (text, nanoseconds) in [
        ("0", 0),
        ("114ms", 114_000_000),
        ("1.5s", 1_500_000_000),
        ("200us", 200_000),
        ("0.5 ms", 500_000),
        ("1min", 60_000_000_000),
    ] {
        // A slow link, so that no delay exceeds the limit of bytes in flight.
        let path = build(&[("rate", "1Mbit"), ("rtt", text)]).expect(text);
        assert_eq!(path.rtt, Duration::from_nanos(nanoseconds), "{text}");
    }
    for (text, there, back) in [
        ("1Gbit", 1_000_000_000, 1_000_000_000),
        ("1Gbit/100Mbit", 1_000_000_000, 100_000_000),
        ("1Gbit/s", 1_000_000_000, 1_000_000_000),
        ("1gbit/s/2.5mbit/s", 1_000_000_000, 2_500_000),
        ("9600bit", 9600, 9600),
        ("10Mbps", 10_000_000, 10_000_000),
    ] {
        let rates = one("rate", text).expect(text).rate;
        assert_eq!(rates, [there, back].map(BitRate::from_bits), "{text}");
    }
    for (text, queue) in [
        ("64kB", QueueCapacity::Bytes(64_000)),
        ("2MiB", QueueCapacity::Bytes(2 << 20)),
        ("50ms", QueueCapacity::Time(Duration::from_millis(50))),
    ] {
        assert_eq!(one("queue", text).expect(text).queue, queue, "{text}");
    }
    let loss = one("loss", "0.5%/4").expect("a loss").loss;
    assert_eq!((loss.share.get(), loss.burst), (0.005, Some(4.0)));
    let policer = one("police", "af21=500kbit").expect("a policer").police[0];
    assert_eq!(
        (policer.scope.to_string(), policer.rate, policer.burst),
        ("AF21".to_owned(), BitRate::from_bits(500_000), None)
    );
    assert_eq!(
        one("police", "5=1Mbit").expect("a number").police[0].scope,
        LimitScope::Class(Dscp::new(5))
    );
}

#[test]
fn every_refusal_is_one_sentence_that_names_the_option() {
    for (name, value, says) in [
        ("rtt", "114", "has no unit"),
        ("rtt", "-5ms", "is not a time"),
        ("rtt", "NaNms", "is not a time"),
        ("rtt", "1e3ms", "is not a time"),
        ("rtt", "infs", "is not a time"),
        ("rtt", "1.2.3s", "is not a time"),
        ("rtt", "2000min", "more than a day"),
        ("rtt", "", "is not a time"),
        ("rate", "0Mbit", "needs a rate"),
        ("rate", "0.0001bit", "needs a rate"),
        ("rate", "100Mbit/0bit", "needs a rate"),
        ("rate", "1/2/3", "neither a rate nor two"),
        ("rate", "5 parsecs", "is not a rate"),
        ("rate", "99Tbit", "is more than 10 Tbit/s"),
        ("loss", "100%", "must be below 100%"),
        ("loss", "1", "has no unit: write 1%"),
        ("loss", "-1%", "is not a percentage"),
        ("loss", "NaN%", "is not a percentage"),
        ("loss", "1%/0", "has no burst length"),
        ("loss", "90%/2", "bursts of 2 packets"),
        ("duplicate", "200%", "below 100%"),
        ("reorder", "1%/5", "has no unit"),
        ("queue", "much", "neither a size such as 2MB, nor a time"),
        ("queue", "1kB", "cannot hold one packet of 1500"),
        ("mtu", "575", "from 576 to 65535"),
        ("mtu", "65536", "from 576 to 65535"),
        ("police", "CS9=1Mbit", "has an unknown DSCP"),
        ("police", "CS1", "CS1=10Mbit"),
        ("police", "CS1=0bit", "needs a rate"),
        ("seed", "x", "is not a number"),
        ("block", "80,", "not a list of ports"),
        ("block", "90-80", "not a list of ports"),
        ("block", "0", "not a list of ports"),
        ("block", "70000", "not a list of ports"),
        ("at", "5s", "5s blackout=3s"),
        ("at", "reset 5s", "5s blackout=3s"),
        ("at", "5s blackout=0", "has a length of zero"),
        ("tcp", "fast", "neither stock, stock-6.16 nor tuned"),
        ("cc", "../../x", "is not the name of a congestion control"),
        ("colour", "red", "unknown path option --colour"),
    ] {
        let error = one(name, value).expect_err(value);
        assert!(error.contains(says), "{error}");
        assert!(error.contains(&format!("--{name}")), "{error}");
        assert!(!error.contains('\n') && !error.ends_with('.'), "{error}");
    }
}

#[test]
fn impossible_combinations() {
    for (options, says) in [
        (
            &[("rtt", "10ms"), ("jitter", "6ms")][..],
            "before they are sent",
        ),
        (&[("rtt", "60s"), ("rate", "10Gbit")], "in flight"),
        (
            &[("at", "5s blackout=3s"), ("at", "7s blackout=1s")],
            "overlaps with",
        ),
    ] {
        let error = build(options).expect_err(says);
        assert!(error.contains(says), "{error}");
    }
    assert!(build(&[("at", "5s blackout=3s"), ("at", "8s blackout=1s")]).is_ok());
}

#[test]
fn unknown_paths_list_the_known_ones() {
    let error = NetworkPathSpec::build(Some("mars"), [])
        .expect_err("not yet")
        .to_string();
    for path in NAMED {
        assert!(error.contains(path.name), "{error}");
        assert!(
            NetworkPathSpec::build(Some(path.name), []).is_ok(),
            "{}",
            path.name
        );
    }
}

#[test]
fn options_override_the_named_path() {
    let options = [
        ("rtt", "30ms"),
        ("police", "CS1=5Mbit"),
        ("police", "LE=1Mbit"),
    ];
    let path = NetworkPathSpec::build(Some("policed-uplink"), options).expect("a path");
    assert_eq!(path.rtt, Duration::from_millis(30));
    assert_eq!(path.rate, [BitRate::from_bits(120_000_000); 2]);
    let policers: Vec<_> = path
        .police
        .iter()
        .map(|p| (p.scope.to_string(), p.rate.bits()))
        .collect();
    assert_eq!(
        policers,
        [("CS1".into(), 5_000_000), ("LE".into(), 1_000_000)]
    );
}

#[test]
fn the_table_of_options_is_sound() {
    let names: Vec<_> = OPTIONS.iter().map(|option| option.name).collect();
    for (at, option) in OPTIONS.iter().enumerate() {
        assert!(!names[..at].contains(&option.name), "{} twice", option.name);
        assert!(
            !option.help.ends_with('.') && option.help.len() < 100,
            "{}",
            option.name
        );
    }
}

#[test]
fn settings_of_the_namespaces() {
    let path = build(&[("tcp", "stock"), ("cc", "bbr")]).expect("a path");
    assert_eq!(
        path.sysctls(),
        [
            ("net/ipv4/tcp_rmem", "4096 131072 6291456"),
            ("net/ipv4/tcp_wmem", "4096 16384 4194304"),
            ("net/ipv4/tcp_congestion_control", "bbr"),
        ]
    );
    assert_eq!(build(&[]).expect("a path").sysctls(), []);
    assert_eq!(
        one("tcp", "tuned").expect("a path").tcp,
        Some(TcpBufferSettings::Tuned)
    );
}
