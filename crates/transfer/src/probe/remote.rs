//! Facts about the server that a shell there reports.

use diagnose::MachineFacts;

/// Prefix of result lines, which distinguishes them from output of startup files.
const LINE: &str = "longhaul-doctor ";
/// Largest socket buffer that is believed.
const MOST: u64 = 1 << 40;

/// Command for every login shell: no quotes, backslashes or exclamation marks inside. The kernel
/// gives a sysctl file in one read only, and dash reads byte by byte, so that cat reads it.
pub(super) const COMMAND: &str = "exec sh -c 'r() { x=`cat $1` && echo longhaul-doctor $2 $x; }; \
    echo; echo longhaul-doctor kernel `uname -s` `uname -r`; r /proc/sys/net/ipv4/tcp_rmem rmem; \
    r /proc/sys/net/ipv4/tcp_wmem wmem; r /proc/pressure/cpu pressure; \
    g=; while IFS=: read -r a b c; do [ $a = 0 ] && g=$c; done </proc/self/cgroup; \
    while read -r k v; do case $k in nr_*) echo longhaul-doctor $k $v;; esac; \
    done </sys/fs/cgroup$g/cpu.stat' 2>/dev/null";

/// Facts about the server's machine that a shell there reported at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RemoteFacts {
    machine: MachineFacts,
    quota: Option<CgroupQuotaPeriods>,
}

/// Periods of a cgroup's processor quota, and those in which it was used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CgroupQuotaPeriods {
    periods: u64,
    throttled: u64,
}

impl CgroupQuotaPeriods {
    /// Returns the share of throttled periods since an earlier count; `None` if no period has
    /// passed or the counts are of different cgroups.
    pub(super) fn share_since(self, before: Self) -> Option<f64> {
        let periods = self.periods.checked_sub(before.periods)?;
        let throttled = self.throttled.checked_sub(before.throttled)?;
        (periods > 0).then(|| (throttled as f64 / periods as f64).min(1.0))
    }

    /// Reads the count of this process's cgroup.
    pub(super) fn of_this_machine() -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let group = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        let stat = std::fs::read_to_string(format!("/sys/fs/cgroup{group}/cpu.stat")).ok()?;
        Self::read(&stat)
    }

    /// Reads the lines of cpu.stat.
    fn read(stat: &str) -> Option<Self> {
        let of = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse().ok()
        };
        Some(Self {
            periods: of("nr_periods ")?,
            throttled: of("nr_throttled ")?,
        })
    }
}

/// Share of the last 10 seconds in which processes of this machine waited for a processor.
pub(super) fn own_pressure() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
    share(text.strip_prefix("some ")?.split_whitespace().next()?)
}

impl RemoteFacts {
    /// Returns the facts about the server's machine.
    pub(super) fn machine(&self) -> &MachineFacts {
        &self.machine
    }

    /// Completes these facts with those of a later moment: the share of throttled periods between
    /// both, and the later pressure.
    pub(super) fn until(mut self, later: &Self) -> MachineFacts {
        let counts = self.quota.zip(later.quota);
        self.machine.throttled = counts.and_then(|(then, now)| now.share_since(then));
        self.machine.pressure = later.machine.pressure;
        self.machine
    }
}

/// Reads the command's output. The server chooses everything in it, so all values are bounded.
pub(super) fn read(said: &str) -> Option<RemoteFacts> {
    let mut machine = MachineFacts::default();
    let (mut periods, mut throttled, mut any) = (None, None, false);
    for line in said.lines().filter_map(|line| line.strip_prefix(LINE)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|w| w.parse::<u64>().ok());
        match words.as_slice() {
            ["kernel", "Linux", release] => {
                machine.kernel = version(release);
                any = true;
            }
            ["kernel", ..] => any = true,
            ["rmem", _, _, _] => machine.tcp_rmem = number(3).filter(|n| *n < MOST),
            ["wmem", _, _, _] => machine.tcp_wmem = number(3).filter(|n| *n < MOST),
            ["pressure", "some", average, ..] => machine.pressure = share(average),
            ["nr_periods", _] => periods = number(1),
            ["nr_throttled", _] => throttled = number(1),
            _ => {}
        }
    }
    let quota = periods.zip(throttled);
    let quota = quota.map(|(periods, throttled)| CgroupQuotaPeriods { periods, throttled });
    any.then_some(RemoteFacts { machine, quota })
}

/// Parses `6.12.3-arch1` as (6, 12).
pub(super) fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?.parse().ok()?;
    (major < 1000 && minor < 1000).then_some((major, minor))
}

fn share(average: &str) -> Option<f64> {
    let percent: f64 = average.strip_prefix("avg10=")?.parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_the_same_for_every_shell() {
        let script = COMMAND.split('\'').nth(1).unwrap();
        assert!(!script.contains(['\\', '!', '\n', '"']));
        assert_eq!(COMMAND.matches('\'').count(), 2);
    }

    #[test]
    fn facts_are_found_behind_a_greeting_and_are_bounded() {
        let said = "Welcome\nlonghaul-doctor kernel Linux 6.18.3-x\nlonghaul-doctor rmem 4096 131072 \
                    33554432\nlonghaul-doctor wmem 4096 16384 99999999999999999\n\
                    longhaul-doctor nr_periods 10\nlonghaul-doctor nr_throttled 4\n\
                    longhaul-doctor pressure some avg10=12.50 avg60=1 avg300=0 total=5\n";
        let facts = read(said).unwrap();
        let later = read(&said.replace("nr_periods 10", "nr_periods 20")).unwrap();
        let later = RemoteFacts {
            quota: later.quota.map(|q| CgroupQuotaPeriods {
                throttled: q.throttled + 3,
                ..q
            }),
            ..later
        };
        let machine = facts.clone().until(&later);
        assert_eq!(machine.kernel, Some((6, 18)));
        assert_eq!(machine.tcp_rmem, Some(32 << 20));
        assert_eq!(machine.tcp_wmem, None);
        // Only the periods between both moments tell something about the transfers.
        assert_eq!(machine.throttled, Some(0.3));
        assert_eq!(machine.pressure, Some(0.125));
        // A restarted server counts from the beginning.
        assert_eq!(later.until(&facts).throttled, None);
        for nothing in [
            "",
            "longhaul-doctor rmem 1 2 3\n",
            "This service allows sftp only.\n",
        ] {
            assert_eq!(read(nothing), None, "{nothing}");
        }
        assert_eq!(version("99999999999.1"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_shell_answers_the_command() {
        let output = std::process::Command::new("sh")
            .args(["-c", COMMAND])
            .output();
        let said = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
        let machine = read(&said).unwrap().machine;
        assert!(
            machine.kernel.is_some() && machine.tcp_rmem.is_some(),
            "{said}"
        );
    }
}
