//! Extended attributes and access control lists: read at the source before a file starts, or while
//! a directory is filled.

use std::cell::LazyCell;

use schedule::{JobKind, MetadataFlags, Parts, RemotePath, Xattrs};
use sftp::xattrs::Xattr;

use super::CopyOptions;
use super::context::CopyContext;
use super::jobs::JobPurpose;
use super::metadata::{MetadataPreservation, STOCK, special_bits};
use super::sides::CopySide;
use crate::file_error::FileError;
use crate::report::EscapedName;

/// Answer to the query for the extended attributes of a source.
#[derive(Debug)]
pub(super) enum XattrAnswer {
    /// None are kept, or none can be read.
    Unknown,
    /// The attributes to set, of a source on this machine.
    Known(Option<Box<Xattrs>>),
    /// The source's server was asked.
    Later,
}

impl MetadataPreservation {
    /// Reads the extended attributes of a source, through a symlink; local ones are read at once.
    pub(super) fn ask_xattrs(
        &mut self,
        context: &mut CopyContext<'_>,
        source: &[u8],
        purpose: JobPurpose,
    ) -> XattrAnswer {
        let kinds = xattr_kinds(context.options());
        if kinds.is_empty() {
            return XattrAnswer::Unknown;
        }
        if context.source_is_remote() {
            let flags = kinds.with(MetadataFlags::FOLLOW, true);
            let path = RemotePath(source.to_vec());
            let kind = JobKind::GetXattrs { path, flags };
            let tells = self.support().tell_xattrs;
            return match tells && context.submit(CopySide::Source, kind, purpose).is_some() {
                true => XattrAnswer::Later,
                false => XattrAnswer::Unknown,
            };
        }
        let shown = || Some(context.shown(CopySide::Source, source));
        match context.local().xattrs(source, kinds) {
            Ok(list) => XattrAnswer::Known(self.takeable(context, shown, list)),
            Err(why) => {
                self.note_unread_xattrs(context.options(), why.what(), shown);
                XattrAnswer::Unknown
            }
        }
    }

    /// Notes that extended attributes of `entry` could not be read.
    pub(super) fn note_unread_xattrs(
        &mut self,
        options: &CopyOptions,
        why: &str,
        entry: impl FnOnce() -> Option<EscapedName>,
    ) {
        let kinds = xattr_kinds(options);
        let parts = Parts::default()
            .with(Parts::XATTRS, kinds.contains(MetadataFlags::XATTRS))
            .with(Parts::ACLS, kinds.contains(MetadataFlags::ACLS));
        self.note_lost(parts, why, entry);
    }

    /// Handles the end of the query for the extended attributes of `entry`.
    pub(super) fn on_unread_xattrs(
        &mut self,
        options: &CopyOptions,
        said: Result<(), FileError>,
        entry: impl FnOnce() -> Option<EscapedName>,
    ) {
        if let Err(error) = said {
            self.note_unread_xattrs(options, error.what(), entry);
        }
    }

    /// Filters the extended attributes of `entry` that the target can set.
    pub(super) fn takeable(
        &mut self,
        context: &CopyContext<'_>,
        entry: impl FnOnce() -> Option<EscapedName>,
        mut list: Vec<Xattr>,
    ) -> Option<Box<Xattrs>> {
        let kinds = xattr_kinds(context.options());
        let rules = special_bits(context);
        let entry = LazyCell::new(entry);
        let entry = || LazyCell::force(&entry).clone();
        self.withheld()
            .without_capabilities(rules, (&mut list, kinds), entry);
        let xattrs = Xattrs { kinds, list };
        if !self.support().take_xattrs && context.target_is_remote() {
            self.note_lost(xattrs.parts(), STOCK, entry);
            return None;
        }
        if !sftp::xattrs::fits(&xattrs.list) {
            let why = "they exceed the size of an SFTP message";
            self.note_lost(xattrs.parts(), why, entry);
            return None;
        }
        Some(Box::new(xattrs))
    }
}

/// Selects which of the two kinds are kept.
pub(super) fn xattr_kinds(options: &CopyOptions) -> MetadataFlags {
    MetadataFlags::default()
        .with(MetadataFlags::XATTRS, options.xattrs)
        .with(MetadataFlags::ACLS, options.acls)
}
