//! Waiting of a copy: the conditions of a wait, and the return to the owner of the edge.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::edge::Edge;

/// Conditions that a copy waits for; the first one that is met ends the wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    /// Events of these sessions, by [`super::edge::Connected::number`].
    pub sessions: Vec<usize>,
    /// Records of the journal that become durable.
    pub journal: bool,
    /// The interruption of the run.
    pub cancel: bool,
    /// This time.
    pub until: Option<Instant>,
}

impl Wish {
    /// Waits for `time` and nothing else, except the interruption if `cancel`.
    pub(super) fn pause(edge: &dyn Edge, time: Duration, cancel: bool) -> Self {
        Self {
            cancel,
            until: Some(edge.now() + time),
            ..Self::default()
        }
    }
}

/// Returns to the owner of `edge` until `wish` is fulfilled.
pub(super) async fn wait_for(edge: &dyn Edge, wish: Wish) {
    edge.wish(wish);
    Returned::default().await;
}

/// Future that is pending once.
#[derive(Debug, Default)]
struct Returned {
    before: bool,
}

impl Future for Returned {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match std::mem::replace(&mut self.before, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}
