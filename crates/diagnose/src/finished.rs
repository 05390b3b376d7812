//! Diagnosis of a finished transfer from the figures that it reported.

use crate::diagnosis_finding::{Certainty, DataDirection, DiagnosisFinding};
use crate::limit_cause::{LimitCause, RemedyActor};
use crate::limiter::{Limiter, LimiterEvidence};
use crate::units::{percent, rate, time};
use crate::verdict::{PathDiagnosis, sentence};

/// Report of a finished transfer to or from one host.
#[derive(Clone, Copy, Debug)]
pub struct FinishedTransfer {
    /// Direction of the data.
    pub direction: DataDirection,
    /// Limiter that the transfer named ([`crate::limiter()`]).
    pub limiter: Limiter,
    /// Figures behind it.
    pub figures: LimiterEvidence,
}

/// Evidence that one transfer cannot give.
const UNSEEN: &str = "the idle path, other numbers of connections, DSCP classes: run longhaul \
                      doctor HOST to measure them";

/// Rate in bytes per second below which no rate was measured. It would be shown as 0 kB/s.
const LEAST_RATE: f64 = 500.0;

/// Explains a finished transfer. One transfer has no comparison, so nothing is certain.
pub fn explain(finished: &FinishedTransfer) -> PathDiagnosis {
    let (direction, f) = (finished.direction, &finished.figures);
    let mut findings = Vec::new();
    let verdict = match cause(finished.limiter) {
        Some(cause) => {
            let finding = DiagnosisFinding::new(cause, evidence(finished.limiter, f)).of(direction);
            let finding = finding.limits(f.rate, None).certainty(Certainty::Likely);
            let finding = next_changes(finding, finished.limiter);
            let text = sentence(&finding, None);
            findings.push(finding);
            text
        }
        None if finished.limiter == Limiter::UserLimit => format!(
            "As requested: --limit held the copy to {}; raise it, or leave it out",
            rate(f.rate)
        ),
        None if finished.limiter == Limiter::Unknown && f.rate < LEAST_RATE => {
            "Unsure: the copy was too short to measure; run longhaul doctor HOST to measure the path"
                .to_owned()
        }
        None if finished.limiter == Limiter::Unknown => format!(
            "Unsure: the copy moved {}, and its figures show no limit; run longhaul doctor HOST to \
             measure the path",
            rate(f.rate)
        ),
        None => format!(
            "Unsure: the copy moved {} and was limited by {}; run longhaul doctor HOST to find out \
             why",
            rate(f.rate),
            finished.limiter
        ),
    };
    PathDiagnosis {
        verdict,
        healthy: false,
        certainty: match findings.is_empty() && finished.limiter != Limiter::UserLimit {
            true => Certainty::Unsure,
            false => Certainty::Likely,
        },
        findings,
        unseen: vec![UNSEEN.to_owned()],
    }
}

/// Replaces the advice to use longhaul cp, which made the transfer, by the next change. Advice for
/// OpenSSH's programs, which did not make it, comes behind.
fn next_changes(mut finding: DiagnosisFinding, limiter: Limiter) -> DiagnosisFinding {
    finding.remedies.retain(|remedy| {
        !remedy.text.starts_with("use longhaul cp") && !remedy.text.starts_with("run several scp")
    });
    let (by, text) = match (limiter, limiter.sysctl()) {
        (_, Some((name, true))) => (
            RemedyActor::Server,
            format!("raise the maximum of sysctl {name}"),
        ),
        (_, Some((name, false))) => (
            RemedyActor::Here,
            format!("raise the maximum of sysctl {name}"),
        ),
        (Limiter::ServerWindow, None) => (
            RemedyActor::Longhaul,
            "install longhaul at the server (longhaul bootstrap HOST), whose windows are larger"
                .to_owned(),
        ),
        (Limiter::LocalCpu, None) => (
            RemedyActor::Here,
            "look for other load on this machine (top)".to_owned(),
        ),
        (Limiter::Server, None) => (
            RemedyActor::Server,
            "look for other load on the server (top, iostat -x 1)".to_owned(),
        ),
        (_, None) => return finding,
    };
    finding.remedy_first(by, Some(text))
}

