//! Reports what a silent server does not answer, and repeats requests that it has dropped.
//!
//! Lanes, remote commands and logins have their notices from here ([`SilenceNotices`]).
//!
//! OpenSSH and longhaul answer every request in order, however long a disk takes, so nothing is
//! repeated with them. Other servers were seen to drop requests when their queue is full. A stalled
//! lane to such a server is closed and its jobs start over on a new channel, with half as many
//! requests at once as were in flight when the first dropped one was sent. This limit applies to
//! all lanes of the session. A session in which every lane that waits is silent for ten minutes ends;
//! requests whose work grows with the file have two hours.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use schedule::{ConnectionId, LaneId, OldestRequest, RemotePath};

use super::RemoteCommandId;
use super::reconnect::DARK;
use crate::report::EscapedName;

/// Smallest silence before requests are repeated, as a multiple of the lowest request latency.
const LATENCIES: u32 = 50;
/// Once the limit of requests in flight is at or below this number, each repetition doubles the
/// silence before the next one: a server that does not answer so few is slow. Above it, the silence must stay below the time after
/// which the session reconnects.
const FEW: u64 = 8;
/// Part of the usual silence after which a request is repeated that a later one has overtaken.
const OVERTAKEN: u32 = 4;
/// Longest silence before such a repetition.
const LONGEST_SILENCE: Duration = DARK.saturating_sub(Duration::from_secs(1));
/// Silence of all lanes that wait after which the session ends, if nothing is repeated. A disk array or
/// a file server that fails over, and many tape libraries, answer before.
const GIVES_UP: Duration = Duration::from_secs(600);
/// [`GIVES_UP`] of a request whose work grows with the file: a checksum, a copy at the server, fsync.
/// One request asks for the checksum of at most 64 MiB, so a server that is silent for so long is stuck.
const GIVES_UP_WORK: Duration = Duration::from_secs(2 * 3600);
/// Bytes moved since the mark, and at least for each second since then, from which a connection is seen
/// to carry a long request rather than keepalives.
const MOVES: u64 = 4096;
const MOVES_EACH_SECOND: u64 = 256;

/// Detects silence, which is reported to the user, and lanes whose requests may be repeated.
#[derive(Debug)]
pub(super) struct StallDetector {
    /// Silence after which it is reported and requests are repeated.
    patience: Duration,
    silences: BTreeMap<Waiter, AnswerSilence>,
    /// Time of the last notice to the user.
    told: Option<Instant>,
    /// Number of lanes that were closed to repeat requests with at most [`FEW`] in flight.
    repeated: u32,
    /// Number of requests at once on a channel that the server is known to handle.
    most_requests: Option<u64>,
}

/// Waits for an answer of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Waiter {
    Lane(LaneId),
    /// A remote command that has printed nothing yet. Its owner limits the time.
    Command(ConnectionId, RemoteCommandId),
}

impl Waiter {
    fn connection(self) -> ConnectionId {
        match self {
            Self::Lane(lane) => lane.connection,
            Self::Command(connection, _) => connection,
        }
    }
}

/// An answer that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnswerWait {
    pub waiter: Waiter,
    pub oldest: OldestRequest,
    /// Repeating the request can help: the server may have dropped it.
    pub repeatable: bool,
    /// Lowest latency of a request; zero while unknown.
    pub latency: Duration,
}

impl AnswerWait {
    /// Returns the wait for the first output of a remote command.
    pub(super) fn of_command(waiter: Waiter, request: &'static str, since: Instant) -> Self {
        Self {
            waiter,
            oldest: OldestRequest {
                request,
                path: None,
                since,
                ahead: 1,
                overtaken: false,
                takes_time: false,
            },
            repeatable: false,
            latency: Duration::ZERO,
        }
    }
}

/// Report of a stall for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StallNotice {
    /// Path of the request that is not answered, if it has one.
    pub path: Option<RemotePath>,
    /// The request, the time without an answer and the consequence, in one sentence.
    pub line: String,
}

impl StallNotice {
    /// Returns the notice that nothing was received for a time while `awaited` is due.
    fn of_silence(silence: Duration, awaited: &str, path: Option<RemotePath>) -> Self {
        let seconds = silence.as_secs();
        Self {
            path,
            line: format!("nothing received for {seconds} s: waiting for {awaited}"),
        }
    }
}

impl fmt::Display for StallNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", EscapedName(path.0.clone()))?;
        }
        f.write_str(&self.line)
    }
}

/// Step against a stall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StallAction {
    /// Tell the user.
    Notify(StallNotice),
    /// Tell the user, limit all lanes to `most` requests, and close the lane for the reason `why`,
    /// so that another lane repeats its requests.
    Repeat {
        lane: LaneId,
        most: u64,
        notice: StallNotice,
        why: String,
    },
    /// End the session for this reason.
    GiveUp(String),
}

