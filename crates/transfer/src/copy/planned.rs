//! Copies entries that were chosen before, instead of walking the sources.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use schedule::{JobKind, RemotePath};

use super::engine::{CopyEnd, Engine};
use super::names::{Written, written};
use super::source::TargetPath;
use super::{Connect, CopyOptions, CopyRequest, Place};
use crate::cancel::CancelToken;
use crate::disk::DirectoryCache;
use crate::report::{Event, Name, Progress, Summary};
use crate::session::Session;
use crate::walk::WalkEntry;

/// Entries to copy, in the order of a walk: a directory before its contents, and its end after
/// them.
pub(crate) type PlannedEntries = Box<dyn Iterator<Item = WalkEntry>>;

/// A copy whose entries are chosen by the caller, who may use the sessions before and after it.
pub(crate) struct PlannedCopy<'a> {
    engine: Engine<'a>,
    source: Vec<u8>,
    target: Vec<u8>,
}

/// One of the two ends of a planned copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Target,
}

impl From<End> for CopyEnd {
    fn from(end: End) -> Self {
        match end {
            End::Source => Self::Source,
            End::Target => Self::Target,
        }
    }
}

impl<'a> PlannedCopy<'a> {
    /// Finds what an earlier run of this copy has left, and connects to the hosts of both ends.
    ///
    /// # Errors
    ///
    /// Returns the summary of the failed run.
    pub(crate) fn begin(
        request: &CopyRequest,
        options: &'a CopyOptions,
        connect: &'a dyn Connect,
        progress: &'a Progress,
        events: &'a mut dyn FnMut(Event),
        cancel: &'a CancelToken,
    ) -> Result<Self, Box<Summary>> {
        let mut engine = Engine::new(options, connect, progress, events, cancel);
        let begun = engine.begin_planned(request);
        let paths = begun.then(|| engine.planned_paths(request)).flatten();
        match paths {
            Some((source, target)) => Ok(Self {
                engine,
                source,
                target,
            }),
            None => Err(Box::new(engine.into_summary(Duration::ZERO))),
        }
    }

    /// Returns the path of an end's root, as its server or this machine resolves it.
    pub(crate) fn root(&self, end: End) -> &[u8] {
        match end {
            End::Source => &self.source,
            End::Target => &self.target,
        }
    }

    /// Returns the session with an end's host; `None` for this machine.
    pub(crate) fn session(&self, end: End) -> Option<&Session> {
        self.engine.side(end.into()).map(|side| &side.session)
    }

    /// Formats a path of an end for messages.
    pub(crate) fn shown(&self, end: End, path: &[u8]) -> Name {
        self.engine.shown(end.into(), path)
    }

    /// Cache that resolves paths of a target on this machine.
    pub(crate) fn directories(&self) -> Arc<DirectoryCache> {
        self.engine.directories()
    }

    /// Local path below the target, in which no symlink is followed.
    pub(crate) fn local_target(&self, path: &[u8]) -> schedule::LocalPath {
        self.engine.target_path(path)
    }

    /// Reports an event.
    pub(crate) fn tell(&mut self, event: Event) {
        self.engine.tell(event);
    }

    /// Reports something that could not be done.
    pub(crate) fn fail(&mut self, path: Name, reason: String) {
        self.engine.fail(None, path, reason);
    }

    /// True if the run was cancelled or a session was lost.
    pub(crate) fn stopped(&mut self) -> bool {
        self.engine.check_cancel();
        self.engine.stopped()
    }

    /// True if anything has failed so far.
    pub(crate) fn has_failed(&self) -> bool {
        self.engine.summary.failed > 0
    }

    /// Sets the times of the target's root, whose path the user named.
    pub(crate) fn set_root_times(&mut self, attributes: &schedule::Attributes) {
        let times_only = schedule::Attributes {
            times: attributes.times,
            nanoseconds: attributes.nanoseconds,
            ..schedule::Attributes::default()
        };
        if self.engine.target.is_some() {
            let kind = JobKind::SetAttributes {
                path: RemotePath(self.target.clone()),
                attributes: times_only,
                follow: true,
                xattrs: None,
            };
            let _ = self.engine.ask(CopyEnd::Target, kind);
        } else if let Some(times) = crate::disk::timestamps(&times_only)
            && let Ok(dir) = self
                .engine
                .directories()
                .directory(&self.local_target(&self.target))
        {
            let _ = rustix::fs::futimens(&*dir, &times);
        }
    }