/// The figures that show the limiter, and the losses. Other figures contradict it to a reader: a
/// sender that waits for its own processor waits for the SSH window as well.
fn evidence(limiter: Limiter, f: &LimiterEvidence) -> String {
    let rtt = (f.min_rtt.as_secs_f64(), f.rtt.as_secs_f64());
    let mut text = match f.rtt > f.min_rtt {
        true => format!("round trip {} to {}", time(rtt.0), time(rtt.1)),
        false => format!("round trip {}", time(rtt.0)),
    };
    let waited = |share: f64, what: &str| {
        (share > 0.001).then(|| format!("{} of the time waiting for {what}", percent(share)))
    };
    let shows = match limiter {
        Limiter::ServerWindow => waited(
            f.window_blocked,
            "the server to permit more data (SSH window)",
        ),
        Limiter::FarReceiveBuffer => waited(f.rwnd_limited, "room in the server's receive buffer"),
        Limiter::SendBuffer => waited(f.sndbuf_limited, "room in this machine's send buffer"),
        Limiter::LocalCpu if f.cpu > 0.0 => {
            Some(format!("longhaul used {:.1} of its processors", f.cpu))
        }
        Limiter::Server if !f.server.is_zero() => Some(format!(
            "answers took {} beyond the round trip",
            time(f.server.as_secs_f64())
        )),
        _ => None,
    };
    let lost = (f.loss > 0.001).then(|| format!("{} of the packets lost", percent(f.loss)));
    for part in shows.into_iter().chain(lost) {
        text.push_str(", ");
        text.push_str(&part);
    }
    text
}

fn cause(limiter: Limiter) -> Option<LimitCause> {
    Some(match limiter {
        Limiter::Loss => LimitCause::Loss,
        Limiter::ServerWindow => LimitCause::ChannelWindow,
        Limiter::Server => LimitCause::FarCpu,
        Limiter::LocalCpu => LimitCause::LocalCpu,
        Limiter::LocalDisk => LimitCause::LocalDisk,
        Limiter::SendBuffer => LimitCause::SendBuffer,
        Limiter::FarReceiveBuffer => LimitCause::FarReceiveBuffer,
        Limiter::ReceiveBuffer => LimitCause::ReceiveBuffer,
        Limiter::FarSendBuffer => LimitCause::FarSendBuffer,
        Limiter::OtherTraffic => LimitCause::Congestion,
        Limiter::Unknown
        | Limiter::Path
        | Limiter::UserLimit
        | Limiter::Lanes
        | Limiter::Startup => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limiter_of_a_copy_is_explained_and_never_called_healthy() {
        for limiter in Limiter::all() {
            let d = explain(&FinishedTransfer {
                direction: DataDirection::Upload,
                limiter,
                figures: LimiterEvidence {
                    rate: 2e6,
                    loss: 0.01,
                    ..LimiterEvidence::default()
                },
            });
            assert!(!d.healthy && !d.verdict.is_empty() && d.certainty < Certainty::Sure);
            assert_eq!(d.findings.len(), usize::from(cause(limiter).is_some()));
            // The user has set this limit.
            let is_unsure = d.verdict.starts_with("Unsure");
            assert_eq!(is_unsure, d.certainty == Certainty::Unsure, "{}", d.verdict);
            assert!(!is_unsure || limiter != Limiter::UserLimit);
            // The transfer was a longhaul cp already.
            assert!(!d.verdict.contains("use longhaul cp"), "{}", d.verdict);
            for finding in &d.findings {
                assert!(!finding.remedies.is_empty(), "{}", d.verdict);
            }
        }
    }

    /// Bug: a copy by longhaul that the processor limited was said to wait for the SSH window for
    /// most of the time, and the advice was to set ciphers for OpenSSH.
    #[test]
    fn the_evidence_and_the_advice_contradicted_the_limit() {
        let d = explain(&FinishedTransfer {
            direction: DataDirection::Upload,
            limiter: Limiter::LocalCpu,
            figures: LimiterEvidence {
                rate: 2e8,
                window_blocked: 0.74,
                cpu: 1.2,
                ..LimiterEvidence::default()
            },
        });
        assert!(!d.verdict.contains("SSH window"), "{}", d.verdict);
        assert!(d.verdict.contains("longhaul used 1.2"), "{}", d.verdict);
        assert!(!d.verdict.contains("OpenSSH"), "{}", d.verdict);
    }
}
