//! Resolves the sources and the target from the command line into roots.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use schedule::{JobKind, RemotePath};
use sftp::pattern::{self, PathComponent};

use super::engine::{CopyEngine, CopySide};
use super::equal_names::{SeenSourceNames, SourceOperand};
use super::inquiry::Inquiry;
use super::jobs::{MOST_MATCHED, PatternListingFilter, QueryAnswer};
use super::local_ops::LocalStat;
use super::names::{RemotePathForm, written};
use super::self_copy::{MachineProbe, SelfCopyRules};
use super::sides::RemoteSide;
use super::source::{SourceRoot, TargetPath};
use super::target_kind::{ReportedTargetKind, is_directory_by_name};
use super::transfer_estimate;
use super::{CopyLocation, CopyRequest, HostId, TargetDirectory};
use crate::connect::ConnectError;
use crate::report::EscapedName;
use crate::walk::{join, local_path, refused_name};

/// Target of the copy, queried as far as needed.
struct ResolvedTarget {
    onto: TargetPath,
    /// The target exists and is not a directory.
    is_file: bool,
}

/// Consecutive sources at the same end.
struct SourceGroup {
    host: Option<HostId>,
    /// Paths as the user wrote them.
    paths: Vec<Vec<u8>>,
    /// Matches of each path.
    found: Vec<Vec<Vec<u8>>>,
    /// Session with the host, if the paths had to be expanded there.
    side: Option<RemoteSide>,
}

impl SourceGroup {
    /// True if the host must expand the paths.
    fn has_patterns(&self) -> bool {
        let asks = |path: &Vec<u8>| match written(path) {
            RemotePathForm::Plain(path) => pattern::parse(&path).is_some(),
            RemotePathForm::Home { .. } => true,
        };
        self.host.is_some() && self.paths.iter().any(asks)
    }

    fn sources(&self) -> impl Iterator<Item = SourceOperand> {
        let host = self.host;
        let found = self.found.iter().flatten();
        found.map(move |path| SourceOperand {
            host,
            path: path.clone(),
        })
    }
}

