//! Decides when to connect again, after the last connection was lost or while all are silent, and
//! when to give up. The caller makes the connections.

use std::time::{Duration, Instant};

use super::machine::MachineFunctions;
use super::{FurtherConnectionError, LinkError};

/// Silence while answers are due after which the path may be down. TCP doubles its retransmission
/// timeout each time and would find a restored path up to a minute late.
pub(super) const DARK: Duration = Duration::from_secs(12);
/// First and longest wait between attempts.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(5);
/// Time without a connection after which the session is given up.
const GIVEN_UP: Duration = Duration::from_secs(120);
/// Time without a connection after which a session is given up for which the rest of the run waits.
const AWAITED: Duration = Duration::from_secs(15);
/// Consecutive refused logins before giving up; a single one may be a cut connection.
const REFUSED: u32 = 3;
/// Consecutive lost connections with less than [`LITTLE`] bytes gained on them before giving up.
const FRUITLESS: u32 = 4;
/// Bytes gained on a connection below which it was of no use.
const LITTLE: u64 = 1 << 20;

/// Decides about connecting again.
#[derive(Debug)]
pub(super) struct ReconnectPolicy {
    link: HostLinkState,
    attempt: ReconnectState,
    /// Number of attempts since the loss, or since data came last.
    tries: u32,
    /// Start of the last attempt.
    tried: Option<Instant>,
    /// Time of the last data received.
    heard: Instant,
    /// Time until which no answer was due.
    unasked: Instant,
    /// Bytes gained when the last connection was lost.
    gained: u64,
    /// Bytes gained when losses were last forgiven.
    forgiven: u64,
    /// Consecutive losses since which little was gained.
    fruitless: u32,
    machine: MachineFunctions,
}

/// State of the host's connection: there is one, or when and why the last one was lost.
#[derive(Debug)]
enum HostLinkState {
    Connected,
    /// The last connection was lost at this time, for this reason.
    Lost(Instant, String),
}

/// State of reconnecting: none planned, planned for a time, or in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReconnectState {
    /// No attempt is planned.
    None,
    /// The next one starts at this time.
    At(Instant),
    /// An attempt is in progress.
    Running,
}

/// Reason of a loss, as far as it matters for the decision about another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionLossCause {
    /// The path or the server.
    Path,
    /// This end closed the connection because of a source file that became shorter.
    SourceTruncated,
    /// The link used an optional feature that may be the reason for its failure.
    OptionalFeature,
}

/// The last connection, when it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastConnection {
    /// Bytes that the session has gained: those that it moved again do not count.
    pub gained: u64,
    pub cause: ConnectionLossCause,
    /// Another login is possible.
    pub open: bool,
    /// The SFTP server had answered.
    pub answered: bool,
    /// Jobs are unfinished, and the run is not being ended.
    pub wanted: bool,
}

/// Consequence of the loss of the last connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConnectionLossDecision {
    /// The session ends, for this reason.
    GiveUp(String),
    /// The session connects again; a line for the user.
    ConnectAgain(String),
}

/// Visibility to the user of the reconnect attempt that starts now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReconnectVisibility {
    /// Replacement of a lost connection, or a repeated attempt; not reported to the user.
    Silently,
    /// First attempt beside silent connections, reported to the user.
    Announced,
}

/// Effect of a new connection after a reconnect: it replaces lost connections, or is added to
/// silent ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReconnectEffect {
    /// Replacement of lost connections.
    Replaced,
    /// Addition to connections that are silent.
    Added,
}

impl ReconnectVisibility {
    /// Line for the user.
    pub(super) fn line(self) -> Option<String> {
        let silence = DARK.as_secs();
        let line = || format!("no data from the server for {silence} s; reconnecting");
        (self == Self::Announced).then(line)
    }
}

impl ReconnectEffect {
    /// Line for the user.
    pub(super) fn line(self) -> &'static str {
        match self {
            Self::Replaced => "reconnected",
            Self::Added => "continuing over a new connection",
        }
    }
}

/// Wait before attempt number `tries`, counted from 0. Doubles each time up to `LONGEST`, minus a
/// random part of up to a half (`jitter`), so that many clients of a server do not connect at once.
fn backoff(tries: u32, jitter: u8) -> Duration {
    let most = FIRST.saturating_mul(1 << tries.min(16)).min(LONGEST);
    most - most.mul_f64(f64::from(jitter) / 512.0)
}

impl ReconnectPolicy {
    /// Begins with a connection.
    pub(super) fn new(now: Instant, machine: MachineFunctions) -> Self {
        Self {
            link: HostLinkState::Connected,
            attempt: ReconnectState::None,
            tries: 0,
            tried: None,
            heard: now,
            unasked: now,
            gained: 0,
            forgiven: 0,
            fruitless: 0,
            machine,
        }
    }

