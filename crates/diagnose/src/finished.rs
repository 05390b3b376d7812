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

/// Explains a finished transfer. One transfer has no comparison, so nothing is certain.
pub fn explain(finished: &FinishedTransfer) -> PathDiagnosis {
    let (direction, f) = (finished.direction, &finished.figures);
    let unseen = ["idle path", "other numbers of connections", "DSCP classes"];
    let unseen =
        unseen.map(|what| format!("{what}: one transfer cannot tell; run longhaul doctor HOST"));
    let mut findings = Vec::new();
    let verdict = match cause(finished.limiter) {
        Some(cause) => {
            let finding = DiagnosisFinding::new(cause, figures(f)).of(direction);
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
        None => format!(
            "Unsure: the copy moved {} and was limited by {}; run longhaul doctor HOST to compare",
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
        unseen: unseen.to_vec(),
    }
}

/// Replaces the advice to use longhaul cp, which made the transfer, by the next change.
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
        (_, None) => return finding,
    };
    finding.remedy_first(by, Some(text))
}

fn figures(f: &LimiterEvidence) -> String {
    let rtt = (f.min_rtt.as_secs_f64(), f.rtt.as_secs_f64());
    let mut text = format!("round trip {} to {}", time(rtt.0), time(rtt.1));
    for (share, what) in [
        (f.loss, "lost"),
        (f.rwnd_limited, "of the time in the receiver's window"),
        (f.sndbuf_limited, "of the time in the send buffer"),
        (
            f.window_blocked,
            "of the time waiting for the receiver to permit more data (SSH window)",
        ),
    ] {
        if share > 0.001 {
            text.push_str(&format!(", {} {what}", percent(share)));
        }
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
}
