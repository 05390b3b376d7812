use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use bytes::Bytes;
use schedule::ConnectionId;
use sftp::ClientOutput;

use super::dispatcher::Dispatcher;
use super::stalls::{AnswerWait, Waiter};
use super::{Link, LinkChannelId};

/// Identifies a command at the far end; the caller chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemoteCommandId(pub u64);

/// The session's own command that starts the server of direct connections.
pub(super) const CONTROL: RemoteCommandId = RemoteCommandId(u64::MAX);

/// The session's own command that starts longhaul for lanes beside those of the stock server.
pub(super) const PROBE: RemoteCommandId = RemoteCommandId(u64::MAX - 1);

/// Start of a remote command, its output, or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteCommandEvent {
    /// A connection runs the command now; it may have waited for one.
    Started,
    /// Bytes that the command wrote to standard output.
    Output(Bytes),
    /// The command ended with this exit status, if it was reported, or has failed.
    Ended(Result<Option<u32>, RemoteCommandError>),
}

/// Reason why a remote command did not run to its end, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteCommandError {
    /// The server refused the session in which the command would run, for this reason.
    SessionRefused(String),
    /// The far end refused the command or ended it, for this reason.
    Failed(String),
    /// The connection was lost, for this reason.
    ConnectionLost(String),
}

impl fmt::Display for RemoteCommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SessionRefused(why) => write!(
                f,
                "the server allows no further session on this connection ({why})"
            ),
            Self::Failed(why) | Self::ConnectionLost(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for RemoteCommandError {}

/// Command line for the account's shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteCommandStart {
    pub command: Vec<u8>,
    /// Name of what it prints first, for the notice that nothing comes; `None` if the caller gives
    /// such notices itself.
    pub awaited: Option<&'static str>,
    /// If its connection is lost, the caller starts it again on the next one, so that the session
    /// connects again even if nothing else is left to do.
    pub restarts: bool,
}

/// Instruction to start, feed, end or stop a remote command.
pub(super) enum RemoteCommandInstruction {
    Run(RemoteCommandId, RemoteCommandStart),
    Input(RemoteCommandId, Vec<u8>),
    End(RemoteCommandId),
    Stop(RemoteCommandId),
}

/// Commands that run at the far end, each on its own channel beside the lanes.
#[derive(Default)]
pub(super) struct RemoteCommands {
    orders: VecDeque<RemoteCommandInstruction>,
    running: Vec<RunningCommand>,
}

struct RunningCommand {
    id: RemoteCommandId,
    connection: ConnectionId,
    channel: LinkChannelId,
    is_paused: bool,
    /// Time of its start, and a name for its first output, while that is missed.
    silence: Option<(Instant, &'static str)>,
    /// The caller starts it again if its connection is lost.
    restarts: bool,
}

impl RemoteCommands {
    pub(super) fn order(&mut self, order: RemoteCommandInstruction) {
        self.orders.push_back(order);
    }

