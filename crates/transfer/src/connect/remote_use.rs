//! A longhaul at the far end: what starts it there, and what is remembered of it.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sftp::{MARKER_PROTOCOL, ServerInfo};

use super::host_auth_handler::memory_name;
use crate::config::HostConfig;
use crate::memory::findings::Findings;
use crate::memory::{HostMemory, MemoryStore, RemoteMemory};
use crate::session::{Known, Seen};

/// Where there was none, it is asked for again after so many seconds.
const AGAIN: u64 = 24 * 3600;

/// Whether a longhaul at the far end is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemoteServerUse {
    /// Where there is one, and there is enough to copy to ask.
    #[default]
    Auto,
    /// Never.
    Stock,
    /// The same, and asked for whatever is copied: the user wants what it alone can do.
    Wanted,
    /// It is asked for whatever is copied, and whatever is remembered.
    Exec,
    /// The same, and all data wait until it is known whether they can go straight to it.
    Direct,
}

/// The command that starts it, in words that every shell takes for the same: sh, bash, dash, zsh,
/// ksh, fish, csh. There is no quote, backslash or exclamation mark within the quotes, and no
/// end of line. It holds nothing of the user's.
///
/// One that was sent there (`placed`, its SHA-256) is started where the PATH has none, and where it
/// still has that sum: by sha256sum, or as it finds itself where there is none.
pub(super) fn command(placed: Option<&str>) -> Vec<u8> {
    starting(&format!("serve --stdio --marker {MARKER_PROTOCOL}"), placed)
}

/// The same for a server beside the login.
pub(super) fn command_once(placed: Option<&str>) -> Vec<u8> {
    starting("serve --once", placed)
}

/// The same for one half of a pair of relays. One that was sent there is started where sha256sum
/// tells that it is what was sent.
pub(super) fn command_half(placed: Option<&str>) -> Vec<u8> {
    // Unchecked it is not started: it is as if none had been sent.
    starting_checked("relay half", "\"\") w=absent;; ", placed)
}

fn starting(serve: &str, placed: Option<&str>) -> Vec<u8> {
    let itself = format!(
        "\"\") exec \"$f\" {serve} --sum {};; ",
        placed.unwrap_or_default()
    );
    starting_checked(serve, &itself, placed)
}

/// `unchecked` is a case for where there is no sha256sum.
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

/// What was sent there.
pub(super) fn placed(memory: Option<&HostMemory>) -> Option<&str> {
    memory?.far.as_ref()?.placed.as_deref()
}

/// Keeps in mind that the program with this sum was sent to a host, or removed there: it is asked
/// for again the next time.
///
/// # Errors
/// It cannot be written down.
pub fn remember_placed(
    config: &HostConfig,
    memories: &MemoryStore,
    sum: Option<String>,
) -> io::Result<()> {
    let now = SystemTime::now();
    let far = RemoteMemory {
        placed: sum,
        ..RemoteMemory::default()
    };
    let changed = memories.change(memory_name(config), now, |memory| memory.far = Some(far));
    changed.map(|_| ())
}

/// Keeps what was measured of a host, in place of what was measured before; false where nothing is
/// remembered of it, since nobody has logged in.
///
/// # Errors
/// It cannot be written down.
pub fn remember_findings(
    config: &HostConfig,
    memories: &MemoryStore,
    findings: Findings,
) -> io::Result<bool> {
    let findings = findings.bounded();
    memories.change(memory_name(config), SystemTime::now(), |memory| {
        memory.findings = Some(findings);
    })
}

/// What was measured of a host, if that was, with its age.
pub fn findings(config: &HostConfig, memories: &MemoryStore) -> Option<(Findings, Duration)> {
    let (host, port, user) = memory_name(config);
    let now = SystemTime::now();
    let findings = memories.load(host, port, user, now)?.findings?;
    let age = findings.age(now)?;
    Some((findings, age))
}

/// What is known before anything was asked; `absolute` where it is no matter where paths begin there.
pub(super) fn known(
    wanted: RemoteServerUse,
    absolute: bool,
    memory: Option<&HostMemory>,
    now: SystemTime,
) -> Known {
    let insists = matches!(
        wanted,
        RemoteServerUse::Wanted | RemoteServerUse::Exec | RemoteServerUse::Direct
    );
    let far = match wanted {
        RemoteServerUse::Stock => {
            return Known::Never("it was not to be asked for (--far-end=stock)");
        }
        RemoteServerUse::Auto
        | RemoteServerUse::Wanted
        | RemoteServerUse::Exec
        | RemoteServerUse::Direct => memory.and_then(|m| m.far.as_ref()),
    };
    match far {
        Some(far) if far.software.is_some() => Known::Serves(info(far)),
        // A time in the future says that the clock was wrong then or is now.
        Some(far)
            if !insists
                && seconds(now)
                    .checked_sub(far.at)
                    .is_some_and(|age| age < AGAIN) =>
        {
            Known::Never(match far.placed {
                None => "there was no longhaul at the far end within the last day",
                Some(_) => {
                    "the longhaul that was sent there could not be started within the last day: \
                     run longhaul bootstrap again"
                }
            })
        }
        // It was not asked for since the program was sent there, or never.
        far if wanted == RemoteServerUse::Exec && absolute && far.is_none_or(|far| far.at == 0) => {
            Known::Hoped
        }
        _ => Known::Unknown { insists },
    }
}

