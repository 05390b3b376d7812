//! Opens further connections while the first login is in progress.
//!
//! A background count of the data to send determines the number of useful connections. Their TCP
//! handshakes and key exchanges run beside the first one's, and the connections then wait: none
//! authenticates before the first login succeeded without a prompt and the session wants the
//! connection. On a path of 114 ms the connections are ready 0.4 s earlier.
//!
//! Used only for a known server that probably accepts a key without a prompt, and without jump
//! hosts.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use schedule::{ConcurrencyConfig, TransferDirection, begins_with};
use tracing::debug;

use super::connection_factory::connect_further;
use super::error::{ConnectError, ConnectStep};
use super::host::{FirstConnectionMatch, FirstHostKey, SharedConnectSettings, known_hosts};
use super::host_auth_handler::{HostAuthHandler, remembered};
use super::remote_use::{self, RemoteLonghaulPolicy};
use super::server_kind::DetectedServerKind;
use super::ssh_link::{ConnectionFacts, FirstJobTime};
use crate::config::{HostConfig, SshOptionFlags};
use crate::copy::TransferEstimate;
use crate::identity::Identities;
use crate::session::{self, FurtherConnectionError, Link, RemoteLonghaulKnowledge, SessionOptions};

/// Longest wait of a prepared connection. sshd's LoginGraceTime is two minutes, which a prompt may
/// use up.
const LONGEST: Duration = Duration::from_secs(10);
/// The interval at which the count is checked.
const LOOK: Duration = Duration::from_millis(20);
/// The longest wait to learn which SFTP server the host runs. A shell starts that server, and
/// asking again costs a round trip, so a further connection waits at most one round trip and never
/// longer than this.
const MOST_FOR_SERVING: Duration = Duration::from_millis(300);

/// The upload that is about to start, and its settings.
#[derive(Clone, Debug)]
pub struct PlannedUpload {
    /// The running count of files and bytes.
    pub coming: TransferEstimate,
    /// The options of the session that will send the files.
    pub options: SessionOptions,
}

/// Holds a connection before its login until it is wanted or discarded.
#[derive(Debug)]
pub struct ConnectionHold {
    state: Mutex<HoldState>,
    changed: Condvar,
    until: Instant,
    /// The kind of SFTP server if not known yet, and how long to wait for it.
    serving: Option<(DetectedServerKind, Duration)>,
}

#[derive(Debug)]
enum HoldState {
    Waiting,
    /// The session wants the connection; contains the host key that the first connection accepted.
    Wanted(Vec<u8>),
    Discarded,
}

