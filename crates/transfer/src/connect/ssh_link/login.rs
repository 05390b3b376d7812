/// Authentication methods that were used so far.
#[derive(Debug, Default)]
pub(super) enum UsedLoginMethods {
    /// No method was used.
    #[default]
    Nothing,
    /// A key has signed, and the server has accepted no other key before: its identity and
    /// algorithm.
    Key(usize, String),
    /// Another method was used, alone or in addition to a key.
    Others,
}

impl UsedLoginMethods {
    /// Notes a signature after `steps` partial successes (RFC 4252 section 5.1). Before the first
    /// one, a later key replaces an earlier one, which the server has refused.
    pub(super) fn signed(&mut self, identity: usize, algorithm: String, steps: u32) {
        *self = match self {
            Self::Nothing => Self::Key(identity, algorithm),
            Self::Key(..) if steps == 0 => Self::Key(identity, algorithm),
            Self::Key(..) | Self::Others => Self::Others,
        };
    }

    /// Notes a password or answers to prompts.
    pub(super) fn asked(&mut self) {
        *self = Self::Others;
    }

    /// Identity and algorithm of the key that alone was sufficient.
    pub(super) fn key(&self) -> Option<(usize, &str)> {
        match self {
            Self::Key(identity, algorithm) => Some((*identity, algorithm)),
            Self::Nothing | Self::Others => None,
        }
    }

    /// True if the user was asked, or more than one key was needed.
    pub(super) fn is_more_than_a_key(&self) -> bool {
        matches!(self, Self::Others)
    }

    /// Name of the method, for reports.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Key(..) => "publickey",
            Self::Nothing | Self::Others => "password or keyboard-interactive",
        }
    }
}

/// Knowledge about whether the server can have carried out requests, which may leave with the login.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LoginEffect {
    /// The login is under way.
    #[default]
    Unknown,
    /// The server has ended each login without success. It sends USERAUTH_SUCCESS before it reads a
    /// request of a channel (RFC 4252 section 5.1), so it has carried out none.
    Nothing,
    /// The login succeeded, or the connection broke before the answer arrived.
    Possible,
}

impl LoginEffect {
    /// Notes that the login succeeded.
    pub(super) fn succeeded(&mut self) {
        *self = Self::Possible;
    }

    /// Notes that the login was refused, or that the server ended the connection in order before it
    /// succeeded: by DISCONNECT, or by the end of its stream.
    pub(super) fn ended(&mut self) {
        if *self == Self::Unknown {
            *self = Self::Nothing;
        }
    }

    /// Notes that another login begins on a new connection, with which no request leaves.
    pub(super) fn restarted(&mut self) {
        if *self == Self::Unknown {
            *self = Self::Possible;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_may_have_seen_a_login_succeed_may_have_served_it() {
        let mut effect = LoginEffect::default();
        effect.ended();
        assert_eq!(effect, LoginEffect::Nothing);
        effect.restarted();
        effect.ended();
        assert_eq!(effect, LoginEffect::Nothing);
        // The connection broke.
        let mut effect = LoginEffect::default();
        effect.restarted();
        effect.ended();
        assert_eq!(effect, LoginEffect::Possible);
        let mut effect = LoginEffect::default();
        effect.succeeded();
        effect.ended();
        assert_eq!(effect, LoginEffect::Possible);
    }

    #[test]
    fn only_a_key_that_alone_was_enough_is_remembered() {
        let mut method = UsedLoginMethods::default();
        assert_eq!(method.key(), None);
        method.signed(2, "ssh-ed25519".to_owned(), 0);
        assert_eq!(method.key(), Some((2, "ssh-ed25519")));
        assert_eq!(method.name(), "publickey");
        method.asked();
        assert_eq!(method.key(), None);
        assert!(method.is_more_than_a_key());
    }

    /// Bug: a key that the server refused counted as a second one, so that no further connection
    /// was opened and the accepted key was not remembered.
    #[test]
    fn a_second_key_counts_as_more_unless_the_server_refused_the_first() {
        let mut method = UsedLoginMethods::default();
        method.signed(0, "a".to_owned(), 0);
        method.signed(1, "b".to_owned(), 0);
        assert_eq!(method.key(), Some((1, "b")));
        method.signed(2, "c".to_owned(), 1);
        assert_eq!(method.key(), None);
        assert!(method.is_more_than_a_key());
    }
}
