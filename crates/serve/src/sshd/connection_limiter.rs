use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ConnectionLimits;
use super::limits::LoginAccountKind;

const SECOND: Duration = Duration::from_secs(1);
/// Time for which a connection that ended without a login still counts for its source. Without it,
/// a client that reconnects in a loop could cause as many key exchanges as the processor can make
/// (DHEat, CVE-2002-20001); with 20 places per source they are ten per second.
const LINGER: Duration = Duration::from_secs(2);
/// Time after which an unauthenticated connection may be dropped for a newcomer if all sources hold
/// equally many places. A login with keys or an agent takes less.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of ended connections that are remembered for [`LINGER`].
const MOST_LEFT: usize = 4096;

/// Counts all connections and enforces [`ConnectionLimits`].
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionLimiter(Arc<ConnectionLimiterState>);

/// Counts, and the condition that announces each change of them.
#[derive(Debug, Default)]
struct ConnectionLimiterState {
    count: Mutex<ConnectionCounts>,
    changed: Condvar,
}

/// Counts of the connections of a server, by login state, source and account.
#[derive(Debug, Default)]
struct ConnectionCounts {
    all: usize,
    /// Connections that have not logged in yet, by number.
    unauthenticated: BTreeMap<u64, UnauthenticatedConnection>,
    next: u64,
    by_source: BTreeMap<IpAddr, usize>,
    /// Connections that ended without a login, and when; they still count for their source.
    left: VecDeque<(Instant, IpAddr)>,
    by_user: BTreeMap<String, usize>,
    /// Start of the current second and the number of connections accepted in it.
    second: Option<(Instant, usize)>,
}

/// Connection before its login, which may be dropped for a newcomer if there are too many.
#[derive(Debug)]
struct UnauthenticatedConnection {
    since: Instant,
    source: IpAddr,
    /// Socket to shut down if this connection has to make room.
    stream: Option<TcpStream>,
}

impl ConnectionCounts {
    /// Chooses the connection to drop for a newcomer from `source` if there is no room for more
    /// unauthenticated ones: the oldest one of the source that has the most. Otherwise 100 silent
    /// connections would keep everybody out.
    fn gives_way(&self, source: IpAddr, now: Instant) -> Option<u64> {
        let mut from = BTreeMap::<IpAddr, usize>::new();
        for pending in self.unauthenticated.values() {
            *from.entry(pending.source).or_default() += 1;
        }
        let most = from.values().copied().max()?;
        let others = from.get(&source).copied().unwrap_or(0);
        let may = |pending: &UnauthenticatedConnection| match most > others + 1 {
            true => from.get(&pending.source) == Some(&most),
            false => now.saturating_duration_since(pending.since) >= PATIENCE,
        };
        // Numbers follow the order of arrival.
        let first = self
            .unauthenticated
            .iter()
            .find(|(_, pending)| may(pending));
        first.map(|(number, _)| *number)
    }

    /// Removes an unauthenticated connection that ended or has to make room, and remembers its
    /// source.
    fn leave(&mut self, number: u64, now: Instant) -> Option<UnauthenticatedConnection> {
        let pending = self.unauthenticated.remove(&number)?;
        self.left.push_back((now, pending.source));
        self.forget(now);
        Some(pending)
    }

    /// Releases a place of a source.
    fn free(&mut self, source: IpAddr) {
        if let Some(from_one) = self.by_source.get_mut(&source) {
            *from_one -= 1;
            if *from_one == 0 {
                self.by_source.remove(&source);
            }
        }
    }

    /// Releases the places of connections that ended longer than [`LINGER`] ago.
    fn forget(&mut self, now: Instant) {
        while let Some(&(since, source)) = self.left.front()
            && (now.saturating_duration_since(since) >= LINGER || self.left.len() > MOST_LEFT)
        {
            self.left.pop_front();
            self.free(source);
        }
    }
}

/// A permit for one connection; dropping it releases the place.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limiter: ConnectionLimiter,
    /// Number of the connection until it has logged in.
    pending: Option<u64>,
    /// The account that the connection counts for.
    user: Option<String>,
}

