use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use schedule::ConnectionId;
use sftp::Output;

use super::driver::SessionLoop;
use super::{ChannelId, SessionEvent};

/// Identifies a command at the far end; the caller chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemoteCommandId(pub u64);

/// The session's own command that starts the server of direct connections.
pub(super) const CONTROL: RemoteCommandId = RemoteCommandId(u64::MAX);

/// Event of a remote command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteCommandEvent {
    /// Bytes that the command wrote to standard output.
    Output(Bytes),
    /// The command ended with this exit status, if it was reported, or could not run for this
    /// reason.
    Over(Result<Option<u32>, String>),
}

/// Order for a remote command.
pub(super) enum RemoteCommandOrder {
    Run(RemoteCommandId, Vec<u8>),
    Input(RemoteCommandId, Vec<u8>),
    End(RemoteCommandId),
    Stop(RemoteCommandId),
}

/// Commands that run at the far end, each on its own channel beside the lanes.
#[derive(Default)]
pub(super) struct RemoteCommands {
    orders: VecDeque<RemoteCommandOrder>,
    running: Vec<Running>,
}

struct Running {
    id: RemoteCommandId,
    connection: ConnectionId,
    channel: ChannelId,
}

impl RemoteCommands {
    pub(super) fn order(&mut self, order: RemoteCommandOrder) {
        self.orders.push_back(order);
    }

    /// Registers a command that is already running.
    pub(super) fn begin(
        &mut self,
        id: RemoteCommandId,
        connection: ConnectionId,
        channel: ChannelId,
    ) {
        self.running.push(Running {
            id,
            connection,
            channel,
        });
    }

    /// Drops a command without reporting its end.
    pub(super) fn forget(&mut self, id: RemoteCommandId) {
        self.running.retain(|r| r.id != id);
    }

    /// True if a command runs on the connection.
    pub(super) fn any_on(&self, connection: ConnectionId) -> bool {
        self.running.iter().any(|r| r.connection == connection)
    }

    fn find(&self, id: RemoteCommandId) -> Option<(ConnectionId, ChannelId)> {
        let running = self.running.iter().find(|r| r.id == id)?;
        Some((running.connection, running.channel))
    }

    fn remove(
        &mut self,
        connection: ConnectionId,
        channel: Option<ChannelId>,
    ) -> Vec<RemoteCommandId> {
        let is = |r: &Running| {
            r.connection == connection && channel.is_none_or(|channel| r.channel == channel)
        };
        let gone = self
            .running
            .iter()
            .filter(|r| is(r))
            .map(|r| r.id)
            .collect();
        self.running.retain(|r| !is(r));
        gone
    }
}

impl SessionLoop {
    /// Carries out pending command orders once a connection can run them.
    pub(super) fn run_execs(&mut self) {
        while let Some(order) = self.execs.orders.pop_front() {
            match order {
                RemoteCommandOrder::Run(id, command) => {
                    let open = self.connections.iter_mut();
                    let mut open = open.filter(|on| on.link.peer().is_some() && !on.retiring);
                    // After the first lane, because its channel number may be predicted before it
                    // is confirmed.
                    let Some(on) = open.next().filter(|_| !self.lanes.is_empty()) else {
                        return self
                            .execs
                            .orders
                            .push_front(RemoteCommandOrder::Run(id, command));
                    };
                    let connection = on.id;
                    match on.link.open_exec(&command) {
                        Some(channel) => self.execs.running.push(Running {
                            id,
                            connection,
                            channel,
                        }),
                        None => {
                            let none = "there is no way to run a command".to_owned();
                            self.tell_exec(id, RemoteCommandEvent::Over(Err(none)));
                        }
                    }
                }
                RemoteCommandOrder::Input(id, bytes) => self.with_exec(id, |on, channel| {
                    on.send(channel, Output::Bytes(bytes));
                }),
                RemoteCommandOrder::End(id) => {
                    self.with_exec(id, |on, channel| on.end_input(channel))
                }
                RemoteCommandOrder::Stop(id) => {
                    self.with_exec(id, |on, channel| on.close_channel(channel));
                    self.execs.running.retain(|r| r.id != id);
                }
            }
        }
    }

    fn with_exec(
        &mut self,
        id: RemoteCommandId,
        act: impl FnOnce(&mut dyn super::Link, ChannelId),
    ) {
        if let Some((connection, channel)) = self.execs.find(id)
            && let Some(on) = self.connection(connection)
        {
            act(on.link.as_mut(), channel);
        }
    }

    pub(super) fn exec_said(&mut self, connection: ConnectionId, channel: ChannelId, said: Bytes) {
        let is = |r: &&Running| r.connection == connection && r.channel == channel;
        if let Some(id) = self.execs.running.iter().find(is).map(|r| r.id) {
            self.tell_exec(id, RemoteCommandEvent::Output(said));
        }
    }

    pub(super) fn exec_over(
        &mut self,
        connection: ConnectionId,
        channel: ChannelId,
        how: Result<Option<u32>, String>,
    ) {
        for id in self.execs.remove(connection, Some(channel)) {
            self.tell_exec(id, RemoteCommandEvent::Over(how.clone()));
        }
    }

    /// Reports the end of all commands on a lost connection.
    pub(super) fn execs_lost(&mut self, connection: ConnectionId, why: &str) {
        for id in self.execs.remove(connection, None) {
            self.tell_exec(id, RemoteCommandEvent::Over(Err(why.to_owned())));
        }
    }

    fn tell_exec(&mut self, id: RemoteCommandId, event: RemoteCommandEvent) {
        if id == CONTROL {
            return self.straight_heard(Instant::now(), event);
        }
        self.telling.tell(SessionEvent::Exec(id, event));
    }
}
