//! Names the limiter of the copy, in one sentence with its evidence.

use std::time::Duration;

use schedule::{Limiter, TransferDirection};
use transfer::report::{CopyOutcome, CopySummary, SessionReport};

/// Shorter copies are not long enough for a finding.
const SHORT: Duration = Duration::from_secs(2);

/// A session that was measured for less than this part of the run does not explain its length: one
/// megabyte for a host that is up does not explain the wait for one that is down.
const PART: u32 = 4;

/// If more than this share of the processors is idle, a thread that waits is held by a quota.
const FREE: f64 = 0.2;

type LimiterDetailFn = fn(&SessionReport) -> Option<String>;

/// The text after the name of each limiter.
const DETAILS: &[(Limiter, LimiterDetailFn)] = &[
    (Limiter::Path, |r| tried(r).or_else(|| queue(r))),
    (Limiter::Loss, |r| {
        Some(format!("{} of the packets", percent(r.evidence.loss)))
    }),
    (Limiter::ServerWindow, |r| {
        let share = percent(r.evidence.window_blocked);
        Some(format!("data waited for them for {share} of the time"))
    }),
    (Limiter::Server, server),
    (Limiter::LocalCpu, processor),
    (Limiter::LocalDisk, |_| None),
    (Limiter::SendBuffer, sysctl),
    (Limiter::FarReceiveBuffer, sysctl),
    (Limiter::ReceiveBuffer, sysctl),
    (Limiter::FarSendBuffer, sysctl),
    (Limiter::UserLimit, |_| None),
    (Limiter::OtherTraffic, |_| None),
    (Limiter::Lanes, |r| {
        let why = match r.fixed {
            true => "as requested",
            false => "the server refused more, or each login needs your input",
        };
        Some(why.to_owned())
    }),
    (Limiter::Startup, |_| {
        Some("the copy ended before it reached full speed".to_owned())
    }),
];

/// The line below the closing line; `None` if nothing is certain enough. A stall comes first, and
/// alone if it was most of the run: the limiter of the rest hardly mattered.
pub(crate) fn line(summary: &CopySummary) -> Option<String> {
    let lost = matches!(summary.outcome, CopyOutcome::NoConnection(_));
    if summary.elapsed < SHORT || lost {
        return None;
    }
    // Hosts between which data go wait for each other.
    let stalled = summary.sessions.iter().map(|r| r.stalled).max();
    let stalled = stalled.filter(|time| !time.is_zero());
    let is_most = |time: Duration| time * 2 > summary.elapsed;
    let limited = limited(summary).filter(|_| !stalled.is_some_and(is_most));
    let stalled = stalled.map(|time| {
        let seconds = time.as_secs_f64();
        match &summary.sessions[..] {
            [only] => format!("no answer from {} for {seconds:.0} s", only.host),
            _ => format!("nothing moved for {seconds:.0} s"),
        }
    });
    match (limited, stalled) {
        (Some(limited), Some(stalled)) => Some(format!("{stalled}; otherwise {limited}")),
        (limited, stalled) => limited.or(stalled),
    }
}

/// Names the limiter of the time in which data moved.
fn limited(summary: &CopySummary) -> Option<String> {
    let known =
        |r: &&SessionReport| r.limiter != Limiter::Unknown && r.measured * PART >= summary.elapsed;
    // In a copy between two hosts one waits for the other, which looks like a slow disk from there.
    let rank = |r: &&SessionReport| (r.limiter != Limiter::LocalDisk, r.measured);
    let report = summary.sessions.iter().filter(known).max_by_key(rank)?;
    let sessions = summary.sessions.len();
    let same = |r: &SessionReport| r.limiter == report.limiter;
    // The hosts share --limit.
    if sessions > 1 && report.limiter == Limiter::UserLimit {
        return Some(format!("limited by {}", report.limiter));
    }
    if sessions > 1 && summary.sessions.iter().all(same) {
        return Some(match sessions {
            2 => format!("limited by {} (both hosts)", report.limiter),
            _ => format!("limited by {} (all {sessions} hosts)", report.limiter),
        });
    }
    let mut text = format!(
        "limited by {} ({})",
        report.limiter,
        lanes(report.connections, report.channels)
    );
    if sessions > 1 {
        text.insert_str(0, &format!("{}: ", report.host));
    }
    let detail = DETAILS
        .iter()
        .find(|(limiter, _)| *limiter == report.limiter)
        .and_then(|(_, detail)| detail(report));
    if let Some(detail) = detail {
        text.push_str(&format!(": {detail}"));
    }
    Some(text)
}

