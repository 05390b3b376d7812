//! Events of connections, and the consequences of lost and new lanes and connections for the whole
//! session.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use schedule::{ConnectionId, LaneError, LaneId, SchedulerStats};

use super::{ConnectCommand, SAID, SessionCore, SessionStage};
use crate::session::connection::SessionConnection;
use crate::session::direct::DirectAction;
use crate::session::lane::{LaneOnChannel, LaneRole};
use crate::session::losses::{EmptyConnectionAction, EndedLane, LaneEndAction};
use crate::session::reconnect::{
    ConnectionLossCause, ConnectionLossDecision, LastConnection, ReconnectEffect,
};
use crate::session::remote_commands::{
    CONTROL, RemoteCommandError, RemoteCommandEvent, RemoteCommandId,
};
use crate::session::sftp_server_selector::ChannelRefusingConnection;
use crate::session::{
    FurtherConnectionError, Link, LinkChannelId, LinkError, LinkEvent, RESUME_FROM, SessionEvent,
};

/// Silence that is not worth counting.
const MOMENT: Duration = Duration::from_millis(10);

impl SessionCore {
    /// Handles the end of a lane's channel: another lane takes over its work.
    pub(super) fn lane_ended(&mut self, now: Instant, id: LaneId, error: LaneError) {
        self.reopening.channel_ended(now);
        self.end_lane(now, id, error);
    }

    /// Replaces the only lane, whose channel was refused, by another one after a pause.
    pub(super) fn open_again(&mut self, now: Instant, id: LaneId, error: &LaneError) {
        tracing::debug!("{error}; opening it again, because another channel has just ended");
        self.dispatcher.close_channel(id, error);
        let news = self.dispatcher.remove_lane(now, id, error);
        self.note_news(news);
        self.dispatcher.recover(now);
    }

    /// Ends a lane whose channel was closed or refused.
    pub(super) fn end_lane(&mut self, now: Instant, id: LaneId, mut error: LaneError) {
        let Some(on) = self.dispatcher.lanes().get(id) else {
            return;
        };
        let (role, served) = (on.role(), on.is_served());
        let announced = on.lane().server_info();
        let answered = announced.is_some();
        let other = served && announced != on.lane().remembered();
        let falls_back = served
            && error != LaneError::Stalled
            && self.remote.lane_ended(&mut self.dispatcher, id, &error);
        let over = matches!(
            error,
            LaneError::Closed(_) | LaneError::GivenUp(_) | LaneError::NoLonghaul(_)
        );
        if falls_back && !over {
            error = LaneError::GivenUp(error.to_string());
        }
        if matches!(error, LaneError::Misprediction(_)) && !other {
            self.dispatcher.stop_predicting();
        }
        let ended = EndedLane {
            role,
            answered,
            falls_back,
            data_lanes: self.dispatcher.lanes().data_lanes(),
            has_company: self.dispatcher.lanes().any_other_on(id),
            done: self.dispatcher.scheduler().stats().done,
        };
        let after = self.losses.lane_ended(ended, &error);
        self.dispatcher.close_channel(id, &error);
        if let LaneEndAction::GiveUp(why) = after {
            // Before the scheduler learns of the lane, which could fail its jobs one by one.
            return self.lose(now, why);
        }
        let news = self.dispatcher.remove_lane(now, id, &error);
        self.note_news(news);
        if let LaneEndAction::Continue { refused, bare } = after {
            if refused {
                self.concurrency.note_channel_refused(now, id.connection);
            }
            if let Some(bare) = bare {
                self.use_bare_connection(now, id.connection, bare, &error);
            }
        }
        self.dispatcher.recover(now);
    }

    /// Handles the end of the last lane on one of several connections.
    fn use_bare_connection(
        &mut self,
        now: Instant,
        id: ConnectionId,
        mut bare: EmptyConnectionAction,
        error: &LaneError,
    ) {
        if self.direct.controls(id) {
            return;
        }
        if bare == EmptyConnectionAction::Reopen {
            let (dispatcher, remote) = (&mut self.dispatcher, &self.remote);
            let opened = dispatcher.open_lane(now, id, LaneRole::Data, remote);
            if opened.is_some() {
                return;
            }
            bare = EmptyConnectionAction::Drop;
        }
        if !self.dispatcher.connections().has_others(id) {
            return;
        }
        match bare {
            EmptyConnectionAction::Cut => self.cut_connection(now, id),
            EmptyConnectionAction::Drop | EmptyConnectionAction::Reopen => {
                self.drop_connection(now, id, error.to_string());
            }
        }
    }

