//! Decides what the end of a lane's channel means for the session.

use schedule::LaneError;

use super::lane::LaneRole;

/// Number of times that the last lane may be replaced after the server closed it, before the
/// session is given up.
const RESTARTS: u32 = 4;

/// Number of times in a row that the last lane may end without a job done in between: then the host
/// is at fault. The scheduler blames a job for lanes that were lost after others had been done.
const FRUITLESS: u32 = 4;

/// Counts lanes that ended, and decides about the rest of the session.
#[derive(Debug, Default)]
pub(super) struct LaneLosses {
    /// Number of times that the last lane ended.
    restarts: u32,
    /// Number of consecutive such ends, up to the latest, without a finished job in between.
    fruitless: u32,
    /// Number of finished jobs when the last lane ended.
    done: u64,
    /// Error with which the last channel ended.
    last: Option<LaneError>,
}

/// A lane that has ended, and the state of the session without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndedLane {
    pub role: LaneRole,
    /// The server on the lane had answered.
    pub answered: bool,
    /// The stock server takes over from a longhaul that a command was to start.
    pub falls_back: bool,
    /// Lanes that carry files, this one included.
    pub data_lanes: usize,
    /// Another lane is open on the connection.
    pub has_company: bool,
    /// Jobs that the session has done.
    pub done: u64,
}

/// Consequence of the end of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LaneEndAction {
    /// The session ends, for this reason.
    GiveUp(String),
    /// Other lanes, or the next one, take over the jobs.
    Continue {
        /// The channel was one too many for its connection.
        refused: bool,
        /// The connection has no lane left, and others have.
        bare: Option<EmptyConnectionAction>,
    },
}

/// Use of a connection whose last lane has ended while others work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EmptyConnectionAction {
    /// Open another lane on it, and drop it if that fails.
    Reopen,
    /// Drop it.
    Drop,
    /// Cut it, since its unsent data was sent again elsewhere.
    Cut,
}

impl LaneLosses {
    /// Takes the end of a lane.
    pub(super) fn lane_ended(&mut self, lane: EndedLane, error: &LaneError) -> LaneEndAction {
        let closed = matches!(
            error,
            LaneError::Closed(_)
                | LaneError::GivenUp(_)
                | LaneError::NoLonghaul(_)
                | LaneError::Stalled
        );
        let listing = lane.role == LaneRole::Listing;
        let last = lane.data_lanes <= 1;
        if last {
            self.note_last(lane.done);
        }
        let exhausted = self.restarts > RESTARTS || self.fruitless >= FRUITLESS;
        if exhausted || matches!(error, LaneError::Protocol(_)) {
            return LaneEndAction::GiveUp(error.to_string());
        }
        self.last = Some(error.clone());
        let again = lane.falls_back || matches!(error, LaneError::Misprediction(_));
        LaneEndAction::Continue {
            // Other lanes work, so this channel was one too many.
            refused: !lane.answered && !listing && !lane.falls_back && closed && !last,
            bare: (!last && !lane.has_company).then_some(match again {
                true => EmptyConnectionAction::Reopen,
                false if *error == LaneError::Stalled => EmptyConnectionAction::Cut,
                false => EmptyConnectionAction::Drop,
            }),
        }
    }

    /// Counts an end of the last lane, with `done` jobs done.
    fn note_last(&mut self, done: u64) {
        self.restarts += 1;
        self.fruitless = match done > self.done {
            true => 1,
            false => self.fruitless + 1,
        };
        self.done = done;
    }

    /// Error with which the last channel ended.
    pub(super) fn last(&self) -> Option<&LaneError> {
        self.last.as_ref()
    }

    /// Starts counting anew, on a new connection.
    pub(super) fn forgive(&mut self) {
        self.restarts = 0;
        self.fruitless = 0;
    }
}

#[cfg(test)]
#[path = "tests/losses.rs"]
mod tests;
