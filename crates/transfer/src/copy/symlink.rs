//! Symlinks that are copied as symlinks.

use schedule::{Attributes, ExpectedEntry, JobKind, RemotePath};

use super::context::CopyContext;
use super::jobs::JobPurpose;
use super::metadata::MetadataPreservation;
use super::sides::CopySide;
use super::tree::ItemAwaitingDirectory;
use crate::file_error::FileError;
use crate::report::CopyEvent;

/// State of a symlink that is copied: a server was asked, it was made or failed, or it is left out.
#[derive(Debug)]
pub(super) enum SymlinkCopyState {
    /// A server was asked.
    Asked,
    /// The symlink was made or has failed, at this end.
    Over(ItemAwaitingDirectory, Result<(), FileError>, CopySide),
    /// `--safe-links` leaves it out.
    LeftOut(ItemAwaitingDirectory),
}

/// Begin of the error about an entry that the symlink could not replace.
const REPLACING: &str = "cannot replace the entry there";

/// Symlink that the server of the target did not make, and what stands there.
#[derive(Debug)]
pub(super) struct RefusedSymlink {
    pub held: ItemAwaitingDirectory,
    error: FileError,
    /// Contents of the symlink that is there, once it was read.
    pub found: Option<Vec<u8>>,
}

impl RefusedSymlink {
    /// Asks for the symlink that may stand there. A server that renames nothing replaces none, and an
    /// equal one needs no replacement.
    pub(super) fn ask(
        context: &mut CopyContext<'_>,
        held: ItemAwaitingDirectory,
        error: FileError,
    ) {
        let path = RemotePath(held.target.clone());
        let refused = Self {
            held,
            error,
            found: None,
        };
        let purpose = JobPurpose::ReadRefusedSymlink(Box::new(refused));
        context.submit(CopySide::Target, JobKind::ReadSymlink { path }, purpose);
    }

    /// Returns the symlink with its result: success if an equal one is there. An error that names a
    /// temporary that was left stays one.
    pub(super) fn compare(self) -> (ItemAwaitingDirectory, Result<(), FileError>) {
        let is_equal = self.found.is_some() && self.found == self.held.points_to;
        match is_equal && !self.error.may_leave_temporary() {
            true => (self.held, Ok(())),
            false => (self.held, Err(self.error)),
        }
    }
}

/// [`SymlinkCopyState::begin`] or [`SymlinkCopyState::make`].
pub(super) type SymlinkStep = fn(
    &mut CopyContext<'_>,
    &mut MetadataPreservation,
    ItemAwaitingDirectory,
    bool,
) -> SymlinkCopyState;

impl SymlinkCopyState {
    /// Reads the symlink at the source, and makes it if the source is on this machine.
    /// `is_top_level` tells if the command's target holds it.
    pub(super) fn begin(
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        held: ItemAwaitingDirectory,
        is_top_level: bool,
    ) -> Self {
        if context.source_is_remote() {
            let path = RemotePath(held.entry.path.clone());
            context.submit(
                CopySide::Source,
                JobKind::ReadSymlink { path },
                JobPurpose::ReadSymlink(Box::new(held)),
            );
            return Self::Asked;
        }
        match context.local().read_link(&held.entry.path) {
            Ok(path) => {
                let points_to = Some(path);
                let held = ItemAwaitingDirectory { points_to, ..held };
                Self::make(context, metadata, held, is_top_level)
            }
            Err(error) => Self::Over(held, Err(error), CopySide::Source),
        }
    }

    /// Makes a symlink that was read.
    pub(super) fn make(
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        held: ItemAwaitingDirectory,
        is_top_level: bool,
    ) -> Self {
        if context.keeps_foreign_links()
            && !context.named_mut().may_link(&held.target, is_top_level)
        {
            let error = "another source of this copy has the same target".into();
            return Self::Over(held, Err(error), CopySide::Target);
        }
        let points_to = held.points_to.clone().unwrap_or_default();
        let below = context.named().rest_of(&held.target).unwrap_or_default();
        let shown = || context.shown(CopySide::Target, &held.target);
        if context.options().safe_links
            && metadata
                .withheld()
                .leaves_link_out(below, &points_to, shown)
        {
            return Self::LeftOut(held);
        }
        if context.target_is_remote() {
            let path = RemotePath(held.target.clone());
            let tag = context.link_tag(&held.target);
            let kind = JobKind::MakeSymlink {
                path,
                points_to,
                tag,
            };
            context.submit(
                CopySide::Target,
                kind,
                JobPurpose::MakeSymlink(Box::new(held)),
            );
            return Self::Asked;
        }
        let attributes = kept_attributes(metadata, &held);
        let path = context.named().local_path(&held.target);
        let made = context.local().make_symlink(&path, &points_to, &attributes);
        Self::Over(held, made, CopySide::Target)
    }

    /// Reports a symlink that was made or has failed at `end`. The times of one at the far end are
    /// set now; a local symlink got them when it was made.
    pub(super) fn report(
        context: &mut CopyContext<'_>,
        metadata: &MetadataPreservation,
        held: &ItemAwaitingDirectory,
        result: Result<(), FileError>,
        end: CopySide,
    ) {
        let name = match end {
            CopySide::Source => context.shown(end, &held.entry.path),
            CopySide::Target => context.shown(end, &held.target),
        };
        if let Err(error) = result {
            let what = match end {
                CopySide::Source => "cannot read the symlink",
                CopySide::Target => "cannot make the symlink",
            };
            // A server's refusal of a later step says so already.
            let is_said = error.what().starts_with(what) || error.what().starts_with(REPLACING);
            let error = match is_said {
                true => error,
                false => error.with_prefix(what),
            };
            return context.fail(None, name, error);
        }
        context.summary_mut().symlinks += 1;
        let attributes = kept_attributes(metadata, held);
        if context.target_is_remote() && attributes.times.is_some() {
            let kind = JobKind::SetAttributes {
                path: RemotePath(held.target.clone()),
                attributes,
                follow: false,
                xattrs: None,
                expected: ExpectedEntry::SYMLINK,
            };
            context.submit(CopySide::Target, kind, JobPurpose::SymlinkTimes);
        }
        context.tell(CopyEvent::SymlinkDone { target: name });
    }
}

/// Attributes of a symlink that are kept.
fn kept_attributes(metadata: &MetadataPreservation, held: &ItemAwaitingDirectory) -> Attributes {
    let source = held.entry.attributes;
    Attributes {
        times: source.times,
        nanoseconds: source.nanoseconds,
        owner: source.owner.filter(|_| metadata.sets_owners()),
        ..Attributes::default()
    }
}