/// Notices after which the time between two of them no longer doubles.
const DOUBLINGS: u32 = 10;

/// Times of the notices about one silence: the first after the session's patience, each further one
/// when the silence has lasted twice as long, or a thousand times the patience longer.
#[derive(Debug)]
pub(crate) struct SilenceNotices {
    since: Instant,
    told: u32,
}

impl SilenceNotices {
    pub(crate) fn new(since: Instant) -> Self {
        Self { since, told: 0 }
    }

    /// Time of the next notice.
    pub(crate) fn next_at(&self, patience: Duration) -> Instant {
        let doublings = self.told.min(DOUBLINGS);
        let further = self.told - doublings;
        self.since + patience * (1 << doublings) * (1 + further)
    }

    /// Returns the notice that is due at `now`; `awaited` is what the server has not sent.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        patience: Duration,
        awaited: &str,
    ) -> Option<StallNotice> {
        if self.next_at(patience) > now {
            return None;
        }
        self.told += 1;
        let silence = now.saturating_duration_since(self.since);
        Some(StallNotice::of_silence(silence, awaited, None))
    }
}

/// Time since which nothing was answered, and the notices given about it.
#[derive(Debug)]
struct AnswerSilence {
    notices: SilenceNotices,
    /// Bytes that the connection had moved at half of the silence, and the time.
    mark: Option<(u64, Instant)>,
}

impl AnswerSilence {
    fn new(since: Instant) -> Self {
        Self {
            notices: SilenceNotices::new(since),
            mark: None,
        }
    }

    fn since(&self) -> Instant {
        self.notices.since
    }
}

impl StallDetector {
    /// `most_requests` is the user's limit of requests in flight on a channel.
    pub(super) fn new(patience: Duration, most_requests: Option<u64>) -> Self {
        Self {
            patience,
            silences: BTreeMap::new(),
            told: None,
            repeated: 0,
            most_requests,
        }
    }

    /// Silence after which the connection's byte count is recorded.
    fn mark_after(&self, wait: &AnswerWait) -> Duration {
        match wait.repeatable {
            true => self.repeat_after(wait).min(self.patience) / 2,
            false => self.patience / 2,
        }
    }

    /// Time at which the lane's requests are repeated, if repeating can help.
    fn repeat_at(&self, wait: &AnswerWait, since: Instant) -> Option<Instant> {
        wait.repeatable.then(|| since + self.repeat_after(wait))
    }

    /// Silence of a lane after which its requests are repeated. The first repetitions come before
    /// the session takes the connection for lost and connects again. A request that was overtaken is
    /// most likely lost, since nothing else is answered any more either.
    fn repeat_after(&self, wait: &AnswerWait) -> Duration {
        let longest = self.patience.max(LONGEST_SILENCE);
        let least = match wait.oldest.overtaken {
            true => self.patience / OVERTAKEN,
            false => self.patience,
        };
        let silence = least.max(wait.latency * LATENCIES).min(longest);
        silence * (1 << self.repeated.min(10))
    }

