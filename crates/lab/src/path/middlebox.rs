use std::time::Duration;

use super::units::{InvalidValue, size, time};

/// A firewall or NAT that breaks each TCP connection at an age or after an amount of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Middlebox {
    /// Treatment of the connection from then on.
    pub action: MiddleboxAction,
    /// The condition.
    pub after: MiddleboxLimit,
}

/// Treatment of a connection by a [`Middlebox`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MiddleboxAction {
    /// Both ends get a RST.
    Reset,
    /// The packets of the connection vanish.
    Stall,
}

/// Age or amount of data at which a [`Middlebox`] breaks a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MiddleboxLimit {
    /// Time since the SYN.
    Age(Duration),
    /// IP bytes in both directions together.
    Bytes(u64),
}

impl Middlebox {
    /// Parses `reset=30s` or `stall=50MB`.
    pub(super) fn parse(text: &str) -> Result<Self, InvalidValue> {
        let form = || "is not reset or stall with =TIME or =SIZE, such as stall=50MB".to_owned();
        let (action, after) = text.split_once('=').ok_or_else(form)?;
        let action = match action {
            "reset" => MiddleboxAction::Reset,
            "stall" => MiddleboxAction::Stall,
            _ => return Err(form()),
        };
        let after = time(after)
            .map(MiddleboxLimit::Age)
            .or_else(|_| size(after).map(MiddleboxLimit::Bytes))
            .map_err(|_| form())?;
        Ok(Self { action, after })
    }
}
