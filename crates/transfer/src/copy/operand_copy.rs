//! Copies the operands of a command: resolves them into sources and targets, group by group.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;

use super::engine::CopyEngine;
use super::environment::CopyEnvironment;
use super::equal_names::{NamedOperands, SeenSourceNames, SourceOperand, leaves_out};
use super::expand::PatternExpansion;
use super::home;
use super::resolve::{ResolvedTarget, TargetResolver, still_leads_there};
use super::server_inquiry::ServerInquiry;
use super::sides::CopySide;
use super::source::{SourceRoot, TargetPath};
use super::source_group::SourceGroup;
use super::{CopyLocation, CopyOptions, CopyRequest};
use crate::report::{CopyEvent, CopySummary, ProgressCounters};

/// A copy of the sources that a command names to the target that it names.
pub(super) struct OperandCopy<'a> {
    engine: CopyEngine<'a>,
    request: CopyRequest,
    /// The command names several sources.
    many: bool,
}

impl<'a> OperandCopy<'a> {
    pub(super) fn new(
        request: CopyRequest,
        options: &'a CopyOptions,
        environment: &'a dyn CopyEnvironment,
        progress: &'a ProgressCounters,
        events: &'a mut dyn FnMut(CopyEvent),
    ) -> Self {
        Self {
            engine: CopyEngine::new(options, environment, progress, events),
            many: request.sources.len() > 1,
            request,
        }
    }

    /// Runs the copy to its end and returns the summary.
    pub(super) async fn into_summary(mut self) -> CopySummary {
        self.run().await;
        self.engine.finish()
    }

    /// Removes the local temporaries and the journal of an interrupted run of this copy.
    pub(super) async fn discard(mut self) {
        let CopyLocation::Local(target) = &self.request.target else {
            return;
        };
        // Only paths below the named target are opened.
        let target = target.as_os_str().as_bytes().to_vec();
        let onto = TargetPath::Exactly(target);
        self.engine.context_mut().name_target(&onto);
        self.engine.discard(&self.request).await;
    }

    /// Runs the whole request.
    async fn run(&mut self) {
        let mut groups = SourceGroup::all_of(self.request.sources.clone());
        let operands = groups.iter().flat_map(SourceGroup::operands);
        let operands: Vec<SourceOperand> = operands.collect();
        let context = self.engine.context_mut();
        if self.many && !NamedOperands::new(&operands).differ_as_written(context) {
            return;
        }
        if !self.engine.find_earlier_run(&self.request).await {
            return;
        }
        let only_local = groups.iter().all(|group| group.host().is_none());
        if only_local && !SourceGroup::some_exist(&groups, self.engine.context_mut()) {
            return;
        }
        if !self.connect_target(&groups) || !self.engine.prepare().await {
            return;
        }
        if self.expand_all(&mut groups).await {
            self.copy_groups(&mut groups).await;
        }
        // End the sessions that only expanded patterns.
        for group in &mut groups {
            if let Some(side) = group.take_session() {
                let sides = self.engine.context_mut().sides_mut();
                sides.set(CopySide::Source, Some(side));
                self.engine.end_source();
            }
        }
        self.engine.complete().await;
    }

    /// Connects to the target's host, if it is remote, while the files to send are counted. Returns
    /// false if that fails.
    fn connect_target(&mut self, groups: &[SourceGroup]) -> bool {
        let CopyLocation::Remote { host, .. } = self.request.target else {
            return true;
        };
        let here = groups.iter().filter(|group| group.host().is_none());
        let paths: Vec<Vec<u8>> = here.flat_map(|group| group.paths().to_vec()).collect();
        let context = self.engine.context_mut();
        let counting = context.environment().count(&paths, context.is_recursive());
        match context.connect(host, Some(counting.coming())) {
            Ok(side) => {
                context.sides_mut().set(CopySide::Target, Some(side));
                self.engine.announce(counting);
                true
            }
            Err(why) => {
                context.end_with(why);
                false
            }
        }
    }

