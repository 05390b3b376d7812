//! A path with one queue shared by a background copy and a flow that fills it, in steps of a
//! millisecond of virtual time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use schedule::{BackgroundAllowance, BackgroundPathSample, BackgroundRateControl};

pub(crate) const STEP: Duration = Duration::from_millis(1);
const PACKET: f64 = 1448.0;
/// Response time of the server.
const SERVER: Duration = Duration::from_millis(2);

/// Properties of the path that the background copy shares with another flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    /// Rate in bytes per second.
    pub(crate) rate: f64,
    pub(crate) rtt: Duration,
    /// Capacity of the queue as time.
    pub(crate) queue: Duration,
    /// Loss rate of the background copy's packets, 0 to 1.
    pub(crate) loss: f64,
}

/// Acknowledgements in flight to a sender: (time, bytes, true if one was lost).
type Answers = VecDeque<(Instant, f64, bool)>;

/// A flow that halves its window at a loss and otherwise opens it (Reno, with CUBIC-like growth).
#[derive(Debug)]
struct Foreground {
    window: f64,
    flight: f64,
    answers: Answers,
    slow_start: bool,
    hurt: Option<Instant>,
}

/// Simulation of a background copy on a path; amounts are in bytes.
pub(crate) struct World {
    pub(crate) path: Path,
    pub(crate) now: Instant,
    pub(crate) background: BackgroundRateControl,
    start: Instant,
    allowance: BackgroundAllowance,
    next: Instant,
    queue: f64,
    credit: f64,
    flight: f64,
    answers: Answers,
    moved: f64,
    lost: f64,
    loss_debt: f64,
    smoothed: Option<Duration>,
    fresh: bool,
    answer: Option<Duration>,
    foreground: Option<Foreground>,
    fg_moved: f64,
    /// Rate at which the sender gets data, in bytes per second.
    pub(crate) source: f64,
    /// Longest queue since it was last read.
    peak: f64,
}

impl World {
    pub(crate) fn new(path: Path) -> Self {
        let now = testkit::sftp_model::epoch();
        let mut background = BackgroundRateControl::new();
        let allowance = background.sample(BackgroundPathSample {
            now,
            round_trip: Some(path.rtt),
            answer: None,
            moved: 0,
            lost: 0,
        });
        Self {
            path,
            now,
            background,
            start: now,
            allowance,
            next: now,
            queue: 0.0,
            credit: 0.0,
            flight: 0.0,
            answers: VecDeque::new(),
            moved: 0.0,
            lost: 0.0,
            loss_debt: 0.0,
            smoothed: Some(path.rtt),
            fresh: false,
            answer: None,
            foreground: None,
            fg_moved: 0.0,
            source: f64::INFINITY,
            peak: 0.0,
        }
    }

    /// Starts or ends the other flow.
    pub(crate) fn set_foreground(&mut self, there: bool) {
        self.foreground = there.then(|| Foreground {
            window: 10.0 * PACKET,
            flight: 0.0,
            answers: VecDeque::new(),
            slow_start: true,
            hurt: None,
        });
    }

    /// Lets time pass; returns the shares of the path that background and foreground had.
    pub(crate) fn pass(&mut self, time: Duration) -> (f64, f64) {
        let (moved, fg_moved) = (self.moved, self.fg_moved);
        let end = self.now + time;
        self.peak = 0.0;
        while self.now < end {
            self.step();
        }
        let all = self.path.rate * time.as_secs_f64();
        ((self.moved - moved) / all, (self.fg_moved - fg_moved) / all)
    }

    /// Returns the longest queue in the last [`World::pass`].
    pub(crate) fn peak(&self) -> Duration {
        Duration::from_secs_f64(self.peak / self.path.rate)
    }

    pub(crate) fn age(&self) -> Duration {
        self.now - self.start
    }

