//! Further logins, begun while the first one is under way.
//!
//! What is to be sent is counted meanwhile, and tells how many connections it is worth. Their TCP connections and key
//! exchanges are made beside the first one's and wait there: nothing is authenticated before the first login was let in
//! without anybody being asked, and the session wants the connection. Over 114 ms they are there 0.4 s sooner.
//!
//! To a server that is known and lets a key in by itself, as far as that can be told; on the way there is no other host.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use schedule::{Direction, begins_with};
use tracing::debug;

use super::connection_factory::connect_authenticated;
use super::host::{FirstHostKey, RequiredMatch, Surroundings, known_hosts};
use super::host_auth_handler::{HostAuthHandler, remembered};
use super::remote_use::{self, RemoteServerUse};
use super::serving::Serving;
use super::ssh_link::Facts;
use crate::config::HostConfig;
use crate::copy::TransferEstimate;
use crate::identity::Identities;
use crate::session::{self, Known, Link, NoMoreConnections, SessionOptions};

/// A server's LoginGraceTime is two minutes, and a person who is asked may take them: what was begun ahead of that is no
/// use any more.
const LONGEST: Duration = Duration::from_secs(10);
/// What was counted is looked at again after this.
const LOOK: Duration = Duration::from_millis(20);
/// A shell starts what serves files; further connections wait for what it is as long as asking for it themselves would
/// take, a round trip, and no longer than this.
const MOST_FOR_SERVING: Duration = Duration::from_millis(300);

/// What is about to be sent to a host, and by which settings it is known what that is worth.
#[derive(Clone, Debug)]
pub struct PlannedUpload {
    /// What is counted.
    pub coming: TransferEstimate,
    /// Of the session that will send it.
    pub options: SessionOptions,
}

/// A connection that has not logged in waits in it.
#[derive(Debug)]
pub struct ConnectionHold {
    state: Mutex<WaitState>,
    changed: Condvar,
    until: Instant,
    /// What serves files there, where that is not known yet; and for how long to wait for it.
    serving: Option<(Serving, Duration)>,
}

#[derive(Debug)]
enum WaitState {
    Still,
    /// It is wanted; the host key that the first connection has taken.
    Wanted(Vec<u8>),
    Over,
}

impl ConnectionHold {
    /// The first connection's host key, once there is a use for another one; an error where there is none.
    pub(super) fn wait(&self) -> Result<Vec<u8>, String> {
        let left = self.until.saturating_duration_since(Instant::now());
        let still = |waits: &mut WaitState| matches!(waits, WaitState::Still);
        let waited = self
            .changed
            .wait_timeout_while(lock(&self.state), left, still);
        let (mut waits, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let found = std::mem::replace(&mut *waits, WaitState::Over);
        drop(waits);
        let WaitState::Wanted(host_key) = found else {
            return Err("there is no use for it".to_owned());
        };
        if let Some((serving, longest)) = &self.serving {
            serving.wait(*longest);
        }
        Ok(host_key)
    }

    /// False where it has been settled, or has waited for too long.
    fn settle(&self, with: WaitState) -> bool {
        let mut waits = lock(&self.state);
        let still = matches!(*waits, WaitState::Still);
        if still {
            *waits = with;
        }
        self.changed.notify_all();
        still
    }
}

/// Connections that were begun.
pub(super) struct Preconnect(Arc<Mutex<StartedConnection>>);

#[derive(Default)]
struct StartedConnection {
    connections: u32,
    waiting: VecDeque<Waiting>,
    /// No more are begun.
    over: bool,
}

struct Waiting {
    held: Arc<ConnectionHold>,
    link: mpsc::Receiver<Result<Box<dyn Link>, NoMoreConnections>>,
}

/// How they are made.
struct ConnectionMaker {
    config: HostConfig,
    around: Surroundings,
    first: FirstConnection,
    until: Instant,
    serving: Option<(Serving, Duration)>,
}

/// What is known of the first connection, which has just been made.
#[derive(Clone, Debug)]
pub(super) struct FirstConnection {
    /// Where it leads.
    pub(super) address: std::net::IpAddr,
    /// The round trip of TCP's handshake.
    pub(super) rtt: Duration,
    /// It leads to this machine.
    pub(super) one_machine: bool,
    /// What serves there, once that is known.
    pub(super) serving: Serving,
    /// Of itself, once it has logged in.
    pub(super) opened: Arc<OnceLock<Facts>>,
}

impl Preconnect {
    /// Begins as many as what is counted is worth, and more as it is counted on; on a thread of its own. `around` is of
    /// further connections. `straight`: they may go to another server of the far end's.
    pub(super) fn begin(
        config: HostConfig,
        around: Surroundings,
        first: FirstConnection,
        straight: bool,
    ) -> Option<Self> {
        let sends = around.sends.clone()?;
        // Data wait for what goes straight, and need no further login.
        if around.far == RemoteServerUse::Direct {
            return None;
        }
        let memory = remembered(&config, around.memories.as_ref());
        let known = remote_use::known(
            around.far,
            around.absolute,
            memory.as_ref(),
            SystemTime::now(),
        );
        let learned = memory.as_ref().and_then(|m| m.learned(Direction::Up));
        let (options, one_machine) = (&sends.options, first.one_machine);
        let growth = session::growth_config(options, Direction::Up, learned, one_machine, None);
        let (rtt, now) = (first.rtt, Instant::now());
        // Where a longhaul is known to be there, what is large is sent straight to it, without further logins.
        let only_small =
            straight && !matches!(known, Known::Never(_) | Known::Unknown { insists: false });
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
        let waits = matches!(known, Known::Hoped | Known::Unknown { insists: true });
        let wait = (first.rtt * 5 / 4).min(MOST_FOR_SERVING);
        let maker = ConnectionMaker {
            serving: waits.then(|| (first.serving.clone(), wait)),
            until: now + LONGEST,
            config,
            around,
            first,
        };
        let begun = Arc::<Mutex<StartedConnection>>::default();
        let ahead = Self(Arc::clone(&begun));
        let thread = thread::Builder::new().name("ahead".to_owned());
        let spawned = thread.spawn(move || begin(&begun, &maker, sufficient, worth));
        // Without a thread they are made when they are wanted.
        spawned.ok().map(|_| ahead)
    }