    /// Handles the loss of a connection: other connections take over the work of its lanes, if
    /// there are any.
    pub(super) fn connection_lost(&mut self, now: Instant, id: ConnectionId, error: LinkError) {
        if self.dispatcher.connections().get(id).is_none() {
            return;
        }
        if !self.dispatcher.connections().has_others(id) {
            return self.last_connection_lost(now, error);
        }
        let why = error.to_string();
        tracing::info!("a connection was lost: {why}; continuing on the others");
        self.dispatcher.cut_lanes(now, id);
        let closed = LaneError::ConnectionLost(why.clone());
        let news = self.dispatcher.remove_lanes_on(now, id, &closed);
        self.note_news(news);
        if let Some((gone, _)) = self.take_connection(now, id, &why) {
            if let LinkError::Lost(why) = error {
                self.note_lost(now, &gone, why);
            }
            gone.into_link().cut();
        }
        self.keep_some();
        self.dispatcher.recover(now);
    }

    /// True if a later attempt to connect again can succeed.
    fn may_connect_again(&self) -> bool {
        let connection_source = self.options.connection_source.as_ref();
        connection_source.is_some_and(|source| source.is_open() || source.asks())
    }

    /// Handles the loss of the last connection: connects again if that can help, otherwise ends the
    /// session.
    fn last_connection_lost(&mut self, now: Instant, error: LinkError) {
        let connections = self.dispatcher.connections();
        let ids: Vec<_> = connections.iter().map(SessionConnection::id).collect();
        let chosen = || connections.iter().any(|on| on.link().has_own_choice());
        let cause = match error {
            LinkError::SourceTruncated(_) => ConnectionLossCause::SourceTruncated,
            _ if chosen() => ConnectionLossCause::OptionalFeature,
            _ => ConnectionLossCause::Path,
        };
        for id in &ids {
            self.remote.connection_lost(&mut self.dispatcher, *id);
        }
        let SchedulerStats { moved, gained, .. } = self.dispatcher.scheduler().stats();
        let open = self.may_connect_again();
        let connection_source = self.options.connection_source.as_ref();
        if let Some(connection_source) =
            connection_source.filter(|_| cause == ConnectionLossCause::OptionalFeature)
        {
            connection_source.choose_nothing(moved < RESUME_FROM);
        }
        let busy = !self.dispatcher.scheduler().is_idle() || self.commands.any_restarts();
        let last = LastConnection {
            gained,
            cause,
            open,
            answered: self.facts.first().is_some(),
            wanted: self.stage == SessionStage::Running && busy,
        };
        let why = LaneError::ConnectionLost(error.to_string());
        match self.reconnect.lost(now, last, error) {
            ConnectionLossDecision::GiveUp(why) => return self.lose(now, why),
            ConnectionLossDecision::ConnectAgain(line) => {
                self.events.tell(now, SessionEvent::Message(line))
            }
        }
        self.direct.all_lost(&mut self.commands);
        for id in ids {
            self.dispatcher.cut_lanes(now, id);
            let news = self.dispatcher.remove_lanes_on(now, id, &why);
            self.note_news(news);
            self.end_commands(now, id, &why.to_string());
        }
        // Cut the old connections, so that the kernel does not deliver their unsent data when the
        // path recovers.
        for on in self.dispatcher.connections_mut().take_all() {
            on.into_link().cut();
        }
        self.dispatcher.recover(now);
        // The measurements describe the lost connections.
        self.concurrency.start_anew();
    }

    /// Gives up a connection whose lanes are stalled. Other lanes have sent the data again and the
    /// rename waits, so the unsent data must not arrive. A link that cannot discard it is retired
    /// instead and stays open until the server has answered.
    fn cut_connection(&mut self, now: Instant, id: ConnectionId) {
        let connections = self.dispatcher.connections_mut();
        if let Some(on) = connections.get_mut(id).filter(|on| !on.link().cuts()) {
            on.retire();
            return self.keep_some();
        }
        let why = LaneError::Stalled.to_string();
        let Some((gone, lanes)) = self.take_connection(now, id, &why) else {
            return;
        };
        gone.into_link().cut();
        for lane in lanes {
            self.dispatcher.scheduler_mut().lane_is_cut(now, lane);
        }
        self.keep_some();
    }

    /// Removes a connection and returns it with the closed lanes on it whose channels have not
    /// ended yet.
    fn take_connection(
        &mut self,
        now: Instant,
        id: ConnectionId,
        why: &str,
    ) -> Option<(SessionConnection, Vec<LaneId>)> {
        // First, because it notes on the connection if the server closed it because of the probe
        // for a remote longhaul.
        self.remote.connection_lost(&mut self.dispatcher, id);
        let gone = self.dispatcher.connections_mut().remove(id)?;
        self.end_commands(now, id, why);
        Some((gone, self.dispatcher.lanes_mut().forget_closing(id)))
    }

