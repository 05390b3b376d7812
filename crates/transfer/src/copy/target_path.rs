//! Paths below the local target, split into the part that the user named and the rest.

use schedule::{LocalPath, RemotePath};

use super::engine::Engine;
use super::source::TargetPath;
use crate::walk::local_path;

impl Engine<'_> {
    /// Returns the local path to write. Below the part that the user named no symlink is followed,
    /// and a path outside of it is never opened.
    pub(super) fn target_path(&self, path: &[u8]) -> LocalPath {
        let dirlinks = self.options.keep_dirlinks;
        if path == self.named {
            return LocalPath::named(local_path(path));
        }
        let below = match self.named.as_slice() {
            b"" => Some(path),
            named => path
                .strip_prefix(named)
                .filter(|rest| named.ends_with(b"/") || rest.starts_with(b"/")),
        };
        // An absolute path lies below nothing and is refused.
        let below = below.map_or(&b"/"[..], |rest| {
            let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
            rest.get(slashes..).unwrap_or_default()
        });
        LocalPath::beneath(local_path(&self.named), local_path(below), dirlinks)
    }

    /// Notes the command's target, below which no symlink is followed.
    pub(super) fn name_target(&mut self, onto: &TargetPath) {
        let (TargetPath::Into(named) | TargetPath::Exactly(named) | TargetPath::Guess(named)) =
            onto;
        self.named = named.clone();
        // With --keep-dirlinks symlinks to directories are wanted.
        if !self.options.keep_dirlinks {
            self.hold_root(named.clone());
            if let Some(dir) = &self.options.temp_dir {
                self.hold_root(dir.path().to_vec());
            }
        }
        if let (None, Some(dir)) = (&self.target, &self.options.temp_dir) {
            let path = local_path(dir.path());
            self.local().keep_temporaries_in(path);
        }
    }

    /// Has a longhaul at the remote target follow no symlink below `root`, which the user named.
    pub(super) fn hold_root(&self, root: Vec<u8>) {
        if let Some(side) = &self.target {
            side.session().hold_root(RemotePath(root));
        }
    }

    /// Returns the path beside which the temporary of `target` is created.
    pub(super) fn temporary_place(&self, target: &[u8]) -> Vec<u8> {
        match &self.options.temp_dir {
            Some(dir) => dir.place_of(target),
            None => target.to_vec(),
        }
    }
}