impl ConnectionHold {
    /// Waits until the connection is wanted and returns the first connection's host key; an error
    /// if it is not wanted or the time is over.
    pub(super) fn wait(&self) -> Result<Vec<u8>, ConnectError> {
        let left = self.until.saturating_duration_since(Instant::now());
        let still = |waits: &mut HoldState| matches!(waits, HoldState::Waiting);
        let waited = self
            .changed
            .wait_timeout_while(lock(&self.state), left, still);
        let (mut waits, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let found = std::mem::replace(&mut *waits, HoldState::Discarded);
        drop(waits);
        let HoldState::Wanted(host_key) = found else {
            return Err(ConnectError::this_machine(
                ConnectStep::Login,
                "it is not needed",
            ));
        };
        if let Some((serving, longest)) = &self.serving {
            serving.wait(*longest);
        }
        Ok(host_key)
    }

    /// Sets the final state; false if the state was set before or the wait has timed out.
    fn settle(&self, with: HoldState) -> bool {
        let mut waits = lock(&self.state);
        let still = matches!(*waits, HoldState::Waiting);
        if still {
            *waits = with;
        }
        self.changed.notify_all();
        still
    }
}

/// Connections that were started in advance.
pub(super) struct PreopenedConnections(Arc<PreconnectShared>);

#[derive(Default)]
struct PreconnectShared {
    state: Mutex<PreconnectState>,
    /// Notified when the opening of connections has ended.
    ended: Condvar,
}

#[derive(Default)]
struct PreconnectState {
    connections: u32,
    waiting: VecDeque<HeldConnection>,
    /// True if no further connections are opened.
    over: bool,
}

struct HeldConnection {
    held: Arc<ConnectionHold>,
    link: mpsc::Receiver<Result<Box<dyn Link>, FurtherConnectionError>>,
}

/// The settings by which further connections are made.
struct PreconnectSettings {
    config: HostConfig,
    around: SharedConnectSettings,
    first: FirstConnectionFacts,
    until: Instant,
    serving: Option<(DetectedServerKind, Duration)>,
}

/// The known facts about the first connection, which has just been opened.
#[derive(Clone, Debug)]
pub(super) struct FirstConnectionFacts {
    /// The peer's address.
    address: std::net::IpAddr,
    /// The round trip of the TCP handshake.
    rtt: Duration,
    /// True if the peer is this machine.
    one_machine: bool,
    /// The kind of SFTP server, once known.
    serving: DetectedServerKind,
    /// The facts of the first connection, set once it has logged in.
    opened: Arc<OnceLock<ConnectionFacts>>,
}

impl FirstConnectionFacts {
    /// Facts about a connection to `address` with this round trip. `serving` and `opened` are set
    /// later.
    pub(super) fn new(
        address: std::net::IpAddr,
        rtt: Duration,
        one_machine: bool,
        serving: DetectedServerKind,
        opened: Arc<OnceLock<ConnectionFacts>>,
    ) -> Self {
        Self {
            address,
            rtt,
            one_machine,
            serving,
            opened,
        }
    }
}

impl PreopenedConnections {
    /// Starts a thread that opens as many connections as the counted data justify, and more as the
    /// count grows. `around` holds the settings of further connections. `straight`: data may go
    /// directly to a longhaul at the far end.
    pub(super) fn begin(
        config: HostConfig,
        around: SharedConnectSettings,
        first: FirstConnectionFacts,
        straight: bool,
    ) -> Option<Self> {
        let sends = around.sends.clone()?;
        // With direct connections required, data wait for those and need no further login.
        if around.far == RemoteLonghaulPolicy::Direct {
            return None;
        }
        let memory = remembered(&config, around.memories.as_ref());
        let known = remote_use::known(
            around.far,
            around.absolute,
            memory.as_ref(),
            SystemTime::now(),
        );
        let learned = memory
            .as_ref()
            .and_then(|m| m.learned(TransferDirection::Up));
        let (options, one_machine) = (&sends.options, first.one_machine);
        let cost = memory.as_ref().map(|m| m.login_cost(SystemTime::now()));
        let growth = ConcurrencyConfig {
            login_cost: cost.unwrap_or_default(),
            ..session::growth_config(
                options,
                TransferDirection::Up,
                learned,
                one_machine,
                None,
                &session::this_machine(),
            )
        };
        let (rtt, now) = (first.rtt, Instant::now());
        // If a longhaul is known at the far end, large files go directly to it without further
        // logins.
        let only_small = straight
            && !matches!(
                known,
                RemoteLonghaulKnowledge::Never(_)
                    | RemoteLonghaulKnowledge::Unknown { insists: false }
            );
        let rate = growth.learned.map(|(learned, _)| learned.rate);
        let worth = move || {
            let coming = sends.coming.so_far();
            if only_small
                && !session::are_small(coming.files, coming.bytes)
                && session::lasts_for_straight(coming.bytes, rate, Some(rtt))
            {
                return 1;
            }
            begins_with(growth, (coming.files, coming.bytes), rtt, now)
        };
        let sufficient = memory
            .as_ref()
            .map(|m| m.accepted_key.as_ref().is_some_and(|key| key.sufficient));
        let waits = matches!(
            known,
            RemoteLonghaulKnowledge::UserAsserted
                | RemoteLonghaulKnowledge::Unknown { insists: true }
        );
        let wait = (first.rtt * 5 / 4).min(MOST_FOR_SERVING);
        let maker = PreconnectSettings {
            serving: waits.then(|| (first.serving.clone(), wait)),
            until: now + LONGEST,
            config,
            around,
            first,
        };
        let begun = Arc::<PreconnectShared>::default();
        let ahead = Self(Arc::clone(&begun));
        let thread = thread::Builder::new().name("ahead".to_owned());
        let spawned = thread.spawn(move || begin(&begun, &maker, sufficient, worth));
        // Without a thread the connections are opened when they are wanted.
        spawned.ok().map(|_| ahead)
    }

    /// Returns the number of connections that wait for their login.
    pub(super) fn waiting(&self) -> u32 {
        u32::try_from(lock(&self.0.state).waiting.len()).unwrap_or(u32::MAX)
    }

