//! Replacement of running relays by others. Existing connections continue, and sockets are reused
//! where possible, so that no client is rejected meanwhile.
//!
//! Closing a listening socket resets all connections in its accept queue and unfinished handshakes.
//! A replaced socket therefore retires first: new connections go to its successor, and it continues
//! to accept those that began before.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::RelayStartError;
use super::acceptor::Acceptor;
use super::listener::{InheritedListeners, ListenAddress, RelayListener, beside, listen, tuning};
use super::running::RunningRelay;
use crate::settings::RelaySettings;

/// Time until a retired socket is closed: longer than the kernel keeps an unfinished handshake, 63
/// s (ip-sysctl, tcp_synack_retries).
const RETIREMENT: Duration = Duration::from_secs(64);

/// Changes to the sockets of one relay.
struct ListenerChanges {
    running: Arc<RunningRelay>,
    /// Slots of listeners that stay and now belong to the new relay.
    kept: Vec<usize>,
    /// Slots of listeners that were opened for the relay.
    added: Vec<usize>,
    /// Slots of listeners that belong to the new relay too, and retire.
    replaced: Vec<usize>,
}

impl Acceptor {
    /// Replaces the running relays with these.
    pub(super) fn replace(&mut self, relays: Vec<RelaySettings>) -> Result<(), RelayStartError> {
        let mut changes = Vec::new();
        let mut opened = Vec::new();
        for relay in relays {
            match self.change(relay, &mut opened) {
                Ok(change) => changes.push(change),
                Err(why) => {
                    for slot in opened {
                        self.retire(slot);
                    }
                    return Err(why);
                }
            }
        }
        // No step fails from here on.
        let mut wanted: BTreeSet<usize> = BTreeSet::new();
        for change in &changes {
            for slots in [&change.added, &change.kept, &change.replaced] {
                wanted.extend(slots.iter());
            }
            for slot in change.kept.iter().chain(&change.replaced) {
                if let Some(listener) = self.listeners.get_mut(*slot) {
                    listener.running = Arc::clone(&change.running);
                    listener.ready = true;
                }
            }
            self.share_limiter(&change.running);
        }
        for slot in changes.into_iter().flat_map(|change| change.replaced) {
            self.retire(slot);
        }
        let all: Vec<usize> = self.listeners.iter().map(|(slot, _)| slot).collect();
        for slot in all.into_iter().filter(|slot| !wanted.contains(slot)) {
            let listener = self.take_off(slot);
            if listener.retires.is_none() {
                tracing::info!("no longer listening on {}", listener.at);
            }
            listener.close();
        }
        for slot in opened {
            if let Some(listener) = self.listeners.get(slot) {
                tracing::info!("listening on {}", listener.at);
            }
        }
        self.publish_running();
        Ok(())
    }

    /// Plans the changes for one relay. Opens sockets, and changes nothing else.
    fn change(
        &mut self,
        relay: RelaySettings,
        opened: &mut Vec<usize>,
    ) -> Result<ListenerChanges, RelayStartError> {
        let place = relay.entrance.place.clone();
        let wrong = |e: io::Error| RelayStartError::listening(&place, &e);
        let there = |(slot, l): (usize, &RelayListener)| {
            (l.running.relay.entrance.place == place && !opened.contains(&slot)).then_some(slot)
        };
        let old: Vec<usize> = self.listeners.iter().filter_map(there).collect();
        let before = old.first().and_then(|slot| self.listeners.get(*slot));
        let Some(before) = before else {
            let running = Arc::new(RunningRelay::new(relay, self.listening.clone()));
            let mut added = Vec::new();
            for socket in listen(&running, &mut InheritedListeners::default())? {
                let slot = self
                    .add(RelayListener::new(socket, &running))
                    .map_err(wrong)?;
                added.push(slot);
                opened.push(slot);
            }
            return Ok(ListenerChanges {
                running,
                kept: Vec::new(),
                added,
                replaced: Vec::new(),
            });
        };
        let running = Arc::new(RunningRelay::after(relay, &before.running));
        let (new, told) = (&running.relay, &before.running.relay);
        let same = tuning(new) == tuning(told) && new.sockopts.share == told.sockopts.share;
        // UNIX sockets have none of these options.
        if same || before.at.address().is_none() {
            return Ok(ListenerChanges {
                running,
                kept: old,
                added: Vec::new(),
                replaced: Vec::new(),
            });
        }
        let retires = |slot: &usize| {
            self.listeners
                .get(*slot)
                .is_some_and(|l| l.retires.is_some())
        };
        let (kept, replaced): (Vec<usize>, _) = old.into_iter().partition(retires);
        let mut added: Vec<usize> = Vec::new();
        for slot in &replaced {
            let Some(old) = self.listeners.get(*slot) else {
                continue;
            };
            // A predecessor may have handed over a socket at this address that has already retired.
            let is_there = |slot: &usize| self.listeners.get(*slot).is_some_and(|l| l.at == old.at);
            let Some(at) = old.at.address().filter(|_| !added.iter().any(is_there)) else {
                continue;
            };
            let socket = beside(old, at, &running.relay).map_err(wrong)?;
            let mut listener = RelayListener::new(socket, &running);
            listener.limiter = old.limiter.clone();
            let slot = self.add(listener).map_err(wrong)?;
            added.push(slot);
            opened.push(slot);
        }
        Ok(ListenerChanges {
            running,
            kept,
            added,
            replaced,
        })
    }

