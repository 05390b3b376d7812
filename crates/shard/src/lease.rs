//! Text file by which a worker holds a shard.

use crate::text::{is_hex, line, number, split, unescaped};

const FIRST: &str = "longhaul-lease 1";
/// Longest name of a host or other text that is believed, in bytes.
const LONGEST: usize = 256;
/// Longest time without renewal after which a lease expires, in seconds.
const LONGEST_TIME: u64 = 24 * 3600;

/// State of a shard, by its newest lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardState {
    /// A worker copies it.
    Running,
    /// A worker stopped before the end and can be followed by another.
    Stopped,
    /// A worker came to the end, and some files failed.
    Failed,
    /// All files are at the target.
    Done,
}

impl ShardState {
    const ALL: [Self; 4] = [Self::Running, Self::Stopped, Self::Failed, Self::Done];

    /// Returns the state's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Done => "done",
        }
    }
}

/// Process that holds a lease, as far as another one can tell if it still runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HolderProcess {
    /// Host name, for messages.
    pub host: String,
    /// Boot ID of the kernel; empty if unknown.
    pub boot: String,
    /// Process namespace; empty if unknown.
    pub namespace: String,
    /// Process ID.
    pub process: u64,
    /// Start time of the process in the kernel's unit; 0 if unknown.
    pub start: u64,
}

impl HolderProcess {
    /// True if a process ID means the same here and there. Containers of one machine have one boot
    /// ID and process IDs of their own.
    pub fn shares_processes_with(&self, other: &Self) -> bool {
        let same = |a: &str, b: &str| !a.is_empty() && a == b;
        same(&self.boot, &other.boot) && same(&self.namespace, &other.namespace)
    }
}

/// Files, bytes and failures that one worker has counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardWorkerCounts {
    /// Files copied by this worker.
    pub files: u64,
    /// Bytes of file data that this worker moved.
    pub bytes: u64,
    /// Files and symlinks that were at the target already.
    pub unchanged: u64,
    /// Entries that failed, with those that changed.
    pub failed: u64,
    /// Entries that have changed since the plan was made.
    pub changed: u64,
}

/// Lease of a shard: one worker has the shard until it ends or stops renewing the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Identifier of the plan.
    pub plan: String,
    /// Number of the shard.
    pub shard: u32,
    /// Fencing number: each worker of a shard has a larger one than those before.
    pub fence: u64,
    /// State of the shard.
    pub state: ShardState,
    /// Number of renewals.
    pub beat: u64,
    /// Seconds without renewal after which another worker may take the shard.
    pub seconds: u64,
    /// Process of the worker.
    pub place: HolderProcess,
    /// Results of the worker.
    pub figures: ShardWorkerCounts,
    /// First failure in words; empty if there is none.
    pub reason: Vec<u8>,
}

impl Lease {
    /// Writes the lease.
    pub fn write(&self) -> String {
        let mut text = format!("{FIRST}\n");
        let place = &self.place;
        line(&mut text, "plan", self.plan.as_bytes());
        text.push_str(&format!("state {}\n", self.state.name()));
        line(&mut text, "host", place.host.as_bytes());
        line(&mut text, "boot", place.boot.as_bytes());
        line(&mut text, "namespace", place.namespace.as_bytes());
        let figures = &self.figures;
        for (name, value) in [
            ("shard", u64::from(self.shard)),
            ("fence", self.fence),
            ("beat", self.beat),
            ("seconds", self.seconds),
            ("process", place.process),
            ("start", place.start),
            ("files", figures.files),
            ("bytes", figures.bytes),
            ("unchanged", figures.unchanged),
            ("failed", figures.failed),
            ("changed", figures.changed),
        ] {
            text.push_str(&format!("{name} {value}\n"));
        }
        line(&mut text, "reason", &self.reason);
        text.push_str("end\n");
        text
    }

    /// Parses a lease; `None` if it is incomplete or no lease.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut lines = text.strip_suffix("\nend\n")?.split('\n');
        (lines.next()? == FIRST).then_some(())?;
        let mut value = |name: &str| {
            let (found, value) = split(lines.next()?);
            (found == name).then_some(value)
        };
        let plan = value("plan").filter(|plan| is_hex(plan, 64))?.to_owned();
        let state = value("state")?;
        let state = ShardState::ALL.into_iter().find(|s| s.name() == state)?;
        let mut word = |name: &str| {
            let bytes = unescaped(value(name)?)?;
            String::from_utf8(bytes)
                .ok()
                .filter(|word| word.len() <= LONGEST)
        };
        let host = word("host")?;
        let boot = word("boot")?;
        let namespace = word("namespace")?;
        let mut count = |name: &str| number(value(name)?);
        let lease = Self {
            plan,
            state,
            shard: u32::try_from(count("shard")?).ok()?,
            fence: count("fence")?,
            beat: count("beat")?,
            seconds: count("seconds")?.clamp(1, LONGEST_TIME),
            place: HolderProcess {
                host,
                boot,
                namespace,
                process: count("process")?,
                start: count("start")?,
            },
            figures: ShardWorkerCounts {
                files: count("files")?,
                bytes: count("bytes")?,
                unchanged: count("unchanged")?,
                failed: count("failed")?,
                changed: count("changed")?,
            },
            reason: unescaped(value("reason")?)?,
        };
        lines.next().is_none().then_some(lease)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn lease(fence: u64, state: ShardState) -> Lease {
        Lease {
            plan: "0123456789abcdef".repeat(4),
            shard: 3,
            fence,
            state,
            beat: 4,
            seconds: 30,
            place: HolderProcess {
                host: "node 1\u{e9}".to_owned(),
                boot: "b-1".to_owned(),
                namespace: "pid:[4026531836]".to_owned(),
                process: 55,
                start: 66,
            },
            figures: ShardWorkerCounts {
                files: 1,
                bytes: 2,
                unchanged: 3,
                failed: 4,
                changed: 5,
            },
            reason: b"a: broken\n\xff".to_vec(),
        }
    }

    #[test]
    fn a_lease_survives_its_text_and_a_cut_is_noticed() {
        for state in ShardState::ALL {
            let lease = lease(9, state);
            let text = lease.write();
            assert_eq!(Lease::parse(text.as_bytes()), Some(lease));
            for at in 0..text.len() {
                assert_eq!(Lease::parse(&text.as_bytes()[..at]), None, "cut at {at}");
            }
        }
    }

    /// Containers on one machine count process IDs by themselves.
    #[test]
    fn a_process_of_another_container_is_not_taken_for_dead() {
        let place = lease(1, ShardState::Running).place;
        let mut other = place.clone();
        assert!(place.shares_processes_with(&other));
        other.namespace = "pid:[7]".to_owned();
        assert!(!place.shares_processes_with(&other));
        assert!(!HolderProcess::default().shares_processes_with(&HolderProcess::default()));
    }
}
