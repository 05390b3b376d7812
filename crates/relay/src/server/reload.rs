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
use super::door::Door;
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

impl Door {
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

    /// Closes a socket that has let in all who have begun to come before it was replaced.
    pub(super) fn close_retired(&mut self) {
        let now = Instant::now();
        let is_due = |(slot, listener): (usize, &Listener)| {
            (listener.retires? <= now).then_some((slot, listener.at.clone(), listener.nth))
        };
        let Some((slot, at, nth)) = self.listeners.iter().find_map(is_due) else {
            return;
        };
        if let Some(listener) = self.listeners.get_mut(slot) {
            listener.ready = true;
        }
        self.accept(slot);
        if self
            .listeners
            .get(slot)
            .is_some_and(|listener| listener.ready)
        {
            // There are more of them than are let in at once.
            return;
        }
        drop(self.take_off(slot));
        let same = self.listeners.iter_mut().map(|(_, listener)| listener);
        let mut same: Vec<&mut Listener> = same.filter(|listener| listener.at == at).collect();
        // The kernel puts the last one in its place, so that for a moment newcomers came to anyone.
        if let Some(last) = same
            .iter_mut()
            .max_by_key(|l| l.nth)
            .filter(|l| l.nth > nth)
        {
            last.nth = nth;
        }
        for listener in same {
            listener.retires = listener.retires.map(|_| now + RETIREMENT);
        }
        self.steer(&at);
    }

    fn take_off(&mut self, slot: usize) -> Listener {
        let listener = self.listeners.remove(slot);
        listener.unregister(self.poll.registry());
        listener
    }
}
