//! Commands of a simulated host.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::copy::environment::RemoteCommandStep;
use crate::session::{RemoteCommandError, RemoteCommandEvent, RemoteCommandId};

/// Answer of a checksum program at its start.
const GREETING: &[u8] = b"longhaul-sums 2 xxhsum -H2\n";

/// Behaviour of the host towards commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SimCommandBehavior {
    /// They are refused.
    #[default]
    Refused,
    /// They start and print nothing.
    Hang,
    /// There is no connection for them for this time, and they are refused after it.
    WaitForConnection(Duration),
    /// Each request for a checksum takes the connection down.
    LoseConnection,
}

/// Commands that the copy has started.
#[derive(Debug, Default)]
pub(super) struct SimCommands {
    pub(super) behavior: SimCommandBehavior,
    /// Checksum programs that have greeted.
    greeted: Vec<RemoteCommandId>,
    /// Commands without a connection, with their hosts and the time of the connection.
    waiting: Vec<(Instant, usize, RemoteCommandId)>,
}

impl SimCommands {
    /// Carries out a step at `host`. Returns the events that it causes at once.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        host: usize,
        id: RemoteCommandId,
        step: &RemoteCommandStep,
    ) -> Vec<RemoteCommandEvent> {
        match (self.behavior, step) {
            (SimCommandBehavior::Refused, RemoteCommandStep::Run(_)) => vec![refused()],
            (SimCommandBehavior::WaitForConnection(time), RemoteCommandStep::Run(_)) => {
                self.waiting.push((now + time, host, id));
                Vec::new()
            }
            (SimCommandBehavior::LoseConnection, RemoteCommandStep::Run(start)) => {
                let lists = start.command.windows(5).any(|word| word == b"xargs");
                let lost = lists.then(connection_lost);
                [RemoteCommandEvent::Started]
                    .into_iter()
                    .chain(lost)
                    .collect()
            }
            (SimCommandBehavior::Hang, RemoteCommandStep::Run(_)) => {
                vec![RemoteCommandEvent::Started]
            }
            (SimCommandBehavior::LoseConnection, RemoteCommandStep::Input(_)) => {
                match self.greeted.contains(&id) {
                    true => vec![connection_lost()],
                    false => {
                        self.greeted.push(id);
                        vec![RemoteCommandEvent::Output(Bytes::from_static(GREETING))]
                    }
                }
            }
            _ => Vec::new(),
        }
    }

    /// Time of the next event.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.iter().map(|(at, ..)| *at).min()
    }

    /// Takes the next event that is due, with its host.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
    ) -> Option<(usize, RemoteCommandId, RemoteCommandEvent)> {
        let at = self.waiting.iter().position(|(at, ..)| *at <= now)?;
        let (_, host, id) = self.waiting.remove(at);
        Some((host, id, refused()))
    }
}

fn refused() -> RemoteCommandEvent {
    let why = "the host does not run commands for this account".to_owned();
    RemoteCommandEvent::Ended(Err(RemoteCommandError::Failed(why)))
}

fn connection_lost() -> RemoteCommandEvent {
    let why = "the connection was lost".to_owned();
    RemoteCommandEvent::Ended(Err(RemoteCommandError::ConnectionLost(why)))
}
