//! Paths with a fault, or two, and healthy ones.

/// A fault of a lab's path, and what is to be said.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Flags of the lab, without `--rtt`.
    pub(super) path: &'static str,
    /// Round trip of the short run in milliseconds.
    pub(super) rtt: u32,
    pub(super) doctor: &'static str,
    /// Name in JSON; empty for a healthy path.
    pub(super) cause: &'static str,
    /// Words of the first sentence.
    pub(super) says: &'static str,
    /// Limit in MB/s of payload for this round trip in seconds; 0 if it costs time only.
    pub(super) limit: fn(f64) -> f64,
    /// Payload rate in MB/s that is measured in both directions; 0 if it is not checked.
    pub(super) carries: f64,
    /// Cause that is found as well, behind the first one.
    pub(super) then: &'static str,
    /// Round trips of the matrix in milliseconds.
    pub(super) at: &'static [u32],
}

impl Case {
    /// A healthy path without flags, for cases to start from.
    pub(super) const HEALTHY: Self = Self {
        name: "",
        path: "",
        rtt: 20,
        doctor: "",
        cause: "",
        says: "",
        limit: NO_LIMIT,
        carries: 0.0,
        then: "",
        at: EVERYWHERE,
    };
}

/// Round trips of the matrix.
const EVERYWHERE: &[u32] = &[10, 60, 150, 600];

/// Round trips at which the default time is enough for the DSCP classes. At 600 ms even 180 s leave
/// time for one pair, in which slow start hides half of the difference.
const WITH_CLASSES: &[u32] = &[10, 60, 150];

/// Round trips below which a queue of 800 ms is far longer than one round trip, as a connection needs
/// to fill a link. The case `bufferbloat-far` has a longer queue.
const BELOW_THE_QUEUE: &[u32] = &[10, 60, 150];

pub(super) const NO_LIMIT: fn(f64) -> f64 = |_| 0.0;