    /// Time at which the waits must be checked ([`StallDetector::look`]).
    pub(super) fn poll_timeout(&self, waits: impl Iterator<Item = AnswerWait>) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut end: Option<Instant> = None;
        let mut may_end = true;
        for wait in waits {
            let at = self.next_of(&wait);
            next = Some(next.map_or(at, |next| next.min(at)));
            match self.give_up_at(&wait) {
                Some(at) => end = Some(end.map_or(at, |end| end.max(at))),
                None => may_end = false,
            }
        }
        match end.filter(|_| may_end) {
            Some(end) => next.map(|next| next.min(end)),
            None => next,
        }
    }

    /// Time at which the session may end because of this wait, unless its requests are repeated or a
    /// command is waited for.
    fn give_up_at(&self, wait: &AnswerWait) -> Option<Instant> {
        let silence = self.silences.get(&wait.waiter);
        let since = silence.map_or(wait.oldest.since, |silence| {
            silence.since().max(wait.oldest.since)
        });
        let ends = !wait.repeatable && matches!(wait.waiter, Waiter::Lane(_));
        let most = match wait.oldest.takes_time {
            true => GIVES_UP_WORK,
            false => GIVES_UP,
        };
        ends.then(|| since + most)
    }

    fn next_of(&self, wait: &AnswerWait) -> Instant {
        let silence = self.silences.get(&wait.waiter);
        let silence = silence.filter(|silence| silence.since() >= wait.oldest.since);
        match silence {
            Some(silence) if silence.mark.is_some() => {
                let notice = silence.notices.next_at(self.patience);
                let repeat = self.repeat_at(wait, silence.since());
                repeat.map_or(notice, |at| at.min(notice))
            }
            silence => {
                let since = silence.map_or(wait.oldest.since, AnswerSilence::since);
                since + self.mark_after(wait)
            }
        }
    }

    /// Checks all waits. `moved` returns the bytes that a connection has moved so far.
    pub(super) fn look(
        &mut self,
        now: Instant,
        waits: &[AnswerWait],
        moved: impl Fn(ConnectionId) -> u64,
    ) -> Vec<StallAction> {
        self.silences
            .retain(|waiter, _| waits.iter().any(|wait| wait.waiter == *waiter));
        let look = |wait| self.look_at(now, wait, &moved);
        let mut actions: Vec<StallAction> = waits.iter().filter_map(look).collect();
        let ends = |wait| Some((self.give_up_at(wait)?, wait));
        let ends: Option<Vec<_>> = waits.iter().map(ends).collect();
        let last = ends.and_then(|ends| ends.into_iter().max_by_key(|(at, _)| *at));
        if let Some((_, wait)) = last.filter(|(at, _)| *at <= now) {
            let most = match wait.oldest.takes_time {
                true => GIVES_UP_WORK,
                false => GIVES_UP,
            };
            actions.push(StallAction::GiveUp(format!(
                "the server has not answered {} for {} min: check the server, then run the same \
                 command again",
                shown(&wait.oldest),
                most.as_secs() / 60
            )));
        }
        actions
    }

    fn look_at(
        &mut self,
        now: Instant,
        wait: &AnswerWait,
        moved: &impl Fn(ConnectionId) -> u64,
    ) -> Option<StallAction> {
        let mark_after = self.mark_after(wait);
        let begun = || AnswerSilence::new(wait.oldest.since);
        let silence = self.silences.entry(wait.waiter).or_insert_with(begun);
        if silence.since() < wait.oldest.since {
            *silence = begun();
        }
        let since = silence.since();
        if now.saturating_duration_since(since) < mark_after {
            return None;
        }
        let bytes = moved(wait.waiter.connection());
        let Some((mark, at)) = silence.mark else {
            silence.mark = Some((bytes, now));
            return None;
        };
        let seconds = now.saturating_duration_since(at).as_secs();
        if bytes.saturating_sub(mark) >= MOVES.max(MOVES_EACH_SECOND * seconds) {
            *silence = AnswerSilence::new(now);
            return None;
        }
        if let Waiter::Lane(lane) = wait.waiter
            && self.repeat_at(wait, since).is_some_and(|at| at <= now)
        {
            return Some(self.repeat(now, lane, wait, since));
        }
        self.tell(now, wait)
    }

    /// Tells the user which answer the session waits for if that is due, in one line for all waits.
    fn tell(&mut self, now: Instant, wait: &AnswerWait) -> Option<StallAction> {
        let awaited = format!("the answer to {}", wait.oldest.request);
        let notices = &mut self.silences.get_mut(&wait.waiter)?.notices;
        let notice = notices.take(now, self.patience, &awaited)?;
        let recent = |at: Instant| now.saturating_duration_since(at) < self.patience / 2;
        if self.told.is_some_and(recent) {
            return None;
        }
        self.told = Some(now);
        Some(StallAction::Notify(StallNotice {
            path: wait.oldest.path.clone(),
            ..notice
        }))
    }

    /// Decides to repeat the requests of a lane, with fewer in flight.
    fn repeat(
        &mut self,
        now: Instant,
        lane: LaneId,
        wait: &AnswerWait,
        since: Instant,
    ) -> StallAction {
        let silent = now.saturating_duration_since(since).as_secs();
        let half = (wait.oldest.ahead / 2).max(1);
        let most = self.most_requests.map_or(half, |most| most.min(half));
        self.most_requests = Some(most);
        self.repeated += u32::from(most <= FEW);
        self.silences.remove(&wait.waiter);
        let request = wait.oldest.request;
        let all = shown(&wait.oldest);
        StallAction::Repeat {
            lane,
            most,
            notice: StallNotice {
                path: wait.oldest.path.clone(),
                line: format!(
                    "no answer to {request} for {silent} s: repeating it on a new channel, with \
                     at most {most} requests in flight"
                ),
            },
            why: format!(
                "the server stopped answering requests: no answer to {all} for {silent} s"
            ),
        }
    }
}

/// Describes the request that a lane waits for, with its path.
fn shown(waiting: &OldestRequest) -> String {
    match &waiting.path {
        Some(path) => {
            let path = EscapedName(path.0.clone());
            format!("{} of {path}", waiting.request)
        }
        None => waiting.request.to_owned(),
    }
}

#[cfg(test)]
#[path = "tests/stalls.rs"]
mod tests;