impl ConnectionLimiter {
    /// Admits a connection from `address` and returns its permit, with the connection that must end
    /// to make room; or the reason for the refusal.
    pub(super) fn enter(
        &self,
        address: IpAddr,
        now: Instant,
        limits: &ConnectionLimits,
    ) -> Result<(ConnectionPermit, Option<TcpStream>), &'static str> {
        let source = limits.source_block.of(address);
        let mut count = self.lock();
        count.forget(now);
        let from_one = count.by_source.get(&source).copied().unwrap_or(0);
        let second = count.second.filter(|(since, _)| *since + SECOND > now);
        let (since, in_second) = second.unwrap_or((now, 0));
        if in_second >= limits.per_second {
            return Err("too many new connections: the limit is the option connections-per-second");
        }
        const CROWDED: &str =
            "too many connections that have not logged in: the limit is the option unauthenticated";
        if from_one >= limits.unauthenticated_per_source {
            return Err(CROWDED);
        }
        let mut gone = None;
        let logged_in = count.all - count.unauthenticated.len();
        let places = limits
            .unauthenticated
            .min(limits.connections.saturating_sub(logged_in));
        if places == 0 {
            return Err("too many connections: the limit is the option connections");
        }
        if count.unauthenticated.len() >= places {
            let number = count.gives_way(source, now).ok_or(CROWDED)?;
            gone = count.leave(number, now).and_then(|gone| gone.stream);
        }
        count.second = Some((since, in_second + 1));
        count.all += 1;
        *count.by_source.entry(source).or_default() += 1;
        let number = count.next;
        count.next += 1;
        let pending = UnauthenticatedConnection {
            since: now,
            source,
            stream: None,
        };
        count.unauthenticated.insert(number, pending);
        let place = ConnectionPermit {
            limiter: self.clone(),
            pending: Some(number),
            user: None,
        };
        Ok((place, gone))
    }

    /// Number of connections, and how many of them have not logged in.
    pub(super) fn counted(&self) -> (usize, usize) {
        let count = self.lock();
        (count.all, count.unauthenticated.len())
    }

    /// Waits until the last connection has ended.
    pub(super) fn wait_until_empty(&self) {
        let count = self.lock();
        let waited = self.0.changed.wait_while(count, |count| count.all > 0);
        drop(waited);
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionCounts> {
        self.0.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// Counts the connection for an account, or returns the reason why the account has no room.
    pub(super) fn count_for(
        &mut self,
        user: &str,
        claim: LoginAccountKind,
        limits: &ConnectionLimits,
    ) -> Result<(), &'static str> {
        if self.user.is_some() {
            return Ok(());
        }
        let mut count = self.limiter.lock();
        // Logins that are about to succeed are already counted.
        let logged_in = count.by_user.values().sum();
        let own = count.by_user.get(user).copied().unwrap_or(0);
        limits.has_room(claim, own, logged_in)?;
        count.by_user.insert(user.to_owned(), own + 1);
        self.user = Some(user.to_owned());
        Ok(())
    }

    /// Sets the socket to shut down if this connection has to make room.
    pub(super) fn is_at(&self, stream: TcpStream) {
        let mut count = self.limiter.lock();
        let pending = self
            .pending
            .and_then(|number| count.unauthenticated.get_mut(&number));
        if let Some(pending) = pending {
            pending.stream = Some(stream);
        }
    }

    /// Marks the connection as logged in.
    pub(super) fn known(&mut self) {
        let Some(number) = self.pending.take() else {
            return;
        };
        let mut count = self.limiter.lock();
        if let Some(pending) = count.unauthenticated.remove(&number) {
            count.free(pending.source);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut count = self.limiter.lock();
        count.all -= 1;
        if let Some(number) = self.pending.take() {
            count.leave(number, now);
        }
        if let Some(user) = self.user.take()
            && let Some(of_user) = count.by_user.get_mut(&user)
        {
            *of_user -= 1;
            if *of_user == 0 {
                count.by_user.remove(&user);
            }
        }
        drop(count);
        self.limiter.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(
        limiter: &ConnectionLimiter,
        address: IpAddr,
        now: Instant,
        limits: &ConnectionLimits,
    ) -> Result<ConnectionPermit, &'static str> {
        let entered = limiter.enter(address, now, limits);
        entered.map(|(place, _)| place)
    }

    /// Bug: five sources with 20 silent connections each held all 100 places, and nobody else could
    /// log in.
    #[test]
    fn who_has_many_places_gives_way() {
        let (limiter, now, limits) = (
            ConnectionLimiter::default(),
            Instant::now(),
            ConnectionLimits::default(),
        );
        let here = |n: usize, m: usize| IpAddr::from([10, 0, n as u8, m as u8]);
        let enter = |address, at| placed(&limiter, address, at, &limits);
        let bad = (0..100).map(|n| enter(here(0, n % 5), now).unwrap());
        let mut bad: Vec<ConnectionPermit> = bad.collect();
        for n in 0..50 {
            let mut good = enter(here(1, n), now).expect("somebody gives way");
            assert_eq!(limiter.counted().1, 100);
            good.known();
            // The bad sources reconnect, and get no more places than before.
            bad.extend((0..5).filter_map(|m| enter(here(0, m), now).ok()));
        }
        assert!(limiter.counted().1 <= 100);
        drop(bad);
        // A hundred sources hold one place each: a connection that takes longer than a login makes
        // room.
        let later = Instant::now() + LINGER;
        let held: Vec<ConnectionPermit> = (0..100)
            .map(|n| enter(here(2, n), later).unwrap())
            .collect();
        assert!(enter(here(3, 0), later).is_err());
        let good = enter(here(3, 0), later + PATIENCE).expect("the first gives way");
        assert!(enter(here(2, 0), later + PATIENCE).is_ok());
        drop((held, good));
        assert_eq!(limiter.counted(), (0, 0));
    }

    #[test]
    fn unauthenticated_connections_of_one_source_keep_nobody_else_out() {
        let (limiter, now, limits) = (
            ConnectionLimiter::default(),
            Instant::now(),
            ConnectionLimits::default(),
        );
        let enter = |address| placed(&limiter, address, now, &limits);
        let bad = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]);
        let mut held: Vec<ConnectionPermit> = (0..20).map(|n| enter(bad(n)).unwrap()).collect();
        assert!(enter(bad(99)).is_err());
        let good = IpAddr::from([192, 0, 2, 1]);
        assert!(enter(good).is_ok());
        // A connection that has logged in no longer counts as unauthenticated.
        held[0].known();
        assert!(enter(bad(99)).is_ok());
        held.clear();
        limiter.wait_until_empty();
    }

    #[test]
    fn whoever_comes_and_goes_without_a_login_comes_ten_times_in_a_second() {
        let (limiter, limits) = (ConnectionLimiter::default(), ConnectionLimits::default());
        let here = IpAddr::from([192, 0, 2, 1]);
        let begun = Instant::now();
        let come = (0..1000).filter(|_| placed(&limiter, here, begun, &limits).is_ok());
        assert_eq!(come.count(), 20);
        let another = IpAddr::from([192, 0, 2, 2]);
        assert!(placed(&limiter, another, begun, &limits).is_ok());
        let later = Instant::now() + LINGER;
        let come = (0..1000).filter(|_| placed(&limiter, here, later, &limits).is_ok());
        assert_eq!(come.count(), 20);
        limiter.lock().forget(later + LINGER);
        assert!(limiter.lock().by_source.is_empty());
    }

    #[test]
    fn whoever_has_logged_in_leaves_no_place_taken() {
        let (limiter, limits) = (ConnectionLimiter::default(), ConnectionLimits::default());
        let here = IpAddr::from([192, 0, 2, 1]);
        for _ in 0..100 {
            let now = Instant::now();
            placed(&limiter, here, now, &limits).unwrap().known();
        }
        assert!(limiter.lock().by_source.is_empty());
    }

    #[test]
    fn so_many_sources_are_remembered_and_no_more() {
        let (limiter, now, limits) = (
            ConnectionLimiter::default(),
            Instant::now(),
            ConnectionLimits::default(),
        );
        for n in 0..10_000_u32 {
            let from = IpAddr::from((0x0a00_0000 + n).to_be_bytes());
            assert!(placed(&limiter, from, now, &limits).is_ok());
        }
        let count = limiter.lock();
        assert!(count.left.len() <= MOST_LEFT && count.by_source.len() <= MOST_LEFT);
    }

    #[test]
    fn unauthenticated_connections_are_bounded_and_so_is_everybody() {
        let (limiter, now, limits) = (
            ConnectionLimiter::default(),
            Instant::now(),
            ConnectionLimits::default(),
        );
        let from = |n: usize| IpAddr::from([10, 0, (n >> 8) as u8, n as u8]);
        let enter = |n| placed(&limiter, from(n), now, &limits);
        let mut held: Vec<ConnectionPermit> = (0..100).map(|n| enter(n).unwrap()).collect();
        assert!(enter(100).is_err());
        for n in 100..limits.connections {
            held[n - 1].known();
            held[n - 100].known();
            held.push(enter(n).unwrap());
        }
        held.iter_mut().for_each(ConnectionPermit::known);
        assert!(enter(limits.connections).is_err());
    }

    /// Bug: 30 connections of one account left no place in which root could log in.
    #[test]
    fn whoever_has_filled_the_server_keeps_nobody_from_logging_in() {
        let limits = ConnectionLimits {
            connections: 30,
            ..ConnectionLimits::default()
        };
        let (limiter, now) = (ConnectionLimiter::default(), Instant::now());
        let from = |n: u8| placed(&limiter, IpAddr::from([192, 0, 2, n]), now, &limits);
        let mut held = Vec::new();
        for n in 0..30 {
            let Ok(mut place) = from(n % 7) else {
                continue;
            };
            if place
                .count_for("alice", LoginAccountKind::Account, &limits)
                .is_ok()
            {
                place.known();
                held.push(place);
            }
        }
        assert!((10..23).contains(&held.len()), "{}", held.len());
        // Silent connections take the rest, and make room.
        let unauthenticated: Vec<ConnectionPermit> =
            (0..60).filter_map(|n| from(100 + n % 30).ok()).collect();
        assert!(unauthenticated.len() >= 7);
        let (bob, later) = (IpAddr::from([192, 0, 2, 200]), now + PATIENCE);
        let mut bob = placed(&limiter, bob, later, &limits)
            .expect("an unauthenticated connection makes room");
        bob.count_for("bob", LoginAccountKind::Account, &limits)
            .expect("a share");
        bob.known();
        let root = IpAddr::from([192, 0, 2, 201]);
        let mut root = placed(&limiter, root, later, &limits)
            .expect("an unauthenticated connection makes room");
        root.count_for("root", LoginAccountKind::Root, &limits)
            .expect("a place");
    }

    #[test]
    fn accounts_and_seconds_have_their_bounds() {
        let (limiter, now) = (ConnectionLimiter::default(), Instant::now());
        let limits = ConnectionLimits {
            per_user: Some(1),
            per_second: 3,
            ..ConnectionLimits::default()
        };
        let here = IpAddr::from([192, 0, 2, 1]);
        let enter = |at| placed(&limiter, here, at, &limits);
        let mut held: Vec<ConnectionPermit> = (0..3).map(|_| enter(now).unwrap()).collect();
        assert!(enter(now).is_err());
        held.push(enter(now + SECOND).unwrap());
        assert!(
            held[0]
                .count_for("alice", LoginAccountKind::Account, &limits)
                .is_ok()
        );
        assert!(
            held[1]
                .count_for("alice", LoginAccountKind::Account, &limits)
                .is_err()
        );
        assert!(
            held[1]
                .count_for("bob", LoginAccountKind::Account, &limits)
                .is_ok()
        );
        held.remove(0);
        assert!(
            held[1]
                .count_for("alice", LoginAccountKind::Account, &limits)
                .is_ok()
        );
        drop(held);
        assert!(limiter.lock().by_user.is_empty());
    }
}