/// Formats "5 connections, 2 channels each".
pub(crate) fn lanes(connections: u32, channels: u32) -> String {
    match (connections, channels) {
        (0 | 1, 0 | 1) => "1 connection".to_owned(),
        (0 | 1, channels) => format!("1 connection, {channels} channels"),
        (connections, 0 | 1) => format!("{connections} connections"),
        (connections, channels) => format!("{connections} connections, {channels} channels each"),
    }
}

/// Evidence for a busy processor: the use of it, or the time for which longhaul waited for it.
fn processor(r: &SessionReport) -> Option<String> {
    let e = &r.evidence;
    let waited = percent((e.wanted_cpu - e.cpu).clamp(0.0, 1.0));
    match (e.hardly_uses_processor(), e.idle) {
        (false, Some(idle)) => Some(format!(
            "longhaul used {:.1} of its processors, and {} of all were idle",
            e.cpu,
            percent(idle)
        )),
        (false, None) => Some(format!("longhaul used {:.1} of its processors", e.cpu)),
        (true, Some(idle)) if idle > FREE => Some(format!(
            "longhaul waited for its cgroup's quota (cpu.max) for {waited} of the time, while {} \
             of the processors were idle",
            percent(idle)
        )),
        (true, Some(_)) => Some(format!(
            "other programs kept it busy, and longhaul waited for it for {waited} of the time"
        )),
        (true, None) => Some(format!(
            "longhaul waited for it or for its cgroup's quota for {waited} of the time"
        )),
    }
}

/// Evidence for a slow server: late answers, unanswered data, or silence.
fn server(r: &SessionReport) -> Option<String> {
    let e = &r.evidence;
    let answers = e.server >= Duration::from_millis(2);
    Some(match e.held > 1_000_000 {
        true if !answers => format!(
            "{:.1} MB were waiting there without an answer",
            e.held as f64 / 1e6
        ),
        false if !answers && e.silent > 0.1 => {
            let did = match r.direction {
                TransferDirection::Up => "acknowledged",
                TransferDirection::Down => "sent",
            };
            format!("it {did} nothing for {} of the time", percent(e.silent))
        }
        _ => format!("answers took {} beyond the round trip", ms(e.server)),
    })
}

fn tried(r: &SessionReport) -> Option<String> {
    let tried = r.tried.filter(|t| !t.paid())?;
    let more = tried.connections > r.connections;
    more.then(|| format!("{} connections were no faster", tried.connections))
}

fn queue(r: &SessionReport) -> Option<String> {
    let (least, now) = (r.evidence.min_rtt, r.evidence.rtt);
    let grown = now > least.mul_f64(1.2) && now > least + Duration::from_millis(1);
    grown.then(|| format!("the round trip rose from {} to {}", ms(least), ms(now)))
}

fn sysctl(r: &SessionReport) -> Option<String> {
    let (name, far) = r.limiter.sysctl()?;
    let place = match far {
        true => format!(" on {}", r.host),
        false => String::new(),
    };
    Some(format!("raise it with `sysctl {name}`{place}"))
}

fn percent(share: f64) -> String {
    let percent = share.clamp(0.0, 1.0) * 100.0;
    match percent < 9.95 {
        true => format!("{percent:.1} %"),
        false => format!("{percent:.0} %"),
    }
}

fn ms(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    match ms < 9.95 {
        true => format!("{ms:.1} ms"),
        false => format!("{ms:.0} ms"),
    }
}

#[cfg(test)]
mod tests {
    use schedule::{LimiterEvidence, TrialResult};
    use transfer::report::EscapedName;

    use super::*;

    fn report(limiter: Limiter) -> SessionReport {
        SessionReport {
            host: EscapedName(b"h\x07".to_vec()),
            direction: TransferDirection::Up,
            connections: 4,
            channels: 2,
            fixed: false,
            limiter,
            measured: Duration::from_secs(9),
            stalled: Duration::ZERO,
            evidence: LimiterEvidence {
                min_rtt: Duration::from_millis(114),
                rtt: Duration::from_millis(180),
                loss: 0.0102,
                window_blocked: 0.71,
                server: Duration::from_micros(4_200),
                cpu: 1.9,
                idle: Some(0.02),
                ..LimiterEvidence::default()
            },
            tried: None,
        }
    }

    fn after(sessions: Vec<SessionReport>) -> Option<String> {
        line(&CopySummary {
            elapsed: Duration::from_secs(10),
            sessions,
            ..CopySummary::default()
        })
    }

