//! Measures the direct way to a host and those through candidates.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tracing::debug;

use super::curve::ArrivalCurve;
use super::{RouteError, RouteResult};
use crate::cancel::CancelToken;
use crate::config::{HostConfig, ProxyMethod, SshOptionFlags};
use crate::connect::{
    self, BulkDirection, ConnectionFacts, DetectedServerKind, FirstConnectionMatch, FirstHostKey,
    RemoteLonghaulPolicy, ResponsibleParty, SharedConnectSettings,
};
use crate::operand::SshDestination;
use crate::probe::{BurstLoad, burst};
use crate::prompt::NoPrompt;
use crate::session::Link;

/// Largest number of candidates that are measured.
pub const MOST_CANDIDATES: usize = 8;
/// Bytes of a burst.
const BURST: u64 = 4 << 20;
/// Longest wait for a socket or an identification. A prompt may take longer.
const ANSWERS: Duration = Duration::from_secs(8);
/// Interval of the checks for a cancel while candidates connect.
const CANCEL_SEEN: Duration = Duration::from_millis(50);

/// Host to which the direct way and the detours are measured, with the settings of the copy.
pub struct DetourTarget {
    /// Configuration of the host, with the direct way.
    pub config: HostConfig,
    /// Settings of the copy's connections.
    pub settings: SharedConnectSettings,
    /// The copy sends to the host.
    pub up: bool,
    /// Ends the measurement.
    pub cancel: CancelToken,
}

/// Figures of the direct way and of those through each candidate.
#[derive(Clone, Debug)]
pub struct DetourMeasurement {
    /// The direct way.
    pub direct: RouteResult,
    /// The ways through the candidates, in their order.
    pub candidates: Vec<RouteResult>,
    /// Facts of the direct connection, if there was one.
    pub facts: Option<ConnectionFacts>,
}

impl DetourMeasurement {
    /// Returns true if a later measurement would find the same ways, so that the choice may be
    /// remembered. The user answers another time what the direct connection asks, and this machine
    /// may lack a resource for a moment. A candidate that asks has failed for good.
    pub fn is_lasting(&self) -> bool {
        let fault = |way: &RouteResult| way.as_ref().err().map(RouteError::fault);
        let mut ways = self.candidates.iter().chain([&self.direct]);
        fault(&self.direct) != Some(ResponsibleParty::User)
            && ways.all(|way| fault(way) != Some(ResponsibleParty::ThisMachine))
    }
}

/// Measures one way after another, with one connection each. Only the direct connection may prompt
/// the user. A candidate that needs an answer, or does not answer in time, has failed.
pub fn measure(target: &DetourTarget, candidates: &[Vec<SshDestination>]) -> DetourMeasurement {
    let facts = Arc::new(Mutex::new(None));
    let link = direct_link(target, &facts);
    let facts = facts.lock().unwrap_or_else(PoisonError::into_inner).take();
    let links = candidate_links(target, candidates, facts.as_ref());
    let direct = link.and_then(|link| figures(target, link));
    debug!("--via auto: direct: {}", shown(&direct));
    let candidates = links.into_iter().zip(candidates).map(|(link, through)| {
        let way = link.and_then(|link| figures(target, link));
        let hosts: Vec<_> = through.iter().map(ToString::to_string).collect();
        debug!("--via auto: through {}: {}", hosts.join(", "), shown(&way));
        way
    });
    DetourMeasurement {
        direct,
        candidates: candidates.collect(),
        facts,
    }
}

/// Describes the figures of a way, or says why there are none.
fn shown(way: &RouteResult) -> String {
    match way {
        Ok(figures) => figures.to_string(),
        Err(why) => why.to_string(),
    }
}

/// Settings of connections that are only measured.
fn plainly(target: &DetourTarget) -> (HostConfig, SharedConnectSettings) {
    let mut config = target.config.clone();
    config.cap_connect_timeout(ANSWERS);
    let settings = SharedConnectSettings {
        far: RemoteLonghaulPolicy::Stock,
        direct: false,
        look: None,
        sends: None,
        bulk: BulkDirection::Neither,
        forward_agent: false,
        timeline: None,
        opened: Arc::new(|_| {}),
        ..target.settings.clone()
    };
    (config, settings)
}

