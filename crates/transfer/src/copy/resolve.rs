//! Resolves the target from the command line.

use std::path::Path;

use schedule::{EntryKind, JobKind, RemotePath};

use super::TargetDirectory;
use super::context::CopyContext;
use super::local::without_parent;
use super::local_file_ops::LocalStat;
use super::server_inquiry::ServerInquiry;
use super::sides::CopySide;
use super::source::TargetPath;
use super::source_group::SourceGroup;
use super::target_kind::ReportedTargetKind;
use crate::file_error::FileError;
use crate::walk::local_path;

/// Target of the copy, queried as far as needed.
pub(super) struct ResolvedTarget {
    onto: TargetPath,
    /// The target exists and is not a directory.
    is_file: bool,
}

impl ResolvedTarget {
    /// Target as an earlier run of this copy has resolved it.
    pub(super) fn resolved_before(onto: TargetPath) -> Self {
        let is_file = false;
        Self { onto, is_file }
    }

    /// Target path of the sources.
    pub(super) fn onto(&self) -> &TargetPath {
        &self.onto
    }

    /// Decides the target of `found` matches. Several matches need a directory, which is made if
    /// nothing exists there.
    pub(super) async fn place_for<'a>(
        &self,
        inquiry: &mut impl ServerInquiry<'a>,
        found: usize,
    ) -> Option<TargetPath> {
        match &self.onto {
            TargetPath::Exactly(path) if found > 1 && self.is_file => {
                let what =
                    "several files match, but the target is not a directory: name a directory";
                let context = inquiry.context_mut();
                context.fail_at(CopySide::Target, path, what);
                None
            }
            TargetPath::Exactly(path) if found > 1 => make_target(inquiry, path.clone()).await,
            onto => Some(onto.clone()),
        }
    }
}

/// Failure of a file under a name with a slash at its end.
pub(super) const NOT_A_DIRECTORY: &str =
    "not a directory, although its name ends with a slash: leave out the slash";
/// Failure of a file as the target of several sources.
const NOT_FOR_SEVERAL: &str = "not a directory: several sources need a directory as the target";
const CANNOT_CREATE: &str = "cannot create the directory";

/// Makes the directory into which several sources are copied, in a parent that exists. Returns
/// `None`, after reporting it, if that fails.
async fn make_target<'a>(
    inquiry: &mut impl ServerInquiry<'a>,
    path: Vec<u8>,
) -> Option<TargetPath> {
    let made = match inquiry.context().target_is_remote() {
        true => {
            let kind = JobKind::MakeDir {
                path: RemotePath(path.clone()),
                mode: 0o777,
                // Nothing was there for the user to name.
                follow: false,
            };
            inquiry.ask(CopySide::Target, kind).await.map(drop)
        }
        false => inquiry.context().local().make_target(&local_path(&path)),
    };
    match made {
        Ok(()) => Some(TargetPath::Into(path)),
        Err(error) => {
            let error = match error.is_missing() {
                true => without_parent(),
                false => error,
            };
            let error = error.with_prefix(CANNOT_CREATE);
            inquiry
                .context_mut()
                .fail_at(CopySide::Target, &path, error);
            None
        }
    }
}

/// False if an earlier run copied into a directory that has been removed since.
pub(super) async fn still_leads_there<'a>(
    inquiry: &mut impl ServerInquiry<'a>,
    onto: &TargetPath,
) -> bool {
    let TargetPath::Into(path) = onto else {
        return true;
    };
    match inquiry.context().target_is_remote() {
        true => inquiry.look_at(CopySide::Target, path).await != Ok(ReportedTargetKind::Missing),
        false => {
            let found = inquiry.context().local().stat(path);
            !found.is_err_and(|error| error.is_missing())
        }
    }
}

/// Finds out what the target of a command is.
pub(super) struct TargetResolver<'q, Q> {
    inquiry: &'q mut Q,
    /// Sources that are copied first.
    group: &'q SourceGroup,
    /// The command names several sources.
    many: bool,
}

impl<'q, 'a, Q: ServerInquiry<'a>> TargetResolver<'q, Q> {
    pub(super) fn new(inquiry: &'q mut Q, group: &'q SourceGroup, many: bool) -> Self {
        Self {
            inquiry,
            group,
            many,
        }
    }

