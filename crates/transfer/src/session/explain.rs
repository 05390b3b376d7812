//! Decisions of a finished session, for [`crate::report::Decision`].

use std::time::Duration;

use schedule::{CompressionMode, LaneStats};
use sftp::ServerInfo;

use super::SessionOptions;
use super::concurrency::ConcurrencyInputs;
use super::dispatcher::Dispatcher;
use crate::report::{
    Decision, DecisionOrigin, DecisionSubject, FarEndServerReport, ServerMode, SessionReport,
};

/// Time of a session from which on its limiter is told; shorter ones have not reached full speed.
const TELLING: Duration = Duration::from_secs(1);

/// Totals of the lanes that have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EndedLanes {
    tried: u64,
    became: u64,
    whole: u64,
}

impl EndedLanes {
    pub(super) fn add(&mut self, lane: &LaneStats) {
        self.tried += lane.packed.0;
        self.became += lane.packed.1;
        self.whole += lane.whole;
    }
}

/// A session at its end.
pub(super) struct FinishedSession<'a> {
    pub options: &'a SessionOptions,
    pub dispatcher: &'a Dispatcher,
    pub concurrency: &'a ConcurrencyInputs,
    /// Version and extensions of a remote longhaul that lanes use.
    pub far_info: Option<&'a ServerInfo>,
    /// The far end has answered in this session, which overrides the host memory.
    pub far_measured: bool,
}

impl FinishedSession<'_> {
    /// Lists the session's decisions. `far` describes the far end and `report` the measurements of
    /// the path.
    pub(super) fn decisions(
        &self,
        far: &FarEndServerReport,
        report: Option<&SessionReport>,
    ) -> Vec<Decision> {
        let all = self.dispatcher.lanes().totals();
        let mut decisions = vec![
            Decision::new(DecisionSubject::FarEnd(far.clone()), self.far_origin(far)),
            self.lanes_decision(report),
        ];
        decisions.extend(self.files_decision(&all));
        decisions.extend(self.zstd_decision(&all));
        if self.concurrency.bears_losses() {
            let bears = DecisionSubject::Congestion {
                name: Some("bbr".to_owned()),
                losses: true,
            };
            decisions.push(Decision::new(bears, DecisionOrigin::Measured));
        }
        decisions
    }

    fn far_origin(&self, far: &FarEndServerReport) -> DecisionOrigin {
        let connection_source = self.options.connection_source.as_ref();
        match far.depth {
            ServerMode::Server => DecisionOrigin::Peer,
            _ if self.far_measured => DecisionOrigin::Measured,
            _ => connection_source.map_or(DecisionOrigin::Default, |connection_source| {
                connection_source.far_origin()
            }),
        }
    }

    fn lanes_decision(&self, report: Option<&SessionReport>) -> Decision {
        let (set, learned) = (self.options.connections, self.concurrency.learned());
        let tried = report.and_then(|r| r.tried);
        // --connections replaces what was learned.
        let begun = learned.filter(|_| set.is_none());
        let begun = begun.map(|(l, _)| (l.connections, l.channels));
        let origin = match (set, self.options.channels) {
            _ if self.options.background => DecisionOrigin::Flag("--background"),
            (Some(_), _) => DecisionOrigin::Flag("--connections"),
            (None, Some(_)) => DecisionOrigin::Flag("--channels"),
            (None, None) => match (tried, learned) {
                (Some(_), _) => DecisionOrigin::Measured,
                (None, Some((_, age))) => DecisionOrigin::Memory(age),
                (None, None) => DecisionOrigin::Default,
            },
        };
        let lanes = self.dispatcher.lanes().data_lanes() as u32;
        let connections = self.dispatcher.connections().len() as u32;
        // A session in which the far end did all of the work has measured no connection.
        let used = report.filter(|r| r.connections > 0);
        let choice = DecisionSubject::Lanes {
            connections: used.map_or(connections, |r| r.connections),
            channels: used.map_or_else(|| lanes.div_ceil(connections.max(1)), |r| r.channels),
            limiter: report.filter(|r| r.measured >= TELLING).map(|r| r.limiter),
            tried,
            learned: begun,
            permitted: set,
        };
        Decision::new(choice, origin)
    }

    fn files_decision(&self, all: &EndedLanes) -> Option<Decision> {
        let stats = self.dispatcher.scheduler().stats();
        let choice = DecisionSubject::Files {
            cut: stats.cut,
            from: self.dispatcher.scheduler().split_from(),
            whole: all.whole,
        };
        (stats.moved > 0).then(|| Decision::new(choice, DecisionOrigin::Default))
    }

    fn zstd_decision(&self, all: &EndedLanes) -> Option<Decision> {
        let knows = |info: &ServerInfo| info.has("write-zstd@longhaul");
        let lanes = self.dispatcher.lanes().iter();
        let mut lanes = lanes.filter_map(|on| on.lane().server_info());
        if !lanes.any(knows) && !self.far_info.is_some_and(knows) {
            return None;
        }
        let origin = match self.options.pack {
            CompressionMode::Auto => DecisionOrigin::Measured,
            CompressionMode::Always | CompressionMode::Never => DecisionOrigin::Flag("--compress"),
        };
        let choice = DecisionSubject::Zstd {
            pack: self.options.pack,
            tried: all.tried,
            became: all.became,
            moved: self.dispatcher.scheduler().stats().moved,
        };
        Some(Decision::new(choice, origin))
    }
}
