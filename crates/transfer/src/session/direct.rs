//! Direct connections, which need no login at the host's SSH server. A command that runs on a
//! channel of the first connection starts their server. On a short path the lanes move to the first
//! direct connection; on a long path direct connections are added to the existing ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use schedule::{ConnectionId, USUAL_RATE};
use sftp::ClientOutput;
use tracing::info;

use super::connection::SessionConnection;
use super::dispatcher::Dispatcher;
use super::remote_commands::{CONTROL, RemoteCommandEvent, RemoteCommands};
use super::{ConnectionOpener, DirectServerLauncher, FurtherConnectionError, LinkChannelId};
use crate::report::{FarEndServerReport, ServerMode};

/// Time in which the command must start the direct server, in addition to `ROUND_TRIPS`. With
/// `insists`, data waits for it.
const PATIENCE: Duration = Duration::from_secs(5);
const ROUND_TRIPS: u32 = 4;
/// Interval of the keepalive messages on the control channel. Network address translation drops
/// idle connections.
const LIFE_SIGN: Duration = Duration::from_secs(30);

/// Bytes below which a copy is over before a direct connection would be ready.
const WORTH: u64 = 16 << 20;

/// Round trips after which a direct connection has repaid its cost: six for the request and the
/// login, plus a slow start on a path that other connections already fill.
const USEFUL_AFTER: f64 = 20.0;
/// Round trip from which a connection's slow start takes noticeable time.
const LONG: Duration = Duration::from_millis(4);

/// Sends a message to the far end of the control channel.
pub type ControlSender = Box<dyn Fn(Vec<u8>) + Send + Sync>;

/// State of the direct server after one of its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectServerStatus {
    /// Nothing to do yet.
    Nothing,
    /// The server listens; connections can be made from now on.
    Listening,
    /// No direct connection is possible, with the reason.
    Failed(String),
}

/// Makes the channel through which the source of direct connections sends messages.
pub(super) type ControlSenderFactory = Arc<dyn Fn() -> ControlSender + Send + Sync>;

/// Direct connections of a session.
pub(super) struct DirectConnections {
    state: DirectConnectionState,
    /// Further connections deferred until it is known if they will be direct.
    wanted: usize,
    connection_source: Option<Arc<dyn ConnectionOpener>>,
    outlet: ControlSenderFactory,
}

/// State of the direct connections of a session.
enum DirectConnectionState {
    /// Nothing was started yet.
    New,
    /// Direct connections are not available for this session.
    Off,
    /// The direct server was requested and must answer by this time.
    Asked(RunningDirectServer, Instant),
    /// The direct server listens, and the first connection is being made.
    Connecting(RunningDirectServer),
    /// A direct connection exists or existed.
    Open(RunningDirectServer, OpenDirectConnections),
    /// Direct connections failed for this reason; true if data was waiting for them.
    Failed(String, bool),
}

/// Direct server that is running, with its control channel.
#[derive(Clone)]
struct RunningDirectServer {
    with: Arc<dyn DirectServerLauncher>,
    connection: ConnectionId,
    channel: LinkChannelId,
}

/// Direct connections in use.
#[derive(Clone, Copy)]
struct OpenDirectConnections {
    /// Time of the next keepalive.
    keepalive: Instant,
    /// The lanes have left the connections of the SSH server.
    replaces: bool,
}

/// Facts about a copy that decide if direct connections pay without a request by the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectConnectionInputs {
    /// One connection is open, and no further one is being opened.
    pub alone: bool,
    /// Several connections may be opened at once, for many small files.
    pub several: bool,
    /// Bytes that are still to move.
    pub left: u64,
    /// Rate of the path in bytes per second, if known.
    pub rate: Option<u64>,
    /// Longest round trip of a connection.
    pub rtt: Option<Duration>,
    /// Packet loss limits a download.
    pub loses: bool,
}

impl DirectConnectionInputs {
    /// True if direct connections pay.
    ///
    /// Many small files benefit more from several connections at once: a further login starts a
    /// round trip sooner than the far end answers, and its answer may queue behind data. For
    /// 100,000 files over 114 ms, waiting cost 0.4 to 0.9 s of 6 s, and giving up logins for it
    /// cost more. For a download with packet loss direct connections do pay, because the remote
    /// longhaul sets a loss-tolerant congestion control and sshd does not.
    fn pays(&self) -> bool {
        let soon = self.alone && !self.several;
        let lasts = lasts_for_straight(self.left, self.rate, self.rtt);
        self.left >= WORTH && (soon && lasts || self.loses)
    }
}

/// Consequence of news about direct connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectAction {
    Nothing,
    /// Open the first direct connection.
    Connect,
    /// Lanes on connections of the SSH server finish their work, and their measurements no longer
    /// count.
    Leave,
}

