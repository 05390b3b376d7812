/// Authentication methods that were used so far.
#[derive(Debug, Default)]
pub(super) enum LoginMethod {
    /// No method was used.
    #[default]
    Nothing,
    /// One key has signed: its identity and algorithm.
    Key(usize, String),
    /// Another method was used, alone or in addition to a key.
    Others,
}

impl LoginMethod {
    /// Notes a signature. `early` means that the server has not answered yet, so that a later key
    /// replaces an earlier one.
    pub(super) fn signed(&mut self, identity: usize, algorithm: String, early: bool) {
        *self = match self {
            Self::Nothing => Self::Key(identity, algorithm),
            Self::Key(..) if early => Self::Key(identity, algorithm),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_key_that_alone_was_enough_is_remembered() {
        let mut method = LoginMethod::default();
        assert_eq!(method.key(), None);
        method.signed(2, "ssh-ed25519".to_owned(), false);
        assert_eq!(method.key(), Some((2, "ssh-ed25519")));
        assert_eq!(method.name(), "publickey");
        method.asked();
        assert_eq!(method.key(), None);
        assert!(method.is_more_than_a_key());
    }

    #[test]
    fn a_second_key_counts_as_more_unless_the_first_was_a_guess() {
        let mut method = LoginMethod::default();
        method.signed(0, "a".to_owned(), true);
        method.signed(1, "b".to_owned(), true);
        assert_eq!(method.key(), Some((1, "b")));
        method.signed(2, "c".to_owned(), false);
        assert_eq!(method.key(), None);
    }
}
