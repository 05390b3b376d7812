use std::sync::OnceLock;

use rustix::fs::Mode;

/// Returns the umask of this process, which is read once.
///
/// Linux shows it in /proc; on other systems it can be read only by changing it for a moment, so
/// the first call must come before other threads create files.
pub fn umask() -> u32 {
    static UMASK: OnceLock<u32> = OnceLock::new();
    *UMASK.get_or_init(|| {
        from_proc().unwrap_or_else(|| {
            let mask = rustix::process::umask(Mode::from_raw_mode(0o077));
            rustix::process::umask(mask);
            mask.as_raw_mode()
        })
    })
}

fn from_proc() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}
