//! Removes what an interrupted run has left of a copy that will not be resumed.

use std::os::unix::ffi::OsStrExt as _;

use super::super::engine::CopyEngine;
use super::super::source::TargetPath;
use super::super::{CopyLocation, CopyRequest};

impl CopyEngine<'_> {
    /// Removes the local temporaries and the journal of an interrupted run of this copy.
    pub(in crate::copy) async fn discard(mut self, request: CopyRequest) {
        let CopyLocation::Local(target) = &request.target else {
            return;
        };
        // Only paths below the named target are opened.
        let target = target.as_os_str().as_bytes().to_vec();
        self.name_target(&TargetPath::Exactly(target));
        if !self.find_journal(&request).await {
            return;
        }
        let Some(log) = self.keeper.log.take() else {
            return;
        };
        let files: Vec<_> = self
            .keeper
            .state
            .unfinished()
            .map(|(_, entry)| (self.ports.named().local_path(&entry.target), entry.tag))
            .collect();
        self.local().sweep_temporaries(&files);
        log.remove();
    }
}
