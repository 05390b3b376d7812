use sys::SourcePrefixLengths;

/// Limits on simultaneous connections.
///
/// A part of all places is reserved for connections that have not logged in, so that logged-in
/// connections cannot block new logins. Each account has a share of the other places
/// ([`Self::has_room`]), so that it cannot lock out other accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of connections in total.
    pub connections: usize,
    /// Maximum number of connections that have not logged in (as MaxStartups of sshd, without its
    /// random drops).
    pub unauthenticated: usize,
    /// Maximum number of connections from one source that have not logged in, so that one source
    /// cannot lock out others. A copy by longhaul logs in with at most eight at a time.
    pub unauthenticated_per_source: usize,
    /// Prefix lengths by which addresses count as one source.
    pub source_block: SourcePrefixLengths,
    /// Maximum number of connections of one account; if `None`, a share of all places.
    pub per_user: Option<usize>,
    /// Maximum number of new connections per second.
    pub per_second: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            unauthenticated: 100,
            unauthenticated_per_source: 20,
            source_block: SourcePrefixLengths::default(),
            per_user: None,
            per_second: usize::MAX,
        }
    }
}

/// Share of an account: it may have four times as many connections as it leaves free. One account
/// alone gets four fifths of the places, two get four ninths each, and some are always free.
const SHARE: usize = 4;

/// Kind of account that logs in, which decides how many connections it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoginAccountKind {
    /// An account other than root, on a server with several accounts.
    Account,
    /// The only account that the server admits.
    OnlyAccount,
    /// The account root, which must be able to log in to find the cause of a problem.
    Root,
}

impl ConnectionLimits {
    /// Number of places for connections that have logged in.
    pub(super) fn logged_in(&self) -> usize {
        self.connections - self.unauthenticated.min(self.connections / 4)
    }

    /// Checks that an account with `own` connections may have one more while all accounts have
    /// `logged_in`.
    pub(super) fn has_room(
        &self,
        claim: LoginAccountKind,
        own: usize,
        logged_in: usize,
    ) -> Result<(), &'static str> {
        const OWN: &str = "too many connections of this account: the limit is the option \
                           connections-per-user";
        const ALL: &str = "too many connections of all accounts together: the limit is the option \
                           connections";
        if self.per_user.is_some_and(|most| own >= most) {
            return Err(OWN);
        }
        if claim == LoginAccountKind::Root {
            return Ok(());
        }
        let Some(free) = self
            .logged_in()
            .checked_sub(logged_in)
            .filter(|free| *free > 0)
        else {
            return Err(ALL);
        };
        match claim == LoginAccountKind::OnlyAccount
            || self.per_user.is_some()
            || own < SHARE * (free - 1)
            || own == 0
        {
            true => Ok(()),
            false => Err(OWN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(connections: usize) -> ConnectionLimits {
        ConnectionLimits {
            connections,
            ..ConnectionLimits::default()
        }
    }

    /// Bug: 30 logins of one account took all places of `connections = 30`, and root could not log
    /// in.
    #[test]
    fn an_account_has_a_share_and_leaves_some() {
        for connections in 1..200 {
            let limits = limits(connections);
            let places = limits.logged_in();
            assert!(places >= 1);
            let mut own = 0;
            while limits.has_room(LoginAccountKind::Account, own, own).is_ok() {
                own += 1;
            }
            assert!((1..=places).contains(&own), "{connections}: {own}");
            if places > 1 {
                assert!(own < places, "{connections}: {own} of {places}");
                assert!(limits.has_room(LoginAccountKind::Account, 0, own).is_ok());
            }
            assert!(limits.has_room(LoginAccountKind::Root, 0, places).is_ok());
            assert!(
                limits
                    .has_room(LoginAccountKind::Account, 0, places)
                    .is_err()
            );
            // The only account cannot lock out other accounts, so it may take all places.
            let only =
                (0..places).all(|n| limits.has_room(LoginAccountKind::OnlyAccount, n, n).is_ok());
            assert!(
                only && limits
                    .has_room(LoginAccountKind::OnlyAccount, places, places)
                    .is_err()
            );
        }
        assert_eq!(limits(1024).logged_in(), 924);
    }

    #[test]
    fn many_accounts_share_what_there_is() {
        let limits = limits(1024);
        let mut own = [0; 3];
        for _ in 0..1000 {
            for nth in 0..own.len() {
                let all = own.iter().sum();
                if limits
                    .has_room(LoginAccountKind::Account, own[nth], all)
                    .is_ok()
                {
                    own[nth] += 1;
                }
            }
        }
        let all: usize = own.iter().sum();
        assert!(own.iter().max() <= own.iter().min().map(|n| n + 1).as_ref());
        assert!(
            limits.has_room(LoginAccountKind::Account, 0, all).is_ok(),
            "{own:?}"
        );
    }

    #[test]
    fn a_limit_that_was_set_is_the_share() {
        let limits = ConnectionLimits {
            per_user: Some(924),
            ..limits(1024)
        };
        assert!(limits.has_room(LoginAccountKind::Account, 923, 923).is_ok());
        assert!(
            limits
                .has_room(LoginAccountKind::Account, 924, 924)
                .is_err()
        );
        assert!(limits.has_room(LoginAccountKind::Root, 924, 924).is_err());
    }
}
