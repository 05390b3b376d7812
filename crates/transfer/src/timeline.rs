//! Records when the steps of a copy happen, for `--explain=timeline`.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use schedule::{FileCopyState, JobId};
use serde::Serialize;

use crate::session::LinkSample;

/// Shortest time between two samples of a connection.
const SAMPLE: Duration = Duration::from_millis(10);
/// Maximum number of marks that are kept.
const MOST: usize = 200_000;

/// Records the steps of one copy, from all threads.
#[derive(Debug)]
pub struct Timeline {
    start: Instant,
    connections: AtomicU32,
    marks: Mutex<Vec<TimelineEntry>>,
}

impl Timeline {
    /// Creates an empty record whose times count from `start`.
    pub fn new(start: Instant) -> Arc<Self> {
        Arc::new(Self {
            start,
            connections: AtomicU32::new(0),
            marks: Mutex::default(),
        })
    }

    /// Adds a connection, which is about to be opened.
    pub fn connection(self: &Arc<Self>) -> ConnectionTimeline {
        let track = ConnectionTimeline {
            timeline: Arc::clone(self),
            connection: self.connections.fetch_add(1, Ordering::Relaxed) + 1,
        };
        track.mark(TimelineStep::Connecting);
        track
    }

    /// Records that the file of a job has reached this state.
    pub fn file(&self, job: JobId, state: FileCopyState) {
        self.add(
            None,
            TimelineStep::File(FileStateChange { job: job.0, state }),
        );
    }

    /// Returns all marks in the order of their times.
    pub fn marks(&self) -> Vec<TimelineEntry> {
        let mut marks = self.lock().clone();
        marks.sort_by_key(|mark| mark.at);
        marks
    }

    fn add(&self, connection: Option<u32>, step: TimelineStep) {
        let at = self.start.elapsed();
        let mut marks = self.lock();
        if marks.len() < MOST {
            marks.push(TimelineEntry {
                at,
                connection,
                step,
            });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<TimelineEntry>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records the steps of one connection.
#[derive(Clone, Debug)]
pub struct ConnectionTimeline {
    timeline: Arc<Timeline>,
    connection: u32,
}

impl ConnectionTimeline {
    /// Records that the connection takes this step now.
    pub fn mark(&self, step: TimelineStep) {
        self.timeline.add(Some(self.connection), step);
    }
}

/// Samples one connection while the session uses it.
#[derive(Debug)]
pub struct ConnectionSampler {
    track: ConnectionTimeline,
    last: Option<(Instant, ConnectionState)>,
    busy: [Duration; 2],
    answered: bool,
}

impl ConnectionSampler {
    /// Creates a sampler that writes to `track`.
    pub fn new(track: ConnectionTimeline) -> Self {
        Self {
            track,
            last: None,
            busy: [Duration::ZERO; 2],
            answered: false,
        }
    }

    /// Returns true if another sample is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|(at, _)| now >= at + SAMPLE)
    }

    /// Records the state of the connection. The flags say that the SFTP server has answered, that a
    /// channel's window holds data back, and that requests with data await their answers.
    pub fn sample(
        &mut self,
        now: Instant,
        sample: &LinkSample,
        (answered, blocked, awaits): (bool, bool, bool),
    ) {
        if answered && !std::mem::replace(&mut self.answered, true) {
            self.track.mark(TimelineStep::Sftp);
        }
        let mut state = ConnectionState {
            sent: sample.sent,
            received: sample.received,
            ..ConnectionState::default()
        };
        let mut busy = self.busy;
        if let Some(tcp) = &sample.tcp {
            let mss = u64::from(tcp.snd_mss);
            state.cwnd = u64::from(tcp.snd_cwnd) * mss;
            state.in_flight = u64::from(tcp.unacked) * mss;
            state.unsent = u64::from(tcp.notsent_bytes).saturating_add(sample.unwritten);
            state.retransmitted = tcp.total_retrans.into();
            busy = [tcp.rwnd_limited, tcp.sndbuf_limited];
        }
        let grown = |at: usize| match (busy.get(at), self.busy.get(at)) {
            (Some(now), Some(before)) => now > before,
            _ => false,
        };
        state.waits = match () {
            () if grown(0) => Some(StallCause::FarReceiveBuffer),
            () if grown(1) => Some(StallCause::SendBuffer),
            () if blocked => Some(StallCause::ChannelWindow),
            () if state.unsent > 0 => Some(StallCause::CongestionWindow),
            () if state.in_flight > 0 || awaits => Some(StallCause::Answers),
            () => Some(StallCause::Idle),
        };
        self.busy = busy;
        self.last = Some((now, state));
        self.track.mark(TimelineStep::State(state));
    }
}

/// A step with its time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimelineEntry {
    /// Time since the start of the program.
    #[serde(serialize_with = "in_seconds")]
    pub at: Duration,
    /// Number of the connection, from one on; `None` for a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<u32>,
    /// The step.
    #[serde(flatten)]
    pub step: TimelineStep,
}

fn in_seconds<S: serde::Serializer>(at: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64((at.as_secs_f64() * 1e6).round() / 1e6)
}

/// A step of a connection or a file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum TimelineStep {
    /// The name is resolved and the SYN leaves.
    Connecting,
    /// TCP's handshake is complete.
    Connected,
    /// The server's identification string has arrived.
    Identified,
    /// Both sides use the new keys.
    Keys,
    /// The login waits until the first connection has logged in and the copy needs this one.
    Held,
    /// The held login continues.
    Wanted,
    /// The login has succeeded.
    Authenticated,
    /// The SFTP server has answered with VERSION.
    Sftp,
    /// This end closed the connection.
    Closed,
    /// State of the connection while it is used.
    State(ConnectionState),
    /// A file has reached this state.
    File(FileStateChange),
}

