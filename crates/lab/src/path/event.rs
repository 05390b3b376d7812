use std::time::Duration;

use super::units::{InvalidValue, time};

/// A change of the emulated path, at a time counted from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkPathEvent {
    /// Time of the event.
    pub at: Duration,
    /// Kind of the event.
    pub kind: PathEventKind,
}

/// Disturbance of the path that a [`NetworkPathEvent`] causes at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathEventKind {
    /// Both directions of the link are cut for this time: packets that are offered meanwhile, or
    /// would leave the queue, are dropped. Packets in flight arrive.
    Blackout(Duration),
    /// Every TCP connection is reset, as by a firewall that lost its state: a RST to both sides,
    /// and in answer to any further packet.
    Reset,
}

/// Parses "5s blackout=3s" or "5s reset".
pub(super) fn parse(text: &str) -> Result<NetworkPathEvent, InvalidValue> {
    let form = || "is neither TIME blackout=TIME nor TIME reset, such as 5s blackout=3s".to_owned();
    let (at, what) = text.trim().split_once([' ', ',']).ok_or_else(form)?;
    let kind = match what.trim().split_once('=') {
        None if what.trim() == "reset" => PathEventKind::Reset,
        Some(("blackout", length)) => PathEventKind::Blackout(time(length)?),
        _ => return Err(form()),
    };
    let at = time(at).map_err(|_| form())?;
    Ok(NetworkPathEvent { at, kind })
}
