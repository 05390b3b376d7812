//! Result of a run, and the checks that hold whatever happened.

use std::collections::BTreeMap;

use testkit::sftp_model::Kind;

use super::{Scenario, TreeEntry, tree_at};
use crate::report::{CopyEvent, CopyOutcome, CopySummary};

/// Everything that a run has told, and its summary.
#[derive(Debug, Default)]
pub(in crate::copy::tests) struct RunReport {
    /// Paths that failed, with the reason.
    pub(in crate::copy::tests) failed: Vec<(String, String)>,
    /// Warnings, as `path: message`.
    pub(in crate::copy::tests) warnings: Vec<String>,
    /// Targets of the files that were completed.
    pub(in crate::copy::tests) done: Vec<String>,
    /// Files whose copy differed from the source when it was compared.
    pub(in crate::copy::tests) mismatches: usize,
    /// Number of steps of the simulation.
    pub(in crate::copy::tests) steps: u64,
    summary: Option<Box<CopySummary>>,
}

impl RunReport {
    pub(super) fn note(&mut self, event: CopyEvent) {
        match event {
            CopyEvent::Failed { path, reason, .. } => {
                self.failed.push((path.to_string(), reason));
            }
            CopyEvent::Warning { path, message } => {
                let path = path.map(|path| path.to_string()).unwrap_or_default();
                self.warnings.push(format!("{path}: {message}"));
            }
            CopyEvent::FileDone { target, .. } => self.done.push(target.to_string()),
            CopyEvent::Mismatch { .. } => self.mismatches += 1,
            _ => {}
        }
    }

    pub(super) fn end(&mut self, summary: CopySummary) {
        self.summary = Some(Box::new(summary));
    }

    pub(in crate::copy::tests) fn summary(&self) -> &CopySummary {
        self.summary.as_ref().expect("the run has ended")
    }

    pub(in crate::copy::tests) fn outcome(&self) -> CopyOutcome {
        self.summary().outcome.clone()
    }

    /// True if a failure names a path that ends with `path`.
    pub(in crate::copy::tests) fn has_failed(&self, path: &str) -> bool {
        self.failed.iter().any(|(name, _)| is_path(name, path))
    }

    /// Reason of the failure of a path that ends with `path`.
    #[track_caller]
    pub(in crate::copy::tests) fn reason(&self, path: &str) -> &str {
        let found = self.failed.iter().find(|(name, _)| is_path(name, path));
        let (_, reason) = found.unwrap_or_else(|| panic!("{path} has not failed: {self:#?}"));
        reason
    }

    /// True if a warning contains `words`.
    pub(in crate::copy::tests) fn warns(&self, words: &str) -> bool {
        self.warnings.iter().any(|warning| warning.contains(words))
    }

    /// True if a failure or a warning names `path`.
    fn names(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        let mut lines = self
            .failed
            .iter()
            .map(|(path, why)| format!("{path}: {why}"));
        lines.any(|line| line.contains(name)) || self.warns(name)
    }
}

fn is_path(name: &str, path: &str) -> bool {
    let rest = name.strip_suffix(path);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with(['/', ':']))
}

impl Scenario {
    /// Checks that the tree at `to` of the target is the one at `from` of the source: entries,
    /// contents and targets of symlinks.
    #[track_caller]
    pub(in crate::copy::tests) fn check_same(&self, from: &str, to: &str) {
        self.check_contains(from, to);
        let source = contents(self.at_source(|fs| tree_at(fs, from)));
        let target = contents(self.at_target(|fs| tree_at(fs, to)));
        let more: Vec<_> = target
            .keys()
            .filter(|path| !source.contains_key(*path))
            .collect();
        let name = self.name();
        assert!(more.is_empty(), "{name}: {more:?} are not in the source");
    }

    /// Checks that the tree at `to` of the target has all entries of the one at `from` of the source.
    #[track_caller]
    pub(in crate::copy::tests) fn check_contains(&self, from: &str, to: &str) {
        let source = contents(self.at_source(|fs| tree_at(fs, from)));
        let target = contents(self.at_target(|fs| tree_at(fs, to)));
        let name = self.name();
        for (path, kind) in &source {
            let found = target.get(path);
            assert!(
                found == Some(kind),
                "{name}: {path} is {} and should be {}",
                found.map_or_else(|| "missing".to_owned(), shown),
                shown(kind)
            );
        }
    }

    /// Checks a copy of the tree at `from` to `to` that may have failed, at which `before` stood:
    /// each entry is that of the source, or what stood there before, and each that is not the
    /// source's is named by a failure.
    #[track_caller]
    pub(in crate::copy::tests) fn check_honest(
        &self,
        report: &RunReport,
        (from, to): (&str, &str),
        before: &BTreeMap<String, TreeEntry>,
    ) {
        let source = self.at_source(|fs| tree_at(fs, from));
        let target = self.at_target(|fs| tree_at(fs, to));
        let name = self.name();
        let is_told = matches!(
            report.outcome(),
            CopyOutcome::Complete | CopyOutcome::Partial
        );
        let mut wrong = 0;
        for (path, entry) in &source {
            let found = target.get(path).map(|found| &found.kind);
            if found == Some(&entry.kind) {
                continue;
            }
            wrong += 1;
            let older = before.get(path).map(|older| &older.kind);
            let is_named = named(report, path);
            assert!(
                found == older || is_named,
                "{name}: {path} is {}, which nothing says: {report:#?}",
                found.map_or_else(|| "missing".to_owned(), shown)
            );
            assert!(
                is_named || !is_told,
                "{name}: {path} was not copied, which nothing says: {report:#?}"
            );
        }
        if report.outcome() == CopyOutcome::Complete {
            assert_eq!(wrong, 0, "{name}: complete with wrong files: {report:#?}");
        }
        for (path, older) in before {
            let found = target.get(path).map(|found| &found.kind);
            let is_source = source.contains_key(path);
            assert!(
                is_source || found == Some(&older.kind),
                "{name}: {path} is no source and was changed"
            );
        }
    }
}

/// True if a failure names the path, or a directory above it.
fn named(report: &RunReport, path: &str) -> bool {
    let mut above = path;
    loop {
        if report.names(above) {
            return true;
        }
        match above.rsplit_once('/') {
            Some((dir, _)) if !dir.is_empty() => above = dir,
            _ => break,
        }
    }
    // The top directory could not be made or listed.
    let top = |(name, _): &(String, String)| {
        ["src", "dst", "dst/src", "src/."]
            .iter()
            .any(|top| is_path(name, top))
    };
    report.failed.iter().any(top)
}

fn contents(tree: BTreeMap<String, TreeEntry>) -> BTreeMap<String, Kind> {
    tree.into_iter()
        .map(|(path, entry)| (path, entry.kind))
        .collect()
}

fn shown(kind: &Kind) -> String {
    match kind {
        Kind::File(data) => format!("a file of {} bytes", data.len()),
        Kind::Dir => "a directory".to_owned(),
        Kind::Symlink(to) => format!("a symlink to {}", String::from_utf8_lossy(to)),
        Kind::Device(_) => "a device".to_owned(),
    }
}
