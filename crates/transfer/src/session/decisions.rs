//! Decisions of [`schedule::ConcurrencyController`] in words, for `-v`.

use std::cmp::Ordering;

use schedule::{
    ConcurrencyChange, ConcurrencyController, LearnedConcurrency, Limiter, TrialResult,
};

/// Describes the changes of one sample in one sentence, with the values learned from an earlier run
/// if there are any.
pub(super) fn in_words(
    growth: &ConcurrencyController,
    changes: &[ConcurrencyChange],
    learned: Option<LearnedConcurrency>,
) -> String {
    let count = |of: fn(&ConcurrencyChange) -> bool| changes.iter().filter(|c| of(c)).count();
    let more = [
        (
            count(|c| matches!(c, ConcurrencyChange::AddConnection)),
            "connection",
        ),
        (
            count(|c| matches!(c, ConcurrencyChange::AddChannel(_))),
            "channel",
        ),
    ];
    let less = [
        (
            count(|c| matches!(c, ConcurrencyChange::RetireConnection(_))),
            "connection",
        ),
        (
            count(|c| matches!(c, ConcurrencyChange::RetireLane(_))),
            "channel",
        ),
    ];
    let count_added = more[0].0;
    let (more, less) = (listed(more), listed(less));
    let mut text = state(growth);
    if let Some(more) = more {
        let as_learned = |l: LearnedConcurrency| (l.connections as usize).cmp(&(count_added + 1));
        let why = match (growth.limiter(), learned.map(as_learned)) {
            (Limiter::Unknown, Some(Ordering::Equal)) => {
                ": the number that paid last time".to_owned()
            }
            (Limiter::Unknown, Some(Ordering::Less)) if count_added > 0 => {
                ": at least the number that paid last time".to_owned()
            }
            (Limiter::Unknown, Some(Ordering::Greater)) if count_added > 0 => {
                ": fewer than paid last time".to_owned()
            }
            _ if !growth.is_trying() => " at the start".to_owned(),
            (limiter, _) => format!(" because {limiter} limits the rate"),
        };
        text.push_str(&format!("adding {more}{why}"));
    }
    if let Some(less) = less {
        let why = growth.tried().map(worth).unwrap_or_default();
        text.push_str(&format!("closing {less}{why}"));
    }
    text
}

/// Formats the state, such as "5 connections, 8 channels: 118 MB/s; ". Empty before the first
/// measurement.
fn state(growth: &ConcurrencyController) -> String {
    let e = growth.limiter_evidence();
    if e.connections == 0 {
        return String::new();
    }
    let mut text = some(e.connections as usize, "connection");
    if e.lanes > e.connections {
        text.push_str(&format!(", {}", some(e.lanes as usize, "channel")));
    }
    format!("{text}: {:.1} MB/s; ", e.rate / 1e6)
}

fn worth(tried: TrialResult) -> String {
    let TrialResult {
        had,
        connections,
        gain,
        ..
    } = tried;
    let percent = (gain - 1.0) * 100.0;
    match (connections > had, tried.paid()) {
        (true, _) => {
            let connections = some(connections as usize, "connection");
            format!(": {connections} changed the rate by {percent:+.0} % over {had}")
        }
        (false, _) => format!(": they changed the rate by {percent:+.0} %"),
    }
}

fn listed(counts: [(usize, &str); 2]) -> Option<String> {
    let there = counts.into_iter().filter(|(n, _)| *n > 0);
    let words: Vec<String> = there.map(|(n, what)| some(n, what)).collect();
    (!words.is_empty()).then(|| words.join(" and "))
}

fn some(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use schedule::{
        ConcurrencyConfig, ConnectionId, ConnectionSample, RunMeasurements, TransferDirection,
    };

    use super::*;

    #[test]
    fn decisions_are_sentences() {
        let (mut now, config) = (
            Instant::now(),
            ConcurrencyConfig::new(TransferDirection::Up),
        );
        let mut growth = ConcurrencyController::new(config);
        let add = [
            ConcurrencyChange::AddConnection,
            ConcurrencyChange::AddConnection,
        ];
        assert_eq!(
            in_words(&growth, &add, None),
            "adding 2 connections at the start"
        );
        let learned = LearnedConcurrency {
            direction: TransferDirection::Up,
            connections: 3,
            channels: 1,
            rate: 1,
            rtt_us: 1,
            at: 1,
        };
        assert_eq!(
            in_words(&growth, &add, Some(learned)),
            "adding 2 connections: the number that paid last time"
        );
        let more = LearnedConcurrency {
            connections: 7,
            ..learned
        };
        assert_eq!(
            in_words(&growth, &add, Some(more)),
            "adding 2 connections: fewer than paid last time"
        );
        for second in 0..3 {
            growth.sample(&RunMeasurements {
                now,
                remaining: Some(1 << 40),
                moved: 4_500_000 * second,
                done: 0,
                cpu: Duration::ZERO,
                idle: Some(0.9),
                wanted_cpu: None,
                silent: Duration::ZERO,
                start_up: Duration::ZERO,
                starting: 0,
                bears_losses: false,
                connections: vec![ConnectionSample {
                    connection: ConnectionId(0),
                    bytes: 0,
                    tcp: None,
                }],
                lanes: Vec::new(),
            });
            now += Duration::from_secs(1);
        }
        let one = [
            ConcurrencyChange::AddConnection,
            ConcurrencyChange::AddChannel(ConnectionId(0)),
        ];
        let text = in_words(&growth, &one, None);
        let begins = "1 connection: 4.5 MB/s; adding 1 connection and 1 channel ";
        assert!(text.starts_with(begins), "{text}");
        let back = [ConcurrencyChange::RetireConnection(ConnectionId(0))];
        let text = in_words(&growth, &back, None);
        assert!(text.ends_with("closing 1 connection"), "{text}");
        let tried = TrialResult {
            had: 4,
            connections: 5,
            channels: 0,
            gain: 1.021,
        };
        assert_eq!(
            worth(tried),
            ": 5 connections changed the rate by +2 % over 4"
        );
    }
}