    /// The next of them, logged in, where any waits for that; `host_key` is the first connection's.
    pub(super) fn take(&self, host_key: &[u8]) -> Option<Result<Box<dyn Link>, NoMoreConnections>> {
        loop {
            let waiting = lock(&self.0).waiting.pop_front()?;
            if !waiting.held.settle(WaitState::Wanted(host_key.to_vec())) {
                continue;
            }
            match waiting.link.recv() {
                // One that was dropped while the first was counted as well (MaxStartups) may be let in now.
                Ok(Err(NoMoreConnections::Connection(why))) => debug!("not ahead: {why}"),
                Ok(link) => return Some(link),
                Err(mpsc::RecvError) => {}
            }
        }
    }
}

impl Drop for Preconnect {
    fn drop(&mut self) {
        let mut begun = lock(&self.0);
        begun.over = true;
        for waiting in begun.waiting.drain(..) {
            waiting.held.settle(WaitState::Over);
        }
    }
}

fn begin(
    shared: &Mutex<StartedConnection>,
    maker: &ConnectionMaker,
    sufficient: Option<bool>,
    worth: impl Fn() -> u32,
) {
    let mut lets_in = false;
    while Instant::now() < maker.until {
        let further = worth().saturating_sub(1);
        // A passphrase, a touch or a code is asked for once, for the first.
        if further > 0 && !lets_in {
            lets_in = maker.knows_host() && sufficient.unwrap_or_else(|| maker.has_key());
            if !lets_in {
                return;
            }
        }
        let mut begun = lock(shared);
        if begun.over || maker.first.opened.get().is_some() {
            return;
        }
        while begun.connections < further {
            begun.connections += 1;
            begun.waiting.extend(maker.make());
        }
        drop(begun);
        thread::sleep(LOOK);
    }
}

impl ConnectionMaker {
    fn knows_host(&self) -> bool {
        known_hosts(&self.config).knows(&HostAuthHandler::name(&self.config))
    }

    /// Whether there is a key that signs without anybody, as far as can be told.
    fn has_key(&self) -> bool {
        if !self.config.pubkey_authentication {
            return false;
        }
        let identities = Identities::gather(&self.config);
        (0..identities.offers().len()).any(|index| identities.signs_alone(index))
    }

    fn make(&self) -> Option<Waiting> {
        let held = Arc::new(ConnectionHold {
            state: Mutex::new(WaitState::Still),
            changed: Condvar::new(),
            until: self.until,
            serving: self.serving.clone(),
        });
        let around = Surroundings {
            beside: Some(RequiredMatch {
                address: Some(self.first.address),
                host_key: FirstHostKey::Awaited(Arc::clone(&held)),
                serving: self.first.serving.clone(),
                // What is sent loses nothing by it.
                rtt: Some(self.first.rtt),
            }),
            ..self.around.clone()
        };
        let config = self.config.clone();
        let (done, link) = mpsc::channel();
        let thread = thread::Builder::new().name("connect".to_owned());
        let spawned = thread.spawn(move || {
            debug!("{}: a further connection, ahead of its login", config.host);
            // Whoever wanted it may be gone.
            let _ = done.send(connect_authenticated(config, &around));
        });
        spawned.ok().map(|_| Waiting { held, link })
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
            state: Mutex::new(WaitState::Still),
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
        assert!(held.settle(WaitState::Wanted(b"key".to_vec())));
        assert_eq!(waits.join().unwrap(), Ok(b"key".to_vec()));
        assert!(!held.settle(WaitState::Over), "it was settled");
    }

    #[test]
    fn what_nobody_wants_ends_and_is_not_taken_for_a_login_that_was_refused() {
        let late = held(Duration::ZERO);
        assert!(late.wait().is_err());
        let over = held(Duration::from_secs(60));
        assert!(over.settle(WaitState::Over));
        assert!(over.wait().is_err());

        let (done, link) = mpsc::channel();
        done.send(Err(NoMoreConnections::Login("no use".to_owned())))
            .unwrap();
        let begun = StartedConnection {
            connections: 1,
            waiting: [Waiting { held: late, link }].into(),
            over: false,
        };
        let ahead = Preconnect(Arc::new(Mutex::new(begun)));
        assert!(ahead.take(b"key").is_none());
    }

    #[test]
    fn one_that_was_dropped_meanwhile_is_made_anew() {
        let held = held(Duration::from_secs(60));
        let (done, link) = mpsc::channel();
        done.send(Err(NoMoreConnections::Connection("MaxStartups".to_owned())))
            .unwrap();
        let begun = StartedConnection {
            connections: 1,
            waiting: [Waiting { held, link }].into(),
            over: false,
        };
        let ahead = Preconnect(Arc::new(Mutex::new(begun)));
        assert!(ahead.take(b"key").is_none());
    }
}
