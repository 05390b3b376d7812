//! Rules about the ladder of throughput in one direction.

mod near_link;
mod policer;

use std::time::Duration;

use self::near_link::NearLinkEvidence;
use crate::diagnosis_finding::{Certainty, DataDirection, DiagnosisFinding};
use crate::evidence::{Evidence, ThroughputMeasurement, ThroughputScaling};
use crate::kernel::{self, TcpBufferKind};
use crate::limit_cause::{LimitCause, RemedyActor};
use crate::limiter::{
    FurtherConnectionEffect, Limiter, LimiterEvidence, LossFacts, ServerFacts, TransferFacts,
    limiter,
};
use crate::units::{bytes, percent, rate, time};

pub(crate) use policer::is_spared;

/// Gain from two connections from which on each connection had a limit of its own.
const SCALES: f64 = 1.5;
/// Gain from more connections below which they brought nothing.
const FLAT: f64 = 1.2;
/// Gain from a second channel below which it brought nothing.
const CHANNELS: f64 = 1.1;
/// Bytes of a channel that lie unanswered at a quick server.
const UNANSWERED: f64 = 512.0 * 1024.0;
/// Share of a channel window that is the whole one, but for packets under way.
const WHOLE: f64 = 0.9;
/// Share of silent time above which the server lags.
const SILENT: f64 = 0.3;
/// A window that varies by no more than this factor does not grow.
const FIXED: f64 = 1.1;
/// Largest window of a connection without window scaling.
const UNSCALED: f64 = 65_535.0;
/// Share of retransmissions in vain from which on packets were reordered and not lost.
const SPURIOUS: f64 = 0.5;
/// Difference of a shaper's rate in the second measurement, at most.
const SHAPED_AGAIN: f64 = 0.25;
/// Round trip in seconds below which the ends are on the same network, or the same machine.
const SHORT: f64 = 0.002;
/// Share of late packets in uploads, per late packet in a download, that explains the latter.
const LATE: f64 = 0.3;
/// Share of the first rate below which more connections do not fall by chance.
const FALLEN: f64 = 0.8;
/// Share of lost segments that slows down a fast connection, and from which on it would lose some
/// at any time.
const RARE_LOSS: f64 = 0.0002;
const OFTEN: f64 = 0.002;
/// Rate, as a multiple of the one that losses permit in the long run, from which on they did not hold
/// back the connection.
const ABOVE_BOUND: f64 = 4.0;
/// Growth of the rate within a measurement that ended too early to be a plateau.
pub(crate) const GROWS: f64 = 1.5;
/// Difference of the rates of both directions under one kind of limit for each connection.
const ALIKE_CAP: f64 = 0.15;
/// Fall of the rate after a burst.
const FALL: f64 = 0.67;
/// Bytes that a shaper lets pass at first, at least. Less is the first volley of a slow path: 81 KiB
/// before other traffic on a line of 1 Mbit/s were called a burst.
const LEAST_BURST: u64 = 256 << 10;
/// Rate of one core's cipher, as a share of the measured one, at which the cipher is the limit.
const CIPHER: f64 = 1.4;

/// Adds the findings of one direction.
pub(crate) fn add(e: &Evidence, direction: DataDirection, found: &mut Vec<DiagnosisFinding>) {
    let ladder = match direction {
        DataDirection::Upload => &e.up,
        DataDirection::Download => &e.down,
    };
    let Some(one) = ladder.rung(1, 1).filter(|r| r.rate > 0.0) else {
        return;
    };
    let r = ScalingEvidence {
        e,
        direction,
        ladder,
        one,
        best: ladder.best().map_or(one.rate, |best| best.rate),
        two: ladder.rung(2, 1).map(|two| two.rate / one.rate),
    };
    let finding = r.burst().or_else(|| r.limited());
    found.extend(finding.map(|f| r.certain(f.of(direction))));
    found.extend(r.below_expectation().map(|f| f.of(direction)));
}

