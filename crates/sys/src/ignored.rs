//! Signals that this process ignores.

/// Returns the mask of ignored signals, bit 0 for signal 1; 0 on a system without /proc. Before
/// handlers are installed it shows what the process inherited: SIGHUP under nohup, SIGINT for a
/// background job of a script.
pub fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    mask(&status)
}

fn mask(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_mask() {
        assert_eq!(
            mask("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t00\n"),
            0x1001
        );
        assert_eq!(mask(""), 0);
    }
}
