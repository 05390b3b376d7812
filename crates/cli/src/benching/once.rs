//! One copy, sampled while it runs.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use measure::bench::{BenchCompression, BenchSetting, StorageKind};
use schedule::CompressionMode;
use transfer::cancel::CancelToken;
use transfer::connect::{ConnectionFacts, RemoteLonghaulPolicy};
use transfer::copy::{self, CopyOptions, CopyRequest, DeltaUse};
use transfer::operand::SshDestination;
use transfer::report::{CopyOutcome, CopySummary, ProgressCounters};

use super::machine::own_time;
use crate::connect::{Hosts, MeasurementSessionSettings};
use crate::flags::low::{CopyArgs, TerminalSetting};
use crate::output::RunReporter;

/// Sampling interval; a session reports progress twenty times a second.
const TICK: Duration = Duration::from_millis(1);
/// Share of the bytes that passes before measuring begins: windows open and buffers fill meanwhile.
const WARM: f64 = 0.2;

/// Figures of one copy. The steady part begins when 20 % of the bytes have moved.
pub(super) struct BenchCopyResult {
    pub(super) summary: CopySummary,
    pub(super) facts: Option<ConnectionFacts>,
    /// From connecting to the end, in seconds.
    pub(super) seconds: f64,
    /// Bytes a second in the steady part.
    pub(super) rate: f64,
    /// Processor seconds of this process for 10^9 bytes in the steady part.
    pub(super) cpu: f64,
}

/// A sample of the progress: seconds, bytes, processor seconds.
#[derive(Clone, Copy, Debug)]
struct ProgressSample {
    at: f64,
    bytes: u64,
    cpu: f64,
}

/// The settings that all copies of a measurement share.
pub(super) struct MeasuredCopySettings {
    pub(super) host: SshDestination,
    /// Flags for reaching the host.
    pub(super) login: CopyArgs,
    pub(super) output: Arc<RunReporter>,
    pub(super) cancel: CancelToken,
}

impl MeasuredCopySettings {
    /// The flags that a user would give for a setting.
    fn flags(&self, setting: &BenchSetting) -> CopyArgs {
        let mut flags = self.login.clone();
        flags.ciphers = Some(setting.cipher.clone());
        if let Some(mac) = &setting.mac {
            flags.options.insert(0, format!("MACs={mac}"));
        }
        if setting.carried {
            flags.program = Some("ssh".into());
            flags.options.insert(0, "ControlPath=none".to_owned());
        }
        flags.compress = Some(match setting.compression {
            BenchCompression::Zlib => TerminalSetting::Always,
            BenchCompression::None | BenchCompression::Zstd => TerminalSetting::Never,
        });
        flags.connections = Some(setting.connections);
        flags.channels = Some(setting.channels);
        flags.far = match setting.both_ours {
            true => RemoteLonghaulPolicy::Exec,
            false => RemoteLonghaulPolicy::Stock,
        };
        // Quiet: the first login has reported cipher warnings already.
        flags.quiet = true;
        flags
    }

    /// Runs one copy and measures it.
    pub(super) fn run(
        &self,
        setting: &BenchSetting,
        mut request: CopyRequest,
        size: u64,
    ) -> BenchCopyResult {
        request.options = CopyOptions {
            fsync: setting.place == StorageKind::Disk,
            afresh: true,
            delta: DeltaUse::Never,
            ..CopyOptions::default()
        };
        let start = Instant::now();
        let opened: Arc<Mutex<Option<(ConnectionFacts, f64)>>> = Arc::default();
        let told = Arc::clone(&opened);
        let measured = MeasurementSessionSettings {
            pack: match setting.compression {
                BenchCompression::Zstd => CompressionMode::Always,
                BenchCompression::None | BenchCompression::Zlib => CompressionMode::Never,
            },
            // A remembered longhaul serves from the start.
            remembers: setting.both_ours,
            opened: Arc::new(move |facts: &ConnectionFacts| {
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                let at = start.elapsed().as_secs_f64();
                told.get_or_insert_with(|| (facts.clone(), at));
            }),
        };
        let hosts = Hosts::new(
            vec![self.host.clone()],
            self.flags(setting),
            Arc::clone(&self.output),
        );
        let hosts = hosts.measured(measured);
        let progress = ProgressCounters::default();
        let (runs, over) = channel::<()>();
        let (summary, points) = thread::scope(|scope| {
            let progress = &progress;
            let sampler = scope.spawn(move || sample(progress, &over, start));
            let summary = copy::run(request, &hosts, progress, &mut |_| {}, &self.cancel);
            drop(runs);
            (summary, sampler.join().unwrap_or_default())
        });
        let opened = opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        let begun = opened.as_ref().map_or(0.0, |(_, at)| *at);
        let (rate, cpu) = steady(&points, size, begun, setting.place == StorageKind::Disk);
        BenchCopyResult {
            summary,
            facts: opened.map(|(facts, _)| facts),
            seconds: start.elapsed().as_secs_f64(),
            rate,
            cpu,
        }
    }
}