/// Returns the limiter of a rung, by the same rule as in a copy.
pub(crate) fn limiter_of(
    direction: DataDirection,
    e: &Evidence,
    rung: &ThroughputMeasurement,
    sated: bool,
) -> Limiter {
    let up = direction == DataDirection::Upload;
    let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or_default();
    let channels = f64::from((rung.connections * rung.channels).max(1));
    let lags = match up {
        true => rung.held as f64 > rung.rate * rung.rtt + channels * UNANSWERED,
        false => rung.silent > SILENT,
    };
    limiter(&TransferFacts {
        up,
        figures: LimiterEvidence {
            rate: rung.rate,
            connections: rung.connections,
            lanes: rung.connections * rung.channels,
            min_rtt: seconds(e.unloaded_rtt(rung)),
            rtt: seconds(rung.rtt),
            loss: rung.loss,
            rwnd_limited: rung.rwnd_limited,
            sndbuf_limited: rung.sndbuf_limited,
            window_blocked: rung.window_blocked,
            cpu: rung.cpu,
            idle: rung.idle,
            wanted_cpu: rung.wanted_cpu,
            silent: rung.silent,
            held: rung.held,
            per_connection: (rung.rate * rung.rtt) as u64 / u64::from(rung.connections.max(1)),
            ..LimiterEvidence::default()
        },
        losses: LossFacts {
            lately: rung.loss > LOST,
            borne: false,
        },
        server: ServerFacts {
            lags,
            holds_window: up
                && rung.window > 0
                && rung.held as f64 > WHOLE * rung.window as f64 * channels,
            share: 0.0,
        },
        growth: match sated {
            true => FurtherConnectionEffect::Sated,
            false => FurtherConnectionEffect::Open,
        },
        slow_start: rung.slow_start,
        round_trip: seconds(rung.min_rtt),
        receive_buffer: kernel::maximum(&e.here, TcpBufferKind::Receive),
        ..TransferFacts::default()
    })
}

/// True if the rate of a measurement fell, and a queue formed, after a number of bytes, as behind a
/// shaper.
pub(crate) fn fell_after_burst(e: &Evidence, r: &ThroughputMeasurement) -> bool {
    let before = r.before_burst.unwrap_or_default();
    r.rate < FALL * before && r.burst > 0 && r.is_queueing(e)
}

/// Share of lost segments that makes a server's silence unreliable as evidence.
const LOST: f64 = 0.0005;

/// Evidence of one direction, seen from its first rung.
struct ScalingEvidence<'a> {
    e: &'a Evidence,
    direction: DataDirection,
    ladder: &'a ThroughputScaling,
    /// One connection with one channel.
    one: &'a ThroughputMeasurement,
    /// Highest rate of the ladder.
    best: f64,
    /// Gain from a second connection.
    two: Option<f64>,
}

