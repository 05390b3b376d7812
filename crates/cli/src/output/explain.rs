//! `--explain`: each decision of a run in one line, with its origin and its evidence.

use serde::Serialize;
use transfer::copy::DeltaUse;
use transfer::detour::WORTH;
use transfer::escape;
use transfer::report::{
    CipherOrderReason, CompressibilitySample, Decision, DecisionOrigin, DecisionSubject,
    DetourReason, EscapedName, FarEndServerReport, KexGuessKind, ServerMode, VerifyResult,
    ZlibReason,
};

use crate::output::closing;
use crate::output::limiter::lanes;
use crate::output::units;
use schedule::{CompressionMode, Limiter, TrialResult};

/// Decision in the form of the `decision` event of `--json` (docs/json.md); `--explain` prints the
/// same fields as one line.
#[derive(Debug, Serialize)]
pub(crate) struct DecisionEvent {
    host: Option<EscapedName>,
    what: &'static str,
    choice: String,
    from: &'static str,
    source: Option<String>,
    age: Option<u64>,
    evidence: String,
}

impl DecisionEvent {
    pub(crate) fn new(decision: &Decision) -> Self {
        let (what, choice) = chosen(&decision.choice);
        let (from, source, age) = match &decision.origin {
            DecisionOrigin::Default => ("default", None, None),
            DecisionOrigin::Flag(flag) => ("flag", Some((*flag).to_owned()), None),
            DecisionOrigin::Config(file) => {
                let file = file.as_ref().map(|f| escape::path(f).to_string());
                let file = file.unwrap_or_else(|| "ssh_config".to_owned());
                ("config", Some(file), None)
            }
            DecisionOrigin::Memory(age) => ("memory", None, Some(age.as_secs())),
            DecisionOrigin::Measured => ("measured", None, None),
            DecisionOrigin::Peer => ("peer", None, None),
        };
        Self {
            host: decision.host.clone(),
            what,
            choice,
            from,
            source,
            age,
            evidence: evidence(&decision.choice),
        }
    }

    /// The decision in one line, with the host if there are several.
    pub(crate) fn line(&self, several: bool) -> String {
        let host = self.host.as_ref().filter(|_| several);
        let host = host.map_or_else(String::new, |host| format!("{host}: "));
        let from = match (self.from, &self.source, self.age) {
            ("flag" | "config", Some(source), _) => format!("from {source}"),
            ("memory", _, Some(age)) => format!("learned {} ago", known_for(age)),
            ("measured", ..) => "measured in this run".to_owned(),
            ("peer", ..) => "because of the server".to_owned(),
            _ => "automatic".to_owned(),
        };
        let Self {
            what,
            choice,
            evidence,
            ..
        } = self;
        format!("{host}{what}: {choice} ({from}): {evidence}")
    }
}

fn known_for(seconds: u64) -> String {
    let many = |n: u64, unit: &str| format!("{n} {unit}{}", if n == 1 { "" } else { "s" });
    match seconds {
        0 => "less than a second".to_owned(),
        1..=119 => many(seconds, "second"),
        120..=7199 => many(seconds / 60, "minute"),
        7200..=172_799 => many(seconds / 3600, "hour"),
        _ => many(seconds / 86_400, "day"),
    }
}