impl DirectConnections {
    pub(super) fn new(
        connection_source: Option<Arc<dyn ConnectionOpener>>,
        outlet: ControlSenderFactory,
    ) -> Self {
        Self {
            state: DirectConnectionState::New,
            wanted: 0,
            connection_source,
            outlet,
        }
    }

    /// True while data waits for the result.
    pub(super) fn holds(&self) -> bool {
        match &self.state {
            DirectConnectionState::Asked(on, _) | DirectConnectionState::Connecting(on) => {
                on.with.insists()
            }
            _ => false,
        }
    }

    /// True if direct connections were tried.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(
            self.state,
            DirectConnectionState::New | DirectConnectionState::Off
        )
    }

    /// True if a direct connection exists or existed.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, DirectConnectionState::Open(..))
    }

    /// True if the control channel of the direct server runs on this connection.
    pub(super) fn controls(&self, id: ConnectionId) -> bool {
        self.running().is_some_and(|on| on.connection == id)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            DirectConnectionState::Asked(_, at) => Some(*at),
            DirectConnectionState::Open(_, open) => Some(open.keepalive),
            _ => None,
        }
    }

    /// Writes the outcome to `far` at the end of the session. `several` means that more than one
    /// connection was open.
    pub(super) fn account(&self, far: &mut FarEndServerReport, several: bool) {
        match &self.state {
            DirectConnectionState::New if several && far.depth == ServerMode::Exec => {
                let why = "no direct connection: other logins had already started";
                far.reason = Some(why.to_owned());
            }
            DirectConnectionState::Open(on, _) => {
                far.depth = ServerMode::Direct;
                far.software = on.with.software();
                far.reason = None;
            }
            DirectConnectionState::Failed(why, insisted)
                if far.depth != ServerMode::Stock || *insisted =>
            {
                far.less = true;
                far.reason = Some(why.clone());
            }
            _ => {}
        }
    }

    fn running(&self) -> Option<&RunningDirectServer> {
        match &self.state {
            DirectConnectionState::Asked(on, _)
            | DirectConnectionState::Connecting(on)
            | DirectConnectionState::Open(on, _) => Some(on),
            DirectConnectionState::New
            | DirectConnectionState::Off
            | DirectConnectionState::Failed(..) => None,
        }
    }

    /// Starts direct connections once the first connection is open, then sends keepalives and
    /// watches the deadline. `facts` describe the copy if a remote longhaul has answered.
    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        to: &mut Dispatcher,
        commands: &mut RemoteCommands,
        facts: impl FnOnce(&Dispatcher) -> Option<DirectConnectionInputs>,
    ) {
        match &mut self.state {
            DirectConnectionState::New => self.begin(now, to, commands, facts),
            DirectConnectionState::Asked(_, until) if *until <= now => {
                self.fail(
                    to,
                    commands,
                    "longhaul on the host did not start its own server in time",
                );
            }
            DirectConnectionState::Open(on, open) if open.keepalive <= now => {
                open.keepalive = now + LIFE_SIGN;
                say(to, on, on.with.life_sign());
            }
            _ => {}
        }
    }

    fn begin(
        &mut self,
        now: Instant,
        to: &mut Dispatcher,
        commands: &mut RemoteCommands,
        facts: impl FnOnce(&Dispatcher) -> Option<DirectConnectionInputs>,
    ) {
        let Some(with) = self.connection_source.as_ref().and_then(|r| r.straight()) else {
            self.state = DirectConnectionState::Off;
            return;
        };
        // Unless the user insists, wait for a longhaul to answer first and copy meanwhile.
        if !(with.insists() || facts(to).is_some_and(|facts| facts.pays())) {
            return;
        }
        let usable = |on: &&SessionConnection| on.link().peer().is_some() && !on.is_retiring();
        let Some(connection) = to
            .connections()
            .iter()
            .find(usable)
            .map(SessionConnection::id)
        else {
            return;
        };
        let Some((command, greeting)) = with.begin((self.outlet)()) else {
            self.state = DirectConnectionState::Off;
            return;
        };
        let Some(on) = to.connections_mut().get_mut(connection) else {
            return;
        };
        let rtt = on.round_trip();
        let Some(channel) = on.link_mut().open_exec(&command) else {
            let why = "cannot run a command over this connection";
            with.control_closed(why);
            self.state = DirectConnectionState::Failed(why.to_owned(), with.insists());
            return;
        };
        on.link_mut().send(channel, ClientOutput::Bytes(greeting));
        commands.begin(CONTROL, (connection, channel), None);
        let until = now + PATIENCE + rtt * ROUND_TRIPS;
        let on = RunningDirectServer {
            with,
            connection,
            channel,
        };
        self.state = DirectConnectionState::Asked(on, until);
        to.note_change();
    }

    /// True if the next connection will probably be a direct one. `facts` describe the copy if a
    /// remote longhaul is expected.
    fn is_awaited(&self, facts: impl FnOnce() -> Option<DirectConnectionInputs>) -> bool {
        match &self.state {
            DirectConnectionState::Asked(..) | DirectConnectionState::Connecting(_) => true,
            DirectConnectionState::New => {
                let possible = || {
                    let connection_source = self.connection_source.as_ref();
                    connection_source.is_some_and(|r| r.straight().is_some())
                };
                facts().is_some_and(|facts| facts.pays()) && possible()
            }
            _ => false,
        }
    }

    /// Defers a further connection while a direct one is expected. Returns true if it is deferred.
    pub(super) fn defers(
        &mut self,
        facts: impl FnOnce() -> Option<DirectConnectionInputs>,
    ) -> bool {
        let awaited = self.is_awaited(facts);
        self.wanted += usize::from(awaited);
        awaited
    }

    /// Number of deferred connections to open, once it is known if they will be direct.
    pub(super) fn take_deferred(
        &mut self,
        facts: impl FnOnce() -> Option<DirectConnectionInputs>,
    ) -> usize {
        if self.wanted == 0 || self.is_awaited(facts) {
            return 0;
        }
        let wanted = std::mem::take(&mut self.wanted);
        // After the lanes moved to the first direct connection, the controller started over and
        // decides the number again.
        match &self.state {
            DirectConnectionState::Open(_, open) if open.replaces => 0,
            _ => wanted,
        }
    }

    /// Sends bytes to the direct server's control channel.
    pub(super) fn say(&self, to: &mut Dispatcher, bytes: Vec<u8>) {
        if let Some(on) = self.running() {
            say(to, on, bytes);
        }
    }

    /// Handles output and end of the command that runs the direct server.
    pub(super) fn heard(
        &mut self,
        to: &mut Dispatcher,
        commands: &mut RemoteCommands,
        event: RemoteCommandEvent,
    ) -> DirectAction {
        let Some(on) = self.running().cloned() else {
            return DirectAction::Nothing;
        };
        match event {
            RemoteCommandEvent::Started => {}
            RemoteCommandEvent::Output(bytes) => {
                let rtt = to.connections().get(on.connection);
                let rtt = rtt.map(SessionConnection::round_trip).unwrap_or_default();
                match on.with.heard(&bytes, rtt) {
                    DirectServerStatus::Nothing => {}
                    DirectServerStatus::Listening => {
                        self.state = DirectConnectionState::Connecting(on);
                        return DirectAction::Connect;
                    }
                    DirectServerStatus::Failed(why) => self.fail(to, commands, &why),
                }
            }
            RemoteCommandEvent::Ended(how) => {
                let answered = !matches!(self.state, DirectConnectionState::Asked(..));
                let why = match how {
                    Err(error) => error.to_string(),
                    Ok(_) if answered => {
                        "longhaul at the far end (serve --once) has ended".to_owned()
                    }
                    Ok(_) => "longhaul was not found at the far end, neither on the PATH nor \
                         installed by longhaul bootstrap"
                        .to_owned(),
                };
                self.fail(to, commands, &why);
            }
        }
        DirectAction::Nothing
    }

    /// Gives up direct connections; existing connections continue.
    fn fail(&mut self, to: &mut Dispatcher, commands: &mut RemoteCommands, why: &str) {
        let Some(on) = self.running().cloned() else {
            return;
        };
        on.with.control_closed(why);
        info!("no direct connection: {why}");
        self.state = DirectConnectionState::Failed(why.to_owned(), on.with.insists());
        commands.forget(CONTROL);
        if let Some(control) = to.connections_mut().get_mut(on.connection) {
            control.link_mut().close_channel(on.channel);
        }
        to.note_change();
    }

    /// True for an SSH login that completes after the lanes moved to direct connections, which
    /// makes it superfluous.
    pub(super) fn supersedes(&self, connection: &SessionConnection) -> bool {
        let replaced = matches!(
            &self.state,
            DirectConnectionState::Open(on, open) if open.replaces && on.with.failed().is_none()
        );
        replaced && !connection.is_direct()
    }

    /// Handles the early loss of a direct connection. If none is left, its login may have been
    /// refused while lanes were already open on it, so direct connections count as failed.
    pub(super) fn broken(&mut self, to: &mut Dispatcher, commands: &mut RemoteCommands, why: &str) {
        if !to.connections().any_direct() {
            self.fail(to, commands, why);
        } else if let Some(on) = self.running() {
            on.with.control_closed(why);
        }
    }

    /// Handles the result of a connection attempt; only that of the first direct connection
    /// matters. `loses` means that packet loss limits a download.
    pub(super) fn joined(
        &mut self,
        now: Instant,
        to: &mut Dispatcher,
        commands: &mut RemoteCommands,
        joined: &Result<ConnectionId, FurtherConnectionError>,
        loses: bool,
    ) -> DirectAction {
        let DirectConnectionState::Connecting(on) = &self.state else {
            return DirectAction::Nothing;
        };
        let on = on.clone();
        match joined {
            Ok(id) if to.connections().is_direct(*id) => {
                info!("using a direct connection for data");
                let control = to.connections().get(on.connection);
                let rtt = control.map(SessionConnection::round_trip);
                let replaces = on.with.insists() || loses || is_short(rtt);
                let keepalive = now + LIFE_SIGN;
                self.state = DirectConnectionState::Open(
                    on,
                    OpenDirectConnections {
                        keepalive,
                        replaces,
                    },
                );
                if replaces {
                    return DirectAction::Leave;
                }
                // This connection counts as one of the deferred ones.
                self.wanted = self.wanted.saturating_sub(1);
            }
            // This login at the SSH server was requested before the direct server listened.
            Ok(_) => {}
            Err(_) => {
                if let Some(why) = on.with.failed() {
                    self.fail(to, commands, &why);
                }
            }
        }
        DirectAction::Nothing
    }

    /// Resets the state after all connections were lost.
    pub(super) fn all_lost(&mut self, commands: &mut RemoteCommands) {
        if let Some(on) = self.running() {
            on.with.lost();
            commands.forget(CONTROL);
            self.state = DirectConnectionState::New;
        }
    }
}