    #[test]
    fn every_limiter_has_its_sentence() {
        let wanted = [
            (
                Limiter::Path,
                "limited by the path (4 connections, 2 channels each): the round trip rose from \
                 114 ms to 180 ms",
            ),
            (
                Limiter::Loss,
                "limited by packet loss (4 connections, 2 channels each): 1.0 % of the packets",
            ),
            (
                Limiter::ServerWindow,
                "limited by the server's channel windows (4 connections, 2 channels each): data \
                 waited for them for 71 % of the time",
            ),
            (
                Limiter::Server,
                "limited by the server's processor or disk (4 connections, 2 channels each): \
                 answers took 4.2 ms beyond the round trip",
            ),
            (
                Limiter::LocalCpu,
                "limited by this machine's processor (4 connections, 2 channels each): longhaul used \
                 1.9 of its processors, and 2.0 % of all were idle",
            ),
            (
                Limiter::LocalDisk,
                "limited by this machine's disk (4 connections, 2 channels each)",
            ),
            (
                Limiter::SendBuffer,
                "limited by this machine's TCP send buffer (4 connections, 2 channels each): \
                 raise it with `sysctl net.ipv4.tcp_wmem`",
            ),
            (
                Limiter::FarReceiveBuffer,
                "limited by the server's TCP receive buffer (4 connections, 2 channels each): \
                 raise it with `sysctl net.ipv4.tcp_rmem` on h\\x07",
            ),
            (
                Limiter::ReceiveBuffer,
                "limited by this machine's TCP receive buffer (4 connections, 2 channels each): \
                 raise it with `sysctl net.ipv4.tcp_rmem`",
            ),
            (
                Limiter::FarSendBuffer,
                "limited by the server's TCP send buffer (4 connections, 2 channels each): \
                 raise it with `sysctl net.ipv4.tcp_wmem` on h\\x07",
            ),
            (
                Limiter::UserLimit,
                "limited by the rate of --limit (4 connections, 2 channels each)",
            ),
            (
                Limiter::OtherTraffic,
                "limited by the rate that other traffic left (4 connections, 2 channels each)",
            ),
            (
                Limiter::Lanes,
                "limited by the number of connections (4 connections, 2 channels each): the \
                 server refused more, or each login needs your input",
            ),
            (
                Limiter::Startup,
                "limited by TCP's slow start (4 connections, 2 channels each): the copy ended before \
                 it reached full speed",
            ),
        ];
        for limiter in Limiter::all() {
            let said = after(vec![report(limiter)]);
            let want = wanted.iter().find(|(of, _)| *of == limiter);
            assert_eq!(said.as_deref(), want.map(|(_, text)| *text), "{limiter:?}");
        }
    }

    /// Bug: a copy whose server stopped for 12 s was said to be limited by the path.
    #[test]
    fn a_stall_is_told_beside_the_limiter_and_without_one() {
        let stalled = |limiter, tenths: u64| {
            after(vec![SessionReport {
                stalled: Duration::from_millis(100 * tenths),
                ..report(limiter)
            }])
        };
        let host = report(Limiter::Loss).host;
        let beside = "; otherwise limited by packet loss (4 connections, 2 \
                      channels each): 1.0 % of the packets";
        let beside = format!("no answer from {host} for 4 s{beside}");
        assert_eq!(stalled(Limiter::Loss, 43), Some(beside));
        let alone = stalled(Limiter::Unknown, 43);
        assert_eq!(alone, Some(format!("no answer from {host} for 4 s")));
        // Bug: a download from a server that had stopped for most of it was "limited by this
        // machine's processor".
        let most = stalled(Limiter::LocalCpu, 83);
        assert_eq!(most, Some(format!("no answer from {host} for 8 s")));
    }

    /// Bug: "it sent nothing for 256 % of the time".
    #[test]
    fn a_share_of_more_than_all_was_shown() {
        let mut silent = report(Limiter::Server);
        (silent.evidence.server, silent.evidence.silent) = (Duration::ZERO, 2.56);
        let said = after(vec![silent.clone()]).unwrap_or_default();
        assert!(
            said.ends_with(": it acknowledged nothing for 100 % of the time"),
            "{said}"
        );
        // Bug: a server that received an upload was said to have "sent nothing".
        silent.direction = TransferDirection::Down;
        let said = after(vec![silent]).unwrap_or_default();
        assert!(
            said.ends_with(": it sent nothing for 100 % of the time"),
            "{said}"
        );
    }

