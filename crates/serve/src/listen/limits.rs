use sys::SourceBlock;

/// How many may be there at once.
///
/// A part of all places is kept for connections that have not logged in, so that whoever has filled the
/// server with logged-in ones keeps nobody from logging in; of the others one account has a share
/// ([`Self::has_room`]), so that it keeps no other account out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections.
    pub connections: usize,
    /// Of those, how many may not have logged in yet (as MaxStartups of sshd, without its dice).
    pub strangers: usize,
    /// And how many of those from one source: whoever holds them open keeps nobody else out. A copy
    /// of ours logs in with eight at a time at most.
    pub strangers_per_source: usize,
    /// Which addresses are one source.
    pub source_block: SourceBlock,
    /// Connections of one account; a share of all, if not set.
    pub per_user: Option<usize>,
    /// New connections in a second.
    pub per_second: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            strangers: 100,
            strangers_per_source: 20,
            source_block: SourceBlock::default(),
            per_user: None,
            per_second: usize::MAX,
        }
    }
}

/// An account's share: it may have four times as many connections as it leaves free for others. One
/// account alone has four fifths of the places, two have four ninths each, and some are always free.
const SHARE: usize = 4;

/// Who logs in, as far as it matters for how many may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// One account among others.
    Account,
    /// The only account that there is.
    OnlyAccount,
    /// root, who comes to see what is wrong.
    Root,
}

impl Limits {
    /// Places for connections that have logged in.
    pub(super) fn logged_in(&self) -> usize {
        self.connections - self.strangers.min(self.connections / 4)
    }

    /// Whether an account with `own` connections may have one more, of `logged_in` by all accounts.
    pub(super) fn has_room(
        &self,
        claim: Claim,
        own: usize,
        logged_in: usize,
    ) -> Result<(), &'static str> {
        const OWN: &str = "too many connections of this account";
        const ALL: &str = "too many connections of all accounts together";
        if self.per_user.is_some_and(|most| own >= most) {
            return Err(OWN);
        }
        if claim == Claim::Root {
            return Ok(());
        }
        let Some(free) = self
            .logged_in()
            .checked_sub(logged_in)
            .filter(|free| *free > 0)
        else {
            return Err(ALL);
        };
        match claim == Claim::OnlyAccount
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

    fn limits(connections: usize) -> Limits {
        Limits {
            connections,
            ..Limits::default()
        }
    }

    /// 30 logins of one account were all that `connections = 30` had room for, and root stayed outside.
    #[test]
    fn an_account_has_a_share_and_leaves_some() {
        for connections in 1..200 {
            let limits = limits(connections);
            let places = limits.logged_in();
            assert!(places >= 1);
            let mut own = 0;
            while limits.has_room(Claim::Account, own, own).is_ok() {
                own += 1;
            }
            assert!((1..=places).contains(&own), "{connections}: {own}");
            if places > 1 {
                assert!(own < places, "{connections}: {own} of {places}");
                assert!(limits.has_room(Claim::Account, 0, own).is_ok());
            }
            assert!(limits.has_room(Claim::Root, 0, places).is_ok());
            assert!(limits.has_room(Claim::Account, 0, places).is_err());
            // A server of one account has nobody else to keep out.
            let only = (0..places).all(|n| limits.has_room(Claim::OnlyAccount, n, n).is_ok());
            assert!(only && limits.has_room(Claim::OnlyAccount, places, places).is_err());
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
                if limits.has_room(Claim::Account, own[nth], all).is_ok() {
                    own[nth] += 1;
                }
            }
        }
        let all: usize = own.iter().sum();
        assert!(own.iter().max() <= own.iter().min().map(|n| n + 1).as_ref());
        assert!(limits.has_room(Claim::Account, 0, all).is_ok(), "{own:?}");
    }

    #[test]
    fn a_limit_that_was_set_is_the_share() {
        let limits = Limits {
            per_user: Some(924),
            ..limits(1024)
        };
        assert!(limits.has_room(Claim::Account, 923, 923).is_ok());
        assert!(limits.has_room(Claim::Account, 924, 924).is_err());
        assert!(limits.has_room(Claim::Root, 924, 924).is_err());
    }
}
