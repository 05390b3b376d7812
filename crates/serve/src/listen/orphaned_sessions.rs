//! Programs whose channel the client has closed before they had ended.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use ssh::channel::Channels;

use super::session::Session;

/// They have so long to make something of what they were given. Whoever sends the last byte, EOF and CLOSE
/// at once does not wait for them. sshd leaves them alone; here none outlives its connection.
const LAST: Duration = Duration::from_secs(2);

/// As many of a connection as it may have with a channel: whoever opens and closes one after the other has no
/// more processes here than who leaves them open.
const MOST: usize = super::connection::MOST_SESSIONS;

/// Sessions without a channel, each with its end.
#[derive(Default)]
pub(super) struct OrphanedSessions<'s>(Vec<(Instant, Session<'s>)>);

impl<'s> OrphanedSessions<'s> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes one whose channel is gone, if it has a program that goes on without it.
    pub(super) fn add(&mut self, now: Instant, mut session: Session<'s>) {
        if session.goes_on_alone() {
            if self.0.len() >= MOST {
                // The oldest, which has had the most time.
                self.0.remove(0);
            }
            self.0.push((now + LAST, session));
        }
    }

    /// They are given what is left for them, and what they say is dropped.
    pub(super) fn turn(&mut self, now: Instant, channels: &mut Channels) {
        self.0.retain_mut(|(end, session)| {
            session.turn(now, channels);
            now < *end && session.runs_program()
        });
    }

    /// What has to be waited for.
    pub(super) fn watch(
        &self,
        channels: &Channels,
    ) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.0.iter().flat_map(|(_, s)| s.watch(channels))
    }

    /// When they have to be looked at though nothing of that happens.
    pub(super) fn look(&self, now: Instant) -> Option<Instant> {
        let times = self.0.iter();
        times
            .map(|(end, s)| s.look(now).map_or(*end, |at| at.min(*end)))
            .min()
    }
}
