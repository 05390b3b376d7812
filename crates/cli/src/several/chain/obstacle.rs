//! Reason why hosts do not pass files on.

use std::fmt;

use transfer::connect::ConnectError;
use transfer::host_to_host::HostCopyError;

/// Reason why a file, a host or a whole copy is left out of the chain and comes from this machine:
/// a clause for the user. The copy goes on without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::several) struct ChainObstacle(String);

impl fmt::Display for ChainObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ChainObstacle {}

impl From<ConnectError> for ChainObstacle {
    fn from(error: ConnectError) -> Self {
        Self(error.into())
    }
}

impl From<HostCopyError> for ChainObstacle {
    fn from(error: HostCopyError) -> Self {
        Self(error.to_string())
    }
}

impl From<String> for ChainObstacle {
    fn from(why: String) -> Self {
        Self(why)
    }
}

impl From<&str> for ChainObstacle {
    fn from(why: &str) -> Self {
        Self(why.to_owned())
    }
}
