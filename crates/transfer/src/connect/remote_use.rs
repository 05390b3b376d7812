//! Decides when a longhaul at the far end is used, builds the command that starts it, and remembers
//! it.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schedule::TransferDirection;
use sftp::{MARKER_PROTOCOL, ServerInfo};
use ssh::transport::Identification;

use super::host_auth_handler::memory_name;
use crate::config::HostConfig;
use crate::memory::findings::BenchFindings;
use crate::memory::{HostMemory, HostMemoryStore, RemoteLonghaulRecord};
use crate::session::{LonghaulProbeResult, RemoteLonghaulKnowledge};

/// Prefixes of the identification of SSH servers that run commands.
const RUNS_COMMANDS: [&str; 2] = ["OpenSSH_", "dropbear"];

/// Seconds after which a longhaul that could not be used is tried again, and after which a missing
/// one is looked for again where the copy would wait for the answer.
const AGAIN: u64 = 24 * 3600;
/// Seconds after which a missing longhaul is looked for again beside the stock server, which costs
/// one channel and no time.
const MISSING_AGAIN: u64 = 600;

/// Policy for the use of a longhaul at the far end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemoteLonghaulPolicy {
    /// Used if present and if the copy is large enough to ask for it.
    #[default]
    Auto,
    /// A longhaul at the far end is not used.
    Stock,
    /// Used if present, and always looked for: the user wants a feature that it alone has.
    Wanted,
    /// Always looked for, regardless of the amount of data and of host memory.
    Exec,
    /// Always looked for, and all data wait until it is known if direct connections work.
    Direct,
}

/// Returns the command that starts the remote longhaul, in words that sh, bash, dash, zsh, ksh,
/// fish and csh all parse alike: no quote, backslash or exclamation mark within the quotes, and no
/// newline. The command contains no user data.
///
/// A binary that was sent there (`placed` is its SHA-256) starts if the PATH has none and if its
/// checksum still matches, by sha256sum or, if that is missing, by the binary's own check.
pub(super) fn command(placed: Option<&str>) -> Vec<u8> {
    starting(&format!("serve --stdio --marker {MARKER_PROTOCOL}"), placed)
}

/// Returns the command that starts a server for direct connections.
pub(super) fn command_once(placed: Option<&str>) -> Vec<u8> {
    starting("serve --once", placed)
}

/// Returns the command that starts one half of a relay pair. A binary that was sent there starts
/// only if sha256sum confirms its checksum.
pub(super) fn command_half(placed: Option<&str>) -> Vec<u8> {
    // Without sha256sum the binary is not started, as if none had been sent.
    starting_checked("relay half", "\"\") w=absent;; ", placed)
}

/// Returns the command that starts the receiver of a copy between two hosts. A binary that was sent
/// there starts only if sha256sum confirms its checksum.
pub(super) fn command_receive(placed: Option<&str>) -> Vec<u8> {
    starting_checked("receive", "\"\") w=absent;; ", placed)
}

fn starting(serve: &str, placed: Option<&str>) -> Vec<u8> {
    let itself = format!(
        "\"\") exec \"$f\" {serve} --sum {};; ",
        placed.unwrap_or_default()
    );
    starting_checked(serve, &itself, placed)
}

/// Builds the command; `unchecked` is the shell case for a missing sha256sum.
fn starting_checked(serve: &str, unchecked: &str, placed: Option<&str>) -> Vec<u8> {
    let plain = |sum: &&str| sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_hexdigit());
    let sent = placed.filter(plain).map(|sum| {
        format!(
            "w=gone; f=${{XDG_CACHE_HOME:-$HOME/.cache}}/longhaul/bin/longhaul-{sum}; \
             if [ -x \"$f\" ]; then case `sha256sum <\"$f\" 2>/dev/null` in \
             {sum}*) exec \"$f\" {serve};; {unchecked}*) w=altered;; esac; fi; "
        )
    });
    let script = format!(
        "command -v longhaul >/dev/null 2>&1 && exec longhaul {serve}; w=absent; {}echo; \
         echo longhaul-$w `uname -sm`",
        sent.unwrap_or_default()
    );
    format!("exec sh -c '{script}'").into_bytes()
}

/// Returns the checksum of the binary that was sent to the host.
pub(super) fn placed(memory: Option<&HostMemory>) -> Option<&str> {
    memory?.far.as_ref()?.placed.as_deref()
}

