//! Extended attributes and access control lists: read at the source before a file starts, or while
//! a directory is filled.

use schedule::{JobKind, MetadataFlags, RemotePath, Xattrs};
use sftp::xattrs::Xattr;

use super::engine::{CopyEngine, CopySide, JobPurpose};
use super::file::FileId;
use super::metadata::STOCK;
use super::tree::DirKey;

impl CopyEngine<'_> {
    /// Selects which of the two kinds are kept.
    pub(super) fn xattr_kinds(&self) -> MetadataFlags {
        MetadataFlags::default()
            .with(MetadataFlags::XATTRS, self.options.xattrs)
            .with(MetadataFlags::ACLS, self.options.acls)
    }

    /// Requests the extended attributes of a file if they are kept. Returns false if there is no
    /// answer to wait for.
    pub(super) fn ask_file_xattrs(&mut self, id: FileId) -> bool {
        let Some(task) = self.files.get_mut(&id) else {
            return false;
        };
        if !task.begins_xattrs() {
            return false;
        }
        let source = task.source().to_vec();
        self.ask_xattrs(&source, true, JobPurpose::FileXattrs(id))
    }

    /// Requests the extended attributes of a directory, which is not finished before the answer.
    pub(super) fn ask_dir_xattrs(&mut self, key: DirKey, source: &[u8]) {
        // A symlink to a directory is followed, as it is for the directory's contents.
        if self.ask_xattrs(source, true, JobPurpose::DirXattrs(key)) {
            self.tree.waits_for_more(key);
        }
    }

    /// Reads the extended attributes of a source. Returns true if the answer comes later; local
    /// ones are read at once.
    fn ask_xattrs(&mut self, source: &[u8], follow: bool, purpose: JobPurpose) -> bool {
        let kinds = self.xattr_kinds();
        if kinds.is_empty() {
            return false;
        }
        if self.source_is_remote() {
            let flags = kinds.with(MetadataFlags::FOLLOW, follow);
            let path = RemotePath(source.to_vec());
            let kind = JobKind::GetXattrs { path, flags };
            return self.can.tell_xattrs && self.submit(CopySide::Source, kind, purpose).is_some();
        }
        match (self.local().xattrs(source, kinds), purpose) {
            (Ok(list), JobPurpose::FileXattrs(id)) => self.on_file_xattrs(id, list),
            (Ok(list), JobPurpose::DirXattrs(key)) => self.on_dir_xattrs(key, list),
            (Err(why), _) => self.on_no_xattrs(&why),
            (Ok(_), _) => {}
        }
        false
    }

    pub(super) fn on_file_xattrs(&mut self, id: FileId, list: Vec<Xattr>) {
        let xattrs = self.takeable(list);
        if let Some(task) = self.files.get_mut(&id) {
            task.set_xattrs(xattrs);
        }
    }

    pub(super) fn on_dir_xattrs(&mut self, key: DirKey, list: Vec<Xattr>) {
        let xattrs = self.takeable(list);
        self.tree.has_xattrs(key, xattrs);
    }

    /// Notes that extended attributes could not be read.
    pub(super) fn on_no_xattrs(&mut self, why: &str) {
        let kinds = self.xattr_kinds();
        let parts = schedule::Parts::default()
            .with(
                schedule::Parts::XATTRS,
                kinds.contains(MetadataFlags::XATTRS),
            )
            .with(schedule::Parts::ACLS, kinds.contains(MetadataFlags::ACLS));
        self.on_not_kept(parts, why);
    }

    /// Filters the extended attributes that the target can set.
    fn takeable(&mut self, mut list: Vec<Xattr>) -> Option<Box<Xattrs>> {
        let kinds = self.xattr_kinds();
        let rules = self.special_bits();
        self.withheld.without_capabilities(rules, &mut list, kinds);
        let xattrs = Xattrs { kinds, list };
        if !self.can.take_xattrs && self.target_is_remote() {
            self.on_not_kept(xattrs.parts(), STOCK);
            return None;
        }
        if !sftp::xattrs::fits(&xattrs.list) {
            let why = "they exceed the size of an SFTP message";
            self.on_not_kept(xattrs.parts(), why);
            return None;
        }
        Some(Box::new(xattrs))
    }
}