    /// Reports the commands on a lost connection as ended.
    fn end_commands(&mut self, now: Instant, id: ConnectionId, why: &str) {
        for command in self.commands.end(id, None) {
            let error = RemoteCommandError::ConnectionLost(why.to_owned());
            let over = RemoteCommandEvent::Ended(Err(error));
            self.tell_command(now, command, over);
        }
    }

    /// Drops a connection without lanes while others exist.
    fn drop_connection(&mut self, now: Instant, id: ConnectionId, why: String) {
        let Some((gone, _)) = self.take_connection(now, id, &why) else {
            return;
        };
        self.note_lost(now, &gone, why);
        gone.into_link().finish();
        self.keep_some();
    }

    fn note_lost(&mut self, now: Instant, gone: &SessionConnection, why: String) {
        let young = gone.is_young(now);
        if young && gone.is_direct() {
            let (dispatcher, commands) = (&mut self.dispatcher, &mut self.commands);
            self.direct.broken(dispatcher, commands, &why);
        }
        if young && !gone.is_retiring() {
            let refused = match gone.link().was_denied() {
                true => FurtherConnectionError::Login(why),
                false => FurtherConnectionError::Connection(why),
            };
            self.note_joined(now, Err(refused));
        }
    }

    /// Keeps connections if only retiring ones are left.
    fn keep_some(&mut self) {
        self.dispatcher.connections_mut().keep_some();
        self.dispatcher.note_change();
    }

    /// Closes retired lanes and connections that have no work left.
    pub(super) fn close_what_is_free(&mut self, now: Instant) {
        self.dispatcher.close_free_lanes(now);
        let lanes = self.dispatcher.lanes();
        let (commands, remote) = (&self.commands, &self.remote);
        let unused = |on: &&SessionConnection| {
            let id = on.id();
            let lanes = lanes.any_on(id) || lanes.is_closing_on(id);
            on.is_retiring() && !lanes && !commands.any_on(id) && !remote.any_on(id)
        };
        let unused = self.dispatcher.connections().iter().find(unused);
        if let Some(id) = unused.map(SessionConnection::id) {
            let gone = self.dispatcher.connections_mut().remove(id);
            gone.into_iter().for_each(|on| on.into_link().finish());
        }
    }

    /// Requests one more connection.
    pub(super) fn reach_out(&mut self, now: Instant) {
        if self.options.connection_source.is_none() {
            let none =
                FurtherConnectionError::Login("this session has one connection only".to_owned());
            return self.note_joined(now, Err(none));
        }
        let brief = self.concurrency.is_brief(&self.dispatcher);
        self.reaching += 1;
        self.orders.push_back(ConnectCommand::OpenFurther { brief });
    }

    /// Handles the result of a further connection: a registered link, or the reason that there is
    /// none.
    pub(in crate::session) fn joined(
        &mut self,
        now: Instant,
        link: Result<Box<dyn Link>, FurtherConnectionError>,
    ) {
        self.turns.note_input();
        self.reaching = self.reaching.saturating_sub(1);
        let added = link.map(|link| self.dispatcher.add_connection(now, link));
        if let Ok(id) = &added {
            let connections = self.dispatcher.connections_mut();
            let late = connections
                .get(*id)
                .is_some_and(|on| self.direct.supersedes(on));
            if late && !connections.any_direct() {
                connections.remove(*id);
                return;
            }
        }
        self.direct_joined(now, &added);
        let opened = added.and_then(|id| {
            let (dispatcher, remote) = (&mut self.dispatcher, &self.remote);
            match dispatcher.open_lane(now, id, LaneRole::Data, remote) {
                Some(_) => Ok(id),
                None => {
                    dispatcher.connections_mut().remove(id);
                    let none = "the server opened no SFTP channel on the connection".to_owned();
                    Err(FurtherConnectionError::Connection(none))
                }
            }
        });
        if opened.is_ok() && self.reconnect.is_lost() {
            let how = self.reconnect.connected(now);
            return self.go_on(now, how);
        }
        self.note_joined(now, opened);
    }