/// Records that the binary with this checksum was sent to a host, or with `None` that it was
/// removed. The next copy looks for a longhaul again.
///
/// # Errors
/// The record cannot be written.
pub fn remember_placed(
    config: &HostConfig,
    memories: &HostMemoryStore,
    sum: Option<String>,
) -> io::Result<()> {
    let now = SystemTime::now();
    let far = RemoteLonghaulRecord {
        placed: sum,
        ..RemoteLonghaulRecord::default()
    };
    let changed = memories.change(memory_name(config), now, |memory| memory.far = Some(far));
    changed.map(|_| ())
}

/// Returns the reason why no longhaul is looked for on this host, if there is one.
pub fn longhaul_is_absent(
    wanted: RemoteLonghaulPolicy,
    config: &HostConfig,
    memories: Option<&HostMemoryStore>,
) -> Option<&'static str> {
    let (host, port, user) = memory_name(config);
    let now = SystemTime::now();
    let memory = memories.and_then(|memories| memories.load(host, port, user, now));
    let far = memory.as_ref().and_then(|memory| memory.far.as_ref());
    let unusable = far.is_some_and(|far| far.unusable);
    // The copy would wait for logins to both hosts.
    match known_for(wanted, false, memory.as_ref(), now, AGAIN) {
        // A copy between two hosts asks more of it than SFTP, and less: no common start directory.
        RemoteLonghaulKnowledge::Never(_) if unusable && wanted != RemoteLonghaulPolicy::Stock => {
            None
        }
        RemoteLonghaulKnowledge::Never(why) => Some(why),
        _ => None,
    }
}

/// Records that a host has no longhaul, so that the next copies do not look for one.
pub fn remember_absent(config: &HostConfig, memories: &HostMemoryStore) {
    let now = SystemTime::now();
    let noted = memories.change(memory_name(config), now, |host| {
        host.far = memory(&LonghaulProbeResult::Absent, host.far.as_ref(), now);
    });
    if let Err(e) = noted {
        tracing::debug!("{}: cannot save the host memory: {e}", config.host);
    }
}

/// Stores measurements of a host in place of earlier ones; false if the host has no entry because
/// there was no login yet.
///
/// # Errors
/// The record cannot be written.
pub fn remember_findings(
    config: &HostConfig,
    memories: &HostMemoryStore,
    findings: BenchFindings,
) -> io::Result<bool> {
    let findings = findings.bounded();
    memories.change(memory_name(config), SystemTime::now(), |memory| {
        memory.findings = Some(findings);
    })
}

/// Returns the stored measurements of a host with their age.
pub fn findings(
    config: &HostConfig,
    memories: &HostMemoryStore,
) -> Option<(BenchFindings, Duration)> {
    let (host, port, user) = memory_name(config);
    let now = SystemTime::now();
    let findings = memories.load(host, port, user, now)?.findings?;
    let age = findings.age(now)?;
    Some((findings, age))
}

/// Returns the rate of uploads to a host in bytes per second that was reached last on the present
/// path.
pub fn remembered_rate(config: &HostConfig, memories: &HostMemoryStore) -> Option<u64> {
    let (host, port, user) = memory_name(config);
    let now = SystemTime::now();
    let learned = memories
        .load(host, port, user, now)?
        .learned(TransferDirection::Up)?;
    learned.age(seconds(now)).map(|_| learned.rate)
}

/// Returns what earlier connections learned about the remote longhaul; `absolute` if the remote
/// working directory does not matter.
pub(super) fn known(
    wanted: RemoteLonghaulPolicy,
    absolute: bool,
    memory: Option<&HostMemory>,
    now: SystemTime,
) -> RemoteLonghaulKnowledge {
    known_for(wanted, absolute, memory, now, MISSING_AGAIN)
}