    /// Bug: "limited by this machine's processor: longhaul used 0.0 cores".
    #[test]
    fn a_processor_that_longhaul_hardly_uses_is_blamed_for_the_wait() {
        let said = |wanted_cpu, cpu, idle| {
            let mut busy = report(Limiter::LocalCpu);
            let figures = (wanted_cpu, cpu, idle);
            let e = &mut busy.evidence;
            (e.wanted_cpu, e.cpu, e.idle) = figures;
            let line = after(vec![busy]).unwrap_or_default();
            line.split_once("): ")
                .map(|(_, why)| why.to_owned())
                .unwrap_or_default()
        };
        assert_eq!(
            said(0.94, 0.02, Some(0.01)),
            "other programs kept it busy, and longhaul waited for it for 92 % of the time"
        );
        assert_eq!(
            said(0.98, 0.1, Some(0.9)),
            "longhaul waited for its cgroup's quota (cpu.max) for 88 % of the time, while 90 % of \
             the processors were idle"
        );
        assert_eq!(
            said(0.9, 0.1, None),
            "longhaul waited for it or for its cgroup's quota for 80 % of the time"
        );
        assert_eq!(said(0.9, 1.0, None), "longhaul used 1.0 of its processors");
    }

    #[test]
    fn what_was_tried_in_vain_is_named() {
        let mut tried = report(Limiter::Path);
        tried.channels = 1;
        tried.tried = Some(TrialResult {
            had: 4,
            connections: 5,
            channels: 0,
            gain: 1.01,
        });
        let said = "limited by the path (4 connections): 5 connections were no faster";
        assert_eq!(after(vec![tried]).as_deref(), Some(said));
        let mut fixed = report(Limiter::Lanes);
        (fixed.connections, fixed.channels, fixed.fixed) = (1, 1, true);
        let said = "limited by the number of connections (1 connection): as requested";
        assert_eq!(after(vec![fixed]).as_deref(), Some(said));
    }

    #[test]
    fn between_two_hosts_the_one_that_waits_is_not_named() {
        let said = after(vec![report(Limiter::LocalDisk), report(Limiter::Loss)]);
        assert!(
            said.is_some_and(|s| s.starts_with("h\\x07: limited by packet loss")),
            "the other host"
        );
    }

    /// Regression: "h3: limited by --limit", which three hosts shared.
    #[test]
    fn what_limits_every_host_names_none_of_them() {
        let all = |limiters: &[Limiter]| after(limiters.iter().copied().map(report).collect());
        let limit = Limiter::UserLimit;
        let said = all(&[limit, limit, limit]);
        assert_eq!(said.as_deref(), Some("limited by the rate of --limit"));
        let said = all(&[Limiter::Unknown, limit]);
        assert_eq!(said.as_deref(), Some("limited by the rate of --limit"));
        let said = all(&[Limiter::Path, Limiter::Path]);
        assert_eq!(said.as_deref(), Some("limited by the path (both hosts)"));
        let said = all(&[Limiter::Path, Limiter::Path, Limiter::Path]);
        assert_eq!(said.as_deref(), Some("limited by the path (all 3 hosts)"));
        let said = all(&[Limiter::Path, Limiter::Loss]);
        assert!(said.is_some_and(|said| said.starts_with("h\\x07: limited by ")));
    }

    /// Bug: a fan-out that waited 20 s for a host was "limited by this machine's processor", which a
    /// second of work for the other host had shown.
    #[test]
    fn a_session_of_a_moment_does_not_explain_a_long_run() {
        let mut brief = report(Limiter::LocalCpu);
        brief.measured = Duration::from_secs(1);
        assert_eq!(after(vec![brief.clone()]), None);
        let said = after(vec![brief, report(Limiter::Path)]).unwrap_or_default();
        assert!(said.starts_with("h\\x07: limited by the path"), "{said}");
    }

    #[test]
    fn nothing_is_said_of_short_and_lost_copies() {
        assert_eq!(after(Vec::new()), None);
        let short = CopySummary {
            elapsed: Duration::from_millis(1900),
            sessions: vec![report(Limiter::Path)],
            ..CopySummary::default()
        };
        assert_eq!(line(&short), None);
        let lost = CopySummary {
            outcome: CopyOutcome::NoConnection("h: gone".to_owned()),
            elapsed: Duration::from_secs(10),
            ..short
        };
        assert_eq!(line(&lost), None);
    }
}
