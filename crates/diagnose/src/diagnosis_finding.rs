//! Findings: one limit each, with its figures.

use serde::Serialize;

use crate::limit_cause::{LimitCause, Remedy, RemedyActor};

/// Direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DataDirection {
    /// To the server.
    Upload,
    /// From the server.
    Download,
}

impl DataDirection {
    /// Returns the plural noun.
    pub fn transfers(self) -> &'static str {
        match self {
            Self::Upload => "uploads",
            Self::Download => "downloads",
        }
    }
}

/// Degree of certainty of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// The figures do not rule out another cause.
    Unsure,
    /// The figures fit this cause best.
    Likely,
    /// The figures fit no other cause.
    Sure,
}

impl Certainty {
    /// Returns the word for the table.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unsure => "unsure",
            Self::Likely => "likely",
            Self::Sure => "sure",
        }
    }
}

/// One limit and its cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiagnosisFinding {
    /// The cause.
    pub cause: LimitCause,
    /// Direction concerned; `None` for both.
    pub direction: Option<DataDirection>,
    /// Rate in bytes per second that this cause allows one connection; `None` if it costs time
    /// only.
    pub limit: Option<f64>,
    /// Rate in bytes per second that was seen, or is expected, without this cause.
    pub could: Option<f64>,
    /// The figures, one sentence without a full stop.
    pub evidence: String,
    /// Degree of certainty.
    pub certainty: Certainty,
    /// Changes that help, the best first.
    pub remedies: Vec<Remedy>,
}

impl DiagnosisFinding {
    pub(crate) fn new(cause: LimitCause, evidence: String) -> Self {
        Self {
            cause,
            direction: None,
            limit: None,
            could: None,
            evidence,
            certainty: Certainty::Sure,
            remedies: cause.remedies(),
        }
    }

    pub(crate) fn of(self, direction: DataDirection) -> Self {
        Self {
            direction: Some(direction),
            ..self
        }
    }

    pub(crate) fn limits(self, limit: f64, could: Option<f64>) -> Self {
        let could = could.filter(|could| *could > limit);
        Self {
            limit: Some(limit),
            could,
            ..self
        }
    }

    pub(crate) fn certainty(self, certainty: Certainty) -> Self {
        Self { certainty, ..self }
    }

    pub(crate) fn remedy_first(mut self, by: RemedyActor, text: Option<String>) -> Self {
        if let Some(text) = text {
            self.remedies.insert(0, Remedy { by, text });
        }
        self
    }
}
