//! Expands the patterns of a source on a host, as glob(3) does.

use schedule::JobFailureKind;
use sftp::pattern::{self, PathComponent};

use super::context::CopyContext;
use super::home::{home_of, in_home};
use super::jobs::{ListingFilter, MOST_MATCHED};
use super::names::{RemotePathForm, written};
use super::server_inquiry::ServerInquiry;
use super::sides::CopySide;
use super::target_kind::{ReportedTargetKind, is_directory_by_name};
use crate::walk::{join, refused_name};

/// Finds the files of the source's host that a pattern matches.
pub(super) struct PatternExpansion<'q, Q> {
    inquiry: &'q mut Q,
}

impl<'q, 'a, Q: ServerInquiry<'a>> PatternExpansion<'q, Q> {
    pub(super) fn new(inquiry: &'q mut Q) -> Self {
        Self { inquiry }
    }

    fn context(&mut self) -> &mut CopyContext<'a> {
        self.inquiry.context_mut()
    }

    /// Expands the patterns of a remote source. Returns `None`, after reporting it, if nothing
    /// matches.
    pub(super) async fn expand(&mut self, path: &[u8]) -> Option<Vec<Vec<u8>>> {
        let (home, path) = match written(path) {
            RemotePathForm::Plain(path) => (None, path),
            RemotePathForm::Home { user, below } => {
                let home = home_of(self.inquiry, CopySide::Source, user).await?;
                (Some(home), below)
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
        if found.is_empty() && !self.context().stopped() {
            // Like GLOB_NOCHECK of glob(3): a file may have this literal name.
            let itself = literal(&path);
            let error = match self.inquiry.look_at(CopySide::Source, &itself).await {
                Ok(ReportedTargetKind::Missing) => "no file matches this pattern".into(),
                Ok(_) => return Some(vec![itself]),
                Err(error) => error,
            };
            self.context().fail_at(CopySide::Source, &path, error);
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
            let wanted = ListingFilter::new(pattern.clone(), only_dirs);
            let answer = self
                .inquiry
                .ask_names(CopySide::Source, path.clone(), wanted)
                .await;
            let mut asked = match answer {
                Ok(asked) => asked,
                Err(error) if error.kind() == JobFailureKind::EndlessListing => {
                    self.context().fail_at(CopySide::Source, &path, error);
                    return None;
                }
                // As in glob(3), a directory that cannot be read matches nothing.
                Err(_) => continue,
            };
            for name in asked.take_left_out() {
                self.context()
                    .fail_at(CopySide::Source, &path, schedule::left_out(&name));
            }
            // Each name is kept with its directory in front.
            if !self.context().jobs_mut().may_match(asked.bytes_below(&dir)) {
                let what = format!(
                    "the patterns match too many names (over {} MiB): copy the directory with -r",
                    MOST_MATCHED >> 20
                );
                self.context().fail_at(CopySide::Source, &path, what);
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
        self.context()
            .fail_at(CopySide::Source, &join(dir, name), what);
        false
    }

    async fn those_there(&mut self, paths: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut there = Vec::new();
        for path in paths {
            // `pattern/` matches directories only.
            let by_name = is_directory_by_name(&path);
            match self.inquiry.look_at(CopySide::Source, &path).await {
                // As in glob(3), what cannot be looked up does not match.
                Ok(ReportedTargetKind::Missing) | Err(_) => {}
                Ok(ReportedTargetKind::SomethingElse) if by_name => {}
                Ok(_) => there.push(path),
            }
        }
        there
    }
}