fn direct_link(
    target: &DetourTarget,
    facts: &Arc<Mutex<Option<ConnectionFacts>>>,
) -> Result<Box<dyn Link>, RouteError> {
    let (config, settings) = plainly(target);
    let seen = Arc::clone(facts);
    let settings = SharedConnectSettings {
        opened: Arc::new(move |facts| {
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts);
        }),
        ..settings
    };
    Ok(connect::connect_measured(config, &settings)?)
}

/// Connects through all candidates at a time.
fn candidate_links(
    target: &DetourTarget,
    candidates: &[Vec<SshDestination>],
    direct: Option<&ConnectionFacts>,
) -> Vec<Result<Box<dyn Link>, RouteError>> {
    let (mut config, settings) = plainly(target);
    config.switches.insert(SshOptionFlags::BATCH_MODE);
    let hop = Arc::clone(&settings.hop);
    let settings = SharedConnectSettings {
        prompt: Arc::new(Mutex::new(NoPrompt)),
        // Everything that the user should see was shown for the direct connection.
        beside: direct.map(|facts| FirstConnectionMatch {
            address: None,
            host_key: FirstHostKey::Known(facts.host_key_blob.clone()),
            serving: DetectedServerKind::default(),
            rtt: None,
        }),
        hop: Arc::new(move |host| {
            let mut config: HostConfig = hop(host)?;
            config.cap_connect_timeout(ANSWERS);
            config.switches.insert(SshOptionFlags::BATCH_MODE);
            Ok(config)
        }),
        ..settings
    };
    let (done, results) = mpsc::channel();
    for (nth, through) in candidates.iter().enumerate() {
        let (done, settings) = (done.clone(), settings.clone());
        let config = HostConfig {
            proxy: ProxyMethod::Via(through.clone()),
            ..config.clone()
        };
        let thread = thread::Builder::new().name("candidate".to_owned());
        // A thread that is too late has no receiver, and ends with the process.
        let _ = thread.spawn(move || {
            let link = connect::connect_measured(config, &settings);
            let _ = done.send((nth, link.map_err(RouteError::from)));
        });
    }
    drop(done);
    let late = || Err(RouteError::of_path("the server did not answer in time"));
    let mut links: Vec<_> = candidates.iter().map(|_| late()).collect();
    let until = Instant::now() + ANSWERS;
    let mut missing = links.len();
    while missing > 0 && Instant::now() < until && !target.cancel.is_cancelled() {
        let Ok((nth, link)) = results.recv_timeout(CANCEL_SEEN) else {
            continue;
        };
        missing -= 1;
        if let Some(place) = links.get_mut(nth) {
            *place = link;
        }
    }
    links
}

fn figures(target: &DetourTarget, mut link: Box<dyn Link>) -> RouteResult {
    if target.up && target.settings.congestion.is_none() {
        // The copy does so once it sees losses.
        link.bear_losses();
    }
    let mut curve = ArrivalCurve::default();
    let mut arrived = |at, bytes: u64| curve.note(at, bytes.min(BURST));
    let mut load = BurstLoad::new(target.up, BURST, &mut arrived);
    let end = burst(link, &mut load, &target.cancel)?;
    Ok(curve.figures(end.rtt(), end.took(), end.is_complete()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::{ConnectError, ConnectStep};
    use crate::detour::RouteFigures;

    const WAY: RouteFigures = RouteFigures {
        rtt_us: 1000,
        rate: 1 << 20,
        grows: false,
    };

    fn failed(fault: ResponsibleParty) -> RouteResult {
        Err(ConnectError::new(fault, ConnectStep::Login, "why").into())
    }

    /// Bug: a mistyped password, or too few file descriptors at that moment, had copies relayed for
    /// a day.
    #[test]
    fn a_passing_failure_of_the_direct_way_was_remembered() {
        let lasts = |direct: RouteResult, candidate: RouteResult| {
            let measured = DetourMeasurement {
                direct,
                candidates: vec![Ok(WAY), candidate],
                facts: None,
            };
            measured.is_lasting()
        };
        for fault in [ResponsibleParty::Path, ResponsibleParty::Host] {
            assert!(lasts(failed(fault), failed(fault)), "{fault:?}");
        }
        assert!(lasts(Ok(WAY), failed(ResponsibleParty::User)));
        assert!(!lasts(failed(ResponsibleParty::User), Ok(WAY)));
        assert!(!lasts(failed(ResponsibleParty::ThisMachine), Ok(WAY)));
        assert!(!lasts(Ok(WAY), failed(ResponsibleParty::ThisMachine)));
    }
}
