/// Predefined path: a set of path options under a name, which further options can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedNetworkPath {
    /// Name for `--path`.
    pub name: &'static str,
    /// Description in one line, for help and docs.
    pub about: &'static str,
    /// The options, as on a command line, without dashes.
    pub options: &'static [(&'static str, &'static str)],
}

/// All predefined paths. Help, docs and an error's list come from here.
pub const NAMED: &[NamedNetworkPath] = &[
    NamedNetworkPath {
        name: "transatlantic",
        about: "1 Gbit/s and 114 ms, as between Europe and the American east or middle",
        options: &[("rtt", "114ms"), ("rate", "1Gbit")],
    },
    NamedNetworkPath {
        // Public ping statistics of clouds and hosts in the two cities show 220 to 250 ms: the
        // cables pass Suez or America.
        name: "tokyo-frankfurt",
        about: "1 Gbit/s and 235 ms",
        options: &[("rtt", "235ms"), ("rate", "1Gbit")],
    },
    NamedNetworkPath {
        name: "policed-uplink",
        about: "120 Mbit/s and 10 ms; CS1, with which ssh marks bulk data, is limited to 10 Mbit/s",
        options: &[
            ("rtt", "10ms"),
            ("rate", "120Mbit"),
            ("police", "CS1=10Mbit"),
        ],
    },
    NamedNetworkPath {
        name: "lossy-wifi",
        about: "150 Mbit/s, 20 ms with 5 ms of jitter, 1 % loss in bursts, some reordering",
        options: &[
            ("rtt", "20ms"),
            ("jitter", "5ms"),
            ("rate", "150Mbit"),
            ("loss", "1%/4"),
            ("reorder", "0.1%/2ms"),
        ],
    },
    NamedNetworkPath {
        name: "satellite",
        about: "300 Mbit/s and 600 ms, geostationary, without an accelerator",
        options: &[("rtt", "600ms"), ("rate", "300Mbit")],
    },
    NamedNetworkPath {
        name: "lan10g",
        about: "10 Gbit/s and 0.2 ms",
        options: &[("rtt", "200us"), ("rate", "10Gbit")],
    },
];