    /// Retires a listener in favor of another one at its address. It continues to accept
    /// connections that began before. Without another one, it is closed at once.
    fn retire(&mut self, slot: usize) {
        let Some(listener) = self.listeners.get_mut(slot) else {
            return;
        };
        listener.retires = Some(Instant::now() + RETIREMENT);
        let at = listener.at.clone();
        let Some(current) = self.current(&at) else {
            return self.take_off(slot).close();
        };
        let (running, limiter) = (Arc::clone(&current.running), current.limiter.clone());
        // Best effort: without it, a later bind to this address fails with "address in use".
        let _ = current.socket.set_reuse_port(running.relay.sockopts.share);
        if let Some(listener) = self.listeners.get_mut(slot) {
            let _ = listener.socket.set_reuse_port(true);
            (listener.running, listener.limiter, listener.ready) = (running, limiter, true);
        }
        self.steer(&at);
    }

    /// Returns the listener at this address that is not retiring.
    fn current(&self, at: &ListenAddress) -> Option<&RelayListener> {
        let mut all = self.listeners.iter().map(|(_, listener)| listener);
        all.find(|listener| listener.at == *at && listener.retires.is_none())
    }

    /// Directs new connections to the listener that is not retiring.
    fn steer(&self, at: &ListenAddress) {
        let Some(current) = self.current(at) else {
            return;
        };
        if current.running.relay.sockopts.share {
            // Sockets of other processes share the address, and their indexes are not known.
            return;
        }
        let all = self.listeners.iter().map(|(_, listener)| listener);
        // A Multipath TCP socket may not support this; any other socket at the address does.
        let mut same = all.filter(|listener| listener.at == *at);
        if !same.any(|listener| sys::steer_newcomers(&listener.socket, current.nth).is_ok()) {
            tracing::debug!("{at}: new connections are also distributed to the old sockets");
        }
    }

    /// Closes retired listeners after accepting the connections that began before they were
    /// replaced.
    pub(super) fn close_retired(&mut self) {
        let now = Instant::now();
        let is_due =
            |(slot, l): (usize, &RelayListener)| (l.retires? <= now).then_some((l.nth, slot));
        let mut due: Vec<(u32, usize)> = self.listeners.iter().filter_map(is_due).collect();
        // Sorted by index: closing a listener moves the last one into its place, and that one stays
        // there.
        due.sort_unstable();
        for (_, slot) in due {
            if let Some(listener) = self.listeners.get_mut(slot) {
                listener.ready = true;
            }
            self.accept(slot);
            // More connections may wait than are accepted in one turn.
            if self.listeners.get(slot).is_some_and(|l| !l.ready) {
                self.close_in_order(slot);
            }
        }
    }

    /// Closes a retired listener. The kernel moves the last socket at the address into the freed
    /// index. If that one is the current listener, new connections are spread over all sockets
    /// until the kernel is told the new index, and those that begin at a socket closed next are
    /// reset. Therefore a twin of the current listener is opened first, which takes the freed index
    /// and the new connections.
    fn close_in_order(&mut self, slot: usize) {
        let Some((at, nth)) = self.listeners.get(slot).map(|l| (l.at.clone(), l.nth)) else {
            return;
        };
        let moves = self.last(&at).filter(|last| *last != slot);
        let same = self.listeners.iter().filter(|(_, l)| l.at == at).count();
        let current = moves.filter(|last| {
            self.listeners
                .get(*last)
                .is_some_and(|l| l.retires.is_none())
        });
        // If only one other socket remains, new connections can come only to that one.
        let twin = current.filter(|_| same > 2).and_then(|c| self.twin(c).ok());
        drop(self.take_off(slot));
        if let Some(last) = twin.or(moves).and_then(|last| self.listeners.get_mut(last)) {
            last.nth = nth;
        }
        match (current, twin) {
            (None, _) => {}
            (Some(old), Some(_)) => self.retire(old),
            (Some(_), None) => {
                let all = self.listeners.iter_mut().map(|(_, listener)| listener);
                for listener in all.filter(|listener| listener.at == at) {
                    listener.retires = listener.retires.map(|_| Instant::now() + RETIREMENT);
                }
                self.steer(&at);
            }
        }
    }

    /// Returns the slot of the listener that has the last index at this address in the kernel.
    fn last(&self, at: &ListenAddress) -> Option<usize> {
        let same = self.listeners.iter().filter(|(_, l)| l.at == *at);
        same.max_by_key(|(_, l)| l.nth).map(|(slot, _)| slot)
    }

