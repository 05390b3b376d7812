//! A remote command with which this end communicates while the command runs.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::debug;

use super::error::{ConnectError, ConnectStep, ResponsibleParty};
use super::host::{SharedConnectSettings, establish, start};
use super::host_auth_handler::remembered;
use super::jump;
use super::remote_use;
use crate::config::HostConfig;
use crate::escape;
use crate::session::Link as _;

/// The number of bytes of a standard error line that are kept.
const LONGEST_LINE: usize = 400;

/// A command that runs on a host over its own connection. Dropping this ends the command.
#[derive(Debug)]
pub struct RemoteCommand {
    /// The command's standard input and output.
    pub stream: UnixStream,
    /// The address of the login's TCP connection; `None` without a direct TCP connection.
    pub address: Option<SocketAddr>,
    /// The configured name or address of the host, for further connections to it.
    pub host_name: String,
    /// The round trip to the host.
    pub rtt: Duration,
    said: Arc<Mutex<String>>,
    carries: Option<JoinHandle<()>>,
}

/// Role of a longhaul that is started on a host: half of a relay pair, or source or receiver of a
/// copy between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteLonghaulRole {
    /// One half of a relay pair.
    PairHalf,
    /// The source of a copy between two hosts.
    Source,
    /// The receiver of a copy between two hosts.
    Receiver,
}

impl RemoteCommand {
    /// Starts longhaul on a host.
    ///
    /// # Errors
    /// The host cannot be reached or refuses to run a command. The error is one sentence with the
    /// host's name.
    pub fn start(
        role: RemoteLonghaulRole,
        config: HostConfig,
        around: &SharedConnectSettings,
    ) -> Result<Self, ConnectError> {
        let name = config.host.clone();
        let host_name = config.host_name.clone();
        let memory = remembered(&config, around.memories.as_ref());
        let placed = remote_use::placed(memory.as_ref());
        let command = match role {
            RemoteLonghaulRole::PairHalf => remote_use::command_half(placed),
            RemoteLonghaulRole::Source => remote_use::command_once(placed),
            RemoteLonghaulRole::Receiver => remote_use::command_receive(placed),
        };
        let mut link = start(config, around, 0)?.link;
        establish(&mut link, &name, false)?;
        let shown = escape::name(name.as_bytes()).to_string();
        let address = link.stream().address();
        let address = address.and_then(|address| address.parse().ok());
        let rtt = link.sample().tcp.map_or(Duration::ZERO, |tcp| tcp.rtt);
        let channel = link.open_exec(&command);
        let host = |why: String| {
            ConnectError::new(
                ResponsibleParty::Host,
                ConnectStep::Session,
                format!("{shown}: {why}"),
            )
        };
        let channel =
            channel.ok_or_else(|| host("cannot run a command over this connection".to_owned()))?;
        // The channel request would otherwise wait for the first write, so it is sent here.
        link.flush(Instant::now())
            .map_err(|e| host(e.into_words()))?;
        let wrong = |e: std::io::Error| {
            let why = format!("{shown}: cannot communicate with the remote command: {e}");
            ConnectError::this_machine(ConnectStep::Session, why)
        };
        let (stream, local) = UnixStream::pair().map_err(wrong)?;
        local.set_nonblocking(true).map_err(wrong)?;
        let said = Arc::new(Mutex::new(String::new()));
        let (kept, of) = (Arc::clone(&said), shown.clone());
        let thread = thread::Builder::new().name("command".to_owned());
        let carries = thread.spawn(move || {
            jump::carry(link, channel, &local, &mut |text| {
                let line = text.trim().chars().take(LONGEST_LINE).collect::<String>();
                debug!("{of}: {}", escape::text(line.as_bytes()));
                if !line.is_empty() {
                    *kept.lock().unwrap_or_else(PoisonError::into_inner) = line;
                }
            });
        });
        Ok(Self {
            stream,
            address,
            host_name,
            rtt,
            said,
            carries: Some(carries.map_err(wrong)?),
        })
    }

    /// Returns a command that is the other end of a socket.
    #[cfg(test)]
    pub(crate) fn of_stream(stream: UnixStream) -> Self {
        Self {
            stream,
            address: None,
            host_name: String::new(),
            rtt: Duration::ZERO,
            said: Arc::default(),
            carries: None,
        }
    }

    /// Returns the last line that the command wrote to standard error, or the connection's error,
    /// once the command has ended: the reason why it ended. Escaped.
    pub fn last_words(&mut self) -> String {
        // Both directions have ended already, or end here.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(carries) = self.carries.take() {
            // A panicking thread has already reported its panic.
            let _ = carries.join();
        }
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        escape::text(said.as_bytes()).to_string()
    }
}
