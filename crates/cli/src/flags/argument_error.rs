//! Error of a flag, its value or an operand.

use std::error::Error;
use std::fmt;

/// Reason why a flag, its value or an operand is invalid. Parsers return the end of a sentence that
/// begins with the value; the caller that knows the flag puts both before it.
#[derive(Debug)]
pub(crate) struct ArgumentError(Box<dyn Error + Send + Sync>);

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for ArgumentError {
    fn from(cause: E) -> Self {
        Self(cause.into())
    }
}
