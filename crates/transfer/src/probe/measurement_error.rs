//! Reasons why a request of a probe had no result.

use std::fmt;

/// Reason why a request had no result. An answer that never came tells of the path, a refusal of
/// the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestError {
    /// No answer came in time: what was asked for, if it was said.
    NoAnswer(Option<String>),
    /// The server refused the request, or the connection ended: the reason.
    Failed(String),
}

impl RequestError {
    pub(super) fn is_no_answer(&self) -> bool {
        matches!(self, Self::NoAnswer(_))
    }

    /// Names the step that failed.
    pub(super) fn at_step(self, step: &str) -> Self {
        match self {
            Self::NoAnswer(_) => Self::NoAnswer(Some(step.to_owned())),
            Self::Failed(why) => Self::Failed(format!("{step}: {why}")),
        }
    }

    /// Adds advice or a further reason to a refusal.
    pub(super) fn with(self, more: &str) -> Self {
        match self {
            Self::NoAnswer(step) => Self::NoAnswer(step),
            Self::Failed(why) => Self::Failed(format!("{why}; {more}")),
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(None) => f.write_str("the server did not answer in time"),
            Self::NoAnswer(Some(step)) => write!(f, "{step}: the server did not answer in time"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl From<String> for RequestError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl From<RequestError> for String {
    fn from(error: RequestError) -> Self {
        error.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_stays_silence_whatever_is_said_about_it() {
        let silent = RequestError::NoAnswer(None)
            .at_step("cannot open /dev/null on the server")
            .with("name a directory");
        assert!(silent.is_no_answer());
        assert_eq!(
            silent.to_string(),
            "cannot open /dev/null on the server: the server did not answer in time"
        );
    }

    #[test]
    fn a_refusal_is_named_with_its_step_and_the_advice() {
        let refused = RequestError::from("permission denied".to_owned())
            .at_step("cannot open /dev/null on the server")
            .with("name a directory");
        assert!(!refused.is_no_answer());
        assert_eq!(
            refused.to_string(),
            "cannot open /dev/null on the server: permission denied; name a directory"
        );
    }
}
