//! A source of this machine that changes while it is copied.

use std::fs;

use schedule::Attributes;

use super::engine::Engine;
use super::file::FileId;
use crate::walk::local_path;

/// A copy that may be a mixture is told of.
const CHANGED: &str = "it changed while it was copied: the copy may be of two states";

impl Engine<'_> {
    /// Whether a source on this machine is another than when it was opened: what was read of it may be
    /// of two states, and no file that ever was.
    pub(super) fn has_changed(&mut self, id: FileId) -> bool {
        let Some(task) = self.files.get_mut(&id) else {
            return false;
        };
        let Some(opened) = task.opened.take() else {
            return false;
        };
        let state = |of: Attributes| {
            let nanoseconds = of.nanoseconds.map(|(_, modified)| modified);
            (of.size, of.times.map(|(_, modified)| modified), nanoseconds)
        };
        // One that is gone was whole when it was read.
        let now = fs::metadata(local_path(&task.source));
        now.is_ok_and(|now| state(crate::disk::attributes(&now)) != state(opened))
    }

    /// Copies it once more; false, after saying so, where that was done or cannot be.
    pub(super) fn again_for_a_change(&mut self, id: FileId) -> bool {
        let stopped = self.stopped();
        let Some(task) = self.files.get_mut(&id) else {
            return false;
        };
        // What goes to a device or a FIFO has gone.
        let again = !stopped && !task.changed && !task.in_place;
        if !again {
            let name = task.source_name.clone();
            self.warn(Some(name), CHANGED.to_owned());
            return false;
        }
        task.changed = true;
        self.progress.take_back(std::mem::take(&mut task.confirmed));
        task.begin_again();
        if let Some(keep) = &mut task.keep {
            keep.left = None;
        }
        self.verify.forget(id);
        self.start_file(id);
        true
    }
}