impl BenchCopyResult {
    /// The reason why the copy does not count, if it failed.
    pub(super) fn trouble(&self) -> Option<String> {
        match &self.summary.outcome {
            CopyOutcome::Complete => None,
            CopyOutcome::NoConnection(why) | CopyOutcome::Misconfigured(why) => Some(why.clone()),
            CopyOutcome::Interrupted => Some("interrupted".to_owned()),
            CopyOutcome::Partial => {
                let first = self.summary.failures.first();
                Some(first.map_or_else(
                    || "the copy is incomplete".to_owned(),
                    |failure| format!("{}: {}", failure.path, failure.reason),
                ))
            }
        }
    }

    /// Returns true if the connection failed or was lost.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.summary.outcome, CopyOutcome::NoConnection(_))
    }
}

/// Samples the progress every [`TICK`], and once more when the sender of `over` is dropped.
fn sample(progress: &ProgressCounters, over: &Receiver<()>, start: Instant) -> Vec<ProgressSample> {
    let mut points: Vec<ProgressSample> = Vec::new();
    let mut last = false;
    loop {
        let bytes = progress.bytes_done();
        let news = points.last().is_none_or(|point| point.bytes != bytes);
        if news || last {
            points.push(ProgressSample {
                at: start.elapsed().as_secs_f64(),
                bytes,
                cpu: own_time(),
            });
        }
        if last {
            return points;
        }
        last = over.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout);
    }
}

/// Bytes a second, and processor seconds for 10^9 bytes, in the steady part of a copy of `size`
/// bytes. The steady part begins at [`WARM`] and ends at the last progress before the end, or at
/// the end itself if `whole` is set, as for disks. A copy that is too short for this is measured
/// from `begun` to its end.
fn steady(points: &[ProgressSample], size: u64, begun: f64, whole: bool) -> (f64, f64) {
    const NOTHING: (f64, f64) = (0.0, 0.0);
    let (Some(first), Some(end)) = (points.first(), points.last()) else {
        return NOTHING;
    };
    let between = |from: &ProgressSample, to: &ProgressSample| {
        let bytes = to.bytes.saturating_sub(from.bytes) as f64;
        let seconds = to.at - from.at;
        (
            bytes / seconds.max(1e-9),
            (to.cpu - from.cpu) / (bytes / 1e9),
        )
    };
    let warm = points
        .iter()
        .find(|point| point.bytes as f64 >= size as f64 * WARM);
    // The last bytes are reported when the file is closed, a round trip or two later.
    let flowing = points.iter().rev().find(|point| point.bytes < size);
    let to = if whole { Some(end) } else { flowing };
    if let (Some(from), Some(to)) = (warm, to)
        && to.bytes.saturating_sub(from.bytes) as f64 >= size as f64 * 0.5
    {
        return between(from, to);
    }
    let done = points.iter().find(|point| point.bytes >= size);
    let to = if whole { end } else { done.unwrap_or(end) };
    let from = ProgressSample {
        at: begun,
        bytes: 0,
        cpu: first.cpu,
    };
    between(&from, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at: f64, bytes: u64) -> ProgressSample {
        ProgressSample {
            at,
            bytes,
            cpu: at / 2.0,
        }
    }

    #[test]
    fn login_slow_start_and_closing_are_not_in_the_rate() {
        // Samples: one second of login, a slow second, 100 bytes a second, and a second until the
        // end.
        let mut points = vec![point(0.0, 0), point(2.0, 20)];
        points.extend((1..=9).map(|n| point(2.0 + f64::from(n) * 0.8, 20 + 80 * n as u64)));
        points.push(point(11.0, 800));
        let (rate, cpu) = steady(&points, 800, 1.0, false);
        assert!((rate - 100.0).abs() < 1e-6, "{rate}");
        assert!((cpu - 0.5 / 100.0 * 1e9).abs() < 1e-3, "{cpu}");
        let (with_end, _) = steady(&points, 800, 1.0, true);
        assert!(with_end < 90.0, "{with_end}");
    }

    #[test]
    fn a_short_copy_is_measured_from_the_login() {
        let points = [point(0.0, 0), point(1.5, 100)];
        let (rate, _) = steady(&points, 100, 1.0, false);
        assert_eq!(rate, 200.0);
        assert_eq!(steady(&[], 100, 1.0, false), (0.0, 0.0));
    }
}
