//! The verdict: one sentence, and the findings behind it.

use serde::Serialize;

use crate::diagnosis_finding::{Certainty, DataDirection, DiagnosisFinding};
use crate::evidence::{Evidence, ThroughputMeasurement, ThroughputScaling};
use crate::limit_cause::{LimitCause, Remedy};
use crate::limiter::Limiter;
use crate::rules::{self, ladder::GROWS, ladder::fell_after_burst, ladder::limiter_of};
use crate::units::rate;

/// Gain from more connections below which the path is full.
const FULL: f64 = 1.2;

/// Gain from the last connections below which the rates level off, and the gain of all connections
/// up to which one of them counts as fast enough.
const LEVEL: f64 = 1.1;
const SHARE: f64 = 1.5;

/// Share of one connection's rate that several do not stay below on a healthy path.
const FALLEN: f64 = 0.7;

/// Verdict about a path in one sentence, with its certainty and the findings behind it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathDiagnosis {
    /// One sentence: the cause, the possible gain, and the change that gets most of it.
    pub verdict: String,
    /// True if nothing is wrong.
    pub healthy: bool,
    /// Certainty of the verdict.
    pub certainty: Certainty,
    /// Limits, the lowest first; then findings that cost only time, then limits that are unsure,
    /// then notes.
    pub findings: Vec<DiagnosisFinding>,
    /// Evidence that is missing.
    pub unseen: Vec<String>,
}

impl PathDiagnosis {
    /// Returns the settings of ssh_config for its findings, each once, without those that rest on
    /// doubtful figures.
    pub fn ssh_config(&self) -> Vec<&'static str> {
        let mut lines = Vec::new();
        let trusted = self.findings.iter();
        for finding in trusted.filter(|f| f.certainty > Certainty::Unsure) {
            for line in finding.cause.ssh_config() {
                if !lines.contains(line) {
                    lines.push(*line);
                }
            }
        }
        lines
    }
}

/// Difference between the rates of both directions of a link.
const ALIKE: f64 = 0.1;

/// Diagnoses a path from the evidence.
pub fn diagnose(e: &Evidence) -> PathDiagnosis {
    let findings = rules::apply(e);
    let mut unseen = e.unseen.clone();
    missing(e, &mut unseen);
    let (verdict, certainty, healthy) = match findings.first() {
        Some(first) if !first.cause.is_note() => {
            let verdict = sentence(first, findings.get(1));
            (
                qualified(verdict, first.certainty, e),
                first.certainty,
                false,
            )
        }
        note => {
            let (verdict, certainty, healthy) = nothing_found(e);
            let note = note.map(|note| format!("; note: {} ({})", note.cause, note.evidence));
            (verdict + &note.unwrap_or_default(), certainty, healthy)
        }
    };
    let certainty = match e.partial {
        Some(_) => certainty.min(Certainty::Likely),
        None => certainty,
    };
    PathDiagnosis {
        verdict,
        healthy,
        certainty,
        findings,
        unseen,
    }
}

/// Returns the verdict behind a word that says how far it can be trusted, if that is not fully so.
fn qualified(verdict: String, certainty: Certainty, e: &Evidence) -> String {
    match (certainty, &e.partial) {
        (_, Some(why)) => format!("Incomplete ({why}): {verdict}"),
        (Certainty::Unsure, None) => format!("Unsure: {verdict}"),
        _ => verdict,
    }
}

