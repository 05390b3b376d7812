use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use plan::ConnectionId;
use sftp::Output;

use super::connections::Connection;
use super::driver::Driver;
use super::far::MakesSums;
use super::{ChannelId, SessionEvent};

/// A command at the far end, named by whoever runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExecId(pub u64);

/// What starts connections that go straight: of the session's own.
pub(super) const CONTROL: ExecId = ExecId(u64::MAX);

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecEvent {
    /// It wrote this to its standard output.
    Output(Bytes),
    /// It has ended, with its exit status where that was told, or was not run, and why.
    Over(Result<Option<u32>, String>),
}

/// What is wanted of commands.
pub(super) enum Order {
    Run(ExecId, Vec<u8>),
    /// A longhaul there that makes sums, by SFTP.
    Sums(ExecId),
    Input(ExecId, Vec<u8>),
    End(ExecId),
    Stop(ExecId),
}

impl Order {
    fn id(&self) -> ExecId {
        match self {
            Self::Run(id, _) | Self::Sums(id) | Self::Input(id, _) | Self::End(id) => *id,
            Self::Stop(id) => *id,
        }
    }
}

/// Commands that run at the far end, each on a channel beside the lanes.
#[derive(Default)]
pub(super) struct Execs {
    orders: VecDeque<Order>,
    running: Vec<Running>,
}

struct Running {
    id: ExecId,
    connection: ConnectionId,
    channel: ChannelId,
}

impl Execs {
    pub(super) fn order(&mut self, order: Order) {
        if let Order::Stop(id) = &order {
            // Where it waits still, nobody waits for it.
            self.orders.retain(|order| order.id() != *id);
        }
        self.orders.push_back(order);
    }

    /// A command that runs already.
    pub(super) fn begin(&mut self, id: ExecId, connection: ConnectionId, channel: ChannelId) {
        self.running.push(Running {
            id,
            connection,
            channel,
        });
    }

    /// Nobody waits for it any more.
    pub(super) fn forget(&mut self, id: ExecId) {
        self.running.retain(|r| r.id != id);
    }

    /// Whether a command runs on the connection.
    pub(super) fn any_on(&self, connection: ConnectionId) -> bool {
        self.running.iter().any(|r| r.connection == connection)
    }

    fn find(&self, id: ExecId) -> Option<(ConnectionId, ChannelId)> {
        let running = self.running.iter().find(|r| r.id == id)?;
        Some((running.connection, running.channel))
    }

    fn remove(&mut self, connection: ConnectionId, channel: Option<ChannelId>) -> Vec<ExecId> {
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

impl Driver {
    /// Does what is wanted of commands, once a server is there to run them.
    pub(super) fn run_execs(&mut self) {
        while let Some(order) = self.execs.orders.pop_front() {
            match order {
                Order::Run(id, command) => {
                    let open = self.connections.iter_mut();
                    let mut open = open.filter(|on| on.link.peer().is_some() && !on.retiring);
                    // Behind the first lane, whose channel may be counted on before it is there.
                    let Some(on) = open.next().filter(|_| !self.lanes.is_empty()) else {
                        return self.execs.orders.push_front(Order::Run(id, command));
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
                            self.tell_exec(id, ExecEvent::Over(Err(none)));
                        }
                    }
                }
                Order::Sums(id) => match self.open_sums() {
                    Some(Some((connection, channel))) => {
                        self.execs.begin(id, connection, channel);
                    }
                    Some(None) => {
                        let none = "there is no longhaul that makes sums".to_owned();
                        self.tell_exec(id, ExecEvent::Over(Err(none)));
                    }
                    None => return self.execs.orders.push_front(Order::Sums(id)),
                },
                Order::Input(id, bytes) => self.with_exec(id, |on, channel| {
                    on.send(channel, Output::Bytes(bytes));
                }),
                Order::End(id) => self.with_exec(id, |on, channel| on.end_input(channel)),
                Order::Stop(id) => {
                    self.with_exec(id, |on, channel| on.close_channel(channel));
                    self.execs.running.retain(|r| r.id != id);
                }
            }
        }
    }

    /// A channel with an SFTP server that is ours, if there is to be one; `None` while that is not
    /// known.
    fn open_sums(&mut self) -> Option<Option<(ConnectionId, ChannelId)>> {
        if self.lanes.is_empty() {
            return None;
        }
        let able = |on: &&mut Connection| on.link.peer().is_some() && !on.retiring;
        let straight = self.connections.iter_mut().filter(able);
        if let Some(on) = straight.into_iter().find(|on| on.straight) {
            let channel = on.link.open_channel();
            return Some(channel.map(|channel| (on.id, channel)));
        }
        let served = match self.far.makes_sums()? {
            MakesSums::No => return Some(None),
            MakesSums::Command => true,
            MakesSums::Server => false,
        };
        let on = self.connections.iter_mut().find(able)?;
        let channel = match served {
            true => on.link.open_served(),
            false => on.link.open_channel(),
        };
        Some(channel.map(|channel| (on.id, channel)))
    }

    fn with_exec(&mut self, id: ExecId, act: impl FnOnce(&mut dyn super::Link, ChannelId)) {
        if let Some((connection, channel)) = self.execs.find(id)
            && let Some(on) = self.connection(connection)
        {
            act(on.link.as_mut(), channel);
        }
    }

    pub(super) fn exec_said(&mut self, connection: ConnectionId, channel: ChannelId, said: Bytes) {
        let is = |r: &&Running| r.connection == connection && r.channel == channel;
        if let Some(id) = self.execs.running.iter().find(is).map(|r| r.id) {
            self.tell_exec(id, ExecEvent::Output(said));
        }
    }

    pub(super) fn exec_over(
        &mut self,
        connection: ConnectionId,
        channel: ChannelId,
        how: Result<Option<u32>, String>,
    ) {
        for id in self.execs.remove(connection, Some(channel)) {
            self.tell_exec(id, ExecEvent::Over(how.clone()));
        }
    }

    /// The connection is gone, and with it the commands on it.
    pub(super) fn execs_lost(&mut self, connection: ConnectionId, why: &str) {
        for id in self.execs.remove(connection, None) {
            self.tell_exec(id, ExecEvent::Over(Err(why.to_owned())));
        }
    }

    fn tell_exec(&mut self, id: ExecId, event: ExecEvent) {
        if id == CONTROL {
            return self.straight_heard(Instant::now(), event);
        }
        self.telling.tell(SessionEvent::Exec(id, event));
    }
}
