//! Local sources that change while they are copied.

use schedule::Attributes;

use super::engine::Engine;
use super::file::FileId;

/// Warning for a copy that may mix two states of its source.
const CHANGED: &str = "the source changed while it was copied: the copy may mix two versions";

impl Engine<'_> {
    /// True if a local source differs from the state in which it was opened (size or modification
    /// time). The data read may then mix two states that never existed together.
    pub(super) fn has_changed(&mut self, id: FileId) -> bool {
        let local = self.local();
        let Some(task) = self.files.get_mut(&id) else {
            return false;
        };
        let Some(opened) = task.take_opened() else {
            return false;
        };
        let state = |of: Attributes| {
            let nanoseconds = of.nanoseconds.map(|(_, modified)| modified);
            (of.size, of.times.map(|(_, modified)| modified), nanoseconds)
        };
        // A removed file was complete when it was read.
        let now = local.stat(task.source());
        now.is_ok_and(|now| state(now.attributes) != state(opened))
    }

    /// Copies the file once more. Returns false after a warning if that was done already or is not
    /// possible.
    pub(super) fn again_for_a_change(&mut self, id: FileId) -> bool {
        let stopped = self.stopped();
        let Some(task) = self.files.get_mut(&id) else {
            return false;
        };
        if stopped || !task.may_follow_change() {
            let name = task.name().clone();
            self.warn(Some(name), CHANGED.to_owned());
            return false;
        }
        self.progress.take_back(task.follow_change());
        self.forget_earlier(id);
        self.verify.forget(id);
        self.start_file(id);
        true
    }
}