impl ScalingEvidence<'_> {
    /// Cause of the limit of one connection.
    fn limited(&self) -> Option<DiagnosisFinding> {
        // A full queue holds back one connection as well as two, if it is the path's.
        let flat = self.two.is_some_and(|two| two < FLAT) && self.best < FLAT * self.one.rate;
        let each = NearLinkEvidence::new(self).policed_below_full_link();
        match limiter_of(self.direction, self.e, self.one, false) {
            Limiter::LocalCpu => Some(self.local_cpu()),
            Limiter::Server => Some(self.far_cpu()),
            _ if self.is_unscaled() => Some(self.unscaled()),
            _ if NearLinkEvidence::new(self).is_policed() => {
                Some(NearLinkEvidence::new(self).policed())
            }
            _ if self.recovers_from_full_path() => None,
            Limiter::Loss | Limiter::Path if flat && each.is_some() => each,
            _ if flat && self.is_policed() => Some(self.policed()),
            // Losses that end below the rate, behind a short queue: the link's.
            Limiter::Loss if self.spared() == Some(true) && self.is_delayed() => {
                self.queueing(flat)
            }
            Limiter::Loss if self.two.is_none() && self.are_uploads_spared() => None,
            Limiter::Loss if !flat => Some(self.policed_below().unwrap_or_else(|| self.lossy())),
            // By chance two connections that lose packets may be no faster than one.
            Limiter::Loss if self.spared() == Some(false) || self.loses_as_uploads() => {
                Some(self.lossy().certainty(Certainty::Likely))
            }
            Limiter::Path if self.one.is_queueing(self.e) => self.queueing(flat),
            Limiter::SendBuffer if !flat => Some(self.buffer(LimitCause::SendBuffer)),
            Limiter::FarReceiveBuffer if !flat => Some(self.receive_buffer()),
            Limiter::FarSendBuffer if self.spared() == Some(true) => self.policed_below(),
            _ if self.scales() && self.is_capped_as_uploads() => Some(self.flow_cap()),
            // The server's TCP is not visible: without a comparison it may as well be the path.
            Limiter::FarSendBuffer if self.scales() && !self.grows() && !self.lost_before() => {
                Some(self.buffer(LimitCause::FarSendBuffer))
            }
            Limiter::ReceiveBuffer if !flat => Some(self.buffer(LimitCause::ReceiveBuffer)),
            Limiter::ServerWindow if !flat && self.channels_help() => Some(self.channel_window()),
            // A connection that has found a policer's rate loses few packets from then on.
            _ if self.scales() && self.is_policed() && self.has_bucket_for_each() == Some(true) => {
                self.policed_below().or_else(|| Some(self.flow_cap()))
            }
            _ if self.scales() => Some(self.flow_cap()),
            _ => None,
        }
    }

    /// False if a second channel was measured and brought nothing: the window only filled because
    /// the path did.
    fn channels_help(&self) -> bool {
        let two = self.ladder.rung(1, 2);
        two.is_none_or(|two| two.rate > CHANNELS * self.one.rate)
    }

    /// True if the first measurement ended before its rate was steady.
    fn grows(&self) -> bool {
        self.one.growth > GROWS
    }

    fn scales(&self) -> bool {
        self.two.is_some_and(|two| two > SCALES)
    }

    /// The best rate if it is higher.
    fn could(&self) -> Option<f64> {
        Some(self.best)
    }

    fn finding(&self, cause: LimitCause, evidence: String) -> DiagnosisFinding {
        DiagnosisFinding::new(cause, evidence).limits(self.one.rate, self.could())
    }

    fn gain(&self) -> String {
        match self.two {
            Some(two) => format!("; two connections bring {two:.1} times as much"),
            None => String::new(),
        }
    }

    fn burst(&self) -> Option<DiagnosisFinding> {
        self.burst_of_one().or_else(|| self.later_burst())
    }

    /// A burst that ended in a later measurement, because a window held back the first one.
    fn later_burst(&self) -> Option<DiagnosisFinding> {
        let rungs = &self.ladder.rungs;
        let at = rungs.iter().position(|r| fell_after_burst(self.e, r))?;
        let (fallen, next) = (rungs.get(at)?, rungs.get(at + 1)?);
        // Repeating what the full queue dropped takes from the rate: what was acknowledged meanwhile
        // is the shaper's.
        let at_losses = fallen.at_losses.map(|conditions| conditions.rate);
        let alike = |rate: f64| (next.rate / rate - 1.0).abs() < SHAPED_AGAIN;
        let stays =
            (alike(fallen.rate) || at_losses.is_some_and(alike)) && next.is_queueing(self.e);
        if at == 0 || !stays || next.rate > FALLEN * self.one.rate || self.is_policed() {
            return None;
        }
        let before = fallen.before_burst?;
        let evidence = format!(
            "{} at first, {} after {}, and no more with more connections",
            rate(self.one.rate),
            rate(next.rate),
            bytes(fallen.burst as f64)
        );
        let finding =
            DiagnosisFinding::new(LimitCause::Shaper, evidence).limits(next.rate, Some(before));
        Some(finding.certainty(Certainty::Likely))
    }

    fn burst_of_one(&self) -> Option<DiagnosisFinding> {
        let before = self.one.before_burst?;
        let repeated = self.one.repeated?;
        // Random loss ends slow start at a high rate as well, but for each connection. The burst of
        // a policer has no queue behind it.
        if self.scales() || self.spared() == Some(true) && self.is_policed() {
            return None;
        }
        let drops = self.two.is_some() && self.one.loss > LOST && self.spared() != Some(false);
        let waits = self.one.is_queueing(self.e) || drops;
        let stays = (repeated / self.one.rate - 1.0).abs() < SHAPED_AGAIN;
        if self.one.rate > FALL * before || self.one.burst < LEAST_BURST || !waits || !stays {
            return None;
        }
        // Without a second burst other traffic may have begun, and on a short path the end of a
        // queue in this machine looks alike.
        let long = self.one.min_rtt > SHORT;
        let certainty = match (self.one.fell_again, long) {
            (true, true) => Certainty::Sure,
            (false, false) => return None,
            _ => Certainty::Likely,
        };
        let evidence = format!(
            "{} for the first {}, then {}",
            rate(before),
            bytes(self.one.burst as f64),
            rate(self.one.rate)
        );
        let could = Some(before);
        let finding =
            DiagnosisFinding::new(LimitCause::Shaper, evidence).limits(self.one.rate, could);
        Some(finding.certainty(certainty))
    }

    fn local_cpu(&self) -> DiagnosisFinding {
        let used = format!("this process used {:.1} processors", self.one.cpu);
        match self.e.here.throttled {
            Some(share) if share > THROTTLED => {
                let evidence = format!(
                    "its cgroup was throttled in {} of the scheduler's periods",
                    percent(share)
                );
                self.finding(LimitCause::Throttled, evidence)
            }
            _ => match self.slow_cipher(self.e.here.cipher_rate, self.e.here.aes_rate) {
                Some(finding) => finding,
                None => self.finding(LimitCause::LocalCpu, used),
            },
        }
    }

    fn far_cpu(&self) -> DiagnosisFinding {
        if let Some(share) = self.e.there.throttled.filter(|share| *share > THROTTLED) {
            let evidence = format!(
                "its cgroup was throttled in {} of the scheduler's periods",
                percent(share)
            );
            return self.finding(LimitCause::FarThrottled, evidence);
        }
        let there = (self.e.there.cipher_rate, self.e.there.aes_rate);
        if let Some(finding) = self.slow_cipher(there.0, there.1) {
            return finding;
        }
        if let Some(finding) = self.only_slow_ciphers() {
            return finding;
        }
        let mut waits = match self.direction {
            DataDirection::Upload => format!(
                "{} waited at the server without an answer while the path was free",
                bytes(self.one.held as f64)
            ),
            DataDirection::Download => format!(
                "it sent nothing for {} of the time while the path was free",
                percent(self.one.silent)
            ),
        };
        if let Some(pressure) = self.e.there.pressure.filter(|share| *share > PRESSURE) {
            let share = percent(pressure);
            waits.push_str(&format!(
                "; processes there waited for a processor for {share}"
            ));
        }
        self.finding(LimitCause::FarCpu, waits)
    }

    /// A busy server that offers no AES spends its time on a cipher that is slow here too.
    fn only_slow_ciphers(&self) -> Option<DiagnosisFinding> {
        let cipher = self.e.cipher.as_deref()?;
        let (now, aes) = (self.e.here.cipher_rate?, self.e.here.aes_rate?);
        let slow = !cipher.starts_with("aes") && aes > SCALES * now;
        let near = self.one.rate > now * NEAR_CIPHER;
        if self.e.offers_aes != Some(false) || !slow || !near {
            return None;
        }
        let evidence = format!(
            "the server is busy and offers no AES; on one core of this machine {cipher} reaches \
             {}, AES-GCM {}",
            rate(now),
            rate(aes)
        );
        let finding = DiagnosisFinding::new(LimitCause::SlowCipher, evidence);
        let finding = finding.limits(self.one.rate, None);
        Some(finding.certainty(Certainty::Likely))
    }

    /// The rate is that of the cipher, and AES would be faster.
    fn slow_cipher(
        &self,
        cipher_rate: Option<f64>,
        aes_rate: Option<f64>,
    ) -> Option<DiagnosisFinding> {
        let cipher = self.e.cipher.as_deref()?;
        let (now, aes) = (cipher_rate?, aes_rate?);
        let slow = !cipher.starts_with("aes") && aes > SCALES * now;
        if !slow || now > CIPHER * self.one.rate {
            return None;
        }
        let evidence = format!(
            "{cipher} reaches {} on one core, AES-GCM {}",
            rate(now),
            rate(aes)
        );
        let finding = DiagnosisFinding::new(LimitCause::SlowCipher, evidence);
        Some(finding.limits(self.one.rate, Some(aes)))
    }

    /// The window of a connection without window scaling is what one round trip carries.
    fn is_unscaled(&self) -> bool {
        let unscaled = self.e.tcp.is_some_and(|tcp| !tcp.window_scaling);
        let per_trip = self.one.rate * self.one.min_rtt;
        unscaled && per_trip > 0.6 * UNSCALED && per_trip < FIXED * UNSCALED
    }

    fn unscaled(&self) -> DiagnosisFinding {
        let evidence = format!(
            "the window is at most {} per round trip of {}",
            bytes(UNSCALED),
            time(self.one.min_rtt)
        );
        // Slow ends lengthen the round trip, so that less than the window's rate may pass.
        let allowed = UNSCALED / self.one.min_rtt;
        DiagnosisFinding::new(LimitCause::NoWindowScaling, evidence).limits(allowed, self.could())
    }

    /// True if this connection alone filled the queue of a link that passes no more from several: what
    /// it reaches after the losses is no limit. FQ-CoDel keeps the queue short from
    /// then on, and CUBIC needs many round trips to fill the link again.
    fn recovers_from_full_path(&self) -> bool {
        let random = self.spared() == Some(false) || self.loses_as_uploads();
        let overflowed = self.one.overflowed(self.e);
        !random && overflowed.is_some_and(|rate| self.best < FLAT * rate)
    }

    /// Share of packets that arrived late. The sender sees that it repeated them in vain; in a
    /// download they look like lost ones, unless uploads over the same path show the reordering.
    fn late(&self) -> Option<f64> {
        let one = self.one;
        // Linux counts a reordering only if the late packet arrives before it is repeated.
        let in_vain = one.reordered.max(one.vain);
        if one.spurious > SPURIOUS && in_vain > 0.0 {
            return Some(in_vain);
        }
        let up = self.e.up.rung(1, 1)?;
        let late = reordered(&self.e.up);
        let down = self.direction == DataDirection::Download;
        (down && late > LATE * one.loss && up.loss < one.loss / 2.0).then_some(late)
    }

    fn lossy(&self) -> DiagnosisFinding {
        let loss = percent(self.one.loss.max(self.one.loss_ever));
        if let Some(late) = self.late() {
            let evidence = format!(
                "{} of the packets arrive late and are retransmitted needlessly{}",
                percent(late),
                self.gain()
            );
            return self.finding(LimitCause::Reordering, evidence);
        }
        let rtt = time(self.one.min_rtt);
        if self.e.tcp.is_some_and(|tcp| !tcp.sack) {
            let evidence = format!("{loss} of the packets are lost at {rtt}, without SACK");
            return self.finding(LimitCause::NoSack, evidence);
        }
        let evidence = format!(
            "{loss} of the packets are lost at {rtt} without a queue{}",
            self.gain()
        );
        self.finding(LimitCause::Loss, evidence)
    }

    /// One connection fills a queue. If several pass more, the queue belongs to the connection.
    fn queueing(&self, flat: bool) -> Option<DiagnosisFinding> {
        let own = self.scales() && !flat && !self.delays_others();
        own.then(|| self.flow_cap())
    }

    /// True if an idle connection waits in the queue that this one fills: several connections that pass
    /// more take it from other traffic.
    fn delays_others(&self) -> bool {
        let base = self.e.unloaded_rtt(self.one);
        let waits = self.one.idle_rtt.map_or(0.0, |rtt| rtt - base);
        self.one.is_queueing(self.e) && waits > COMMON_QUEUE * (self.one.rtt - base)
    }

    /// True for downloads at the rate of uploads of which each connection has a queue. A receiver
    /// hardly sees such a queue: an idle connection does not wait in it.
    fn is_capped_as_uploads(&self) -> bool {
        let up = &self.e.up;
        let Some((one, two)) = up.rung(1, 1).zip(up.rung(2, 1)) else {
            return false;
        };
        let capped = one.is_queueing(self.e) && two.rate > SCALES * one.rate;
        let alike = (self.one.rate / one.rate - 1.0).abs() < ALIKE_CAP;
        self.direction == DataDirection::Download && capped && alike
    }

    /// True if a connection lost few packets, none of them lately, and recovers from them.
    fn lost_before(&self) -> bool {
        let lost = LimiterEvidence {
            rate: self.one.rate,
            connections: 1,
            min_rtt: Duration::try_from_secs_f64(self.e.unloaded_rtt(self.one)).unwrap_or_default(),
            loss: self.one.loss_ever,
            ..LimiterEvidence::default()
        };
        let rare = self.one.loss_ever > RARE_LOSS && self.one.loss_ever < OFTEN;
        // Slow start that goes on was not ended by losses.
        let other = self.grows() || self.is_capped_as_uploads();
        let slow = lost.loss_tells() && self.one.rate < ABOVE_BOUND * lost.loss_bound();
        rare && !other && !self.one.is_queueing(self.e) && slow
    }

    fn flow_cap(&self) -> DiagnosisFinding {
        let quiet = !self.one.is_queueing(self.e) && self.one.loss < LOST;
        if self.one.min_rtt < SHORT && quiet {
            // Windows and routers are no limit here: each connection has one process at the server.
            let evidence = format!(
                "one connection reaches {}{}, at a round trip of {} without queue or loss",
                rate(self.one.rate),
                self.gain(),
                time(self.one.min_rtt)
            );
            let finding = self.finding(LimitCause::FarCpu, evidence);
            return finding.certainty(Certainty::Likely);
        }
        let late = reordered(self.ladder);
        if late > REORDERED {
            // A connection that took late packets for lost ones in the beginning grows slowly
            // later.
            let evidence = format!(
                "{} of the packets arrive late{}, and no window or buffer is full",
                percent(late),
                self.gain()
            );
            let finding = self.finding(LimitCause::Reordering, evidence);
            return finding.certainty(Certainty::Likely);
        }
        if self.lost_before() {
            return self.lossy().certainty(Certainty::Likely);
        }
        let evidence = format!(
            "one connection reaches {}{}, and no window or buffer is full",
            rate(self.one.rate),
            self.gain()
        );
        self.finding(LimitCause::FlowCap, evidence)
            .certainty(Certainty::Likely)
    }

    fn receive_buffer(&self) -> DiagnosisFinding {
        let per_trip = self.one.rate * self.one.rtt.max(self.one.min_rtt);
        if let Some((low, high)) = self.one.peer_window
            && high as f64 <= FIXED * low as f64
            && low > 0
        {
            let evidence = format!(
                "its window stayed at {} at a round trip of {}",
                bytes(high as f64),
                time(self.one.min_rtt)
            );
            return self.finding(LimitCause::FixedReceiveBuffer, evidence);
        }
        let evidence = format!(
            "full for {} of the time, {} per round trip of {}{}",
            percent(self.one.rwnd_limited),
            bytes(per_trip),
            time(self.one.min_rtt),
            self.gain()
        );
        self.with_sysctl(self.finding(LimitCause::FarReceiveBuffer, evidence))
    }

    fn buffer(&self, cause: LimitCause) -> DiagnosisFinding {
        let per_trip = self.one.rate * self.one.rtt.max(self.one.min_rtt);
        let full = match cause {
            LimitCause::SendBuffer => format!("full for {} of the time, ", {
                percent(self.one.sndbuf_limited)
            }),
            _ => String::new(),
        };
        let evidence = format!(
            "{full}{} per round trip of {} without loss{}",
            bytes(per_trip),
            time(self.one.min_rtt),
            self.gain()
        );
        let certainty = match self.two {
            Some(_) => Certainty::Sure,
            None => Certainty::Likely,
        };
        self.with_sysctl(self.finding(cause, evidence))
            .certainty(certainty)
    }

    fn with_sysctl(&self, finding: DiagnosisFinding) -> DiagnosisFinding {
        let (machine, by, buffer) = match finding.cause {
            LimitCause::SendBuffer => (&self.e.here, RemedyActor::Here, TcpBufferKind::Send),
            LimitCause::ReceiveBuffer => (&self.e.here, RemedyActor::Here, TcpBufferKind::Receive),
            LimitCause::FarSendBuffer => (&self.e.there, RemedyActor::Server, TcpBufferKind::Send),
            _ => (&self.e.there, RemedyActor::Server, TcpBufferKind::Receive),
        };
        // Twice the best rate, since the ladder may not have reached the path's.
        let line = kernel::line(machine, buffer, 2.0 * self.best, self.one.min_rtt);
        let raised = line.map(|line| match machine.kernel {
            Some((major, minor)) => format!("{line} (Linux {major}.{minor})"),
            None => line,
        });
        finding.remedy_first(by, raised)
    }

    fn channel_window(&self) -> DiagnosisFinding {
        let window = match self.one.window {
            0 => self.one.rate * self.one.min_rtt,
            known => known as f64,
        };
        let channels = self.ladder.rung(1, 2);
        let gain = channels.map(|r| r.rate / self.one.rate);
        let gain = gain.map(|gain| format!("; two channels bring {gain:.1} times as much"));
        let evidence = format!(
            "{} per round trip of {}, full for {} of the time{}",
            bytes(window),
            time(self.one.min_rtt),
            percent(self.one.window_blocked),
            gain.unwrap_or_default()
        );
        self.finding(LimitCause::ChannelWindow, evidence)
    }

    fn below_expectation(&self) -> Option<DiagnosisFinding> {
        let expected = self.e.expected?;
        if self.best > EXPECTED * expected {
            return None;
        }
        let lost = self.ladder.best().is_some_and(|r| r.loss > LOST);
        // A rate that slow start still raises varies without other traffic.
        let varies = |r: &ThroughputMeasurement| r.noise > VARIES && r.growth < GROWS;
        let varies = self.ladder.best().is_some_and(varies);
        let cause = match lost && varies {
            true => LimitCause::Congestion,
            false => LimitCause::BelowExpectation,
        };
        let evidence = format!(
            "the best of {} measurements is {}; {} was expected (--expect)",
            self.ladder.rungs.len(),
            rate(self.best),
            rate(expected)
        );
        let finding = DiagnosisFinding::new(cause, evidence).limits(self.best, Some(expected));
        Some(finding.certainty(Certainty::Likely))
    }

    /// Lowers the certainty if the rates vary by more than the difference that decided.
    fn certain(&self, finding: DiagnosisFinding) -> DiagnosisFinding {
        let two = self.ladder.rung(2, 1);
        let noise = two.map_or(0.0, |two| two.noise).hypot(self.one.noise);
        let decided = match finding.cause {
            LimitCause::LocalCpu
            | LimitCause::SlowCipher
            | LimitCause::ChannelWindow
            | LimitCause::Shaper
            | LimitCause::NoWindowScaling
            | LimitCause::FixedReceiveBuffer => return finding,
            LimitCause::FlowCap => SCALES,
            _ => FLAT,
        };
        let spared = self.spared() == Some(true);
        if spared && matches!(finding.cause, LimitCause::Policer | LimitCause::FlowPolicer) {
            return finding;
        }
        if self.grows() && finding.cause == LimitCause::FlowCap {
            return finding.certainty(Certainty::Unsure);
        }
        let close = |gain: f64| (gain / decided - 1.0).abs() < noise;
        match self.two.is_none_or(close) {
            true => finding.certainty(Certainty::Unsure),
            false => finding,
        }
    }
}