    /// Notes that a session was lost.
    pub(crate) fn lose(&mut self, why: String) {
        self.engine.lost.get_or_insert(why);
    }

    /// Copies the entries onto the target's root and waits until all are done.
    pub(crate) fn copy(&mut self, entries: PlannedEntries) {
        let engine = &mut self.engine;
        engine.ask_for_boot();
        engine.tell_resumed();
        if !engine.begin_manifest() {
            return;
        }
        engine.settle_far();
        let id = engine.walks.next_id();
        engine.name_root(id, &self.source);
        engine.walks.planned = Some((id, entries, self.target.clone()));
        engine.roots = VecDeque::new();
        engine.copy();
        engine.hard_links.forget();
        if !engine.stopped() {
            engine.clear_leftovers();
        }
    }

    /// Ends the sessions and returns the summary.
    pub(crate) fn finish(self, elapsed: Duration) -> Summary {
        self.engine.into_summary(elapsed)
    }
}

impl Engine<'_> {
    fn begin_planned(&mut self, request: &CopyRequest) -> bool {
        if !self.find_journal(request) {
            return false;
        }
        for end in [CopyEnd::Target, CopyEnd::Source] {
            let place = match end {
                CopyEnd::Source => request.sources.first(),
                CopyEnd::Target => Some(&request.target),
            };
            let Some(Place::Remote { host, .. }) = place else {
                continue;
            };
            match self.connect_to(*host, None) {
                Ok(side) if end == CopyEnd::Source => self.source = Some(side),
                Ok(side) => self.target = Some(side),
                Err(why) => {
                    self.lost = Some(why);
                    return false;
                }
            }
        }
        true
    }

    fn planned_paths(&mut self, request: &CopyRequest) -> Option<(Vec<u8>, Vec<u8>)> {
        let source = self.planned_path(CopyEnd::Source, request.sources.first()?)?;
        let target = self.planned_path(CopyEnd::Target, &request.target)?;
        self.name_target(&TargetPath::Exactly(target.clone()));
        // Confines the journal of an earlier run to this target.
        let _ = self.onto_before(&target);
        Some((source, target))
    }

    fn planned_path(&mut self, end: CopyEnd, place: &Place) -> Option<Vec<u8>> {
        let path = match place {
            Place::Local(path) => return Some(path.as_os_str().as_bytes().to_vec()),
            Place::Remote { path, .. } => path,
        };
        match written(path) {
            Written::Plain(path) => Some(path),
            Written::Home { user, below } => {
                let home = self.home_of(end, user)?;
                Some(super::resolve::in_home(&home, &below))
            }
        }
    }

    /// Asks an end for the attributes of its root; `None` if it does not exist.
    pub(super) fn root_attributes(
        &mut self,
        end: CopyEnd,
        path: &[u8],
    ) -> Option<schedule::Attributes> {
        let kind = JobKind::Stat {
            path: RemotePath(path.to_vec()),
            follow: true,
        };
        self.ask(end, kind).ok().and_then(|asked| asked.attributes)
    }
}

impl PlannedCopy<'_> {
    /// Returns the attributes of an end's root; `None` if it does not exist.
    pub(crate) fn root_attributes(&mut self, end: End) -> Option<schedule::Attributes> {
        let path = self.root(end).to_vec();
        match self.session(end) {
            Some(_) => self.engine.root_attributes(end.into(), &path),
            None => {
                let path = crate::walk::local_path(&path);
                let path = if path.as_os_str().is_empty() {
                    std::path::PathBuf::from(".")
                } else {
                    path
                };
                std::fs::metadata(path)
                    .ok()
                    .map(|meta| crate::disk::attributes(&meta))
            }
        }
    }
}