    /// Opens a second socket beside a listener, with the same options.
    fn twin(&mut self, slot: usize) -> io::Result<usize> {
        let closed = || io::Error::from(io::ErrorKind::NotFound);
        let like = self.listeners.get(slot).ok_or_else(closed)?;
        let at = like.at.address().ok_or_else(closed)?;
        let mut twin = RelayListener::new(beside(like, at, &like.running.relay)?, &like.running);
        twin.limiter = like.limiter.clone();
        self.add(twin)
    }

    fn take_off(&mut self, slot: usize) -> RelayListener {
        let listener = self.listeners.remove(slot);
        listener.unregister(self.poll.registry());
        listener
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};

    use sys::SocketTuning;

    use super::*;
    use crate::settings::{ClientProtocols, RelayLimits};
    use crate::sockopt::SocketOptionSettings;

    fn free() -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("it listens")
    }

    /// Relay settings that differ by `nth` in a buffer size, so that each reload needs a new
    /// socket.
    fn relays(at: SocketAddr, nth: usize) -> Vec<RelaySettings> {
        let brief = Duration::from_secs(1);
        let mut sockopts = SocketOptionSettings::default();
        let buffers = format!("buffsize:{}k", 64 + nth);
        sockopts.add(&buffers).expect("buffers");
        vec![RelaySettings {
            entrance: at.to_string().parse().expect("an entrance"),
            targets: vec!["127.0.0.1:9".parse().expect("a target")],
            allow: Vec::new(),
            uplinks: Vec::new(),
            tuning: SocketTuning::default(),
            sockopts,
            buffer: 65536,
            connect_timeout: brief,
            health: None,
            idle_timeout: None,
            half_timeout: brief,
            keep_address: false,
            fastopen: false,
            limits: RelayLimits::default(),
            speaks: ClientProtocols::default(),
            permits: Vec::new(),
            tls_client: None,
            facing: None,
            entry_timeout: brief,
        }]
    }

    fn retiring(acceptor: &Acceptor) -> usize {
        let all = acceptor.listeners.iter();
        all.filter(|(_, l)| l.retires.is_some()).count()
    }

    /// Lets the retirement time of all listeners pass.
    fn time_goes_by(acceptor: &mut Acceptor) {
        for (_, listener) in &mut acceptor.listeners {
            listener.retires = listener.retires.map(|_| Instant::now());
        }
        acceptor.close_retired();
    }

    /// Asserts that new connections arrive at the one socket that stays.
    fn newcomers_come_to_the_current(acceptor: &Acceptor, at: SocketAddr) {
        let current = acceptor
            .current(&ListenAddress::Tcp(at))
            .expect("one stays");
        for _ in 0..16 {
            let client = TcpStream::connect(at).expect("it listens");
            let (_, from) = current.socket.accept().expect("it comes here");
            assert_eq!(from.as_socket(), client.local_addr().ok());
        }
    }

    #[test]
    fn changes_that_come_faster_than_sockets_retire_leave_none_behind() {
        let at = free();
        let (mut acceptor, ..) = Acceptor::open(
            relays(at, 0),
            Vec::new(),
            &mut InheritedListeners::default(),
        )
        .expect("it opens");
        for nth in 1..40 {
            acceptor.replace(relays(at, nth)).expect("it is replaced");
            if nth % 4 == 0 {
                time_goes_by(&mut acceptor);
                // The former current listener is retiring.
                assert_eq!(retiring(&acceptor), 1, "after {nth} changes");
                newcomers_come_to_the_current(&acceptor, at);
            }
        }
        time_goes_by(&mut acceptor);
        time_goes_by(&mut acceptor);
        assert_eq!((retiring(&acceptor), acceptor.listeners.len()), (0, 1));
        newcomers_come_to_the_current(&acceptor, at);
    }

    #[test]
    fn sockets_that_retire_go_on_doing_so_at_a_successor() {
        let at = free();
        let (mut acceptor, ..) = Acceptor::open(
            relays(at, 0),
            Vec::new(),
            &mut InheritedListeners::default(),
        )
        .expect("it opens");
        for nth in 1..4 {
            acceptor.replace(relays(at, nth)).expect("it is replaced");
        }
        let mut handed =
            InheritedListeners::new(acceptor.sockets().expect("descriptors")).expect("sockets");
        let (mut next, ..) =
            Acceptor::open(relays(at, 3), Vec::new(), &mut handed).expect("it opens");
        drop(acceptor);
        assert_eq!((next.listeners.len(), retiring(&next)), (4, 3));
        assert_eq!(next.listening(), [at.to_string()]);
        newcomers_come_to_the_current(&next, at);
        time_goes_by(&mut next);
        newcomers_come_to_the_current(&next, at);
        assert_eq!(next.listeners.len(), 2);
    }
}