    /// Registers a command that is already running.
    /// `silence` is the time since which its first output is missed, with a name for the output.
    pub(super) fn begin(
        &mut self,
        id: RemoteCommandId,
        (connection, channel): (ConnectionId, LinkChannelId),
        silence: Option<(Instant, &'static str)>,
    ) {
        self.running.push(RunningCommand {
            id,
            connection,
            channel,
            is_paused: false,
            silence,
            restarts: false,
        });
    }

    /// True if a command runs or waits for a connection that its caller starts again after a loss.
    pub(super) fn any_restarts(&self) -> bool {
        let waits = |order: &RemoteCommandInstruction| match order {
            RemoteCommandInstruction::Run(_, start) => start.restarts,
            _ => false,
        };
        self.running.iter().any(|r| r.restarts) || self.orders.iter().any(waits)
    }

    /// Commands that have printed nothing yet. `heard` is a time until which
    /// the server answered something else.
    pub(super) fn waits(&self, heard: Instant) -> impl Iterator<Item = AnswerWait> {
        self.running.iter().filter_map(move |r| {
            let (since, request) = r.silence?;
            let waiter = Waiter::Command(r.connection, r.id);
            Some(AnswerWait::of_command(waiter, request, since.max(heard)))
        })
    }

    /// Pauses or resumes the output of all commands that the session's handle started.
    pub(super) fn pause_output(&mut self, now: Instant, on: &mut Dispatcher, paused: bool) {
        let changed = |r: &&mut RunningCommand| r.id != CONTROL && r.is_paused != paused;
        for running in self.running.iter_mut().filter(changed) {
            running.is_paused = paused;
            if let Some(on) = on.connections_mut().get_mut(running.connection) {
                on.link_mut().pause_output(now, running.channel, paused);
            }
        }
    }

    /// Drops a command without reporting its end.
    pub(super) fn forget(&mut self, id: RemoteCommandId) {
        self.running.retain(|r| r.id != id);
    }

    /// True if a command runs on the connection.
    pub(super) fn any_on(&self, connection: ConnectionId) -> bool {
        self.running.iter().any(|r| r.connection == connection)
    }

    /// True if a command waits for a connection that can run it.
    pub(super) fn any_waits(&self) -> bool {
        let runs = |order| matches!(order, &RemoteCommandInstruction::Run(..));
        self.orders.iter().any(runs)
    }

    /// Carries out pending orders once a connection can run commands. Returns the commands that
    /// have started or could not run, each with its event.
    pub(super) fn carry_out(
        &mut self,
        now: Instant,
        on: &mut Dispatcher,
    ) -> Vec<(RemoteCommandId, RemoteCommandEvent)> {
        let mut events = Vec::new();
        while let Some(order) = self.orders.pop_front() {
            match order {
                RemoteCommandInstruction::Run(id, start) => {
                    let Some(connection) = usable(on) else {
                        let again = RemoteCommandInstruction::Run(id, start);
                        self.orders.push_front(again);
                        break;
                    };
                    let opened = on.connections_mut().get_mut(connection);
                    match opened.and_then(|on| on.link_mut().open_exec(&start.command)) {
                        Some(channel) => {
                            let silence = start.awaited.map(|awaited| (now, awaited));
                            self.begin(id, (connection, channel), silence);
                            if let Some(running) = self.running.last_mut() {
                                running.restarts = start.restarts;
                            }
                            events.push((id, RemoteCommandEvent::Started));
                        }
                        None => {
                            let none = "cannot run a command over this connection".to_owned();
                            let error = RemoteCommandError::Failed(none);
                            events.push((id, RemoteCommandEvent::Ended(Err(error))));
                        }
                    }
                }
                RemoteCommandInstruction::Input(id, bytes) => self.act(on, id, |link, channel| {
                    link.send(channel, ClientOutput::Bytes(bytes));
                }),
                RemoteCommandInstruction::End(id) => {
                    self.act(on, id, |link, channel| link.end_input(channel));
                }
                RemoteCommandInstruction::Stop(id) => {
                    self.act(on, id, |link, channel| link.close_channel(channel));
                    self.forget(id);
                }
            }
        }
        events
    }

    fn act(
        &self,
        on: &mut Dispatcher,
        id: RemoteCommandId,
        act: impl FnOnce(&mut dyn Link, LinkChannelId),
    ) {
        let running = self.running.iter().find(|r| r.id == id);
        if let Some(running) = running
            && let Some(on) = on.connections_mut().get_mut(running.connection)
        {
            act(on.link_mut(), running.channel);
        }
    }

    /// Returns the command that has printed something on this channel, if there is one.
    pub(super) fn printed(
        &mut self,
        connection: ConnectionId,
        channel: LinkChannelId,
    ) -> Option<RemoteCommandId> {
        let is = |r: &&mut RunningCommand| r.connection == connection && r.channel == channel;
        let running = self.running.iter_mut().find(is)?;
        running.silence = None;
        Some(running.id)
    }

    /// Removes a command that has ended, or all commands on a lost connection if `channel` is
    /// `None`.
    pub(super) fn end(
        &mut self,
        connection: ConnectionId,
        channel: Option<LinkChannelId>,
    ) -> Vec<RemoteCommandId> {
        let is = |r: &mut RunningCommand| {
            r.connection == connection && channel.is_none_or(|channel| r.channel == channel)
        };
        self.running.extract_if(.., is).map(|r| r.id).collect()
    }
}

/// First connection that may run a command: after the first lane, because its channel number may be
/// predicted before it is confirmed.
fn usable(on: &Dispatcher) -> Option<ConnectionId> {
    let mut open = on.connections().iter();
    let open = open.find(|on| on.link().peer().is_some() && !on.is_retiring());
    open.filter(|_| !on.lanes().is_empty()).map(|on| on.id())
}

#[cfg(test)]
#[path = "tests/remote_commands.rs"]
mod tests;
