//! Removes what an interrupted run has left of a copy that will not be resumed.

use super::super::engine::CopyEngine;
use super::CopyRequest;

impl CopyEngine<'_> {
    /// Removes the local temporaries and the journal of an interrupted run of this copy.
    pub(in crate::copy) async fn discard(mut self, request: CopyRequest) {
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
            .map(|(_, entry)| (self.named.local_path(&entry.target), entry.tag))
            .collect();
        self.local().sweep_temporaries(&files);
        log.remove();
    }
}