    fn step(&mut self) {
        self.now += STEP;
        let dt = STEP.as_secs_f64();
        self.hear();
        if self.next <= self.now {
            self.look();
        }
        self.credit = (self.credit + self.allowance.rate * dt).min(self.allowance.rate * 0.02);
        let room = (self.allowance.in_flight as f64 - self.flight).max(0.0);
        let sends = self.credit.min(room).min(self.source * dt).max(0.0);
        self.credit -= sends;
        let now_takes = self.path.rtt.as_secs_f64() + self.queue / self.path.rate;
        // In reality acknowledgements space a flow's packets; here only this rate does.
        let fg_sends = self.foreground.as_ref().map_or(0.0, |fg| {
            let paced = 1.25 * fg.window / now_takes * dt;
            (fg.window - fg.flight).clamp(0.0, paced)
        });
        let leaves = (self.queue + sends + fg_sends).min(self.path.rate * dt);
        self.queue = (self.queue + sends + fg_sends - leaves).max(0.0);
        let full = self.path.rate * self.path.queue.as_secs_f64();
        let dropped = (self.queue - full).max(0.0);
        self.queue -= dropped;
        self.peak = self.peak.max(self.queue);
        let share = if sends + fg_sends > 0.0 {
            sends / (sends + fg_sends)
        } else {
            0.0
        };
        let at = self.now
            + self.path.rtt
            + SERVER
            + Duration::from_secs_f64(self.queue / self.path.rate);
        self.loss_debt += sends / PACKET * self.path.loss;
        let unlucky = self.loss_debt >= 1.0;
        self.loss_debt -= if unlucky { 1.0 } else { 0.0 };
        if sends > 0.0 {
            self.flight += sends;
            self.answers
                .push_back((at, sends, unlucky || dropped * share > 0.0));
        }
        if let Some(fg) = self.foreground.as_mut().filter(|_| fg_sends > 0.0) {
            fg.flight += fg_sends;
            let dropped = dropped * (1.0 - share);
            fg.answers.push_back((at, fg_sends, dropped > 0.0));
        }
    }

    fn hear(&mut self) {
        let now = self.now;
        while let Some((_, bytes, lost)) = pop(&mut self.answers, now) {
            self.flight -= bytes;
            self.moved += bytes;
            self.lost += f64::from(u8::from(lost));
            // Smoothed like the kernel's value, with the queue as it was when the packet left.
            let seen = self.path.rtt + Duration::from_secs_f64(self.queue / self.path.rate);
            let old = self.smoothed.unwrap_or(seen);
            self.smoothed = Some(old.mul_f64(0.875) + seen.mul_f64(0.125));
            let answer = seen + SERVER;
            self.answer = Some(self.answer.map_or(answer, |least| least.min(answer)));
            self.fresh = true;
        }
        let rtt = self.path.rtt + Duration::from_secs_f64(self.queue / self.path.rate);
        if let Some(fg) = &mut self.foreground {
            while let Some((_, bytes, lost)) = pop(&mut fg.answers, now) {
                fg.flight -= bytes;
                self.fg_moved += bytes;
                let told = fg.hurt.is_some_and(|at| now - at < rtt);
                if lost && !told {
                    fg.hurt = Some(now);
                    fg.slow_start = false;
                    fg.window *= 0.7;
                } else if fg.slow_start {
                    fg.window += bytes;
                } else {
                    fg.window += bytes / fg.window * PACKET.max(0.02 * fg.window);
                }
            }
        }
    }

    fn look(&mut self) {
        self.allowance = self.background.sample(BackgroundPathSample {
            now: self.now,
            round_trip: self.smoothed.filter(|_| self.fresh),
            answer: self.answer.take(),
            moved: self.moved as u64,
            lost: self.lost as u64,
        });
        self.fresh = false;
        self.next = self.now + self.background.interval();
    }
}

fn pop(answers: &mut Answers, now: Instant) -> Option<(Instant, f64, bool)> {
    answers.front().filter(|(at, ..)| *at <= now)?;
    answers.pop_front()
}