/// True if lanes move to the first direct connection as soon as it is open. On a long path they
/// stay on the existing connections too, because a slow start takes ten round trips in which
/// full-speed lanes would be idle: 30 MB over 60 ms took 2.2 s instead of 1.7 s. A download with
/// packet loss moves in any case, because only the remote longhaul sets a loss-tolerant congestion
/// control.
fn is_short(rtt: Option<Duration>) -> bool {
    rtt.is_none_or(|rtt| rtt < LONG)
}

fn say(to: &mut Dispatcher, on: &RunningDirectServer, bytes: Vec<u8>) {
    if let Some(connection) = to.connections_mut().get_mut(on.connection) {
        connection
            .link_mut()
            .send(on.channel, ClientOutput::Bytes(bytes));
        to.note_change();
    }
}

/// True if moving `bytes` takes longer than a direct connection needs to repay its cost. `rate` is
/// the known rate of the path in bytes per second, if any.
pub(crate) fn lasts_for_straight(bytes: u64, rate: Option<u64>, rtt: Option<Duration>) -> bool {
    let rate = rate.map_or(USUAL_RATE, |rate| rate.max(1) as f64);
    let takes = rtt.unwrap_or_default().as_secs_f64() * USEFUL_AFTER;
    bytes as f64 / rate > takes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of 1 GiB over one connection with 1 ms.
    fn large() -> DirectConnectionInputs {
        DirectConnectionInputs {
            alone: true,
            several: false,
            left: 1 << 30,
            rate: None,
            rtt: Some(Duration::from_millis(1)),
            loses: false,
        }
    }

    #[test]
    fn a_large_copy_over_one_connection_goes_straight() {
        assert!(large().pays());
    }

    #[test]
    fn a_copy_that_is_over_before_a_direct_connection_is_ready_does_not() {
        let left = WORTH - 1;
        assert!(!DirectConnectionInputs { left, ..large() }.pays());
    }

    #[test]
    fn further_logins_and_many_small_files_are_not_given_up_for_it() {
        let busy = DirectConnectionInputs {
            alone: false,
            ..large()
        };
        let small = DirectConnectionInputs {
            several: true,
            ..large()
        };
        assert!(!busy.pays() && !small.pays());
    }

    #[test]
    fn a_download_that_loses_packets_goes_straight_whatever_else_is_open() {
        let loses = DirectConnectionInputs {
            alone: false,
            loses: true,
            ..large()
        };
        assert!(loses.pays());
    }

    #[test]
    fn a_fast_and_long_path_must_carry_enough_to_repay_the_round_trips() {
        let rtt = Some(Duration::from_millis(100));
        let fast = Some(1_000_000_000);
        assert!(!lasts_for_straight(1_500_000_000, fast, rtt));
        assert!(lasts_for_straight(2_500_000_000, fast, rtt));
        assert!(
            lasts_for_straight(1, fast, None),
            "the round trip is not known"
        );
    }

    #[test]
    fn lanes_leave_the_servers_connections_only_on_a_short_path() {
        assert!(is_short(None) && is_short(Some(Duration::from_millis(3))));
        assert!(!is_short(Some(LONG)));
    }
}
