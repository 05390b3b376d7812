/// Socket buffers, as settings of a network namespace. The limits in net.core belong to the whole
/// machine, and apply only to programs that set their buffers themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpBufferSettings {
    /// Defaults of Linux: a window of at most 6 MiB, of which data gets about half. The values are
    /// explicit, since newer kernels (6.18: 32 MiB) and distributions differ.
    Stock,
    /// Defaults of Linux since 6.16 (commit 572be9bf9d0d): a window of at most 32 MiB, and the same
    /// send buffer as before.
    StockSince616,
    /// A data-transfer node, after ESnet's advice for paths of up to 200 ms (fasterdata.es.net,
    /// "Linux Tuning"), with the larger buffer of 128 MiB in both directions.
    Tuned,
}

impl TcpBufferSettings {
    /// (name, buffers), for parsing and help.
    pub const NAMES: [(&str, Self); 3] = [
        ("stock", Self::Stock),
        ("stock-6.16", Self::StockSince616),
        ("tuned", Self::Tuned),
    ];

    /// Settings as (path below /proc/sys, value).
    pub fn sysctls(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Stock => &[
                ("net/ipv4/tcp_rmem", "4096 131072 6291456"),
                ("net/ipv4/tcp_wmem", "4096 16384 4194304"),
            ],
            Self::StockSince616 => &[
                ("net/ipv4/tcp_rmem", "4096 131072 33554432"),
                ("net/ipv4/tcp_wmem", "4096 16384 4194304"),
            ],
            Self::Tuned => &[
                ("net/ipv4/tcp_rmem", "4096 131072 134217728"),
                ("net/ipv4/tcp_wmem", "4096 65536 134217728"),
                ("net/ipv4/tcp_no_metrics_save", "1"),
                ("net/ipv4/tcp_mtu_probing", "1"),
            ],
        }
    }
}
