//! Other relays in place of those that run. Who is connected stays so; sockets that can stay do, so
//! that nobody who comes meanwhile is turned away, but for whom the kernel resets: who comes between the last
//! accept and the close of a socket that is replaced.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::StartError;
use super::crowd::Crowd;
use super::door::Door;
use super::listener::{Inherited, Listener, beside, listen, tuning};
use super::running::Running;
use crate::settings::Relay;

/// What becomes of a relay's sockets.
struct Change {
    running: Arc<Running>,
    /// Stay, and are the new relay's.
    kept: Vec<usize>,
    /// Were opened for it.
    added: Vec<usize>,
    /// Are closed when whoever waits at them was let in, by the new relay.
    closed: Vec<usize>,
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
                        self.take_off(slot).close();
                    }
                    return Err(why);
                }
            }
        }
        // Nothing fails from here on.
        let mut wanted: BTreeSet<usize> = BTreeSet::new();
        for change in &changes {
            wanted.extend(change.added.iter());
            wanted.extend(change.kept.iter());
            for slot in change.kept.iter().chain(&change.closed) {
                if let Some(listener) = self.listeners.get_mut(*slot) {
                    listener.running = Arc::clone(&change.running);
                    listener.ready = true;
                }
            }
            self.share_crowd(&change.running);
        }
        for slot in changes.into_iter().flat_map(|change| change.closed) {
            self.empty(slot);
            // Its place is another's of ours now.
            drop(self.take_off(slot));
        }
        let all: Vec<usize> = self.listeners.iter().map(|(slot, _)| slot).collect();
        for slot in all.into_iter().filter(|slot| !wanted.contains(slot)) {
            let listener = self.take_off(slot);
            tracing::info!("nobody is let in at {} any more", listener.at);
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
            for (socket, at) in listen(&running, &mut Inherited::default())? {
                let listener = Listener {
                    socket,
                    at,
                    running: Arc::clone(&running),
                    crowd: Crowd::default(),
                    ready: false,
                };
                let slot = self.add(listener).map_err(wrong)?;
                added.push(slot);
                opened.push(slot);
            }
            return Ok(Change {
                running,
                kept: Vec::new(),
                added,
                closed: Vec::new(),
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
                closed: Vec::new(),
            });
        }
        let mut added = Vec::new();
        for slot in &old {
            let Some((old, at)) = self
                .listeners
                .get(*slot)
                .and_then(|l| Some((l, l.at.address()?)))
            else {
                continue;
            };
            let crowd = old.crowd.clone();
            let (socket, at) = beside(old, at, &running.relay).map_err(wrong)?;
            let listener = Listener {
                socket,
                at,
                running: Arc::clone(&running),
                crowd,
                ready: false,
            };
            let slot = self.add(listener).map_err(wrong)?;
            added.push(slot);
            opened.push(slot);
        }
        Ok(Change {
            running,
            kept: Vec::new(),
            added,
            closed: old,
        })
    }

    /// Lets in all who wait at a socket that is to be closed.
    fn empty(&mut self, slot: usize) {
        while self.listeners.get(slot).is_some_and(|l| l.ready) {
            self.accept(slot);
        }
    }

    fn take_off(&mut self, slot: usize) -> Listener {
        let listener = self.listeners.remove(slot);
        listener.unregister(self.poll.registry());
        listener
    }
}