    /// Logs the next prepared connection in and returns it, or `None` if none waits; `host_key` is
    /// the first connection's key.
    pub(super) fn take(
        &self,
        host_key: &[u8],
    ) -> Option<Result<Box<dyn Link>, FurtherConnectionError>> {
        loop {
            let waiting = lock(&self.0.state).waiting.pop_front()?;
            if !waiting.held.settle(HoldState::Wanted(host_key.to_vec())) {
                continue;
            }
            match waiting.link.recv() {
                // A connection that sshd dropped because of MaxStartups while the first still
                // counted may succeed now.
                Ok(Err(FurtherConnectionError::Connection(why))) => {
                    debug!("a connection that was opened in advance failed: {why}");
                }
                Ok(link) => return Some(link),
                Err(mpsc::RecvError) => {}
            }
        }
    }
}

impl Drop for PreopenedConnections {
    fn drop(&mut self) {
        let mut begun = lock(&self.0.state);
        begun.over = true;
        self.0.ended.notify_all();
        for waiting in begun.waiting.drain(..) {
            if waiting.held.settle(HoldState::Discarded) {
                debug!("closing a connection that was opened in advance and not used");
            }
        }
    }
}

fn begin(
    shared: &PreconnectShared,
    maker: &PreconnectSettings,
    sufficient: Option<bool>,
    worth: impl Fn() -> u32,
) {
    let mut lets_in = false;
    while Instant::now() < maker.until {
        let further = worth().saturating_sub(1);
        // A passphrase, a touch or a code is requested once, for the first connection.
        if further > 0 && !lets_in {
            lets_in = maker.knows_host() && sufficient.unwrap_or_else(|| maker.has_key());
            if !lets_in {
                return;
            }
        }
        let mut begun = lock(&shared.state);
        if begun.over || maker.first.opened.get().is_some() {
            return;
        }
        while begun.connections < further {
            begun.connections += 1;
            begun.waiting.extend(maker.make());
        }
        drop(shared.ended.wait_timeout_while(begun, LOOK, |b| !b.over));
    }
}

impl PreconnectSettings {
    fn knows_host(&self) -> bool {
        known_hosts(&self.config).knows(&HostAuthHandler::name(&self.config))
    }

    /// True if a key appears to sign without user input.
    fn has_key(&self) -> bool {
        if !self.config.has(SshOptionFlags::PUBKEY_AUTHENTICATION) {
            return false;
        }
        let identities = Identities::gather(&self.config);
        (0..identities.offers().len()).any(|index| identities.signs_alone(index))
    }

    fn make(&self) -> Option<HeldConnection> {
        let held = Arc::new(ConnectionHold {
            state: Mutex::new(HoldState::Waiting),
            changed: Condvar::new(),
            until: self.until,
            serving: self.serving.clone(),
        });
        let around = SharedConnectSettings {
            beside: Some(FirstConnectionMatch {
                address: Some(self.first.address),
                host_key: FirstHostKey::Awaited(Arc::clone(&held)),
                serving: self.first.serving.clone(),
                // An upload is not slowed by the smaller segments of the receive direction.
                rtt: Some(self.first.rtt),
            }),
            ..self.around.clone()
        };
        let config = self.config.clone();
        let (done, link) = mpsc::channel();
        let thread = thread::Builder::new().name("connect".to_owned());
        let spawned = thread.spawn(move || {
            debug!(
                "{}: opening another connection before its login is needed",
                config.host
            );
            // The receiver may have been dropped.
            let _ = done.send(connect_further(config, &around, FirstJobTime::WithLogin));
        });
        spawned.ok().map(|_| HeldConnection { held, link })
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(longest: Duration) -> Arc<ConnectionHold> {
        Arc::new(ConnectionHold {
            state: Mutex::new(HoldState::Waiting),
            changed: Condvar::new(),
            until: Instant::now() + longest,
            serving: None,
        })
    }

    #[test]
    fn what_is_wanted_goes_on_with_the_first_ones_key() {
        let held = held(Duration::from_secs(60));
        let waits = thread::spawn({
            let held = Arc::clone(&held);
            move || held.wait()
        });
        assert!(held.settle(HoldState::Wanted(b"key".to_vec())));
        assert_eq!(waits.join().unwrap(), Ok(b"key".to_vec()));
        assert!(!held.settle(HoldState::Discarded), "it was settled");
    }

    #[test]
    fn what_nobody_wants_ends_and_is_not_taken_for_a_login_that_was_refused() {
        let late = held(Duration::ZERO);
        assert!(late.wait().is_err());
        let over = held(Duration::from_secs(60));
        assert!(over.settle(HoldState::Discarded));
        assert!(over.wait().is_err());

        let (done, link) = mpsc::channel();
        done.send(Err(FurtherConnectionError::Login("no use".to_owned())))
            .unwrap();
        let begun = PreconnectState {
            connections: 1,
            waiting: [HeldConnection { held: late, link }].into(),
            over: false,
        };
        let ahead = PreopenedConnections(Arc::new(PreconnectShared {
            state: Mutex::new(begun),
            ended: Condvar::new(),
        }));
        assert!(ahead.take(b"key").is_none());
    }

    #[test]
    fn one_that_was_dropped_meanwhile_is_made_anew() {
        let held = held(Duration::from_secs(60));
        let (done, link) = mpsc::channel();
        done.send(Err(FurtherConnectionError::Connection(
            "MaxStartups".to_owned(),
        )))
        .unwrap();
        let begun = PreconnectState {
            connections: 1,
            waiting: [HeldConnection { held, link }].into(),
            over: false,
        };
        let ahead = PreopenedConnections(Arc::new(PreconnectShared {
            state: Mutex::new(begun),
            ended: Condvar::new(),
        }));
        assert!(ahead.take(b"key").is_none());
    }
}