/// The subject of a decision, and the choice.
fn chosen(choice: &DecisionSubject) -> (&'static str, String) {
    match choice {
        DecisionSubject::Cipher { name, .. } => ("cipher", name.clone()),
        DecisionSubject::KeyExchange { name, .. } => ("key exchange", name.clone()),
        DecisionSubject::Zlib { on: true, .. } => ("zlib", "on".to_owned()),
        DecisionSubject::Zlib { on: false, .. } => ("zlib", "off".to_owned()),
        DecisionSubject::Zstd {
            tried,
            became,
            moved,
            ..
        } => ("zstd", zstd(*tried, *became, *moved)),
        DecisionSubject::FarEnd(far) => ("far end", far_end(far)),
        DecisionSubject::Lanes {
            connections,
            channels,
            permitted,
            ..
        } => {
            let most = permitted.filter(|most| most > connections);
            let used = || lanes(*connections, *channels);
            let several = match (*channels > 1, *connections) {
                (false, _) => String::new(),
                (true, 1) => format!(", {channels} channels"),
                (true, _) => format!(", {channels} channels each"),
            };
            let of = |most| {
                format!("{connections} of the {most} connections that are permitted{several}")
            };
            ("connections", most.map_or_else(used, of))
        }
        DecisionSubject::Dscp(0) => ("DSCP", "none".to_owned()),
        DecisionSubject::Dscp(mark) => ("DSCP", mark.to_string()),
        DecisionSubject::Congestion { name, .. } => {
            let own = || "the system's default".to_owned();
            ("congestion control", name.clone().unwrap_or_else(own))
        }
        DecisionSubject::Files { cut, whole, .. } => ("files", files(*cut, *whole)),
        DecisionSubject::Delta { mode, reused } => ("delta", delta(*mode, *reused)),
        DecisionSubject::HostWay(way) => ("way", closing::way(way)),
        DecisionSubject::Detour { through, .. } => {
            let direct = || "the direct way".to_owned();
            let relayed = |hosts: &String| format!("through {}", escape::name(hosts.as_bytes()));
            ("via", through.as_ref().map_or_else(direct, relayed))
        }
        DecisionSubject::Verify(verified) => ("verify", verify(verified.as_ref())),
    }
}

fn zstd(tried: u64, became: u64, moved: u64) -> String {
    match tried {
        // Blocks that do not become smaller are sent as they are, and count as that.
        _ if became >= tried => format!("none of {} compressed", units::size(moved)),
        _ => format!(
            "{} of {} compressed to {}",
            units::size(tried),
            units::size(moved),
            units::size(became)
        ),
    }
}

/// The reason why data was compressed with zstd or not.
fn zstd_reason(mode: CompressionMode, tried: u64, became: u64) -> String {
    match (mode, tried) {
        (CompressionMode::Never, _) => "it was turned off".to_owned(),
        (CompressionMode::Auto, 0) => {
            "the path is as fast as the compression, or no data was suitable".to_owned()
        }
        (CompressionMode::Always, 0) => "no data was suitable".to_owned(),
        _ if became >= tried => {
            format!(
                "{} of it were tried and did not become smaller",
                units::size(tried)
            )
        }
        _ => "data that does not become smaller is sent uncompressed".to_owned(),
    }
}

fn far_end(far: &FarEndServerReport) -> String {
    let software = far.software.as_deref().unwrap_or_default();
    match far.depth {
        ServerMode::Stock => "the server's own SFTP server".to_owned(),
        ServerMode::Exec => format!("longhaul {software}, started through the SSH server"),
        ServerMode::Direct => format!("longhaul {software}, over direct connections"),
        ServerMode::Server => "longhaul is the SSH server".to_owned(),
    }
}

fn files(cut: u64, whole: u64) -> String {
    match (cut, whole) {
        (0, 0) => "each file whole, one after the other".to_owned(),
        (cut, 0) => format!("{} split into ranges", units::files(cut)),
        (0, whole) => format!("{} in one request each", units::files(whole)),
        (cut, whole) => format!("{cut} split into ranges, {whole} in one request each"),
    }
}

fn delta(mode: DeltaUse, reused: u64) -> String {
    match (mode, reused) {
        (DeltaUse::Never, _) => "off".to_owned(),
        (_, 0) => "nothing taken from existing files".to_owned(),
        (_, reused) => format!("{} taken from existing files", units::size(reused)),
    }
}

fn verify(verified: Option<&VerifyResult>) -> String {
    let program = verified.and_then(|v| v.program.as_ref().zip(v.algorithm));
    match (program, verified) {
        (Some((program, algorithm)), _) => {
            format!("by {program} at the far end ({})", algorithm.name())
        }
        (None, Some(_)) => "by reading back".to_owned(),
        (None, None) => "nothing to verify".to_owned(),
    }
}

