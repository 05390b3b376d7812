//! Programs whose channel the client has closed before they ended.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use ssh::channel::Channels;

use super::session::SessionChannel;

/// Time that such a program has to finish its work: a client that sends its last byte, EOF and
/// CLOSE at once does not wait. sshd lets such programs run on; here none outlives its connection.
const LAST: Duration = Duration::from_secs(2);

/// Maximum number of orphaned sessions of a connection, equal to the limit of channels: opening and
/// closing channels gives a client no more processes than keeping them open.
const MOST: usize = super::connection::MOST_SESSIONS;

/// Sessions without a channel, each with the time at which it is ended.
#[derive(Default)]
pub(super) struct OrphanedSessions<'s>(Vec<(Instant, SessionChannel<'s>)>);

impl<'s> OrphanedSessions<'s> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps a session whose channel is closed, if its program still has work.
    pub(super) fn add(&mut self, now: Instant, mut session: SessionChannel<'s>) {
        if session.goes_on_alone() {
            if self.0.len() >= MOST {
                // Remove the oldest, which has had the most time.
                self.0.remove(0);
            }
            self.0.push((now + LAST, session));
        }
    }

    /// Feeds the programs their remaining input and discards their output.
    pub(super) fn turn(&mut self, now: Instant, channels: &mut Channels) {
        self.0.retain_mut(|(end, session)| {
            session.turn(now, channels);
            now < *end && session.runs_program()
        });
    }

    /// Descriptors to poll for these sessions.
    pub(super) fn watch(
        &self,
        channels: &Channels,
    ) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.0.iter().flat_map(|(_, s)| s.watch(channels))
    }

    /// Time at which the sessions need a turn without any event.
    pub(super) fn look(&self, now: Instant) -> Option<Instant> {
        let times = self.0.iter();
        times
            .map(|(end, s)| s.look(now).map_or(*end, |at| at.min(*end)))
            .min()
    }
}
