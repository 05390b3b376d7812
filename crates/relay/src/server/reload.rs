//! Other relays in place of those that run. Who is connected stays so; sockets that can stay do, so
//! that nobody who comes meanwhile is turned away.
//!
//! A socket that is closed resets whoever waits at it, and whoever is in the middle of a handshake
//! with it. So one that is replaced retires first: newcomers come to the other one, and it goes on
//! letting in who has begun before.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::StartError;
use super::acceptor::Acceptor;
use super::listener::{At, Inherited, Listener, beside, listen, tuning};
use super::running::Running;
use crate::settings::Relay;

/// Longer than the kernel waits for the end of a handshake: 63 s (ip-sysctl, tcp_synack_retries).
const RETIREMENT: Duration = Duration::from_secs(64);

/// What becomes of a relay's sockets.
struct Change {
    running: Arc<Running>,
    /// Stay, and are the new relay's.
    kept: Vec<usize>,
    /// Were opened for it.
    added: Vec<usize>,
    /// Are its own too, until all who come there were let in.
    replaced: Vec<usize>,
}

impl Acceptor {
    /// Runs these relays in place of the others.
    pub(super) fn replace(&mut self, relays: Vec<Relay>) -> Result<(), StartError> {
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
        // Nothing fails from here on.
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
            self.share_crowd(&change.running);
        }
        for slot in changes.into_iter().flat_map(|change| change.replaced) {
            self.retire(slot);
        }
        let all: Vec<usize> = self.listeners.iter().map(|(slot, _)| slot).collect();
        for slot in all.into_iter().filter(|slot| !wanted.contains(slot)) {
            let listener = self.take_off(slot);
            if listener.retires.is_none() {
                tracing::info!("nobody is let in at {} any more", listener.at);
            }
            listener.close();
        }
        for slot in opened {
            if let Some(listener) = self.listeners.get(slot) {
                tracing::info!("listening at {}", listener.at);
            }
        }
        self.enrol();
        Ok(())
    }

    /// What is to be done for a relay; sockets are opened, and nothing else is changed.
    fn change(&mut self, relay: Relay, opened: &mut Vec<usize>) -> Result<Change, StartError> {
        let place = relay.entrance.place.clone();
        let wrong = |e: io::Error| StartError(format!("{place} cannot be listened at: {e}"));
        let there = |(slot, l): (usize, &Listener)| {
            (l.running.relay.entrance.place == place && !opened.contains(&slot)).then_some(slot)
        };
        let old: Vec<usize> = self.listeners.iter().filter_map(there).collect();
        let before = old.first().and_then(|slot| self.listeners.get(*slot));
        let Some(before) = before else {
            let running = Arc::new(Running::new(relay, self.listening.clone()));
            let mut added = Vec::new();
            for socket in listen(&running, &mut Inherited::default())? {
                let slot = self.add(Listener::new(socket, &running)).map_err(wrong)?;
                added.push(slot);
                opened.push(slot);
            }
            return Ok(Change {
                running,
                kept: Vec::new(),
                added,
                replaced: Vec::new(),
            });
        };
        let running = Arc::new(Running::after(relay, &before.running));
        let (new, told) = (&running.relay, &before.running.relay);
        let same = tuning(new) == tuning(told) && new.sockopts.share == told.sockopts.share;
        // A UNIX socket has nothing of it.
        if same || before.at.address().is_none() {
            return Ok(Change {
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
            // A predecessor may have handed on one that has retired there.
            let is_there = |slot: &usize| self.listeners.get(*slot).is_some_and(|l| l.at == old.at);
            let Some(at) = old.at.address().filter(|_| !added.iter().any(is_there)) else {
                continue;
            };
            let socket = beside(old, at, &running.relay).map_err(wrong)?;
            let mut listener = Listener::new(socket, &running);
            listener.crowd = old.crowd.clone();
            let slot = self.add(listener).map_err(wrong)?;
            added.push(slot);
            opened.push(slot);
        }
        Ok(Change {
            running,
            kept,
            added,
            replaced,
        })
    }

    /// Another takes the place of this one, which lets in who has begun to come. Without another it
    /// is closed.
    fn retire(&mut self, slot: usize) {
        let Some(listener) = self.listeners.get_mut(slot) else {
            return;
        };
        listener.retires = Some(Instant::now() + RETIREMENT);
        let at = listener.at.clone();
        let Some(current) = self.current(&at) else {
            return self.take_off(slot).close();
        };
        let (running, crowd) = (Arc::clone(&current.running), current.crowd.clone());
        // Best effort: without it, another that takes this address later finds it in use.
        let _ = current.socket.set_reuse_port(running.relay.sockopts.share);
        if let Some(listener) = self.listeners.get_mut(slot) {
            let _ = listener.socket.set_reuse_port(true);
            (listener.running, listener.crowd, listener.ready) = (running, crowd, true);
        }
        self.steer(&at);
    }

    /// The one at this address that does not retire.
    fn current(&self, at: &At) -> Option<&Listener> {
        let mut all = self.listeners.iter().map(|(_, listener)| listener);
        all.find(|listener| listener.at == *at && listener.retires.is_none())
    }

    /// Has newcomers come to the one that does not retire.
    fn steer(&self, at: &At) {
        let Some(current) = self.current(at) else {
            return;
        };
        if current.running.relay.sockopts.share {
            // Those of other processes are among them, and we do not know where.
            return;
        }
        let all = self.listeners.iter().map(|(_, listener)| listener);
        // A socket of Multipath TCP may not be asked; any other of them does.
        let mut same = all.filter(|listener| listener.at == *at);
        if !same.any(|listener| sys::steer_newcomers(&listener.socket, current.nth).is_ok()) {
            tracing::debug!("newcomers at {at} are spread over the old sockets too");
        }
    }

    /// Closes sockets that have let in all who have begun to come before they were replaced.
    pub(super) fn close_retired(&mut self) {
        let now = Instant::now();
        let is_due = |(slot, l): (usize, &Listener)| (l.retires? <= now).then_some((l.nth, slot));
        let mut due: Vec<(u32, usize)> = self.listeners.iter().filter_map(is_due).collect();
        // What takes the first place stays there.
        due.sort_unstable();
        for (_, slot) in due {
            if let Some(listener) = self.listeners.get_mut(slot) {
                listener.ready = true;
            }
            self.accept(slot);
            // There may be more of them than are let in at once.
            if self.listeners.get(slot).is_some_and(|l| !l.ready) {
                self.close_in_order(slot);
            }
        }
    }

    /// Closes a socket that has retired. The kernel puts the last one at its address in its place. If
    /// that is the one that newcomers come to, they come to any of them until the kernel is told its new
    /// place, and whoever begins to come to one that is closed next is reset. So another like it
    /// is opened first, which takes the place and the newcomers.
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
        // With one that is left there is no other to come to.
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

    /// The one at this address that the kernel has as its last.
    fn last(&self, at: &At) -> Option<usize> {
        let same = self.listeners.iter().filter(|(_, l)| l.at == *at);
        same.max_by_key(|(_, l)| l.nth).map(|(slot, _)| slot)
    }

    /// Opens a socket like this one beside it.
    fn twin(&mut self, slot: usize) -> io::Result<usize> {
        let closed = || io::Error::from(io::ErrorKind::NotFound);
        let like = self.listeners.get(slot).ok_or_else(closed)?;
        let at = like.at.address().ok_or_else(closed)?;
        let mut twin = Listener::new(beside(like, at, &like.running.relay)?, &like.running);
        twin.crowd = like.crowd.clone();
        self.add(twin)
    }

    fn take_off(&mut self, slot: usize) -> Listener {
        let listener = self.listeners.remove(slot);
        listener.unregister(self.poll.registry());
        listener
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};

    use sys::Tuning;

    use super::*;
    use crate::settings::{ClientProtocols, Limits};
    use crate::sockopt::SockOpts;

    fn free() -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("it listens")
    }

    /// One that needs another socket than with another number.
    fn relays(at: SocketAddr, nth: usize) -> Vec<Relay> {
        let brief = Duration::from_secs(1);
        let mut sockopts = SockOpts::default();
        let buffers = format!("buffsize:{}k", 64 + nth);
        sockopts.add(&buffers).expect("buffers");
        vec![Relay {
            entrance: at.to_string().parse().expect("an entrance"),
            targets: vec!["127.0.0.1:9".parse().expect("a target")],
            allow: Vec::new(),
            uplinks: Vec::new(),
            tuning: Tuning::default(),
            sockopts,
            buffer: 65536,
            connect_timeout: brief,
            health: None,
            idle_timeout: None,
            half_timeout: brief,
            keep_address: false,
            fastopen: false,
            limits: Limits::default(),
            speaks: ClientProtocols::default(),
            permits: Vec::new(),
            tls_client: None,
            facing: None,
            entry_timeout: brief,
        }]
    }

    fn retiring(door: &Acceptor) -> usize {
        let all = door.listeners.iter();
        all.filter(|(_, l)| l.retires.is_some()).count()
    }

    /// All that retire have been there for long enough.
    fn time_goes_by(door: &mut Acceptor) {
        for (_, listener) in &mut door.listeners {
            listener.retires = listener.retires.map(|_| Instant::now());
        }
        door.close_retired();
    }

    /// Whoever comes now comes to the one socket that stays.
    fn newcomers_come_to_the_current(door: &Acceptor, at: SocketAddr) {
        let current = door.current(&At::Tcp(at)).expect("one stays");
        for _ in 0..16 {
            let client = TcpStream::connect(at).expect("it listens");
            let (_, from) = current.socket.accept().expect("it comes here");
            assert_eq!(from.as_socket(), client.local_addr().ok());
        }
    }

    #[test]
    fn changes_that_come_faster_than_sockets_retire_leave_none_behind() {
        let at = free();
        let (mut door, ..) =
            Acceptor::open(relays(at, 0), Vec::new(), &mut Inherited::default()).expect("it opens");
        for nth in 1..40 {
            door.replace(relays(at, nth)).expect("it is replaced");
            if nth % 4 == 0 {
                time_goes_by(&mut door);
                // The one that newcomers came to until then.
                assert_eq!(retiring(&door), 1, "after {nth} changes");
                newcomers_come_to_the_current(&door, at);
            }
        }
        time_goes_by(&mut door);
        time_goes_by(&mut door);
        assert_eq!((retiring(&door), door.listeners.len()), (0, 1));
        newcomers_come_to_the_current(&door, at);
    }

    #[test]
    fn sockets_that_retire_go_on_doing_so_at_a_successor() {
        let at = free();
        let (mut door, ..) =
            Acceptor::open(relays(at, 0), Vec::new(), &mut Inherited::default()).expect("it opens");
        for nth in 1..4 {
            door.replace(relays(at, nth)).expect("it is replaced");
        }
        let mut handed = Inherited::new(door.sockets().expect("descriptors")).expect("sockets");
        let (mut next, ..) =
            Acceptor::open(relays(at, 3), Vec::new(), &mut handed).expect("it opens");
        drop(door);
        assert_eq!((next.listeners.len(), retiring(&next)), (4, 3));
        assert_eq!(next.listening(), [at.to_string()]);
        newcomers_come_to_the_current(&next, at);
        time_goes_by(&mut next);
        newcomers_come_to_the_current(&next, at);
        assert_eq!(next.listeners.len(), 2);
    }
}