/// Returns what earlier connections learned, like [`known`]. A longhaul that was missing counts as
/// missing for `missing_for` seconds.
fn known_for(
    wanted: RemoteLonghaulPolicy,
    absolute: bool,
    memory: Option<&HostMemory>,
    now: SystemTime,
    missing_for: u64,
) -> RemoteLonghaulKnowledge {
    let holds_for = |far: &RemoteLonghaulRecord| match far.unusable {
        true => AGAIN,
        false => missing_for,
    };
    let insists = matches!(
        wanted,
        RemoteLonghaulPolicy::Wanted | RemoteLonghaulPolicy::Exec | RemoteLonghaulPolicy::Direct
    );
    let far = match wanted {
        RemoteLonghaulPolicy::Stock => {
            return RemoteLonghaulKnowledge::Never(
                "longhaul was not looked for on the host (--far-end=stock)",
            );
        }
        RemoteLonghaulPolicy::Auto
        | RemoteLonghaulPolicy::Wanted
        | RemoteLonghaulPolicy::Exec
        | RemoteLonghaulPolicy::Direct => memory.and_then(|m| m.far.as_ref()),
    };
    match far {
        Some(far) if far.software.is_some() => RemoteLonghaulKnowledge::SeenBefore(info(far)),
        // A time in the future means that the clock was or is wrong, so the record is ignored.
        Some(far)
            if !insists
                && seconds(now)
                    .checked_sub(far.at)
                    .is_some_and(|age| age < holds_for(far)) =>
        {
            RemoteLonghaulKnowledge::Never(match far.placed {
                _ if far.unusable => {
                    "longhaul could not be used there when it was tried within the last day"
                }
                None => "longhaul was not there when last checked: --far-end=exec checks again",
                Some(_) => {
                    "the installed longhaul failed to start when last tried: run longhaul \
                     bootstrap again"
                }
            })
        }
        // The user asks for one, whatever is remembered, so the copy waits for the result. Beside
        // the stock server a small copy was over before the result was known.
        _ if wanted == RemoteLonghaulPolicy::Exec && absolute => {
            RemoteLonghaulKnowledge::UserAsserted
        }
        _ => RemoteLonghaulKnowledge::Unknown { insists },
    }
}

/// Restricts what is `known` about a host to what its server allows. After a restart of the
/// connection (`restarted`) nothing is sent ahead of the server's answers, so the stock server
/// begins.
///
/// Stopped predictions do not count as a restart: they also stop when a channel ends, and the first
/// command may have ended before the session asks.
pub(super) fn at_server(
    known: &RemoteLonghaulKnowledge,
    server: &Identification,
    restarted: bool,
) -> RemoteLonghaulKnowledge {
    let software = server.software();
    let runs_commands = RUNS_COMMANDS.iter().any(|name| software.starts_with(name));
    match known {
        _ if server.is_longhaul() => RemoteLonghaulKnowledge::Server,
        // A server on which a shell answers commands; other servers may end the connection on an
        // exec request.
        RemoteLonghaulKnowledge::Unknown { insists: true } => known.clone(),
        RemoteLonghaulKnowledge::UserAsserted if restarted || !runs_commands => {
            RemoteLonghaulKnowledge::Unknown { insists: true }
        }
        _ if !runs_commands => {
            RemoteLonghaulKnowledge::Never("this SSH server may not run commands")
        }
        RemoteLonghaulKnowledge::SeenBefore(_) if restarted => {
            RemoteLonghaulKnowledge::Unknown { insists: false }
        }
        known => known.clone(),
    }
}

/// True if direct connections failed within the last day.
pub(super) fn is_barred(memory: &HostMemory, now: SystemTime) -> bool {
    let at = memory.direct_failed;
    at.and_then(|at| seconds(now).checked_sub(at))
        .is_some_and(|age| age < AGAIN)
}

/// Records whether direct connections fail; true if the record has changed.
pub(super) fn bar(memory: &mut HostMemory, barred: bool, now: SystemTime) -> bool {
    let at = barred.then(|| seconds(now));
    let changed = memory.direct_failed != at;
    memory.direct_failed = at;
    changed
}

/// Returns the record to store in place of `before`.
pub(super) fn memory(
    seen: &LonghaulProbeResult,
    before: Option<&RemoteLonghaulRecord>,
    now: SystemTime,
) -> Option<RemoteLonghaulRecord> {
    let at = seconds(now);
    let placed = before.and_then(|before| before.placed.clone());
    let LonghaulProbeResult::Serves { software, info } = seen else {
        return Some(RemoteLonghaulRecord {
            at,
            placed,
            unusable: *seen == LonghaulProbeResult::Unusable,
            ..RemoteLonghaulRecord::default()
        });
    };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let pairs = info.extensions.iter();
    let extensions = pairs.map(|(n, d)| Some((text(n)?, text(d)?)));
    let found = RemoteLonghaulRecord {
        at,
        software: Some(software.clone()),
        extensions: extensions.collect::<Option<_>>()?,
        placed,
        unusable: false,
    };
    // An unchanged record keeps its time, so that it is not written again.
    match before {
        Some(before)
            if RemoteLonghaulRecord {
                at: before.at,
                ..found.clone()
            } == *before =>
        {
            Some(before.clone())
        }
        _ => Some(found),
    }
}