/// The evidence for a decision.
fn evidence(choice: &DecisionSubject) -> String {
    match choice {
        DecisionSubject::Cipher { name, order } => order_of_ciphers(name, order),
        DecisionSubject::KeyExchange { guess, .. } => match guess {
            KexGuessKind::Remembered => "tried first, because this server chose it last time",
            KexGuessKind::ByVersion => "tried first, because servers of this version choose it",
            KexGuessKind::No => "chosen after the server's list of methods had arrived",
        }
        .to_owned(),
        DecisionSubject::Zlib { why, .. } => zlib(why),
        DecisionSubject::Zstd {
            pack,
            tried,
            became,
            ..
        } => zstd_reason(*pack, *tried, *became),
        DecisionSubject::FarEnd(far) => match (&far.reason, far.depth) {
            (Some(reason), _) => reason.clone(),
            (None, ServerMode::Stock) => "no other server was requested".to_owned(),
            (None, ServerMode::Server) => "its version string or its extensions say so".to_owned(),
            (None, _) => "longhaul answered there".to_owned(),
        },
        DecisionSubject::Lanes { .. } => number_of_connections(choice),
        DecisionSubject::Dscp(0) => {
            "packets are not marked, because some networks slow marked ones down".to_owned()
        }
        DecisionSubject::Dscp(_) => "packets from this machine carry this mark".to_owned(),
        DecisionSubject::Congestion { losses: true, .. } => {
            "packets were lost during the upload, and it does not slow down at each loss".to_owned()
        }
        DecisionSubject::Congestion { .. } => {
            "too few packets were lost to need another".to_owned()
        }
        DecisionSubject::Files { cut, from, whole } => {
            let from = units::size(*from);
            match (cut, whole) {
                (0, 0) => format!(
                    "files of {from} or more are split if several connections or channels can \
                     share them"
                ),
                (0, _) => "longhaul on the server needs one request for a small file".to_owned(),
                (_, 0) => format!(
                    "files of {from} or more are split, so that connections and channels can \
                     share them"
                ),
                _ => format!(
                    "files of {from} or more are split, so that connections and channels can \
                     share them; longhaul on the server needs one request for a small file"
                ),
            }
        }
        DecisionSubject::Delta { mode, .. } => match mode {
            DeltaUse::Auto => {
                "used only where longhaul is on the server, an older version of the file is at \
                 the target, and sending only the changed parts saves time"
            }
            DeltaUse::Always => {
                "used wherever longhaul is on the server and an older version of the file is at \
                 the target"
            }
            DeltaUse::Never => "files are sent whole",
        }
        .to_owned(),
        DecisionSubject::HostWay(way) => way.reason.to_string(),
        DecisionSubject::Detour { why, .. } => detour(why),
        DecisionSubject::Verify(verified) => {
            match verified.as_ref().and_then(|v| v.reason.clone()) {
                Some(reason) => reason,
                None => "checksums of the transferred data and of the stored files were compared"
                    .to_owned(),
            }
        }
    }
}

/// Evidence for the number of connections and channels.
fn number_of_connections(choice: &DecisionSubject) -> String {
    let DecisionSubject::Lanes {
        limiter,
        tried,
        learned,
        permitted,
        connections,
        ..
    } = choice
    else {
        return String::new();
    };
    let begun = learned.map(|(c, n)| {
        format!(
            "started with {}, the best number in earlier copies",
            lanes(c, n)
        )
    });
    let tried = tried.map(brought);
    let limited = limiter.filter(|limiter| *limiter != Limiter::Unknown);
    let limited = limited.map(|l| format!("limited by {l}"));
    let all: Vec<String> = begun.into_iter().chain(tried).chain(limited).collect();
    match all.is_empty() {
        true if *permitted == Some(*connections) => "as requested".to_owned(),
        true => "the copy ended before more could have paid".to_owned(),
        false => all.join("; "),
    }
}

