//! Waiting of a copy: the conditions of a wait, and the return to the owner of the environment.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::environment::CopyEnvironment;

/// Conditions that a copy waits for; the first one that is met ends the wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitConditions {
    /// Events of these sessions, by [`super::environment::ConnectedSession::number`].
    pub sessions: Vec<usize>,
    /// Records of the journal that become durable.
    pub journal: bool,
    /// The interruption of the run.
    pub cancel: bool,
    /// This time.
    pub until: Option<Instant>,
}

impl WaitConditions {
    /// Waits for `time` and nothing else, except the interruption if `cancel`.
    pub(super) fn pause(environment: &dyn CopyEnvironment, time: Duration, cancel: bool) -> Self {
        Self {
            cancel,
            until: Some(environment.now() + time),
            ..Self::default()
        }
    }
}

/// Returns to the owner of `environment` until `conditions` is fulfilled.
pub(super) async fn wait_for(environment: &dyn CopyEnvironment, conditions: WaitConditions) {
    environment.conditions(conditions);
    YieldOnce::default().await;
}

/// Future that is pending once.
#[derive(Debug, Default)]
struct YieldOnce {
    before: bool,
}

impl Future for YieldOnce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match std::mem::replace(&mut self.before, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_returns_to_its_owner_once() {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut wait = std::pin::pin!(YieldOnce::default());
        assert!(wait.as_mut().poll(&mut context).is_pending());
        assert!(wait.as_mut().poll(&mut context).is_ready());
    }
}