impl fmt::Display for TimelineStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connecting => "SYN",
            Self::Connected => "TCP",
            Self::Identified => "identification",
            Self::Keys => "keys",
            Self::Held => "held",
            Self::Wanted => "wanted",
            Self::Authenticated => "login",
            Self::Sftp => "SFTP",
            Self::Closed => "closed",
            Self::State(_) => "state",
            Self::File(file) => match file.state {
                FileCopyState::Planned => "planned",
                FileCopyState::Created => "created",
                FileCopyState::Written => "written",
                FileCopyState::Closed => "closed",
                FileCopyState::Synced => "synced",
                FileCopyState::Renamed => "renamed",
            },
        })
    }
}

/// State that a file has reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FileStateChange {
    /// Number of the job that copies the file, unique within its session.
    pub job: u64,
    /// The state.
    pub state: FileCopyState,
}

/// Counters and TCP state of a connection at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ConnectionState {
    /// Bytes that were given to the socket so far.
    pub sent: u64,
    /// Bytes received so far.
    pub received: u64,
    /// Congestion window.
    pub cwnd: u64,
    /// Bytes sent and not acknowledged.
    pub in_flight: u64,
    /// Bytes that wait in this machine.
    pub unsent: u64,
    /// Segments sent again so far.
    pub retransmitted: u64,
    /// Resource for which the connection waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<StallCause>,
}

/// Resource for which a connection waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StallCause {
    /// TCP's congestion window is full: slow start, or the path.
    CongestionWindow,
    /// The far end's TCP receive buffer is full.
    FarReceiveBuffer,
    /// This machine's TCP send buffer is full.
    SendBuffer,
    /// The SSH channel's window is full.
    ChannelWindow,
    /// Everything was sent, and the answers are on their way.
    Answers,
    /// Nothing is in flight in either direction.
    Idle,
}

impl StallCause {
    /// Returns true for a cause of which the kernel counts the time.
    pub fn is_counted(self) -> bool {
        matches!(self, Self::FarReceiveBuffer | Self::SendBuffer)
    }
}

impl fmt::Display for StallCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CongestionWindow => "congestion window",
            Self::FarReceiveBuffer => "far receive buffer",
            Self::SendBuffer => "send buffer",
            Self::ChannelWindow => "channel window",
            Self::Answers => "answers",
            Self::Idle => "idle",
        })
    }
}