/// Highest share of reordered segments of a ladder.
fn reordered(ladder: &ThroughputScaling) -> f64 {
    let in_vain = |rung: &ThroughputMeasurement| match rung.spurious > SPURIOUS {
        true => rung.vain,
        false => 0.0,
    };
    let shares = ladder.rungs.iter();
    let shares = shares.map(|rung| rung.reordered.max(in_vain(rung)));
    shares.fold(0.0, f64::max)
}

/// Delay of the packets before a lost one that tells of a full queue: a share of the round trip, and
/// seconds.
const OVERFLOWING: (f64, f64) = (0.05, 0.002);
/// Wait of an idle connection, as a share of that of a loaded one, that tells of a common queue.
const COMMON_QUEUE: f64 = 0.5;
/// Share of reordered segments that slows down a connection.
const REORDERED: f64 = 0.003;
/// Share of the expected rate that counts as reached.
const EXPECTED: f64 = 0.85;
/// Variation of the rate that other traffic causes.
const VARIES: f64 = 0.2;
/// Share of time in which processes wait for a processor that is worth a word.
const PRESSURE: f64 = 0.1;
/// Rate of a connection, as a share of the cipher's here, from which on the cipher matters: the
/// server opens packets, copies and answers in one process, on a processor that may be slower.
const NEAR_CIPHER: f64 = 0.1;
/// Share of throttled periods from which on the quota is the limit.
const THROTTLED: f64 = 0.2;

impl ThroughputMeasurement {
    /// Returns true if the path's queue fills under this load.
    pub(crate) fn is_queueing(&self, e: &Evidence) -> bool {
        let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or_default();
        let figures = LimiterEvidence {
            rtt: seconds(self.rtt),
            min_rtt: seconds(e.unloaded_rtt(self)),
            ..LimiterEvidence::default()
        };
        figures.is_queueing()
    }

    /// Returns the rate of the queue that lost this load's packets; `None` if they were not lost from
    /// a queue.
    pub(crate) fn overflowed(&self, e: &Evidence) -> Option<f64> {
        let at = self.at_losses?;
        (self.waits(e, at.rtt) && at.rate > 0.0).then_some(at.rate)
    }

    /// Returns true if a packet of this load with this round trip has waited in a queue.
    pub(crate) fn waits(&self, e: &Evidence, rtt: f64) -> bool {
        let base = e.unloaded_rtt(self);
        rtt > base + OVERFLOWING.0 * base + OVERFLOWING.1
    }
}