    fn context(&mut self) -> &mut CopyContext<'a> {
        self.inquiry.context_mut()
    }

    /// Queries the target at `path`, which the server of a remote target resolves. Returns `None`,
    /// after reporting it, if the sources cannot be copied there.
    pub(super) async fn resolve(&mut self, path: Vec<u8>) -> Option<ResolvedTarget> {
        match self.context().target_is_remote() {
            true => self.resolve_remote(path).await,
            false => self.resolve_local(path).await,
        }
    }

    async fn resolve_local(&mut self, bytes: Vec<u8>) -> Option<ResolvedTarget> {
        let there = self.context().local().stat(&bytes);
        let is_dir = there.as_ref().is_ok_and(LocalStat::is_directory);
        let wanted = self.context().options().target_directory;
        let exists = there.is_ok() || self.context().local().exists(&local_path(&bytes));
        let is_missing = there.as_ref().is_err_and(FileError::is_missing);
        // Another copy may make a shared directory at the same time.
        let makes = match wanted {
            TargetDirectory::AsInScp => self.many && is_missing,
            TargetDirectory::Shared { is_new, .. } => is_new || is_missing,
        };
        if makes {
            if let Err(error) = self.make_parent(&bytes, wanted) {
                return self.fail(&bytes, error.with_prefix(CANNOT_CREATE));
            }
            return Some(ResolvedTarget {
                onto: make_target(self.inquiry, bytes).await?,
                is_file: false,
            });
        }
        let many = self.many || wanted != TargetDirectory::AsInScp;
        if many && !is_dir {
            let error = match there {
                Ok(_) => NOT_FOR_SEVERAL.into(),
                Err(error) => error,
            };
            return self.fail(&bytes, error);
        }
        if let (Err(error), false, false) = (&there, exists, is_missing) {
            return self.fail(&bytes, error.clone());
        }
        self.context().named_mut().set_missing(!exists && !many);
        Some(ResolvedTarget {
            is_file: there.is_ok() && !is_dir,
            onto: if is_dir {
                TargetPath::Into(bytes)
            } else {
                TargetPath::Exactly(bytes)
            },
        })
    }

    /// Makes the directory that contains the target, if it is new.
    fn make_parent(&mut self, target: &[u8], wanted: TargetDirectory) -> Result<(), FileError> {
        let path = local_path(target);
        let Some(parent) = path.parent().filter(|parent| *parent != Path::new("")) else {
            return Ok(());
        };
        match wanted {
            TargetDirectory::Shared {
                parent_is_new: true,
                ..
            } => self.context().local().make_target(parent),
            TargetDirectory::AsInScp | TargetDirectory::Shared { .. } => Ok(()),
        }
    }

    /// Reports why the target cannot be used.
    fn fail(&mut self, target: &[u8], error: impl Into<FileError>) -> Option<ResolvedTarget> {
        self.context().fail_at(CopySide::Target, target, error);
        None
    }

    /// Kind of the target at a server that has refused STAT. If it refuses LSTAT too, as a place for
    /// uploads alone does, or the target is a symlink, it is written to by its name, as by scp.
    async fn look_without_following(&mut self, path: &[u8]) -> ReportedTargetKind {
        let kind = JobKind::Stat {
            path: RemotePath(path.to_vec()),
            follow: false,
        };
        let answer = self.inquiry.ask(CopySide::Target, kind).await;
        let found = answer.ok().and_then(|answer| answer.attributes());
        match found.filter(|found| found.kind() != EntryKind::Symlink) {
            Some(found) => ReportedTargetKind::of(&found),
            None => ReportedTargetKind::Missing,
        }
    }

    async fn resolve_remote(&mut self, path: Vec<u8>) -> Option<ResolvedTarget> {
        let many = self.many;
        if !many
            && let Some(source) = self.group.only_local_path()
            && self
                .context()
                .local()
                .stat(source)
                .is_ok_and(|stat| stat.is_file())
        {
            let (onto, is_file) = (TargetPath::Guess(path), false);
            return Some(ResolvedTarget { onto, is_file });
        }
        let is = self.inquiry.look_at(CopySide::Target, &path).await;
        if self.context().stopped() {
            return None;
        }
        let is = match is {
            Ok(is) => is,
            Err(_) => self.look_without_following(&path).await,
        };
        if self.context().stopped() {
            return None;
        }
        self.context()
            .named_mut()
            .set_missing(!many && is == ReportedTargetKind::Missing);
        let is_file = is == ReportedTargetKind::SomethingElse;
        let onto = match is {
            ReportedTargetKind::Directory => TargetPath::Into(path),
            // Like scp, make the directory into which several files are copied.
            ReportedTargetKind::Missing if many => make_target(self.inquiry, path).await?,
            _ if many => {
                return self.fail(&path, NOT_FOR_SEVERAL);
            }
            _ => TargetPath::Exactly(path),
        };
        Some(ResolvedTarget { onto, is_file })
    }
}