    /// Expands the patterns of all sources before anything is copied. Returns false if there is
    /// nothing to copy.
    async fn expand_all(&mut self, groups: &mut [SourceGroup]) -> bool {
        let alone = groups.len() == 1;
        let mut named = SeenSourceNames::default();
        for group in &mut *groups {
            if let Some(host) = group.host()
                && (alone || group.has_patterns())
            {
                let context = self.engine.context_mut();
                match context.connect_end(CopySide::Source, host) {
                    Ok(()) => {}
                    Err(why) if alone => {
                        context.end_with(why);
                        return false;
                    }
                    Err(why) => {
                        // Like scp, continue with the sources on other hosts.
                        group.fail(context, &why.to_string());
                        continue;
                    }
                }
            }
            for path in group.paths().to_vec() {
                let host = group.host();
                let matches = match host {
                    Some(_) => {
                        let mut patterns = PatternExpansion::new(&mut self.engine);
                        patterns.expand(&path).await.unwrap_or_default()
                    }
                    None => vec![path],
                };
                let context = self.engine.context_mut();
                // Names that are left out may be equal.
                let selected = |path: &Vec<u8>| {
                    if leaves_out(context.options(), path) {
                        context.summary_mut().excluded += 1;
                        return false;
                    }
                    let path = path.clone();
                    named.is_first(context, SourceOperand { host, path })
                };
                group.add_found(matches.into_iter().filter(selected).collect());
            }
            let context = self.engine.context_mut();
            group.keep_session(context.sides_mut().take(CopySide::Source));
            if context.stopped() {
                return false;
            }
        }
        self.admit(groups)
    }

    /// Compares the names of all sources, and lets the caller admit the copy. Returns false if
    /// there is nothing to copy.
    fn admit(&mut self, groups: &[SourceGroup]) -> bool {
        let sources = groups.iter().flat_map(SourceGroup::sources);
        let sources: Vec<SourceOperand> = sources.collect();
        if sources.is_empty() {
            return false;
        }
        let operands = NamedOperands::new(&sources);
        let target = &self.request.target;
        let claims = operands.claims(self.engine.context(), target);
        self.engine.claim_targets(claims);
        let context = self.engine.context_mut();
        let names = operands.names(context);
        let differ = operands.differ(context, &names, target);
        context.environment().admit(&names, differ)
    }

    async fn copy_groups(&mut self, groups: &mut [SourceGroup]) {
        let alone = groups.len() == 1;
        let mut target = None;
        for group in groups {
            let context = self.engine.context_mut();
            if context.stopped() {
                return;
            }
            if group.is_empty() {
                continue;
            }
            context
                .sides_mut()
                .set(CopySide::Source, group.take_session());
            if let Some(host) = group.host().filter(|_| !context.source_is_remote()) {
                match context.connect_end(CopySide::Source, host) {
                    Ok(()) => {}
                    Err(why) if alone => {
                        context.end_with(why);
                        return;
                    }
                    Err(why) => {
                        group.fail(context, &why.to_string());
                        continue;
                    }
                }
            }
            let resolved = match target.take() {
                Some(target) => Some(target),
                None => self.resolve(group).await,
            };
            let Some(resolved) = resolved else { return };
            let is_same_host = match self.request.target {
                CopyLocation::Remote { host, .. } => group.host() == Some(host),
                CopyLocation::Local(_) => false,
            };
            let avoided = Some(resolved.onto()).filter(|_| is_same_host);
            self.engine.avoid_target(avoided).await;
            self.engine.settle_far().await;
            self.engine.search_target().await;
            self.copy_group(group, &resolved).await;
            self.engine.end_source();
            target = Some(resolved);
        }
    }

    /// Resolves the target for its first sources. Returns `None`, after reporting it, if they cannot
    /// be copied there.
    async fn resolve(&mut self, group: &SourceGroup) -> Option<ResolvedTarget> {
        let path = match &self.request.target {
            CopyLocation::Local(path) => path.as_os_str().as_bytes().to_vec(),
            CopyLocation::Remote { path, .. } => {
                home::path_at_server(&mut self.engine, CopySide::Target, path).await?
            }
        };
        if let Some(onto) = self.engine.keeper_mut().onto_before(&path)
            && still_leads_there(&mut self.engine, &onto).await
        {
            self.engine.context_mut().name_target(&onto);
            return Some(ResolvedTarget::resolved_before(onto));
        }
        let mut resolver = TargetResolver::new(&mut self.engine, group, self.many);
        let resolved = resolver.resolve(path).await?;
        self.engine.context_mut().name_target(resolved.onto());
        self.engine.note_resolved(resolved.onto());
        Some(resolved)
    }

    async fn copy_group(&mut self, group: &SourceGroup, target: &ResolvedTarget) {
        let mut roots = VecDeque::new();
        for found in group.found() {
            let onto = match group.host() {
                Some(_) => target.place_for(&mut self.engine, found.len()).await,
                None => Some(target.onto().clone()),
            };
            let Some(onto) = onto else { return };
            self.engine.avoid_itself(found, &onto).await;
            let root = |path: &Vec<u8>| SourceRoot {
                path: path.clone(),
                onto: onto.clone(),
            };
            roots.extend(found.iter().map(root));
        }
        self.engine.copy_roots(roots).await;
    }
}
