//! Relays that were started over ssh, seen from the starter.

use std::ffi::OsString;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use relay::control::{
    ControlMessageError, RelayControlDecoder, RelayControlMessage, StartedRelayConfig,
};
use transfer::connect::RemoteCommand;
use transfer::escape;

use super::talk::{ControlChannelMux, ControlChannelReader, ControlReadError, ends};
use crate::command_error::CommandError;
use crate::output::closing;

/// Time limit for a shell to start the relay.
const START: Duration = Duration::from_secs(60);
/// Time limit for a relay to reach the next one.
const BEGIN: Duration = Duration::from_secs(30);
/// Silence after which a relay counts as gone; it sends a message every half minute.
const SILENT: Duration = Duration::from_secs(100);

/// A relay that runs at a host.
pub(super) struct RemoteRelay {
    /// The host as the user named it.
    pub(super) name: String,
    /// Version of its longhaul.
    pub(super) software: String,
    /// The fingerprint of its key.
    pub(super) key: String,
    pub(super) command: RemoteCommand,
    ear: ControlChannelReader,
    pub(super) voice: Arc<ControlChannelMux>,
}

impl RemoteRelay {
    /// Waits for the relay's first message. `ssh_config` is the file of `-F`, for advice.
    pub(super) fn meet(
        name: &str,
        ssh_config: Option<&Path>,
        command: RemoteCommand,
    ) -> Result<Self, CommandError> {
        let stream = &command.stream;
        let streams = ends(stream, stream, RelayControlDecoder::of_half());
        let (ear, voice) = streams.map_err(|e| format!("{name}: {e}"))?;
        let mut half = Self {
            name: name.to_owned(),
            software: String::new(),
            key: String::new(),
            command,
            ear,
            voice,
        };
        match half.ear.hear(START) {
            Ok(RelayControlMessage::Hello { software, key }) => {
                let plain = |text: &str| escape::text(text.as_bytes()).to_string();
                (half.software, half.key) = (plain(&software), key);
                Ok(half)
            }
            Ok(_) => Err(format!(
                "{name}: the program that was started there did not answer as a longhaul relay: \
                 use the same version of longhaul on both"
            )
            .into()),
            Err(deaf) => Err(half.absent(&deaf, ssh_config).into()),
        }
    }

    /// Explains why no half answers.
    fn absent(&mut self, deaf: &ControlReadError, ssh_config: Option<&Path>) -> String {
        let name = &self.name;
        let bootstrap = at_host("longhaul bootstrap", ssh_config, name);
        let test = at_host("ssh", ssh_config, name);
        match deaf {
            _ if self.ear.had(b"longhaul-altered ") => format!(
                "{name}: the installed longhaul was altered (its checksum differs) and is not \
                 started: run {bootstrap}"
            ),
            _ if self.ear.had(b"longhaul-gone ") => format!(
                "{name}: the installed longhaul is missing or not executable: run {bootstrap}"
            ),
            _ if self.ear.had(b"longhaul-absent ") => format!(
                "{name}: longhaul is not installed there: run {bootstrap}, or install it on the \
                 PATH"
            ),
            ControlReadError::Invalid(ControlMessageError::Version(version)) => format!(
                "{name}: the longhaul there uses version {version} of the relay protocol, this one \
                 version {}: upgrade the older one",
                relay::control::CONTROL
            ),
            ControlReadError::TimedOut => format!(
                "{name}: the relay started over SSH did not answer within {} s: see how loaded \
                 that host is, and whether longhaul --version works there",
                START.as_secs()
            ),
            _ => {
                let words = self.command.last_words();
                if words.is_empty() {
                    return format!(
                        "{name}: longhaul could not be started there: run {test} longhaul \
                         --version; if that fails, the account may be limited to SFTP \
                         (ForceCommand); if it works, that longhaul may be older than this one"
                    );
                }
                format!(
                    "{name}: cannot start a relay there: {words}; its longhaul may be older than \
                     this one: compare longhaul --version on both"
                )
            }
        }
    }

    /// Configures the relay. Returns the port on which it accepts stripes, if other machines can
    /// reach that.
    pub(super) fn begin(&mut self, begin: StartedRelayConfig) -> Result<Option<u16>, CommandError> {
        let name = &self.name;
        let gone = |_| {
            format!(
                "{name}: the relay there ended before it was configured: check that longhaul \
                 --version works there"
            )
        };
        self.voice
            .say(&RelayControlMessage::Configure(begin))
            .map_err(gone)?;
        match self.ear.hear(BEGIN) {
            Ok(RelayControlMessage::Listening(0)) => Ok(None),
            Ok(RelayControlMessage::Listening(port)) => Ok(Some(port)),
            Ok(RelayControlMessage::Failed(why)) => {
                Err(format!("{name}: {}", escape::text(why.as_bytes())).into())
            }
            Err(ControlReadError::TimedOut) => Err(format!(
                "{name}: the relay there does not answer over the ssh connection: check the \
                 network and the load of that host"
            )
            .into()),
            _ => {
                let words = self.command.last_words();
                Err(format!("{name}: the relay there has ended: {words}").into())
            }
        }
    }