/// Whether no connection could go straight there within the last day.
pub(super) fn is_barred(memory: &HostMemory, now: SystemTime) -> bool {
    let at = memory.direct_failed;
    at.and_then(|at| seconds(now).checked_sub(at))
        .is_some_and(|age| age < AGAIN)
}

/// Notes that none can, or can again; true if that is to be written down.
pub(super) fn bar(memory: &mut HostMemory, barred: bool, now: SystemTime) -> bool {
    let at = barred.then(|| seconds(now));
    let changed = memory.direct_failed != at;
    memory.direct_failed = at;
    changed
}

/// What is to be remembered, in place of what was.
pub(super) fn memory(
    seen: &Seen,
    before: Option<&RemoteMemory>,
    now: SystemTime,
) -> Option<RemoteMemory> {
    let at = seconds(now);
    let placed = before.and_then(|before| before.placed.clone());
    let Seen::Serves { software, info } = seen else {
        return Some(RemoteMemory {
            at,
            placed,
            ..RemoteMemory::default()
        });
    };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let pairs = info.extensions.iter();
    let extensions = pairs.map(|(n, d)| Some((text(n)?, text(d)?)));
    let found = RemoteMemory {
        at,
        software: Some(software.clone()),
        extensions: extensions.collect::<Option<_>>()?,
        placed,
    };
    // Where nothing has changed, nothing need be written.
    match before {
        Some(before)
            if RemoteMemory {
                at: before.at,
                ..found.clone()
            } == *before =>
        {
            Some(before.clone())
        }
        _ => Some(found),
    }
}

fn info(far: &RemoteMemory) -> ServerInfo {
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

    fn remembering(far: RemoteMemory) -> HostMemory {
        HostMemory {
            far: Some(far),
            ..HostMemory::default()
        }
    }

    #[test]
    fn where_there_was_none_it_is_asked_for_again_after_a_day() {
        let now = SystemTime::now();
        let unknown = Known::Unknown { insists: false };
        assert_eq!(known(RemoteServerUse::Auto, true, None, now), unknown);
        let absent = remembering(memory(&Seen::Absent, None, now).unwrap());
        let asked = |wanted, hours: u64| {
            let later = now + Duration::from_secs(hours * 3600);
            known(wanted, true, Some(&absent), later)
        };
        assert!(matches!(asked(RemoteServerUse::Auto, 23), Known::Never(_)));
        assert_eq!(asked(RemoteServerUse::Auto, 25), unknown);
        assert_eq!(
            asked(RemoteServerUse::Exec, 1),
            Known::Unknown { insists: true }
        );
        assert!(matches!(asked(RemoteServerUse::Stock, 25), Known::Never(_)));
        // The clock went back: what is said of the future holds nothing up.
        let early = known(
            RemoteServerUse::Auto,
            true,
            Some(&absent),
            now - Duration::from_secs(60),
        );
        assert_eq!(early, unknown);
    }

    #[test]
    fn one_that_the_user_says_is_there_is_begun_with() {
        let now = SystemTime::now();
        let insists = Known::Unknown { insists: true };
        assert_eq!(known(RemoteServerUse::Exec, true, None, now), Known::Hoped);
        // Relative paths may begin elsewhere on the server's own.
        assert_eq!(known(RemoteServerUse::Exec, false, None, now), insists);
        assert_eq!(known(RemoteServerUse::Wanted, true, None, now), insists);
        let placed = remembering(RemoteMemory {
            placed: Some("sum".to_owned()),
            ..RemoteMemory::default()
        });
        assert_eq!(
            known(RemoteServerUse::Exec, true, Some(&placed), now),
            Known::Hoped
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
        let seen = Seen::Serves {
            software: "0.1.0".into(),
            info: info.clone(),
        };
        let first = memory(&seen, None, now).unwrap();
        let host = remembering(first.clone());
        assert_eq!(
            known(RemoteServerUse::Auto, true, Some(&host), now),
            Known::Serves(info)
        );
        assert!(matches!(
            known(RemoteServerUse::Stock, true, Some(&host), now),
            Known::Never(_)
        ));
        let later = now + Duration::from_secs(60);
        assert_eq!(memory(&seen, Some(&first), later), Some(first));
    }

    /// The account's shell may be any.
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
                for command in [command(placed), command_once(placed), command_half(placed)] {
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
