//! DNS resolver on separate threads: getaddrinfo(3) blocks, and a slow name server must delay only
//! the connections that need its answer.

use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::inbox::ConnectionHandle;

/// Maximum number of simultaneous lookups.
const THREADS: usize = 16;
/// Age up to which an earlier answer is used if a lookup fails.
const STALE: Duration = Duration::from_secs(3600);
/// Maximum number of remembered answers.
const KEPT: usize = 1024;

/// Addresses of a name, or the reason of a failure.
pub(crate) type ResolveResult = Result<Arc<[IpAddr]>, Arc<str>>;

/// Handle of the resolver threads: at most 16 run getaddrinfo(3), and each ends when no name is
/// queued.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolver(Arc<Mutex<ResolverState>>);

/// Queue and cache of the resolver threads. An answer of the last hour replaces a failed lookup.
#[derive(Debug, Default)]
struct ResolverState {
    /// Waiting connections by name; several that ask for one name share a lookup.
    waiting: BTreeMap<String, Vec<ConnectionHandle>>,
    /// Names that no thread has taken yet.
    queue: Vec<String>,
    threads: usize,
    /// Last successful answers.
    known: BTreeMap<String, (Instant, Arc<[IpAddr]>)>,
}

impl Resolver {
    /// Starts a lookup; the answer goes to the asker's inbox.
    pub(crate) fn ask(&self, name: &str, asker: ConnectionHandle) {
        let mut state = self.lock();
        let waiting = state.waiting.entry(name.to_owned()).or_default();
        waiting.push(asker);
        if waiting.len() > 1 {
            return;
        }
        state.queue.push(name.to_owned());
        if state.threads < THREADS {
            let this = self.clone();
            let thread = thread::Builder::new().name("resolver".to_owned());
            match thread.spawn(move || this.work()) {
                Ok(_) => state.threads += 1,
                Err(e) if state.threads == 0 => {
                    state.queue.clear();
                    tell(
                        &mut state,
                        name,
                        &Err(format!(
                            "cannot start a thread to resolve the name: {e}; check the limits of \
                             this machine (ulimit -u)"
                        )
                        .into()),
                    );
                }
                Err(_) => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ResolverState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs lookups until none are queued.
    fn work(&self) {
        loop {
            let name = {
                let mut state = self.lock();
                let Some(name) = state.queue.pop() else {
                    state.threads -= 1;
                    return;
                };
                name
            };
            let found = look_up(&name);
            let mut state = self.lock();
            let answer = state.keep(&name, found);
            tell(&mut state, &name, &answer);
        }
    }
}

impl ResolverState {
    /// Stores a successful answer; replaces a failure by a stored answer that is not too old.
    fn keep(&mut self, name: &str, found: ResolveResult) -> ResolveResult {
        let now = Instant::now();
        match found {
            Ok(ips) => {
                if self.known.len() >= KEPT {
                    self.known.clear();
                }
                self.known.insert(name.to_owned(), (now, Arc::clone(&ips)));
                Ok(ips)
            }
            Err(why) => match self.known.get(name) {
                Some((at, ips)) if now.saturating_duration_since(*at) < STALE => {
                    tracing::warn!("{name}: {why}; using its previous addresses");
                    Ok(Arc::clone(ips))
                }
                _ => Err(why),
            },
        }
    }
}

fn tell(state: &mut ResolverState, name: &str, answer: &ResolveResult) {
    for asker in state.waiting.remove(name).unwrap_or_default() {
        asker.resolved(answer.clone());
    }
}

fn look_up(name: &str) -> ResolveResult {
    match (name, 0).to_socket_addrs() {
        Ok(found) => {
            let mut ips: Vec<IpAddr> = Vec::new();
            for ip in found.map(|address| address.ip()) {
                if !ips.contains(&ip) {
                    ips.push(ip);
                }
            }
            match ips.is_empty() {
                true => Err("the name has no address: check it in DNS or /etc/hosts".into()),
                false => Ok(alternate(ips).into()),
            }
        }
        Err(e) => {
            let why = sys::lookup_words(&e);
            Err(format!("cannot resolve the name ({why}): check its spelling").into())
        }
    }
}

/// Interleaves the address families, beginning with the one that the system prefers (RFC 8305
/// section 4).
fn alternate(ips: Vec<IpAddr>) -> Vec<IpAddr> {
    let first_is_v6 = ips.first().is_some_and(IpAddr::is_ipv6);
    let (one, other): (Vec<_>, Vec<_>) =
        ips.into_iter().partition(|ip| ip.is_ipv6() == first_is_v6);
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let mut all = Vec::new();
    loop {
        let pair = [one.next(), other.next()];
        if pair == [None, None] {
            return all;
        }
        all.extend(pair.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let ips = |texts: &[&str]| {
            texts
                .iter()
                .map(|t| t.parse().unwrap())
                .collect::<Vec<IpAddr>>()
        };
        for (given, expected) in [
            (
                &["::1", "::2", "1.1.1.1"][..],
                &["::1", "1.1.1.1", "::2"][..],
            ),
            (&["1.1.1.1", "::1"], &["1.1.1.1", "::1"]),
            (&["1.1.1.1", "1.1.1.2"], &["1.1.1.1", "1.1.1.2"]),
        ] {
            assert_eq!(alternate(ips(given)), ips(expected));
        }
    }

    #[test]
    fn an_answer_that_was_good_stands_in_for_none() {
        let mut state = ResolverState::default();
        let failed = || Err(Arc::from("no answer"));
        assert!(state.keep("h", failed()).is_err());
        let good: Arc<[IpAddr]> = vec!["192.0.2.1".parse().unwrap()].into();
        assert!(state.keep("h", Ok(Arc::clone(&good))).is_ok());
        assert_eq!(state.keep("h", failed()), Ok(good));
        assert!(state.keep("g", failed()).is_err());
    }
}