fn detour(why: &DetourReason) -> String {
    let ways = match why {
        DetourReason::Given => return "all connections are relayed by these hosts".to_owned(),
        DetourReason::NotMeasured(why) => return format!("not measured: {why}"),
        DetourReason::Failed(why) => return why.clone(),
        DetourReason::Measured(direct, ways) => {
            let direct = ("direct".to_owned(), direct.clone());
            std::iter::once(direct).chain(ways.iter().cloned())
        }
    };
    let told = ways.map(|(name, way)| {
        let name = escape::name(name.as_bytes()).to_string();
        match way {
            Ok(way) => format!(
                "{name} {}{}/s over {:.1} ms",
                if way.grows { "more than " } else { "" },
                units::size(way.rate),
                way.rtt().as_secs_f64() * 1e3
            ),
            Err(why) => format!("{name}: {}", escape::text(why.to_string().as_bytes())),
        }
    });
    format!(
        "one connection each: {}; a detour must be {WORTH} times as fast",
        told.collect::<Vec<_>>().join("; ")
    )
}

fn order_of_ciphers(name: &str, order: &CipherOrderReason) -> String {
    match order {
        CipherOrderReason::Chosen => {
            "the first of the given ones that the server supports".to_owned()
        }
        CipherOrderReason::Instructions(true) => {
            "this processor has instructions for AES".to_owned()
        }
        CipherOrderReason::Instructions(false) => {
            "this processor has no instructions for AES".to_owned()
        }
        CipherOrderReason::Measured {
            by,
            both_ends,
            rates,
        } => {
            let rated = |(n, rate): &(String, u64)| format!("{n} {}/s", units::size(*rate));
            let own = rates.iter().filter(|(n, _)| n == name);
            let others = rates.iter().filter(|(n, _)| n != name);
            let all: Vec<String> = own.chain(others).map(rated).collect();
            let place = match both_ends {
                true => "between the two ends",
                false => "on this processor",
            };
            let by = escape::name(by.as_bytes());
            format!("{} {place}, measured by {by}", all.join(", "))
        }
    }
}

fn zlib(why: &ZlibReason) -> String {
    match why {
        ZlibReason::Set => "as requested".to_owned(),
        ZlibReason::Refused => "the server does not support it".to_owned(),
        ZlibReason::BlocksInstead => {
            "longhaul at the far end uses zstd instead, where that saves time".to_owned()
        }
        ZlibReason::NotAsked => "it cannot help here".to_owned(),
        ZlibReason::Failed => "a connection with it failed before".to_owned(),
        ZlibReason::PathUnknown => "the rate of the path is not known yet".to_owned(),
        ZlibReason::PathFast(rate) => {
            format!("the path ({}/s) is faster than zlib", units::size(*rate))
        }
        ZlibReason::Unseen => {
            "the data are at the far end and cannot be sampled beforehand".to_owned()
        }
        ZlibReason::Several => {
            "with several files, compressed lengths can reveal contents of one through another: \
             --compress=auto allows it"
                .to_owned()
        }
        ZlibReason::Little(total) => {
            let total = units::size(*total);
            format!("only {total} to send, and it costs a round trip")
        }
        ZlibReason::Looked {
            path,
            sample,
            expected,
        } => {
            let CompressibilitySample {
                files, bytes, left, ..
            } = sample;
            format!(
                "the path moves {}/s; a sample of {} from the start of {} shrinks to {:.0} %, \
                 at {}/s: expected rate with zlib {}/s",
                units::size(*path),
                units::size(*bytes),
                units::files((*files).into()),
                f64::from(*left) / 10.0,
                units::size(sample.rate),
                units::size(*expected),
            )
        }
        ZlibReason::Found(row) => format!(
            "such data moved at {}/s with it and {}/s without in an earlier measurement",
            units::size(row.rate),
            units::size(row.plain)
        ),
    }
}