    /// Tells the direct connections of a connection, which may be the first direct one.
    fn direct_joined(
        &mut self,
        now: Instant,
        added: &Result<ConnectionId, FurtherConnectionError>,
    ) {
        let loses = self.concurrency.loses_on_the_way_down();
        let (dispatcher, commands) = (&mut self.dispatcher, &mut self.commands);
        let step = self.direct.joined(now, dispatcher, commands, added, loses);
        if step == DirectAction::Leave {
            let connections = self.dispatcher.connections().iter();
            let direct: Vec<_> = connections.filter(|on| on.is_direct()).collect();
            let direct: Vec<_> = direct.into_iter().map(SessionConnection::id).collect();
            let stock =
                |on: &LaneOnChannel| !direct.contains(&on.connection()) && !on.is_retiring();
            self.dispatcher.retire_lanes(stock);
            // The measurements describe the old connections.
            self.concurrency.begin_again();
            self.dispatcher.note_change();
        }
    }

    /// Passes the result of a requested connection to the controller of their number.
    fn note_joined(&mut self, now: Instant, result: Result<ConnectionId, FurtherConnectionError>) {
        let dispatcher = &mut self.dispatcher;
        let changes = self.concurrency.note_joined(now, dispatcher, result);
        self.carry_out(now, changes);
    }

    /// Handles the result of connecting again: a registered link, or the reason that there is none.
    pub(in crate::session) fn rejoined(
        &mut self,
        now: Instant,
        link: Result<Box<dyn Link>, FurtherConnectionError>,
    ) {
        self.turns.note_input();
        let link = match link {
            Ok(link) => link,
            Err(why) => {
                tracing::debug!("cannot connect: {why}");
                let awaiting = self.is_awaiting();
                let awaited = self.options.awaited.as_ref();
                let awaited = awaited.is_some_and(|awaited| awaited.load(Ordering::Relaxed));
                let given_up = self.reconnect.failed(now, &why, awaiting, awaited);
                // The source of the connections may have ended after the loss.
                let given_up = given_up.or_else(|| {
                    let ended = !self.may_connect_again();
                    self.reconnect.loss(&why).filter(|_| ended)
                });
                if let Some(why) = given_up {
                    self.lose(now, why);
                }
                return;
            }
        };
        let id = self.dispatcher.add_connection(now, link);
        let how = self.reconnect.succeeded(now);
        let (dispatcher, remote) = (&mut self.dispatcher, &self.remote);
        if dispatcher
            .open_lane(now, id, LaneRole::Data, remote)
            .is_none()
        {
            let why = "the server opened no SFTP channel on the new connection".to_owned();
            return self.connection_lost(now, id, LinkError::Lost(why));
        }
        self.go_on(now, how);
        if how == ReconnectEffect::Added {
            self.note_joined(now, Ok(id));
        }
    }

    /// Continues over a new connection that replaces lost or silent ones.
    fn go_on(&mut self, now: Instant, how: ReconnectEffect) {
        let gained = self.dispatcher.scheduler().stats().gained;
        if self.reconnect.forgives(gained) {
            self.dispatcher.scheduler_mut().forgive();
            self.losses.forgive();
        }
        self.events.tell(now, SessionEvent::Reconnected);
        let line = how.line().to_owned();
        self.events.tell(now, SessionEvent::Message(line));
        self.dispatcher.note_change();
    }

    /// Notes that data came from the other side.
    pub(super) fn note_heard(&mut self, now: Instant) {
        self.facts.note_heard(now);
        let silence = self.reconnect.heard(now);
        let awaited = |on: &LaneOnChannel| on.lane().stats().bytes_in_flight > 0;
        if silence > MOMENT && self.dispatcher.lanes().iter().any(awaited) {
            self.concurrency.note_silence(silence, &self.options);
        }
    }

    /// Ends the session with an error.
    pub(in crate::session) fn lose(&mut self, now: Instant, why: String) {
        if self.is_over() {
            return;
        }
        // Sent before the failures that follow from it, so that a receiver without other work stops
        // waiting.
        self.events
            .tell(now, SessionEvent::AboutToFail(why.clone()));
        for event in self.dispatcher.lose(now, &why) {
            self.events.tell(now, SessionEvent::Lane(event));
        }
        self.events.tell(now, SessionEvent::Lost(why));
        self.stage = SessionStage::Ended;
    }

    pub(super) fn receive(&mut self, now: Instant, id: ConnectionId) {
        let may = self.pacing.may_receive(now);
        let Some(on) = self.dispatcher.connections_mut().get_mut(id) else {
            return;
        };
        let mut received = Vec::new();
        let link = on.link_mut();
        let result = link.handle_timeout(now);
        let result = result.and_then(|()| match may {
            true => link.receive(now, &mut received),
            false => Ok(false),
        });
        on.note_login(now);
        if !received.is_empty() {
            self.turns.note_input();
            self.note_heard(now);
        }
        for event in received {
            self.handle_received(now, id, event);
        }
        match result {
            Ok(true) => self.turns.note_input(),
            Ok(false) => {}
            Err(e) => self.connection_lost(now, id, e),
        }
    }

