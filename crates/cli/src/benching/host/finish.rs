use measure::bench::{self, BenchResult, advice};
use transfer::copy::{HostId, SessionConnector as _};

use super::HostBench;
use crate::benching::files::disk;
use crate::benching::keep;
use crate::command_error::CommandError;
use crate::flags::low::BenchStorageChoice;

impl HostBench<'_> {
    /// Removes the files at the far end, and returns a warning for each that may remain.
    pub(super) fn clean(&mut self) -> Vec<String> {
        let host = self.hosts.name(HostId(0));
        let left = self.far.clean().into_iter().map(|path| {
            format!(
                "{host}: {path} may be left there, because the connection was lost: remove it \
                 by hand"
            )
        });
        left.collect()
    }

    /// Cleans up, and completes the result with the conclusions from the figures.
    pub(super) fn finish(mut self) -> (BenchResult, Result<(), CommandError>) {
        let left = self.clean();
        let mut bench = self.bench;
        bench.warnings.extend(left);
        bench.seconds = self.start.elapsed().as_secs_f64();
        let all = bench.rows.len();
        bench
            .rows
            .retain(|row| !row.runs.is_empty() || row.trouble.is_some());
        bench.not_reached = all - bench.rows.len();
        let disk = (disk(self.args).display().to_string(), self.far.disk());
        bench.host = Some(bench::BenchHost {
            name: self.hosts.name(HostId(0)),
            banner: self.facts.banner.clone().unwrap_or_default(),
            longhaul: self.sizes.longhaul.clone(),
            near_memory: self.files.memory(),
            far_memory: self.far.memory(),
            disk: (self.args.places != BenchStorageChoice::Memory).then_some(disk),
            far_cpu: self.far.about_cpu(),
        });
        bench.judge();
        bench.advice = advice::advise(&bench);
        let kept = self
            .hosts
            .remember_findings(HostId(0), keep::findings(&bench));
        (bench, kept)
    }
}
