//! Queries a shell at the far end: processor time of its SSH server, and memory file systems to
//! write to.

use std::fmt;

use crate::cancel::CancelToken;
use crate::session::{FarEndQuerySession, QuestionError, Session, StallNotice, log_notice};

/// The prefix of result lines, which distinguishes them from output of startup files.
const LINE: &str = "longhaul-bench ";

/// A folder on a memory file system at the far end, with its free bytes, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteMemoryFolder {
    /// A memory file system's folder and its free bytes.
    pub memory: Option<(Vec<u8>, u64)>,
}

/// Processor time of the SSH server including all its connections, ended ones too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerCpuTime {
    /// Processor time in seconds.
    pub seconds: f64,
    /// The number of the server's current processes.
    pub processes: u32,
}

/// Queries a shell at the far end, over a separate session, for processor times and memory file
/// systems.
pub struct RemoteShellProbe {
    questions: FarEndQuerySession,
}

impl RemoteShellProbe {
    /// Uses this session, which must not do anything else, until `cancel` ends a question.
    pub fn new(session: Session, cancel: CancelToken) -> Self {
        let questions = FarEndQuerySession::new(session, cancel);
        Self { questions }
    }

    /// Finds a folder in memory at the far end; `tell` gets the notices about what is waited for.
    ///
    /// # Errors
    /// The far end runs no commands.
    pub fn find_memory_storage(
        &mut self,
        tell: &dyn Fn(&StallNotice),
    ) -> Result<RemoteMemoryFolder, ShellProbeError> {
        let said = self.questions.ask(ROOM, tell)?;
        read_room(&said).ok_or(ShellProbeError::NoShell)
    }

    /// Returns the processor time so far. The time of an ended connection is included once its
    /// processes have exited; the caller checks their number.
    ///
    /// # Errors
    /// The far end cannot report it.
    pub fn used(&mut self) -> Result<ServerCpuTime, ShellProbeError> {
        let said = self.questions.ask(USED, &log_notice)?;
        read_used(&said).ok_or(ShellProbeError::NoShell)
    }

    /// True if the far end has an SFTP server, so that files may have been written there.
    pub fn has_sftp(&self) -> bool {
        self.questions.has_sftp()
    }

    /// Removes a file at the far end; false if there was no answer.
    pub fn remove(&mut self, path: &[u8]) -> bool {
        self.questions.remove(path)
    }
}

/// Reason why the shell at the far end did not report something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShellProbeError {
    /// The script was not run or not answered.
    Question(QuestionError),
    /// The account has no shell: the answer is not that of the script.
    NoShell,
}

impl fmt::Display for ShellProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Question(error) => error.fmt(f),
            Self::NoShell => f.write_str("the host does not run commands for this account"),
        }
    }
}

impl std::error::Error for ShellProbeError {}

impl From<QuestionError> for ShellProbeError {
    fn from(error: QuestionError) -> Self {
        Self::Question(error)
    }
}

/// Parses df's last line: device, blocks of 1024, used, free, percentage, folder.
const ROOM: &str = "m=no; if [ -d /dev/shm ] && [ -w /dev/shm ]; then \
    m=`df -Pk /dev/shm 2>/dev/null | while read -r d b u f r; do echo $f; done | tail -n 1`; fi; \
    echo; echo longhaul-bench room $m";

/// Sums the processor time of the SSH server. The shell's parent is the server's process of this
/// connection. The script climbs from there to the listening process: ancestors have the same name,
/// up to a dash (sshd, sshd-session). It then sums that process and its descendants, with their
/// ended children: utime, stime, cutime and cstime of proc(5), which follow the name in
/// parentheses, since the name may contain anything.
const USED: &str = "n=; t=$PPID; read -r n </proc/$t/comm || exit; \
    while :; do p=; while read -r k v; do case $k in PPid:) p=$v;; esac; done </proc/$t/status; \
    m=; case $p in 0|1|\"\") break;; esac; read -r m </proc/$p/comm || break; \
    [ \"${m%%-*}\" = \"${n%%-*}\" ] || break; t=$p; done; \
    a=; for f in /proc/[0-9]*/stat; do l=; read -r l <$f || continue; \
    i=${l%% *}; l=${l##*) }; set -- $l; a=\"$a $i:$2:$((${12}+${13}+${14}+${15}))\"; done 2>/dev/null; \
    d=\" $t \"; g=1; while [ $g = 1 ]; do g=0; for x in $a; do i=${x%%:*}; x=${x#*:}; p=${x%%:*}; \
    case $d in *\" $i \"*) ;; *) case $d in *\" $p \"*) d=\"$d$i \"; g=1;; esac;; esac; done; done; \
    s=0; c=0; for x in $a; do i=${x%%:*}; case $d in *\" $i \"*) s=$((s+${x##*:})); c=$((c+1));; esac; \
    done; echo; echo longhaul-bench used $s $c `getconf CLK_TCK 2>/dev/null || echo 100`";

fn words<'a>(said: &'a str, of: &str) -> Option<Vec<&'a str>> {
    let lines = said.lines().filter_map(|line| line.strip_prefix(LINE));
    let mut words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .rfind(|words| words.first() == Some(&of))
        .map(|words| words.into_iter().skip(1).collect())
}

fn read_room(said: &str) -> Option<RemoteMemoryFolder> {
    let words = words(said, "room")?;
    let free = words.first().and_then(|free| free.parse::<u64>().ok());
    Some(RemoteMemoryFolder {
        memory: free.map(|kib| (b"/dev/shm".to_vec(), kib.saturating_mul(1024))),
    })
}

fn read_used(said: &str) -> Option<ServerCpuTime> {
    let words = words(said, "used")?;
    let [ticks, processes, each] = words.as_slice() else {
        return None;
    };
    let ticks: f64 = ticks.parse::<u64>().ok()? as f64;
    let each: f64 = each.parse::<u32>().ok().filter(|each| *each > 0)?.into();
    Some(ServerCpuTime {
        seconds: ticks / each,
        processes: processes.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_are_the_same_for_every_shell() {
        for script in [ROOM, USED] {
            assert!(!script.contains(['\'', '\\', '!', '\n']), "{script}");
        }
    }

    #[test]
    fn the_answers_are_found_behind_a_greeting() {
        let room = read_room("Welcome\nlonghaul-bench room 2048\n").unwrap();
        assert_eq!(room.memory, Some((b"/dev/shm".to_vec(), 2 << 20)));
        assert_eq!(read_room("longhaul-bench room no\n").unwrap().memory, None);
        let used = read_used("x\nlonghaul-bench used 250 4 100\n").unwrap();
        assert_eq!((used.seconds, used.processes), (2.5, 4));
        for bad in [
            "",
            "longhaul-bench used 1 2\n",
            "longhaul-bench used 1 2 0\n",
            "longhaul-bench used x 2 100\n",
            "longhaul-bench used -1 2 100\n",
        ] {
            assert_eq!(read_used(bad), None, "{bad}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_shell_tells_the_time_of_the_program_that_started_it() {
        // Enough work to show in hundredths of a second.
        let (mut sum, start) = (0_u64, std::time::Instant::now());
        while start.elapsed().as_millis() < 50 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let said = |script: &str| {
            let output = std::process::Command::new("sh")
                .args(["-c", script])
                .output();
            String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
        };
        let used = read_used(&said(USED)).unwrap();
        assert!(used.seconds > 0.0 && used.processes >= 1, "{used:?}");
        assert!(read_room(&said(ROOM)).is_some());
    }
}