    /// Listens to the relay until it ends. The reason is sent to `gone` then.
    pub(super) fn follow(self, gone: Sender<String>) -> io::Result<FollowedRelay> {
        let followed = FollowedRelay {
            voice: Arc::clone(&self.voice),
            stream: self.command.stream.as_fd().try_clone_to_owned()?.into(),
        };
        let Self {
            name,
            mut command,
            mut ear,
            voice,
            ..
        } = self;
        let thread = thread::Builder::new().name("half".to_owned());
        thread.spawn(move || {
            let why = loop {
                match ear.hear(SILENT) {
                    Ok(RelayControlMessage::StripeData(leg, bytes)) => voice.pass_on(leg, &bytes),
                    Ok(RelayControlMessage::StripeClosed(leg)) => {
                        voice.drop_leg(leg);
                    }
                    Ok(RelayControlMessage::Keepalive) => {}
                    Ok(_) | Err(ControlReadError::Invalid(_)) => {
                        break "the relay there sent an unknown message: use the same version of \
                               longhaul on both"
                            .to_owned();
                    }
                    Err(ControlReadError::TimedOut) => {
                        break format!(
                            "it sent no message for {} s; check the network and that host",
                            SILENT.as_secs()
                        );
                    }
                    Err(ControlReadError::Closed) => break command.last_words(),
                }
            };
            voice.drop_legs();
            // The receiver is dropped when the whole chain was given up.
            let _ = gone.send(match why.is_empty() {
                true => format!("{name}: the relay there has ended"),
                false => format!("{name}: the relay there has ended: {why}"),
            });
        })?;
        Ok(followed)
    }
}

/// Command line of `program` for a host, with the ssh_config file of this run.
fn at_host(program: &str, ssh_config: Option<&Path>, host: &str) -> String {
    let words = program.split(' ').map(OsString::from);
    let config = ssh_config.map(|file| ["-F".into(), file.as_os_str().to_owned()]);
    let words = words.chain(config.into_iter().flatten());
    closing::command(words.chain([host.into()]))
}

/// A relay started over ssh, whose control channel a thread reads. Dropping this ends it.
pub(super) struct FollowedRelay {
    pub(super) voice: Arc<ControlChannelMux>,
    stream: std::os::unix::net::UnixStream,
}

impl Drop for FollowedRelay {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Accepts stripes on loopback, and carries them over ssh to a relay that cannot be reached
/// otherwise.
pub(super) struct StripeTunnel {
    listener: TcpListener,
    pub(super) at: SocketAddr,
    to: Mutex<Option<Arc<ControlChannelMux>>>,
}

impl StripeTunnel {
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let carrier = Arc::new(Self {
            at: listener.local_addr()?,
            listener,
            to: Mutex::default(),
        });
        let accepts = carrier.listener.try_clone()?;
        let weak = Arc::downgrade(&carrier);
        let thread = thread::Builder::new().name("carrier".to_owned());
        thread.spawn(move || {
            let mut leg = 0_u32;
            while let Ok((stream, _)) = accepts.accept() {
                let Some(carrier) = weak.upgrade() else {
                    return;
                };
                let to = carrier.lock().clone();
                // Without a relay, dropping the stream ends the connection.
                if let Some(voice) = to {
                    leg = leg.wrapping_add(1);
                    let _ = voice
                        .say(&RelayControlMessage::OpenStripe(leg))
                        .and_then(|()| voice.carry(leg, stream));
                }
            }
        })?;
        Ok(carrier)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<ControlChannelMux>>> {
        self.to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the relay that stripes are carried to from now on.
    pub(super) fn lead_to(&self, voice: Option<Arc<ControlChannelMux>>) {
        *self.lock() = voice;
    }
}

impl Drop for StripeTunnel {
    fn drop(&mut self) {
        // Wakes the thread in accept(2).
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

/// Sends a keepalive to each half.
pub(super) fn say_alive(halves: &[FollowedRelay]) {
    for half in halves {
        // The listening thread notices a relay that is gone.
        let _ = half.voice.say(&RelayControlMessage::Keepalive);
    }
}

/// Time limit for reaching a port: two seconds beyond six round trips, since a lost first SYN is
/// repeated after one second.
pub(super) fn patience(rtt: Duration) -> Duration {
    Duration::from_secs(2) + rtt * 6
}

/// The pause before the next attempt, doubled with each failure up to a minute, and the time of the
/// last one.
pub(super) struct ReconnectBackoff(Duration, Instant);

impl ReconnectBackoff {
    pub(super) fn new() -> Self {
        Self(Duration::from_secs(1), Instant::now())
    }

    /// Returns the pause. It starts over after five minutes without a failure.
    pub(super) fn next(&mut self) -> Duration {
        if self.1.elapsed() > Duration::from_secs(300) {
            self.0 = Duration::from_secs(1);
        }
        let pause = self.0;
        self.0 = (self.0 * 2).min(Duration::from_secs(60));
        self.1 = Instant::now();
        pause
    }
}
