//! Figures in words.

/// Formats a rate in bytes per second, such as `12.5 MB/s`.
pub(crate) fn rate(bytes: f64) -> String {
    match bytes {
        b if b >= 9.95e8 => format!("{:.1} GB/s", b / 1e9),
        b if b >= 9.95e6 => format!("{:.0} MB/s", b / 1e6),
        b if b >= 9.95e4 => format!("{:.1} MB/s", b / 1e6),
        b => format!("{:.0} kB/s", b / 1e3),
    }
}

/// Formats a number of bytes, such as `2.0 MiB`.
pub(crate) fn bytes(bytes: f64) -> String {
    match bytes {
        b if b >= 1_048_576.0 => format!("{:.1} MiB", b / 1_048_576.0),
        b => format!("{:.0} KiB", b / 1024.0),
    }
}

/// Formats seconds, such as `114 ms`.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 9.95 => format!("{s:.0} s"),
        s if s >= 0.9995 => format!("{s:.1} s"),
        s if s >= 9.95e-3 => format!("{:.0} ms", s * 1e3),
        s => format!("{:.1} ms", s * 1e3),
    }
}

/// Formats a share as a percentage.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p >= 9.95 => format!("{p:.0} %"),
        p if p >= 0.095 => format!("{p:.1} %"),
        p => format!("{p:.3} %"),
    }
}
