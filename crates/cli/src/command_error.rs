//! Error that ends a command.

use std::error::Error;
use std::fmt;

use transfer::connect::ConnectError;

use crate::exit::Exit;

/// Reason why a command ended without its result, and the exit code that it means. The message is a
/// sentence without `error:`.
#[derive(Debug)]
pub(crate) struct CommandError {
    exit: Exit,
    cause: Box<dyn Error + Send + Sync>,
}

impl CommandError {
    /// Returns the error with another exit code.
    pub(crate) fn with_exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    /// Returns the exit code.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

/// Keeps the cause. The exit code is that of a connection error if it is one, and 1 otherwise.
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for CommandError {
    fn from(cause: E) -> Self {
        let cause = cause.into();
        let exit = cause
            .downcast_ref::<ConnectError>()
            .map_or(Exit::SomeFailed, Exit::from);
        Self { exit, cause }
    }
}
