//! Commands of a simulated host.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use testkit::sftp_model::Fs;

use super::sum_program::{SimSumProgram, SumAnswers};
use crate::copy::environment::RemoteCommandStep;
use crate::session::{RemoteCommandError, RemoteCommandEvent, RemoteCommandId};

/// Answer of a checksum program at its start.
const GREETING: &[u8] = b"longhaul-sums 2 xxhsum -H2\n";
/// Time until a checksum program answers.
const ANSWERS: Duration = Duration::from_millis(15);

/// Behaviour of the host towards commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SimCommandBehavior {
    /// Commands are refused.
    #[default]
    Refused,
    /// Commands start and print nothing.
    Hang,
    /// There is no connection for them for this time, and they are refused after it.
    WaitForConnection(Duration),
    /// Each request for a checksum takes the connection down.
    LoseConnection,
    /// The host has a checksum program.
    Sums(SumAnswers),
}

/// Commands that the copy has started.
#[derive(Debug, Default)]
pub(super) struct SimCommands {
    pub(super) behavior: SimCommandBehavior,
    /// Checksum programs that have greeted.
    greeted: Vec<RemoteCommandId>,
    /// Running checksum programs, with their hosts.
    programs: BTreeMap<RemoteCommandId, (usize, SimSumProgram)>,
    /// Events of commands on their way, with their hosts.
    waiting: Vec<(Instant, usize, RemoteCommandId, RemoteCommandEvent)>,
}

impl SimCommands {
    /// Carries out a step at `host`. Returns the events that it causes at once.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        host: usize,
        id: RemoteCommandId,
        step: &RemoteCommandStep,
        fs: &Fs,
    ) -> Vec<RemoteCommandEvent> {
        match (self.behavior, step) {
            (SimCommandBehavior::Refused, RemoteCommandStep::Run(_)) => vec![refused()],
            (SimCommandBehavior::WaitForConnection(time), RemoteCommandStep::Run(_)) => {
                self.waiting.push((now + time, host, id, refused()));
                Vec::new()
            }
            (SimCommandBehavior::Sums(answers), RemoteCommandStep::Run(start)) => {
                let program = SimSumProgram::new(&start.command, answers);
                self.programs.insert(id, (host, program));
                vec![RemoteCommandEvent::Started]
            }
            (SimCommandBehavior::Sums(_), RemoteCommandStep::Input(input)) => {
                if self
                    .programs
                    .get(&id)
                    .is_some_and(|(_, program)| program.ends())
                {
                    self.programs.remove(&id);
                    let ended = RemoteCommandEvent::Ended(Ok(Some(1)));
                    self.waiting.push((now + ANSWERS, host, id, ended));
                } else if let Some((_, program)) = self.programs.get_mut(&id) {
                    let out = program.receive(fs, input);
                    let out = RemoteCommandEvent::Output(Bytes::from(out));
                    self.waiting.push((now + ANSWERS, host, id, out));
                }
                Vec::new()
            }
            (SimCommandBehavior::Sums(_), RemoteCommandStep::EndInput) => {
                let ended = RemoteCommandEvent::Ended(Ok(Some(0)));
                self.waiting.push((now + 2 * ANSWERS, host, id, ended));
                Vec::new()
            }
            (SimCommandBehavior::Sums(_), RemoteCommandStep::Stop) => {
                self.programs.remove(&id);
                self.waiting.retain(|(_, _, of, _)| *of != id);
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

    /// Takes all programs of `host` down with its connection.
    pub(super) fn lose(&mut self, now: Instant, host: usize) {
        self.waiting.retain(|(_, of, ..)| *of != host);
        let programs = std::mem::take(&mut self.programs);
        for (id, (of, program)) in programs {
            match of == host {
                true => self.waiting.push((now, host, id, connection_lost())),
                false => drop(self.programs.insert(id, (of, program))),
            }
        }
    }

    /// Ends all commands with their sessions.
    pub(super) fn end(&mut self) {
        self.programs.clear();
        self.waiting.clear();
    }

    /// Takes the next event that is due, with its host.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
    ) -> Option<(usize, RemoteCommandId, RemoteCommandEvent)> {
        let at = self.waiting.iter().position(|(at, ..)| *at <= now)?;
        let (_, host, id, event) = self.waiting.remove(at);
        Some((host, id, event))
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