pub(crate) fn sentence(first: &DiagnosisFinding, next: Option<&DiagnosisFinding>) -> String {
    let what = match (first.direction, first.limit) {
        // Only marked packets are slow, which longhaul does not send by itself.
        (Some(direction), Some(limit)) if first.cause == LimitCause::MarkedClass => format!(
            "{} by programs that mark their packets, as OpenSSH does, are limited to {} by {}",
            direction.transfers(),
            rate(limit),
            first.cause
        ),
        (Some(direction), Some(limit)) => format!(
            "{} are limited to {} by {}",
            direction.transfers(),
            rate(limit),
            first.cause
        ),
        (_, Some(_)) => format!("transfers fail: {}", first.cause),
        (_, None) => format!("transfers lose time: {}", first.cause),
    };
    let mut text = format!("{what} ({})", first.evidence);
    if let (Some(could), Some(limit)) = (first.could, first.limit)
        && limit > 0.0
    {
        let times = could / limit;
        text.push_str(&match times >= 1.1 {
            true => format!("; {} is possible, {times:.1} times as much", rate(could)),
            false => String::new(),
        });
    }
    let another = |next: &&DiagnosisFinding| {
        let sure = next.certainty > Certainty::Unsure || first.certainty == Certainty::Unsure;
        next.cause != first.cause && !next.cause.is_note() && sure
    };
    if let Some(next) = next.filter(another) {
        text.push_str(&match next.limit {
            Some(_) => format!("; then by {}", next.cause),
            None => format!("; also, time is lost: {}", next.cause),
        });
    }
    if let Some(Remedy { by, text: change }) = first.remedies.first() {
        text.push_str(&format!(". Best change ({}): {change}", by.heading()));
    }
    capitalized(&text)
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// The verdict without a finding: healthy if the path's own limit was reached, and the reason if
/// nothing could be measured.
fn nothing_found(e: &Evidence) -> (String, Certainty, bool) {
    let directions = [
        (DataDirection::Upload, &e.up),
        (DataDirection::Download, &e.down),
    ];
    let measured = directions.iter().filter(|(_, l)| l.best().is_some());
    let full: Vec<_> = measured
        .clone()
        .filter(|(direction, ladder)| is_full(e, *direction, ladder))
        .collect();
    let count = measured.count();
    let rates = |list: &[&(DataDirection, &ThroughputScaling)]| {
        let one = |(direction, ladder): &&(DataDirection, &ThroughputScaling)| {
            format!("{} for {}", rate(carried(e, ladder)), direction.transfers())
        };
        list.iter().map(one).collect::<Vec<_>>().join(" and ")
    };
    if count > 0 && full.len() == count {
        let text = format!(
            "Nothing wrong: the path carries {}, which is what the link gives",
            rates(&full)
        );
        return (qualified(text, Certainty::Sure, e), Certainty::Sure, true);
    }
    let text = match (count, e.partial.as_deref().or_else(|| unmeasured(e))) {
        (0, Some(why)) => format!("{}. No transfer could be measured", capitalized(why)),
        (0, None) => "No transfer could be measured".to_owned(),
        _ => {
            let text = "no limit was found, and the path was not filled: a longer --time may tell"
                .to_owned();
            qualified(text, Certainty::Unsure, e)
        }
    };
    (text, Certainty::Unsure, false)
}

/// Rate of the link: the highest one of the ladder, or the rate at which one connection overflowed
/// its queue before.
fn carried(e: &Evidence, ladder: &ThroughputScaling) -> f64 {
    let best = ladder.best().filter(|best| best.rate > 0.0);
    let overflowed = ladder.rung(1, 1).and_then(|one| one.overflowed(e));
    match (best, overflowed) {
        (Some(best), Some(rate)) if !best.is_queueing(e) => best.rate.max(rate),
        (best, _) => best.map_or(0.0, |best| best.rate),
    }
}

/// Reason for which no direction was measured.
fn unmeasured(e: &Evidence) -> Option<&str> {
    let subjects = ["uploads", "downloads", "loads", "further measurements"];
    let about = |subject: &&str| {
        let mut reasons = e.unseen.iter();
        reasons.find(|why| why.starts_with(subject))
    };
    subjects.iter().find_map(about).map(String::as_str)
}

/// True if the path itself holds the ladder back: it queues, or more connections bring nothing, and
/// the user's expectation, if there is one, is met.
fn is_full(e: &Evidence, direction: DataDirection, ladder: &ThroughputScaling) -> bool {
    let (Some(one), Some(best)) = (ladder.rung(1, 1), ladder.best()) else {
        return false;
    };
    let several = ladder.rungs.iter().any(|r| r.connections > 1);
    // Also if one connection leaves a part of a path that further ones cannot fill more.
    let last = ladder.rungs.iter().filter(|r| r.connections > 1);
    let mut rates = last.rev().map(|r| r.rate);
    let levels_off = rates
        .next()
        .zip(rates.next())
        .is_some_and(|(last, before)| last < LEVEL * before);
    let gain = best.rate / one.rate;
    // A connection that was still in slow start shares the link that two connections fill, if it
    // alone had clearly more than their half.
    let two = ladder.rung(2, 1);
    let fills = one.growth > GROWS && two.is_some_and(|two| two.is_queueing(e));
    // More connections take nothing from a link: a rate that falls has another reason, unless they
    // recover from an overflow.
    let mut more = ladder.rungs.iter().filter(|r| r.connections > 1);
    let falls = more.any(|r| r.rate < FALLEN * one.rate && r.overflowed(e).is_none());
    let mut below = ladder.rungs.iter().filter(|r| r.rate < FALLEN * one.rate);
    let falls = falls || below.any(|r| fell_after_burst(e, r));
    // A connection that has overflowed a queue at this rate needs longer than its load to recover.
    let filled = |r: &ThroughputMeasurement| {
        let overflowed = r.overflowed(e);
        overflowed.is_some_and(|rate| best.rate < FULL * rate)
    };
    let overflowed = filled(one);
    let fills = fills || ladder.rungs.iter().any(filled);
    let shares = (levels_off || fills) && gain < SHARE;
    // A receiver sees less of a queue than a sender: uploads tell for downloads at the same rate.
    let up = e.up.best().map_or(0.0, |up| up.rate);
    let as_uploads = direction == DataDirection::Download
        && (best.rate / up - 1.0).abs() < ALIKE
        && is_full(e, DataDirection::Upload, &e.up);
    let sated = several && !falls && (gain < FULL || shares || overflowed || as_uploads);
    let limiter = limiter_of(direction, e, one, sated);
    let met = e
        .expected
        .is_some_and(|expected| best.rate > 0.85 * expected);
    met || sated && matches!(limiter, Limiter::Path | Limiter::Loss)
}

fn missing(e: &Evidence, unseen: &mut Vec<String>) {
    let mut note = |absent: bool, what: &str| {
        // The measurement may have noted a better reason.
        let subject = what.split(':').next().unwrap_or(what);
        if absent && !unseen.iter().any(|known| known.starts_with(subject)) {
            unseen.push(what.to_owned());
        }
    };
    note(e.idle.is_none(), "idle round trip: not measured");
    note(e.up.rungs.is_empty(), "uploads: not measured");
    note(e.down.rungs.is_empty(), "downloads: not measured");
    note(e.marks.marks.is_empty(), "DSCP classes: not measured");
    note(
        e.there.kernel.is_none(),
        "the server's kernel, buffers and load: no command could be run there",
    );
    note(
        e.there.disk.is_none(),
        "the server's disk: no PATH was given",
    );
    note(
        e.here.disk.is_none(),
        "this machine's disk: no LOCAL PATH was given",
    );
    let bleached = e
        .marks
        .marks
        .iter()
        .all(|m| m.ratios.iter().all(|r| *r > 0.7));
    note(
        bleached && !e.marks.marks.is_empty(),
        "DSCP classes: no difference, which also happens if a router clears the mark first",
    );
}