fn info(far: &RemoteLonghaulRecord) -> ServerInfo {
    let bytes = |(name, data): &(String, String)| (name.clone().into(), data.clone().into());
    ServerInfo {
        version: 3,
        extensions: far.extensions.iter().map(bytes).collect(),
        limits: None,
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembering(far: RemoteLonghaulRecord) -> HostMemory {
        HostMemory {
            far: Some(far),
            ..HostMemory::default()
        }
    }

    #[test]
    fn only_a_restart_of_the_connection_makes_the_stock_server_begin() {
        let openssh = Identification::ours("OpenSSH_9.2p1");
        let seen = RemoteLonghaulKnowledge::SeenBefore(ServerInfo::default());
        for expected in [RemoteLonghaulKnowledge::UserAsserted, seen.clone()] {
            assert_eq!(at_server(&expected, &openssh, false), expected);
        }
        let insists = RemoteLonghaulKnowledge::Unknown { insists: true };
        let restarted = at_server(&RemoteLonghaulKnowledge::UserAsserted, &openssh, true);
        assert_eq!(restarted, insists);
        let unknown = RemoteLonghaulKnowledge::Unknown { insists: false };
        assert_eq!(at_server(&seen, &openssh, true), unknown);
        let other = Identification::ours("mod_sftp");
        let asserted = at_server(&RemoteLonghaulKnowledge::UserAsserted, &other, false);
        assert_eq!(asserted, insists);
        assert!(matches!(
            at_server(&seen, &other, false),
            RemoteLonghaulKnowledge::Never(_)
        ));
    }

    /// Bug: a longhaul that was installed on a known host went unused for up to a day.
    #[test]
    fn where_there_was_none_it_was_not_asked_for_again_for_a_day() {
        let now = SystemTime::now();
        let unknown = RemoteLonghaulKnowledge::Unknown { insists: false };
        assert_eq!(known(RemoteLonghaulPolicy::Auto, true, None, now), unknown);
        let absent = remembering(memory(&LonghaulProbeResult::Absent, None, now).unwrap());
        let asked = |wanted, minutes: u64| {
            let later = now + Duration::from_secs(minutes * 60);
            known(wanted, true, Some(&absent), later)
        };
        let never = |known| matches!(known, RemoteLonghaulKnowledge::Never(_));
        assert!(never(asked(RemoteLonghaulPolicy::Auto, 9)));
        assert_eq!(asked(RemoteLonghaulPolicy::Auto, 11), unknown);
        // A copy between two hosts would wait for the answer.
        let between = |hours: u64| {
            let later = now + Duration::from_secs(hours * 3600);
            known_for(
                RemoteLonghaulPolicy::Auto,
                true,
                Some(&absent),
                later,
                AGAIN,
            )
        };
        assert!(never(between(23)));
        assert_eq!(between(25), unknown);
        // One that made the connection end is not tried as soon.
        let unusable = remembering(memory(&LonghaulProbeResult::Unusable, None, now).unwrap());
        let later = now + Duration::from_secs(23 * 3600);
        assert!(never(known(
            RemoteLonghaulPolicy::Auto,
            true,
            Some(&unusable),
            later
        )));
        let insists = RemoteLonghaulKnowledge::Unknown { insists: true };
        assert_eq!(asked(RemoteLonghaulPolicy::Wanted, 1), insists);
        assert_eq!(
            asked(RemoteLonghaulPolicy::Exec, 1),
            RemoteLonghaulKnowledge::UserAsserted
        );
        assert!(matches!(
            asked(RemoteLonghaulPolicy::Stock, 2000),
            RemoteLonghaulKnowledge::Never(_)
        ));
        // After the clock was set back, a record from the future is ignored.
        let early = known(
            RemoteLonghaulPolicy::Auto,
            true,
            Some(&absent),
            now - Duration::from_secs(60),
        );
        assert_eq!(early, unknown);
    }

    #[test]
    fn a_longhaul_that_could_not_serve_files_is_not_remembered_as_missing() {
        let now = SystemTime::now();
        let late = memory(&LonghaulProbeResult::Unusable, None, now).unwrap();
        let RemoteLonghaulKnowledge::Never(why) = known(
            RemoteLonghaulPolicy::Auto,
            true,
            Some(&remembering(late.clone())),
            now,
        ) else {
            panic!("it is not asked again within the day");
        };
        assert!(!why.contains("not found"), "{why}");
        let text = serde_json::to_string(&late).unwrap();
        assert_eq!(
            serde_json::from_str::<RemoteLonghaulRecord>(&text).unwrap(),
            late
        );
        let absent = memory(&LonghaulProbeResult::Absent, None, now).unwrap();
        assert!(!absent.unusable && !serde_json::to_string(&absent).unwrap().contains("unusable"));
    }

    #[test]
    fn one_that_the_user_says_is_there_is_begun_with() {
        let now = SystemTime::now();
        let insists = RemoteLonghaulKnowledge::Unknown { insists: true };
        assert_eq!(
            known(RemoteLonghaulPolicy::Exec, true, None, now),
            RemoteLonghaulKnowledge::UserAsserted
        );
        // Relative paths may start in another directory on the server's own SFTP server.
        assert_eq!(known(RemoteLonghaulPolicy::Exec, false, None, now), insists);
        assert_eq!(
            known(RemoteLonghaulPolicy::Wanted, true, None, now),
            insists
        );
        let placed = remembering(RemoteLonghaulRecord {
            placed: Some("sum".to_owned()),
            ..RemoteLonghaulRecord::default()
        });
        assert_eq!(
            known(RemoteLonghaulPolicy::Exec, true, Some(&placed), now),
            RemoteLonghaulKnowledge::UserAsserted
        );
    }

    #[test]
    fn a_port_that_was_closed_is_tried_again_after_a_day() {
        let now = SystemTime::now();
        let mut host = HostMemory::default();
        assert!(!is_barred(&host, now) && !bar(&mut host, false, now));
        assert!(bar(&mut host, true, now));
        let later = |hours: u64| now + Duration::from_secs(hours * 3600);
        assert!(is_barred(&host, later(23)) && !is_barred(&host, later(25)));
        assert!(!is_barred(&host, now - Duration::from_secs(60)));
        assert!(bar(&mut host, false, now) && !is_barred(&host, now));
    }

    #[test]
    fn one_that_answered_is_expected_with_what_it_announced() {
        let now = SystemTime::now();
        let info = ServerInfo {
            version: 3,
            extensions: vec![(b"a@longhaul".to_vec(), b"1".to_vec())],
            limits: None,
        };
        let seen = LonghaulProbeResult::Serves {
            software: "0.1.0".into(),
            info: info.clone(),
        };
        let first = memory(&seen, None, now).unwrap();
        let host = remembering(first.clone());
        assert_eq!(
            known(RemoteLonghaulPolicy::Auto, true, Some(&host), now),
            RemoteLonghaulKnowledge::SeenBefore(info)
        );
        assert!(matches!(
            known(RemoteLonghaulPolicy::Stock, true, Some(&host), now),
            RemoteLonghaulKnowledge::Never(_)
        ));
        let later = now + Duration::from_secs(60);
        assert_eq!(memory(&seen, Some(&first), later), Some(first));
    }

    /// An account can have any shell.
    #[test]
    fn every_shell_that_is_here_runs_the_command_and_nothing_else() {
        use std::process::Command;
        let sum = "0a".repeat(32);
        let home = tempfile::tempdir().unwrap();
        let shells = [
            "sh", "dash", "bash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish",
        ];
        let there = |shell: &&str| Command::new(shell).args(["-c", "exit 0"]).status().is_ok();
        for shell in shells.into_iter().filter(there) {
            for placed in [None, Some(sum.as_str()), Some("'; touch pwned; '")] {
                for command in [
                    command(placed),
                    command_once(placed),
                    command_half(placed),
                    command_receive(placed),
                ] {
                    let run = Command::new(shell)
                        .arg("-c")
                        .arg(String::from_utf8(command).unwrap())
                        .env("HOME", home.path())
                        .env_remove("XDG_CACHE_HOME")
                        .env("PATH", "/usr/bin:/bin")
                        .current_dir(home.path())
                        .output()
                        .unwrap();
                    let said = String::from_utf8_lossy(&run.stdout).into_owned();
                    let none = match placed == Some(&*sum) {
                        true => "\nlonghaul-gone ",
                        false => "\nlonghaul-absent ",
                    };
                    assert!(said.starts_with(none), "{shell}: {run:?}");
                    assert!(!home.path().join("pwned").exists());
                }
            }
        }
    }

    #[test]
    fn the_command_is_the_same_for_every_shell() {
        let sum = "0a".repeat(32);
        for placed in [None, Some(sum.as_str()), Some("'; evil")] {
            for command in [command(placed), command_once(placed), command_half(placed)] {
                let command = String::from_utf8(command).unwrap();
                let script = command.strip_prefix("exec sh -c '").unwrap();
                let script = script.strip_suffix('\'').unwrap();
                assert!(!script.contains(['\'', '\\', '!', '\n']), "{script}");
                assert_eq!(script.contains(&sum), placed == Some(&sum));
            }
        }
    }
}