fn brought(tried: TrialResult) -> String {
    let percent = (tried.gain - 1.0) * 100.0;
    match tried.connections > tried.had {
        true => format!(
            "{} changed the rate by {percent:+.0} % over {}",
            lanes(tried.connections, 1),
            tried.had
        ),
        false => format!("more channels changed the rate by {percent:+.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn line(choice: DecisionSubject, origin: DecisionOrigin) -> String {
        DecisionEvent::new(&Decision::new(choice, origin)).line(false)
    }

    #[test]
    fn decisions_are_sentences_with_their_origin() {
        let cipher = |order| DecisionSubject::Cipher {
            name: "aes128-gcm@openssh.com".to_owned(),
            order,
        };
        assert_eq!(
            line(
                cipher(CipherOrderReason::Instructions(true)),
                DecisionOrigin::Default
            ),
            "cipher: aes128-gcm@openssh.com (automatic): this processor has instructions for AES"
        );
        assert_eq!(
            line(
                cipher(CipherOrderReason::Chosen),
                DecisionOrigin::Config(None)
            ),
            "cipher: aes128-gcm@openssh.com (from ssh_config): the first of the given ones that \
             the server supports"
        );
        let rates = [("a", 1_000_000), ("aes128-gcm@openssh.com", 2_000_000)];
        let measured = CipherOrderReason::Measured {
            by: "a test".to_owned(),
            both_ends: false,
            rates: rates.map(|(n, r)| (n.to_owned(), r)).into(),
        };
        assert_eq!(
            line(
                cipher(measured),
                DecisionOrigin::Memory(Duration::from_secs(7300))
            ),
            "cipher: aes128-gcm@openssh.com (learned 2 hours ago): aes128-gcm@openssh.com 2.0 MB/s, \
             a 1.0 MB/s on this processor, measured by a test"
        );
        // Bug: "0 seconds".
        assert_eq!(known_for(0), "less than a second");
        let lanes = DecisionSubject::Lanes {
            connections: 4,
            channels: 1,
            limiter: Some(Limiter::Path),
            tried: Some(TrialResult {
                had: 2,
                connections: 4,
                channels: 0,
                gain: 1.5,
            }),
            learned: None,
            permitted: None,
        };
        assert_eq!(
            line(lanes, DecisionOrigin::Measured),
            "connections: 4 connections (measured in this run): 4 connections changed the rate \
             by +50 % over 2; limited by the path"
        );
        assert_eq!(
            line(DecisionSubject::Dscp(8), DecisionOrigin::Flag("--dscp")),
            "DSCP: 8 (from --dscp): packets from this machine carry this mark"
        );
    }

    /// Bug: data that did not become smaller were said to be compressed because it pays.
    #[test]
    fn data_that_did_not_shrink_were_called_compressed() {
        let zstd = DecisionSubject::Zstd {
            pack: CompressionMode::Auto,
            tried: 549_000,
            became: 549_000,
            moved: 40_000_000,
        };
        let line = line(zstd, DecisionOrigin::Measured);
        let said = "zstd: none of 40 MB compressed (measured in this run): 549 kB of it were \
                    tried and did not become smaller";
        assert_eq!(line, said);
        assert!(!line.contains("pays"), "{line}");
    }

    /// Bug: "2 connections (from --connections): the copy ended before more could have paid", where more
    /// than two were never permitted.
    #[test]
    fn the_given_connections_were_said_to_have_had_no_time() {
        let lanes = DecisionSubject::Lanes {
            connections: 2,
            channels: 1,
            limiter: None,
            tried: None,
            learned: None,
            permitted: Some(2),
        };
        assert_eq!(
            line(lanes, DecisionOrigin::Flag("--connections")),
            "connections: 2 connections (from --connections): as requested"
        );
    }

    /// Bug: `--connections 2` was said to be why one connection was used.
    #[test]
    fn fewer_connections_than_given_were_called_the_given_ones() {
        let lanes = DecisionSubject::Lanes {
            connections: 1,
            channels: 1,
            limiter: None,
            tried: None,
            learned: None,
            permitted: Some(2),
        };
        let line = line(lanes, DecisionOrigin::Flag("--connections"));
        assert!(
            line.starts_with("connections: 1 of the 2 connections that are permitted (from "),
            "{line}"
        );
    }

    #[test]
    fn the_host_is_named_where_there_are_several() {
        let mut decision = Decision::new(DecisionSubject::Dscp(0), DecisionOrigin::Default);
        decision.host = Some(EscapedName(b"h\x07".to_vec()));
        let line = DecisionEvent::new(&decision).line(true);
        assert!(
            line.starts_with("h\\x07: DSCP: none (automatic): "),
            "{line}"
        );
    }
}
