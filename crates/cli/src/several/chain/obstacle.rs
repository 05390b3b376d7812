//! Reason why hosts do not pass files on.

use std::fmt;

use transfer::connect::ConnectError;
use transfer::host_to_host::HostCopyError;
use transfer::report::HostCopyReason;

/// Reason why a file, a host or a whole copy is left out of the chain and comes from this machine.
/// The copy goes on without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::several) struct ChainObstacle(HostCopyReason);

impl ChainObstacle {
    /// Obstacle whose message begins with the name of a host or file.
    pub(in crate::several) fn named(why: String) -> Self {
        Self(HostCopyReason::Named(why))
    }

    /// The obstacle as the reason for a copy from here. A refused login has more lines than the
    /// first, with the keys that were offered.
    pub(in crate::several) fn reason(&self) -> HostCopyReason {
        let first = |text: &str| text.lines().next().unwrap_or_default().to_owned();
        match &self.0 {
            HostCopyReason::Clause(text) => HostCopyReason::Clause(first(text)),
            HostCopyReason::Named(text) => HostCopyReason::Named(first(text)),
            HostCopyReason::Advice(text) => HostCopyReason::Advice(first(text)),
        }
    }
}

impl fmt::Display for ChainObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for ChainObstacle {}

impl From<ConnectError> for ChainObstacle {
    fn from(error: ConnectError) -> Self {
        Self::named(error.into())
    }
}

impl From<HostCopyError> for ChainObstacle {
    fn from(error: HostCopyError) -> Self {
        Self::named(error.to_string())
    }
}

impl From<HostCopyReason> for ChainObstacle {
    fn from(reason: HostCopyReason) -> Self {
        Self(reason)
    }
}

impl From<String> for ChainObstacle {
    fn from(why: String) -> Self {
        Self(why.into())
    }
}

impl From<&str> for ChainObstacle {
    fn from(why: &str) -> Self {
        Self(why.into())
    }
}
