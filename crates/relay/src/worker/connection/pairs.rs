//! Connections with a pair on one side or on both.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mio::Registry;
use pair::{AbortReason, FrameDecoder, StripeFrame, TOKEN};

use super::{
    ConnectionContext, ConnectionEndReason, ConnectionStage, FAR_LEGS, NEAR_LEGS,
    RelayedConnection, TOKENS,
};
use crate::address::TargetSpec;
use crate::pump::stripe_set::{StripeContext, StripeSet};
use crate::pump::{FlowTurnResult, Leg};
use crate::server::connection_limiter::ConnectionPermit;
use crate::server::pairs::{self, PairRegistration, PairSlot};
use crate::worker::dial::{self, TargetDialContext};
use crate::worker::inbox::ConnectionHandle;

impl RelayedConnection {
    /// Handles events on the stripes of pairs. A pair that has failed counts as a failed leg.
    pub(super) fn turn_pairs(&mut self, around: &mut ConnectionContext<'_>) -> FlowTurnResult {
        let source = self.client.ip();
        let (running, now) = (&*self.running, around.means.now);
        let mut more = FlowTurnResult::Blocked;
        let (far, target) = match &mut self.stage {
            ConnectionStage::Relay { far, target, .. } => (Some(far), Some(&**target)),
            ConnectionStage::Enter(_) | ConnectionStage::Dial(_) => (None, None),
        };
        let host = target.map_or("", TargetSpec::host_name);
        let way = TargetDialContext::new(running, (around.registry, 0), (source, false), now);
        // A relay with diverted clients has no pairs, so that outgoing connections need no entry
        // here.
        let connect = |to, uplink| {
            let begun = dial::begin(&way, host, (to, uplink));
            begun.map(|(socket, _)| OwnedFd::from(socket))
        };
        let legs = [(Some(&mut self.near), NEAR_LEGS), (far, FAR_LEGS)];
        for (leg, token) in legs {
            let Some(leg) = leg.filter(|leg| leg.failure().is_none()) else {
                continue;
            };
            let Some(bundle) = leg.bundle() else {
                continue;
            };
            let turned = bundle.turn(&mut StripeContext::new(
                (around.registry, around.slot * TOKENS + token),
                around.means,
                &connect,
                (running.relay.entry_timeout, &running.relay.tuning),
            ));
            match turned {
                Ok(FlowTurnResult::More) => more = FlowTurnResult::More,
                Ok(FlowTurnResult::Blocked) => {}
                Err(why) => leg.fail(why),
            }
        }
        more
    }

    /// Sends pending frames on the stripes of pairs.
    pub(super) fn flush_pairs(&mut self) {
        let far = match &mut self.stage {
            ConnectionStage::Relay { far, .. } => Some(far),
            ConnectionStage::Enter(_) | ConnectionStage::Dial(_) => None,
        };
        let mut until = None;
        for leg in [Some(&mut self.near), far].into_iter().flatten() {
            if let Some(bundle) = leg.bundle() {
                bundle.flush();
                until = [until, bundle.deadline()].into_iter().flatten().min();
            }
        }
        if let Some(until) = until {
            self.wake_by(until);
        }
    }