    fn handle_received(&mut self, now: Instant, connection: ConnectionId, event: LinkEvent) {
        match event {
            LinkEvent::Data(channel, bytes) => {
                self.pacing.spend(bytes.len());
                self.handle_data(now, (connection, channel), bytes);
            }
            LinkEvent::Closed(channel, why) => {
                let why = why.unwrap_or_else(|| "the server closed the SFTP channel".to_owned());
                self.handle_closed(now, (connection, channel), why, false);
            }
            LinkEvent::Refused(channel, why) => {
                self.handle_closed(now, (connection, channel), why, true);
            }
            LinkEvent::Ended(channel) => {
                let lanes = self.dispatcher.lanes_mut();
                if let Some(lane) = lanes.channel_over(connection, channel) {
                    self.dispatcher.scheduler_mut().lane_is_over(now, lane);
                }
            }
            LinkEvent::Restarted => self.remote.begin_again(),
            LinkEvent::Exited(channel, how) => {
                for id in self.commands.end(connection, Some(channel)) {
                    self.tell_command(now, id, RemoteCommandEvent::Ended(how.clone()));
                }
            }
            // The program behind each channel may print this line; show it once.
            LinkEvent::Message(line) => {
                if self.said.len() < SAID && self.said.insert(line.clone()) {
                    self.events.tell(now, SessionEvent::Message(line));
                }
            }
        }
    }

    /// Passes data of a channel to its lane or command.
    fn handle_data(&mut self, now: Instant, on: (ConnectionId, LinkChannelId), bytes: Bytes) {
        let lane = self.dispatcher.lanes_mut().on_channel(on.0, on.1);
        let Some(lane) = lane else {
            let dispatcher = &mut self.dispatcher;
            match self.remote.heard_on_asked(now, dispatcher, on, &bytes) {
                Some(refused) => self.note_refused(now, refused),
                None => {
                    if let Some(id) = self.commands.printed(on.0, on.1) {
                        self.tell_command(now, id, RemoteCommandEvent::Output(bytes));
                    }
                }
            }
            return;
        };
        let id = lane.id();
        let (greeting, error) = match lane.hear(now, bytes) {
            Ok(greeting) => (greeting, None),
            Err(error) => (None, Some(error)),
        };
        self.remote.heard(&mut self.dispatcher, id, greeting);
        if let Some(error) = error {
            self.lane_ended(now, id, error);
        }
    }

    /// Handles the end or refusal of a channel.
    fn handle_closed(
        &mut self,
        now: Instant,
        on: (ConnectionId, LinkChannelId),
        why: String,
        refused: bool,
    ) {
        let Some(lane) = self.dispatcher.lanes_mut().on_channel(on.0, on.1) else {
            let dispatcher = &mut self.dispatcher;
            let asked = self
                .remote
                .on_probe_channel_closed(dispatcher, on, why, refused);
            return self.note_refused(now, asked);
        };
        let id = lane.id();
        let data = !lane.is_listing();
        lane.lane_mut().handle_closed(&why);
        self.dispatcher.scheduler_mut().lane_is_over(now, id);
        let error = LaneError::Closed(why);
        if !refused {
            return self.lane_ended(now, id, error);
        }
        let last = data && self.dispatcher.lanes().data_lanes() <= 1;
        match last && self.reopening.refused(now) {
            true => self.open_again(now, id, &error),
            false => self.end_lane(now, id, error),
        }
    }

    pub(super) fn note_refused(
        &mut self,
        now: Instant,
        refused: impl IntoIterator<Item = ChannelRefusingConnection>,
    ) {
        for ChannelRefusingConnection(connection) in refused {
            self.concurrency.note_channel_refused(now, connection);
        }
    }

    /// Passes the event of a remote command on.
    pub(super) fn tell_command(
        &mut self,
        now: Instant,
        id: RemoteCommandId,
        event: RemoteCommandEvent,
    ) {
        if id != CONTROL {
            return self.events.tell(now, SessionEvent::Exec(id, event));
        }
        let (dispatcher, commands) = (&mut self.dispatcher, &mut self.commands);
        match self.direct.heard(dispatcher, commands, event) {
            DirectAction::Connect => self.reach_out(now),
            DirectAction::Nothing | DirectAction::Leave => {}
        }
    }
}