    /// True while there is no connection.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.link, HostLinkState::Lost(..))
    }

    /// Takes the loss of the last connection.
    pub(super) fn lost(
        &mut self,
        now: Instant,
        last: LastConnection,
        error: LinkError,
    ) -> ConnectionLossDecision {
        let why = error.into_words();
        let fruitless = match last.gained.saturating_sub(self.gained) < LITTLE {
            true => self.fruitless + 1,
            false => 0,
        };
        let may = last.open && last.wanted && last.answered;
        if !may || fruitless > FRUITLESS {
            return ConnectionLossDecision::GiveUp(why);
        }
        self.gained = last.gained;
        self.fruitless = fruitless;
        let text = match last.cause {
            ConnectionLossCause::SourceTruncated => {
                format!("{why}: reconnecting to continue")
            }
            ConnectionLossCause::Path | ConnectionLossCause::OptionalFeature => {
                format!("the connection was lost ({why}); reconnecting")
            }
        };
        self.link = HostLinkState::Lost(now, why);
        self.tries = 0;
        if self.attempt != ReconnectState::Running {
            self.attempt = ReconnectState::At(now + backoff(0, self.machine.random_byte()));
        }
        ConnectionLossDecision::ConnectAgain(text)
    }

    /// Time at which an attempt is due. `awaiting` means that answers are due and that another
    /// connection may deliver them.
    pub(super) fn poll_timeout(&self, awaiting: bool) -> Option<Instant> {
        match self.attempt {
            ReconnectState::At(at) => Some(at),
            ReconnectState::None => awaiting.then(|| self.heard.max(self.unasked) + DARK),
            ReconnectState::Running => None,
        }
    }

    /// Returns the attempt that starts now. Called in each turn.
    pub(super) fn start(&mut self, now: Instant, awaiting: bool) -> Option<ReconnectVisibility> {
        if !awaiting {
            self.unasked = now;
        }
        self.poll_timeout(awaiting).filter(|at| *at <= now)?;
        let first = !self.is_lost() && self.tries == 0;
        self.attempt = ReconnectState::Running;
        self.tried = Some(now);
        Some(match first {
            true => ReconnectVisibility::Announced,
            false => ReconnectVisibility::Silently,
        })
    }

    /// Takes the success of an attempt.
    pub(super) fn succeeded(&mut self, now: Instant) -> ReconnectEffect {
        self.attempt = ReconnectState::None;
        self.tries = 0;
        self.heard = now;
        self.connected(now)
    }

    /// Takes a connection that was made: by an attempt, or a further one whose login was in
    /// progress when the last connection was lost.
    pub(super) fn connected(&mut self, now: Instant) -> ReconnectEffect {
        if !self.is_lost() {
            return ReconnectEffect::Added;
        }
        self.link = HostLinkState::Connected;
        self.tries = 0;
        self.heard = now;
        if self.attempt != ReconnectState::Running {
            self.attempt = ReconnectState::None;
        }
        ReconnectEffect::Replaced
    }

    /// Returns true if the losses of lanes and jobs so far no longer count, now that there is a new
    /// connection: something was gained since they were last forgotten. Otherwise a request that is never answered, on one
    /// connection after another, would keep it alive for ever.
    pub(super) fn forgives(&mut self, gained: u64) -> bool {
        std::mem::replace(&mut self.forgiven, gained) < gained
    }

    /// Takes the failure of an attempt. `awaited` means that all else of the run is done. Returns
    /// the reason for which the session must be given up, if it must.
    pub(super) fn failed(
        &mut self,
        now: Instant,
        why: &FurtherConnectionError,
        awaiting: bool,
        awaited: bool,
    ) -> Option<String> {
        self.tries += 1;
        // An attempt on a dead path takes as long as the wait, so the next one follows at once.
        let since = self.tried.unwrap_or(now);
        let next = now.max(since + backoff(self.tries, self.machine.random_byte()));
        self.attempt = ReconnectState::At(next);
        match &self.link {
            HostLinkState::Lost(since, _) => {
                let patience = if awaited { AWAITED } else { GIVEN_UP };
                let late = now.saturating_duration_since(*since) > patience;
                let refused =
                    matches!(why, FurtherConnectionError::Login(_)) && self.tries >= REFUSED;
                self.loss(why).filter(|_| late || refused)
            }
            HostLinkState::Connected => {
                if !awaiting {
                    self.attempt = ReconnectState::None;
                }
                None
            }
        }
    }

    /// Describes the loss of the host and the failure of the last attempt; `None` while the host is
    /// connected.
    pub(super) fn loss(&self, why: &FurtherConnectionError) -> Option<String> {
        match &self.link {
            HostLinkState::Lost(_, first) => Some(format!("{first}; reconnecting failed: {why}")),
            HostLinkState::Connected => None,
        }
    }

    /// Takes data from the other side. Returns the silence before it in which an answer was due.
    pub(super) fn heard(&mut self, now: Instant) -> Duration {
        let silence = now.saturating_duration_since(self.heard.max(self.unasked));
        self.heard = now;
        if !self.is_lost() {
            if self.attempt != ReconnectState::Running {
                self.attempt = ReconnectState::None;
            }
            self.tries = 0;
        }
        silence
    }
}

#[cfg(test)]
#[path = "tests/reconnect.rs"]
mod tests;
