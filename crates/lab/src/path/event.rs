use std::time::Duration;

use super::units::{Why, time};

/// Something that happens once, at a time counted from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Duration,
    /// What.
    pub kind: EventKind,
}

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The link is cut for so long, both ways: what is offered meanwhile, or would have left the
    /// queue, is dropped. What is already on its way arrives.
    Blackout(Duration),
    /// Every TCP connection is ended as by a firewall that lost its state: a RST to both sides,
    /// and in answer to whatever they still send.
    Reset,
}

/// "5s blackout=3s", "5s reset".
pub(super) fn parse(text: &str) -> Result<Event, Why> {
    let form = || "is neither TIME blackout=TIME nor TIME reset, such as 5s blackout=3s".to_owned();
    let (at, what) = text.trim().split_once([' ', ',']).ok_or_else(form)?;
    let kind = match what.trim().split_once('=') {
        None if what.trim() == "reset" => EventKind::Reset,
        Some(("blackout", length)) => EventKind::Blackout(time(length)?),
        _ => return Err(form()),
    };
    let at = time(at).map_err(|_| form())?;
    Ok(Event { at, kind })
}
