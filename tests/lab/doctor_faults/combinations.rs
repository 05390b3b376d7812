//! Paths with rates, round trips, losses, queues and pairs of faults that the rules were not made for:
//! they were chosen after the rules, and judged them.

use super::cases::Case;

pub(super) const COMBINATIONS: &[Case] = &[
    Case {
        name: "other-loss",
        path: "--rate 75Mbit --loss 0.4% --tcp tuned --cc cubic",
        cause: "loss",
        says: "random packet loss",
        at: &[37],
        ..Case::HEALTHY
    },
    Case {
        name: "other-policer",
        path: "--rate 300Mbit --police all=35Mbit/500kB --tcp tuned --cc cubic",
        cause: "policer",
        says: "a policer that drops packets above its rate",
        limit: |_| 4.22,
        at: &[220],
        ..Case::HEALTHY
    },
    Case {
        name: "other-flow-policer",
        path: "--rate 150Mbit --police flow=12Mbit/200kB --tcp tuned --cc cubic",
        cause: "flow_policer",
        says: "a policer for each connection",
        limit: |_| 1.45,
        at: &[45],
        ..Case::HEALTHY
    },
    Case {
        name: "other-shaper",
        path: "--rate 300Mbit --shape all=45Mbit/25MB --tcp tuned --cc cubic",
        cause: "shaper",
        says: "a shaper that slows down after a burst",
        limit: |_| 5.42,
        at: &[90],
        ..Case::HEALTHY
    },
    Case {
        name: "other-flow-cap",
        path: "--rate 400Mbit --shape flow=55Mbit --tcp tuned --cc cubic",
        cause: "flow_cap",
        says: "the network limits each connection",
        limit: |_| 6.63,
        at: &[25],
        ..Case::HEALTHY
    },
    Case {
        name: "other-no-scaling",
        path: "--rate 250Mbit --strip wscale --tcp tuned --cc cubic",
        cause: "no_window_scaling",
        says: "missing TCP window scaling",
        limit: |rtt| 0.065535 / rtt,
        at: &[300],
        ..Case::HEALTHY
    },
    Case {
        name: "other-channel",
        path: "--rate 200Mbit --tcp tuned --cc cubic",
        cause: "channel_window",
        says: "the server's SSH channel window",
        limit: |rtt| 2.097152 / rtt,
        at: &[330],
        ..Case::HEALTHY
    },
    Case {
        name: "other-class",
        path: "--rate 60Mbit --police AF21=8Mbit --tcp tuned --cc cubic",
        cause: "marked_class",
        says: "packets marked AF21 pass at",
        limit: |_| 0.96,
        at: &[18],
        ..Case::HEALTHY
    },
    Case {
        name: "other-bloat",
        path: "--rate 35Mbit --queue 1200ms --tcp tuned --cc cubic",
        cause: "bufferbloat",
        says: "a queue on the path that delays everything else",
        at: &[250],
        ..Case::HEALTHY
    },
    Case {
        name: "other-healthy-stock",
        path: "--rate 40Mbit --tcp stock --cc cubic",
        says: "Nothing wrong",
        at: &[250],
        ..Case::HEALTHY
    },
    Case {
        name: "other-return",
        path: "--rate 90Mbit/2Mbit --cross 0/1500kbit --tcp tuned --cc cubic",
        cause: "return_path",
        says: "a return path without room for acknowledgements",
        at: &[35],
        ..Case::HEALTHY
    },
    Case {
        name: "other-no-sack",
        path: "--rate 120Mbit --strip sack --loss 0.5% --tcp tuned --cc cubic",
        cause: "no_sack",
        says: "without SACK",
        at: &[75],
        ..Case::HEALTHY
    },
    Case {
        name: "other-class-flow",
        path: "--rate 150Mbit --shape flow=15Mbit --police EF=3Mbit --tcp tuned --cc cubic",
        cause: "marked_class",
        says: "then by the network limits each connection",
        then: "flow_cap",
        at: &[80],
        ..Case::HEALTHY
    },
    Case {
        name: "other-policer-channel",
        path: "--rate 150Mbit --police all=25Mbit/400kB --tcp tuned --cc cubic --sshd-option MaxSessions=1",
        cause: "policer",
        says: "a policer that drops packets above its rate",
        limit: |_| 3.01,
        then: "one_channel",
        at: &[100],
        ..Case::HEALTHY
    },
    Case {
        name: "other-class-cap",
        path: "--rate 100Mbit --shape flow=25Mbit --police AF21=6Mbit --tcp tuned --cc cubic",
        cause: "marked_class",
        says: "packets marked AF21 pass at",
        limit: |_| 0.714,
        then: "flow_cap",
        at: &[30],
        ..Case::HEALTHY
    },
    Case {
        name: "other-policer-near-link",
        path: "--rate 30Mbit --police all=26Mbit --far-start 900ms --tcp tuned --cc cubic",
        cause: "policer",
        says: "a policer that drops packets above its rate",
        limit: |_| 3.1,
        then: "slow_login",
        at: &[90],
        ..Case::HEALTHY
    },
    Case {
        name: "other-reorder",
        path: "--rate 120Mbit --reorder 2%/50ms --tcp tuned --cc cubic",
        cause: "reordering",
        says: "packets that overtake each other",
        at: &[25],
        ..Case::HEALTHY
    },
    Case {
        name: "other-recv-buffer",
        path: "--rate 300Mbit --tcp stock --cc cubic",
        cause: "channel_window",
        says: "the server's SSH channel window",
        limit: |rtt| 2.097152 / rtt,
        then: "receive_buffer",
        at: &[240],
        ..Case::HEALTHY
    },
];