/// A middlebox that drops all packets of a connection after some bytes, without a reset.
const MIDDLEBOX_STALL: Case = Case {
    name: "middlebox-stall",
    path: "--rate 100Mbit --middlebox stall=15MB",
    rtt: 20,
    doctor: "--time 12s",
    cause: "middlebox",
    says: "was silent after",
    limit: NO_LIMIT,
    ..Case::HEALTHY
};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "black-hole",
        path: "--rate 50Mbit --black-hole 1000",
        rtt: 20,
        doctor: "--time 9s",
        cause: "mtu_black_hole",
        says: "large packets vanish on the way",
        limit: NO_LIMIT,
        ..Case::HEALTHY
    },
    Case {
        name: "middlebox-reset",
        path: "--rate 100Mbit --middlebox reset=20MB",
        rtt: 20,
        doctor: "--time 12s",
        cause: "middlebox",
        says: "was reset after",
        limit: NO_LIMIT,
        ..Case::HEALTHY
    },
    MIDDLEBOX_STALL,
    // The connection is silent from the end of the first load on, so that the next request has no
    // answer.
    Case {
        name: "middlebox-stall-late",
        path: "--rate 100Mbit --middlebox stall=20MB",
        ..MIDDLEBOX_STALL
    },
    Case {
        name: "no-window-scaling",
        path: "--rate 100Mbit --strip wscale --tcp tuned",
        rtt: 60,
        doctor: "--time 14s",
        cause: "no_window_scaling",
        says: "missing TCP window scaling",
        limit: |rtt| 0.065535 / rtt,
        ..Case::HEALTHY
    },
    Case {
        name: "no-sack",
        path: "--rate 200Mbit --strip sack --loss 1% --tcp tuned --cc cubic",
        rtt: 30,
        doctor: "--time 14s",
        cause: "no_sack",
        says: "without SACK",
        limit: NO_LIMIT,
        ..Case::HEALTHY
    },
    Case {
        name: "loss",
        path: "--rate 200Mbit --loss 1% --tcp tuned --cc cubic",
        rtt: 30,
        doctor: "--time 14s",
        cause: "loss",
        says: "random packet loss",
        limit: NO_LIMIT,
        ..Case::HEALTHY
    },
    Case {
        name: "policer",
        path: "--rate 200Mbit --police all=20Mbit/300kB --tcp tuned --cc cubic",
        rtt: 30,
        doctor: "--time 16s",
        cause: "policer",
        says: "a policer that drops packets above its rate",
        limit: |_| 2.41,
        ..Case::HEALTHY
    },
    // Slow start fills the queue of the link before the bucket is empty.
    Case {
        name: "policer-near-link",
        path: "--rate 50Mbit --police all=42Mbit/400kB --tcp tuned --cc cubic",
        cause: "policer",
        says: "a policer that drops packets above its rate",
        limit: |_| 5.0,
        at: &[60, 150],
        ..Case::HEALTHY
    },
    Case {
        name: "shaper",
        path: "--rate 200Mbit --shape all=20Mbit/12MB --tcp tuned --cc cubic",
        rtt: 30,
        doctor: "--time 24s",
        cause: "shaper",
        says: "a shaper that slows down after a burst",
        limit: |_| 2.41,
        ..Case::HEALTHY
    },
    Case {
        name: "flow-cap",
        path: "--rate 200Mbit --shape flow=20Mbit --tcp tuned --cc cubic",
        rtt: 30,
        doctor: "--time 14s",
        cause: "flow_cap",
        says: "the network limits each connection",
        limit: |_| 2.41,
        ..Case::HEALTHY
    },
    Case {
        name: "flow-policer",
        path: "--rate 200Mbit --police flow=20Mbit/300kB --tcp tuned --cc cubic",
        rtt: 30,
        doctor: "--time 20s",
        cause: "flow_policer",
        says: "a policer for each connection",
        limit: |_| 2.41,
        ..Case::HEALTHY
    },
    Case {
        name: "slow-login",
        path: "--rate 20Mbit --far-start 900ms --tcp tuned --cc cubic",
        rtt: 20,
        doctor: "--time 12s",
        cause: "slow_login",
        says: "a slow step of the login (the SFTP server's start takes",
        limit: NO_LIMIT,
        ..Case::HEALTHY
    },
    Case {
        name: "bufferbloat",
        path: "--rate 20Mbit --queue 800ms --tcp tuned --cc cubic",
        rtt: 20,
        doctor: "--time 14s",
        cause: "bufferbloat",
        says: "a queue on the path that delays everything else",
        limit: NO_LIMIT,
        at: BELOW_THE_QUEUE,
        ..Case::HEALTHY
    },
    Case {
        name: "bufferbloat-far",
        path: "--rate 4Mbit --queue 3s --tcp tuned --cc cubic",
        rtt: 600,
        cause: "bufferbloat",
        says: "a queue on the path that delays everything else",
        at: &[600],
        ..Case::HEALTHY
    },
    Case {
        name: "login-limit",
        path: "--rate 20Mbit --tcp tuned --cc cubic --sshd-option MaxStartups=1:100:1",
        rtt: 20,
        doctor: "--time 12s",
        cause: "login_limit",
        says: "the server refuses parallel logins",
        limit: NO_LIMIT,
        ..Case::HEALTHY
    },
    Case {
        name: "expectation",
        path: "--rate 20Mbit --tcp tuned --cc cubic",
        rtt: 20,
        doctor: "--time 12s --expect 1Gbit",
        cause: "below_expectation",
        says: "a path that carries less than expected",
        limit: |_| 2.41,
        ..Case::HEALTHY
    },
    Case {
        name: "healthy-short",
        path: "--rate 100Mbit --tcp tuned --cc cubic",
        rtt: 1,
        doctor: "--time 14s",
        cause: "",
        says: "Nothing wrong: the path carries",
        limit: NO_LIMIT,
        carries: 11.9,
        at: &[1, 10],
        ..Case::HEALTHY
    },
    Case {
        name: "healthy-long",
        path: "--rate 50Mbit --tcp tuned --cc cubic",
        rtt: 60,
        doctor: "--time 18s",
        cause: "",
        says: "Nothing wrong: the path carries",
        limit: NO_LIMIT,
        carries: 5.95,
        at: &[60],
        ..Case::HEALTHY
    },
    Case {
        name: "healthy-gigabit",
        path: "--rate 1Gbit --tcp tuned --cc cubic",
        rtt: 1,
        doctor: "--time 20s",
        says: "Nothing wrong",
        at: &[1],
        ..Case::HEALTHY
    },
    Case {
        name: "healthy-far",
        path: "--rate 20Mbit --tcp tuned --cc cubic",
        rtt: 150,
        says: "Nothing wrong",
        at: &[150],
        ..Case::HEALTHY
    },
    Case {
        name: "healthy-satellite",
        path: "--rate 10Mbit --tcp tuned --cc cubic",
        rtt: 600,
        says: "Nothing wrong",
        at: &[600],
        ..Case::HEALTHY
    },
    Case {
        name: "fq-codel",
        path: "--rate 50Mbit --queue fq-codel --tcp tuned --cc cubic",
        doctor: "--time 18s",
        says: "Nothing wrong",
        at: &[10, 60],
        ..Case::HEALTHY
    },
    Case {
        name: "small-segments",
        path: "--rate 50Mbit --mss 1200 --tcp tuned --cc cubic",
        doctor: "--time 14s",
        says: "note: segments that are smaller than Ethernet's",
        at: &[10, 60],
        ..Case::HEALTHY
    },
    Case {
        name: "no-timestamps",
        path: "--rate 50Mbit --strip timestamps --tcp tuned --cc cubic",
        doctor: "--time 14s",
        says: "note: missing TCP timestamps",
        at: &[10, 60],
        ..Case::HEALTHY
    },
    Case {
        name: "channel-window",
        path: "--rate 400Mbit --tcp tuned --cc cubic",
        rtt: 100,
        doctor: "--time 18s",
        cause: "channel_window",
        says: "the server's SSH channel window",
        limit: |rtt| 2.097152 / rtt,
        at: &[60, 150, 600],
        ..Case::HEALTHY
    },
    Case {
        name: "marked-class",
        path: "--rate 100Mbit --police CS1=10Mbit --tcp tuned --cc cubic",
        rtt: 10,
        cause: "marked_class",
        says: "packets marked CS1 pass at",
        limit: |_| 1.2,
        at: WITH_CLASSES,
        ..Case::HEALTHY
    },
    Case {
        name: "policed-class-slow",
        path: "--rate 50Mbit --police EF=4Mbit --tcp tuned --cc cubic",
        cause: "marked_class",
        says: "packets marked EF pass at",
        limit: |_| 0.476,
        at: WITH_CLASSES,
        ..Case::HEALTHY
    },
    Case {
        name: "shaped-class",
        path: "--rate 50Mbit --shape AF21=6Mbit --tcp tuned --cc cubic",
        cause: "marked_class",
        says: "packets marked AF21 pass at",
        limit: |_| 0.714,
        at: WITH_CLASSES,
        ..Case::HEALTHY
    },
    Case {
        name: "one-channel",
        path: "--rate 20Mbit --tcp tuned --cc cubic --sshd-option MaxSessions=1",
        doctor: "--time 14s",
        cause: "one_channel",
        says: "the server admits one channel per connection",
        ..Case::HEALTHY
    },
    Case {
        name: "return-path",
        path: "--rate 50Mbit/1Mbit --cross 0/700kbit --tcp tuned --cc cubic",
        doctor: "--time 20s",
        cause: "return_path",
        says: "a return path without room for acknowledgements",
        at: &[10, 60],
        ..Case::HEALTHY
    },
    Case {
        name: "reordering",
        path: "--rate 200Mbit --reorder 3%/40ms --tcp tuned --cc cubic",
        rtt: 30,
        doctor: "--time 14s",
        cause: "reordering",
        says: "packets that overtake each other",
        at: &[10, 60],
        ..Case::HEALTHY
    },
    Case {
        name: "far-cpu",
        path: "--rate 500Mbit --far-cpu 10% --tcp tuned --cc cubic",
        rtt: 10,
        cause: "far_cpu",
        says: "the server's processor",
        at: &[10],
        ..Case::HEALTHY
    },
    Case {
        name: "slow-cipher",
        path: "--tcp tuned --sshd-option Ciphers=chacha20-poly1305@openssh.com",
        rtt: 1,
        cause: "slow_cipher",
        says: "the cipher",
        at: &[1],
        ..Case::HEALTHY
    },
    Case {
        name: "far-disk",
        path: "--rate 200Mbit --far-disk 4MB --tcp tuned --cc cubic",
        doctor: "--time 24s :DISK",
        cause: "far_disk",
        says: "the server's disk",
        limit: |_| 4.0,
        at: &[10, 60],
        ..Case::HEALTHY
    },
    Case {
        name: "class-then-flow",
        path: "--rate 200Mbit --shape flow=20Mbit --police CS1=5Mbit --tcp tuned --cc cubic",
        rtt: 30,
        cause: "marked_class",
        says: "then by the network limits each connection",
        then: "flow_cap",
        at: WITH_CLASSES,
        ..Case::HEALTHY
    },
    Case {
        name: "window-then-buffer",
        path: "--rate 400Mbit --tcp stock --cc cubic",
        rtt: 150,
        cause: "channel_window",
        says: "the server's SSH channel window",
        limit: |rtt| 2.097152 / rtt,
        then: "receive_buffer",
        at: &[150],
        ..Case::HEALTHY
    },
    Case {
        name: "loss-then-login",
        path: "--rate 200Mbit --loss 1% --far-start 900ms --tcp tuned --cc cubic",
        rtt: 30,
        cause: "loss",
        says: "random packet loss",
        then: "slow_login",
        ..Case::HEALTHY
    },
    Case {
        name: "scaling-then-login",
        path: "--rate 100Mbit --strip wscale --far-start 900ms --tcp tuned --cc cubic",
        rtt: 60,
        cause: "no_window_scaling",
        says: "missing TCP window scaling",
        limit: |rtt| 0.065535 / rtt,
        then: "slow_login",
        at: &[60, 150, 600],
        ..Case::HEALTHY
    },
    Case {
        name: "flow-then-channel",
        path: "--rate 200Mbit --shape flow=20Mbit --tcp tuned --cc cubic --sshd-option MaxSessions=1",
        rtt: 30,
        cause: "flow_cap",
        says: "the network limits each connection",
        limit: |_| 2.41,
        then: "one_channel",
        ..Case::HEALTHY
    },
    Case {
        name: "policer-then-login",
        path: "--rate 200Mbit --police all=20Mbit/300kB --far-start 900ms --tcp tuned --cc cubic",
        rtt: 30,
        cause: "policer",
        says: "a policer that drops packets above its rate",
        limit: |_| 2.41,
        then: "slow_login",
        ..Case::HEALTHY
    },
];