impl CopyEngine<'_> {
    /// Notes the command's target.
    pub(super) fn name_target(&mut self, onto: &TargetPath) {
        self.ports.named_mut().set(onto);
        // With --keep-dirlinks symlinks to directories are wanted.
        if !self.options.keep_dirlinks {
            self.hold_root(self.ports.named().path().to_vec());
            if let Some(dir) = &self.options.temp_dir {
                self.hold_root(dir.path().to_vec());
            }
        }
        if let (false, Some(dir)) = (self.target_is_remote(), &self.options.temp_dir) {
            let path = local_path(dir.path());
            self.local().keep_temporaries_in(path);
        }
    }

    /// Runs the whole request.
    pub(super) async fn run(&mut self, request: CopyRequest) {
        let many = request.sources.len() > 1;
        let mut groups = group(request.sources.clone());
        let operands = groups.iter().flat_map(|group| {
            let host = group.host;
            group.paths.iter().map(move |path| SourceOperand {
                host,
                path: path.clone(),
            })
        });
        if many && !self.operands_differ(&operands.collect::<Vec<_>>()) {
            return;
        }
        if !self.keeper.find(&mut self.ports, &request).await {
            return;
        }
        let only_local = groups.iter().all(|g| g.host.is_none());
        if only_local && !self.some_source_is_there(&groups) {
            return;
        }
        let target_host = match &request.target {
            CopyLocation::Remote { host, .. } => {
                let here = groups.iter().filter(|g| g.host.is_none());
                let paths: Vec<Vec<u8>> = here.flat_map(|g| g.paths.clone()).collect();
                let recursive = self.options.recursive || self.options.archive;
                let counting = self.environment.count(&paths, recursive);
                match self.connect_to(*host, Some(counting.coming())) {
                    Ok(side) => {
                        self.ports.sides_mut().set(CopySide::Target, Some(side));
                        self.estimates.begin(self.ports.sides(), counting);
                    }
                    Err(why) => {
                        self.ports.end_with(why);
                        return;
                    }
                }
                Some(*host)
            }
            CopyLocation::Local(_) => None,
        };
        self.ask_for_boot().await;
        self.keeper.tell_resumed(&mut self.ports);
        if !self.verify.begin_manifest(&mut self.ports) {
            return;
        }
        if self.expand_all(&mut groups, &request.target).await {
            self.copy_groups(&mut groups, &request.target, target_host, many)
                .await;
        }
        // End the sessions that only expanded patterns.
        for side in groups.into_iter().filter_map(|group| group.side) {
            self.ports.sides_mut().set(CopySide::Source, Some(side));
            self.end(CopySide::Source);
        }
        if !self.stopped() {
            self.report_missing();
            self.clear_leftovers().await;
            if self.keeper.request_seal(&mut self.ports) {
                self.copy().await;
            }
        }
    }

    /// Has a longhaul at the remote target follow no symlink below `root`, which the user named.
    pub(super) fn hold_root(&self, root: Vec<u8>) {
        if let Some(side) = self.side(CopySide::Target) {
            side.session().hold_root(RemotePath(root));
        }
    }

    /// Reports the names of `--files-from` that no source has.
    fn report_missing(&mut self) {
        if self.stopped() {
            return;
        }
        for name in self.walks.missing() {
            let name = self.shown(CopySide::Source, &name);
            let what = match self.options.recursive || self.options.archive {
                true => "listed in --files-from, but not found in any source: correct the list",
                false => {
                    "listed in --files-from, but not found at the top of a source; directories \
                     need -r"
                }
            };
            self.fail(None, name, what.to_owned());
        }
    }

    /// Expands the patterns of all sources before anything is copied. Returns false if there is
    /// nothing to copy.
    async fn expand_all(&mut self, groups: &mut Vec<SourceGroup>, target: &CopyLocation) -> bool {
        let alone = groups.len() == 1;
        let mut named = SeenSourceNames::default();
        for group in &mut *groups {
            if let Some(host) = group.host
                && (alone || group.has_patterns())
            {
                match self.connect_to(host, None) {
                    Ok(side) => self.ports.sides_mut().set(CopySide::Source, Some(side)),
                    Err(why) if alone => {
                        self.ports.end_with(why);
                        return false;
                    }
                    Err(why) => {
                        // Like scp, continue with the sources on other hosts.
                        self.fail_group(host, group, &why.to_string());
                        continue;
                    }
                }
            }
            for path in group.paths.clone() {
                let matches = match group.host {
                    Some(_) => self.expand(&path).await.unwrap_or_default(),
                    None => vec![path],
                };
                let host = group.host;
                // Names that are left out may be equal.
                let selected = |path: &Vec<u8>| {
                    if self.leaves_out(path) {
                        self.ports.summary_mut().excluded += 1;
                        return false;
                    }
                    let path = path.clone();
                    self.is_first(&mut named, SourceOperand { host, path })
                };
                group
                    .found
                    .push(matches.into_iter().filter(selected).collect());
            }
            group.side = self.ports.sides_mut().take(CopySide::Source);
            if self.stopped() {
                return false;
            }
        }
        let all: Vec<SourceOperand> = groups.iter().flat_map(SourceGroup::sources).collect();
        if all.is_empty() {
            return false;
        }
        let differ = self.names_differ(&all, target);
        self.environment.admit(&self.named_sources(&all), differ)
    }

    async fn copy_groups(
        &mut self,
        groups: &mut [SourceGroup],
        to: &CopyLocation,
        target_host: Option<HostId>,
        many: bool,
    ) {
        let alone = groups.len() == 1;
        let mut target = None;
        for group in groups {
            if self.stopped() {
                return;
            }
            if group.found.iter().all(Vec::is_empty) {
                continue;
            }
            self.ports
                .sides_mut()
                .set(CopySide::Source, group.side.take());
            if let Some(host) = group.host.filter(|_| !self.source_is_remote()) {
                match self.connect_to(host, None) {
                    Ok(side) => self.ports.sides_mut().set(CopySide::Source, Some(side)),
                    Err(why) if alone => {
                        self.ports.end_with(why);
                        return;
                    }
                    Err(why) => {
                        self.fail_group(host, group, &why.to_string());
                        continue;
                    }
                }
            }
            let resolved = match target.take() {
                Some(target) => Some(target),
                None => self.resolve(to, group, many).await,
            };
            let Some(resolved) = resolved else { return };
            self.avoid_target(&resolved, group.host, target_host).await;
            self.settle_far().await;
            self.copy_group(group, &resolved).await;
            self.hard_links.forget();
            self.end(CopySide::Source);
            target = Some(resolved);
        }
    }

    pub(super) fn connect_to(
        &self,
        host: HostId,
        coming: Option<transfer_estimate::TransferEstimate>,
    ) -> Result<RemoteSide, ConnectError> {
        let connected = self.environment.connect(host, coming)?;
        Ok(RemoteSide::new(
            connected,
            host,
            self.environment.name(host),
        ))
    }

    fn fail_group(&mut self, host: HostId, group: &SourceGroup, why: &str) {
        for path in &group.paths {
            let host = self.environment.name(host);
            let name = EscapedName([host.as_bytes(), b":", path.as_slice()].concat());
            self.fail(None, name, why.to_owned());
        }
    }

    /// Returns true if any local source exists. Otherwise reports each missing one, without
    /// connecting.
    fn some_source_is_there(&mut self, groups: &[SourceGroup]) -> bool {
        let paths: Vec<&Vec<u8>> = groups.iter().flat_map(|g| &g.paths).collect();
        let local = self.local();
        if paths.iter().any(|path| local.stat(path).is_ok()) {
            return true;
        }
        for path in paths {
            if let Err(what) = local.stat(path) {
                let name = self.shown(CopySide::Source, path);
                self.fail(None, name, what);
            }
        }
        false
    }

    async fn copy_group(&mut self, group: &SourceGroup, target: &ResolvedTarget) {
        let mut roots = VecDeque::new();
        for found in &group.found {
            let onto = match group.host {
                Some(_) => self.place_for(found.len(), target),
                None => Some(target.onto.clone()),
            };
            let Some(onto) = onto else { return };
            let root = |path: &Vec<u8>| SourceRoot {
                path: path.clone(),
                onto: onto.clone(),
            };
            let avoids = self.walks.avoids();
            let rules = SelfCopyRules::new(self.options, avoids);
            let overlaps = MachineProbe::new(self)
                .avoid_itself(rules, found, &onto)
                .await;
            self.walks.note_overlaps(overlaps);
            roots.extend(found.iter().map(root));
        }
        self.walks.begin_with(roots);
        self.copy().await;
    }

    /// Decides the target of `found` matches. Several matches need a directory, which is made if
    /// nothing exists there.
    fn place_for(&mut self, found: usize, target: &ResolvedTarget) -> Option<TargetPath> {
        match &target.onto {
            TargetPath::Exactly(path) if found > 1 => {
                let what = if target.is_file {
                    "several files match, but the target is not a directory: name a directory"
                        .to_owned()
                } else if self.target_is_remote() {
                    "several files match, but the target directory does not exist: create it first"
                        .to_owned()
                } else {
                    match self.local().create_dir(&local_path(path)) {
                        Ok(_) => return Some(TargetPath::Into(path.clone())),
                        Err(what) => format!("cannot create the directory: {what}"),
                    }
                };
                let name = self.shown(CopySide::Target, path);
                self.fail(None, name, what);
                None
            }
            onto => Some(onto.clone()),
        }
    }

    async fn resolve(
        &mut self,
        target: &CopyLocation,
        group: &SourceGroup,
        many: bool,
    ) -> Option<ResolvedTarget> {
        let path = match target {
            CopyLocation::Local(path) => path.as_os_str().as_bytes().to_vec(),
            CopyLocation::Remote { path, .. } => self.written(CopySide::Target, path).await?,
        };
        if let Some(onto) = self.keeper.onto_before(&path) {
            self.name_target(&onto);
            let is_file = false;
            return Some(ResolvedTarget { onto, is_file });
        }
        let resolved = match target {
            CopyLocation::Local(_) => self.resolve_local(path, many),
            CopyLocation::Remote { .. } => self.resolve_remote(path, group, many).await,
        }?;
        self.name_target(&resolved.onto);
        self.keeper.note_onto(&mut self.ports, &resolved.onto);
        Some(resolved)
    }

    fn resolve_local(&mut self, bytes: Vec<u8>, many: bool) -> Option<ResolvedTarget> {
        let there = self.local().stat(&bytes);
        let is_dir = there.as_ref().is_ok_and(LocalStat::is_directory);
        let wanted = self.options.target_directory;
        if wanted == TargetDirectory::Created && !is_dir {
            return match self.create_target(&bytes) {
                Ok(()) => Some(ResolvedTarget {
                    is_file: false,
                    onto: TargetPath::Into(bytes),
                }),
                Err(what) => {
                    let name = self.shown(CopySide::Target, &bytes);
                    self.fail(None, name, what);
                    None
                }
            };
        }
        let many = many || wanted == TargetDirectory::Existing;
        if many && !is_dir {
            let what = match there {
                Ok(_) => "not a directory".to_owned(),
                Err(what) => what,
            };
            let name = self.shown(CopySide::Target, &bytes);
            self.fail(None, name, what);
            return None;
        }
        let is_missing = there.is_err() && !self.local().exists(&local_path(&bytes));
        self.ports.named_mut().set_missing(is_missing && !many);
        Some(ResolvedTarget {
            is_file: there.is_ok() && !is_dir,
            onto: if is_dir {
                TargetPath::Into(bytes)
            } else {
                TargetPath::Exactly(bytes)
            },
        })
    }

    /// Makes the target directory, and its parent. Several copies may do so at the same time.
    fn create_target(&self, target: &[u8]) -> Result<(), String> {
        let local = self.local();
        let path = local_path(target);
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        for directory in parent.into_iter().chain([path.as_path()]) {
            let bytes = directory.as_os_str().as_bytes();
            if local.stat(bytes).is_ok_and(|stat| stat.is_directory()) {
                continue;
            }
            let made = local.create_dir(directory);
            made.map_err(|what| format!("cannot create the directory: {what}"))?;
            if !local.stat(bytes)?.is_directory() {
                return Err("not a directory".to_owned());
            }
        }
        Ok(())
    }

    async fn resolve_remote(
        &mut self,
        path: Vec<u8>,
        group: &SourceGroup,
        many: bool,
    ) -> Option<ResolvedTarget> {
        if !many
            && let ([source], None) = (&group.paths[..], group.host)
            && self.local().stat(source).is_ok_and(|stat| stat.is_file())
        {
            let (onto, is_file) = (TargetPath::Guess(path), false);
            return Some(ResolvedTarget { onto, is_file });
        }
        let is = self.look_at(CopySide::Target, &path).await;
        if self.stopped() {
            return None;
        }
        self.ports
            .named_mut()
            .set_missing(!many && is == ReportedTargetKind::Missing);
        let onto = match is {
            ReportedTargetKind::Directory => TargetPath::Into(path),
            ReportedTargetKind::Missing if many && group.host.is_none() => {
                // Like scp, make the directory into which several files are copied.
                let kind = JobKind::MakeDir {
                    path: RemotePath(path.clone()),
                    mode: 0o777,
                    follow: true,
                };
                if let Err(what) = self.ask(CopySide::Target, kind).await {
                    let name = self.shown(CopySide::Target, &path);
                    self.fail(None, name, format!("cannot create the directory: {what}"));
                    return None;
                }
                TargetPath::Into(path)
            }
            _ if many => {
                let name = self.shown(CopySide::Target, &path);
                self.fail(None, name, "not a directory".to_owned());
                return None;
            }
            _ => TargetPath::Exactly(path),
        };
        let is_file = is == ReportedTargetKind::SomethingElse;
        Some(ResolvedTarget { onto, is_file })
    }

    /// Returns the path to send to the server, which is only queried to expand `~user`.
    async fn written(&mut self, end: CopySide, path: &[u8]) -> Option<Vec<u8>> {
        match written(path) {
            RemotePathForm::Plain(path) => Some(path),
            RemotePathForm::Home { user, below } => {
                let home = self.home_of(end, user).await?;
                Some(in_home(&home, &below))
            }
        }
    }

    /// Asks the server for the home directory of `~user`. Only this part of a path is the server's
    /// to choose: an answer for the whole path would choose local names as well (CVE-2019-6111).
    pub(super) async fn home_of(&mut self, end: CopySide, user: Vec<u8>) -> Option<Vec<u8>> {
        let kind = JobKind::RealPath {
            path: RemotePath(user.clone()),
        };
        let answer = self.ask(end, kind).await.map(QueryAnswer::into_path);
        let what = match answer {
            Ok(None) => return Some(user),
            Ok(Some(home)) if home.starts_with(b"/") && !home.contains(&0) => return Some(home),
            Ok(Some(_)) => "the server answered with a path that is not absolute".to_owned(),
            Err(what) => what,
        };
        let name = self.shown(end, &user);
        self.fail(None, name, what);
        None
    }

    /// Notes a target on the source's host, so that a tree is not copied into itself.
    async fn avoid_target(
        &mut self,
        target: &ResolvedTarget,
        source: Option<HostId>,
        host: Option<HostId>,
    ) {
        self.walks.forget_overlaps();
        if source.is_none() || source != host {
            return;
        }
        let (path, into) = match &target.onto {
            TargetPath::Into(path) => (path, true),
            TargetPath::Exactly(path) | TargetPath::Guess(path) => (path, false),
        };
        let kind = JobKind::RealPath {
            path: RemotePath(path.clone()),
        };
        if let Ok(asked) = self.ask(CopySide::Target, kind).await
            && let Some(path) = asked.into_path()
        {
            self.walks.avoid(path, into);
        }
    }

    /// Expands the patterns of a remote source. Returns `None`, after reporting it, if nothing
    /// matches.
    async fn expand(&mut self, path: &[u8]) -> Option<Vec<Vec<u8>>> {
        let (home, path) = match written(path) {
            RemotePathForm::Plain(path) => (None, path),
            RemotePathForm::Home { user, below } => {
                (Some(self.home_of(CopySide::Source, user).await?), below)
            }
        };
        // The server's answer is taken literally; only the user's part may have patterns.
        let literal = |path: &[u8]| match &home {
            Some(home) => in_home(home, &pattern::unescape(path)),
            None => pattern::unescape(path),
        };
        let Some(components) = pattern::parse(&path) else {
            return Some(vec![literal(&path)]);
        };
        let mut found = vec![home.clone().unwrap_or_default()];
        let last = components.len() - 1;
        let mut matched = false;
        for (at, component) in components.into_iter().enumerate() {
            found = match component {
                PathComponent::Name(name) if at == 0 && name.is_empty() => vec![b"/".to_vec()],
                PathComponent::Name(name) => {
                    let below = found.into_iter().map(|dir| join(&dir, &name)).collect();
                    if matched {
                        self.those_there(below).await
                    } else {
                        below
                    }
                }
                PathComponent::Pattern(pattern) => {
                    matched = true;
                    self.matches(found, &pattern, at < last).await?
                }
            };
        }
        if found.is_empty() && !self.stopped() {
            // Like GLOB_NOCHECK of glob(3): a file may have this literal name.
            let itself = literal(&path);
            if self.look_at(CopySide::Source, &itself).await != ReportedTargetKind::Missing {
                return Some(vec![itself]);
            }
            let name = self.shown(CopySide::Source, &path);
            self.fail(None, name, "no such file or directory".to_owned());
            return None;
        }
        Some(found)
    }

    /// Names in `dirs` that match `pattern`. Returns `None`, after reporting it, if a listing does
    /// not end.
    async fn matches(
        &mut self,
        dirs: Vec<Vec<u8>>,
        pattern: &pattern::NamePattern,
        only_dirs: bool,
    ) -> Option<Vec<Vec<u8>>> {
        let mut found = Vec::new();
        for dir in dirs {
            let path = if dir.is_empty() {
                b".".to_vec()
            } else {
                dir.clone()
            };
            let wanted = PatternListingFilter::new(pattern.clone(), only_dirs);
            let answer = self.ask_names(CopySide::Source, path.clone(), wanted).await;
            let mut asked = match answer {
                Ok(asked) => asked,
                Err(what) if is_endless(&what) => {
                    let name = self.shown(CopySide::Source, &path);
                    self.fail(None, name, what);
                    return None;
                }
                // As in glob(3), a directory that cannot be read matches nothing.
                Err(_) => continue,
            };
            for name in asked.take_left_out() {
                let shown = self.shown(CopySide::Source, &path);
                self.fail(None, shown, schedule::left_out(&name));
            }
            // Each name is kept with its directory in front.
            if !self.ports.jobs_mut().may_match(asked.bytes_below(&dir)) {
                let name = self.shown(CopySide::Source, &path);
                let what = format!(
                    "the patterns match too many names (over {} MiB): copy the directory with -r",
                    MOST_MATCHED >> 20
                );
                self.fail(None, name, what);
                return None;
            }
            let mut names = asked.into_names();
            names.sort();
            names.dedup();
            names.retain(|name| self.may_be_copied(&dir, name));
            found.extend(names.iter().map(|name| join(&dir, name)));
        }
        Some(found)
    }

    /// Returns false, after reporting it, for a name that longhaul reserves for its own files.
    fn may_be_copied(&mut self, dir: &[u8], name: &[u8]) -> bool {
        let Some(what) = refused_name(name) else {
            return true;
        };
        let path = self.shown(CopySide::Source, &join(dir, name));
        self.fail(None, path, what.to_owned());
        false
    }

    async fn those_there(&mut self, paths: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut there = Vec::new();
        for path in paths {
            // `pattern/` matches directories only.
            let by_name = is_directory_by_name(&path);
            match self.look_at(CopySide::Source, &path).await {
                ReportedTargetKind::Missing => {}
                ReportedTargetKind::SomethingElse if by_name => {}
                _ => there.push(path),
            }
        }
        there
    }
}

/// True if a listing was ended because it would never have completed.
fn is_endless(what: &str) -> bool {
    [
        schedule::TOO_MANY_NAMES,
        schedule::REPEATED_NAMES,
        schedule::IMPOSSIBLE_NAMES,
    ]
    .contains(&what)
}

fn group(sources: Vec<CopyLocation>) -> Vec<SourceGroup> {
    let mut groups: Vec<SourceGroup> = Vec::new();
    for source in sources {
        let (host, path) = match source {
            CopyLocation::Local(path) => (None, path.as_os_str().as_bytes().to_vec()),
            CopyLocation::Remote { host, path } => (Some(host), path),
        };
        match groups.last_mut() {
            Some(group) if group.host == host => group.paths.push(path),
            _ => groups.push(SourceGroup {
                host,
                paths: vec![path],
                found: Vec::new(),
                side: None,
            }),
        }
    }
    groups
}

/// Path of `below` in a home directory; its contents (`.`) where `below` is empty.
pub(super) fn in_home(home: &[u8], below: &[u8]) -> Vec<u8> {
    match below.is_empty() {
        true => join(home, b"."),
        false => join(home, below),
    }
}