    /// Handles a stripe opened by the peer relay: it starts a pair, or joins an existing one.
    pub(super) fn enter_pair(
        &mut self,
        token: [u8; TOKEN],
        joins: bool,
        begun: FrameDecoder,
        around: &ConnectionContext<'_>,
    ) -> Result<(), ConnectionEndReason> {
        let key = self.near.peer().unwrap_or_default().to_vec();
        if joins {
            if let Some(place) = pairs::find(token, &key) {
                return Err(ConnectionEndReason::Joins(Box::new((place, begun))));
            }
            // An error means that the peer relay is gone.
            let _ = self
                .near
                .send(&StripeFrame::Abort(AbortReason::Unknown).encode(), false);
            let _ = self.near.finish();
            self.near.close_orderly();
            let why = "refused: the peer relay adds a stripe to a connection that has ended here";
            return Err(ConnectionEndReason::Refused(why.to_owned()));
        }
        let place = ConnectionHandle::new(around.inbox, around.slot, self.serial);
        let place = PairSlot::new(place, key);
        let registered = PairRegistration::new(token, place);
        let registered = registered.ok_or_else(|| {
            ConnectionEndReason::Refused(
                "refused: the peer relay opens a striped connection that exists already".into(),
            )
        })?;
        self.registered = Some(registered);
        let facing = self.running.relay.facing.as_ref();
        let facing = facing
            .ok_or_else(|| ConnectionEndReason::Refused("refused: no pair is configured".into()))?;
        let now = around.means.now;
        let mut leg = Leg::pair(StripeSet::answering(facing, token, now));
        std::mem::swap(&mut self.near, &mut leg);
        self.add_leg(leg, begun, None, around)
            .map_err(ConnectionEndReason::Failed)
    }

    /// Adds a further stripe to the pair of the client's side.
    pub(crate) fn add_leg(
        &mut self,
        leg: Leg,
        begun: FrameDecoder,
        permit: Option<ConnectionPermit>,
        around: &ConnectionContext<'_>,
    ) -> io::Result<()> {
        leg.deregister(around.registry);
        let at = (around.registry, around.slot * TOKENS + NEAR_LEGS);
        match self.near.bundle() {
            Some(bundle) => bundle.add(leg, true, begun, permit, at),
            None => Ok(()),
        }
    }

    /// Hands the stripe over to the worker that has its pair.
    pub(crate) fn join(self, place: &PairSlot, begun: FrameDecoder, registry: &Registry) {
        self.near.deregister(registry);
        place.connection().join(self.near, begun, self.permit);
    }

    /// Stores what was learned about the path to the peer relay for the next connection.
    pub(crate) fn learn(&mut self) {
        if let ConnectionStage::Relay { far, .. } = &mut self.stage
            && let Some(bundle) = far.bundle()
        {
            bundle.learn();
        }
    }

    /// Tells peer relays that the data they have is incomplete.
    pub(crate) fn cut_off(&mut self, end: &ConnectionEndReason) {
        let why = match end {
            ConnectionEndReason::Closed(_) => return,
            ConnectionEndReason::NoTarget(_) => AbortReason::Unreachable,
            ConnectionEndReason::Reset(_, e) if e.kind() == io::ErrorKind::InvalidData => {
                AbortReason::Protocol
            }
            _ => AbortReason::Broken,
        };
        if let Some(bundle) = self.near.bundle() {
            bundle.abort(why);
        }
        if let ConnectionStage::Relay { far, .. } = &mut self.stage
            && let Some(bundle) = far.bundle()
        {
            bundle.abort(why);
        }
    }

    /// Creates a pair on its first stripe, towards a target that is a peer relay.
    pub(super) fn first_leg(
        &self,
        mut leg: Leg,
        (target, to, uplink): (&TargetSpec, SocketAddr, Option<usize>),
        around: &ConnectionContext<'_>,
    ) -> io::Result<Leg> {
        let facing = self.running.relay.facing.as_ref();
        let facing =
            facing.ok_or_else(|| io::Error::other("internal error: no pair is configured"))?;
        leg.ask_tls(facing.opener(), "pair")?;
        let rtt = leg.tcp().and_then(sys::tcp_info).map(|tcp| tcp.rtt);
        let path = (target.to_string(), to);
        let rtt = rtt.unwrap_or_default();
        let uplinks = Arc::clone(&self.running.uplinks);
        let mut bundle = StripeSet::asking(facing, path, (rtt, uplinks), around.means.now)?;
        let at = (around.registry, around.slot * TOKENS + FAR_LEGS);
        bundle.add_asked(leg, uplink, at)?;
        Ok(Leg::pair(bundle))
    }
}
