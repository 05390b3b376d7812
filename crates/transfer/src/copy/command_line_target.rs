//! Target that the command names. Paths below it are split into the part that the user named and
//! the rest.

use schedule::LocalTargetPath;

use super::CopyOptions;
use super::links::TopLevelSymlinks;
use super::source::TargetPath;
use crate::walk::local_path;

/// Target path as the user gave it, with what is known of it.
pub(super) struct CommandLineTarget<'a> {
    options: &'a CopyOptions,
    /// Path as the user named it.
    path: Vec<u8>,
    /// Nothing existed at the path, and one source goes there.
    is_missing: bool,
    links: TopLevelSymlinks,
}

impl<'a> CommandLineTarget<'a> {
    pub(super) fn new(options: &'a CopyOptions) -> Self {
        Self {
            options,
            path: Vec::new(),
            is_missing: false,
            links: TopLevelSymlinks::default(),
        }
    }

    /// Notes the command's target, below which no symlink is followed.
    pub(super) fn set(&mut self, onto: &TargetPath) {
        let (TargetPath::Into(named) | TargetPath::Exactly(named) | TargetPath::Guess(named)) =
            onto;
        self.path.clone_from(named);
    }

    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }

    /// Notes whether nothing exists at the path, and one source goes there.
    pub(super) fn set_missing(&mut self, is_missing: bool) {
        self.is_missing = is_missing;
    }

    /// True if the command names this path.
    pub(super) fn is(&self, path: &[u8]) -> bool {
        self.path == path
    }

    /// True if the command names this path, and nothing existed there.
    pub(super) fn was_missing(&self, path: &[u8]) -> bool {
        self.is_missing && self.is(path)
    }

    /// Rest of a path that begins with the target's.
    pub(super) fn rest_of<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        path.strip_prefix(self.path.as_slice())
    }

    /// Returns the local path to write. Below the part that the user named no symlink is followed,
    /// and a path outside of it is never opened.
    pub(super) fn local_path(&self, path: &[u8]) -> LocalTargetPath {
        if self.is(path) {
            return LocalTargetPath::named(local_path(path));
        }
        let below = match self.path.as_slice() {
            b"" => Some(path).filter(|path| !path.starts_with(b"/")),
            named => self
                .rest_of(path)
                .filter(|rest| named.ends_with(b"/") || rest.starts_with(b"/")),
        };
        // An absolute path lies below nothing and is refused.
        let below = below.map_or(&b"/"[..], |rest| {
            let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
            rest.get(slashes..).unwrap_or_default()
        });
        let dirlinks = self.options.keep_dirlinks;
        LocalTargetPath::beneath(local_path(&self.path), local_path(below), dirlinks)
    }

    /// Notes the target of a command-line source when it starts.
    pub(super) fn source_goes_to(&mut self, target: Vec<u8>) {
        self.links.source_goes_to(target);
    }

    /// Notes that a symlink will be made at `target`. Returns false if another source goes there,
    /// which may already be on its way.
    pub(super) fn may_link(&mut self, target: &[u8], is_top_level: bool) -> bool {
        self.links.may_link(target, is_top_level)
    }

    /// True if this run made the symlink at `target`.
    pub(super) fn has_made_link(&self, target: &[u8]) -> bool {
        self.links.has_made(target)
    }

    /// Returns the path beside which the temporary of `target` is created.
    pub(super) fn temporary_place(&self, target: &[u8]) -> Vec<u8> {
        match &self.options.temp_dir {
            Some(dir) => dir.place_of(target),
            None => target.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_path_outside_the_named_target_is_refused() {
        let options = CopyOptions::default();
        let below = |named: &str, path: &str| {
            let mut target = CommandLineTarget::new(&options);
            target.set(&TargetPath::Exactly(named.into()));
            let path = target.local_path(path.as_bytes());
            path.below_part().map(Path::to_path_buf)
        };
        assert_eq!(below("dir", "dir/a/b"), Some("a/b".into()));
        assert_eq!(below("dir/", "dir/a"), Some("a".into()));
        assert_eq!(below("/", "/a"), Some("a".into()));
        assert_eq!(below("", "a/b"), Some("a/b".into()));
        assert_eq!(below("dir", "dir2/a"), None);
        assert_eq!(below("dir", "/etc/passwd"), None);
        // Without its slash, the path led into the current directory.
        assert_eq!(below("", "/etc/passwd"), None);
    }

    /// Whatever a server calls its files, the path that is opened is the named target or lies below
    /// it.
    #[test]
    fn no_path_leads_out_of_the_named_target_by_its_words() {
        let options = CopyOptions::default();
        let mut seed = testkit::Seed::new(3);
        let mut random = || -> Vec<u8> {
            let len = seed.below(8);
            (0..len).map(|_| b"d/ae/"[seed.below(5) as usize]).collect()
        };
        for _ in 0..20_000 {
            let (named, path) = (random(), random());
            let mut target = CommandLineTarget::new(&options);
            target.set(&TargetPath::Into(named.clone()));
            let local = target.local_path(&path);
            let Some(below) = local.below_part().map(Path::to_path_buf) else {
                // Nothing is opened, unless it is the named target itself.
                assert_eq!(local.is_named(), named == path);
                continue;
            };
            assert!(below.is_relative(), "{named:?} {path:?}: {below:?}");
            let whole = Path::new(&local_path(&named)).join(&below);
            let parts = |path: &Path| path.components().collect::<Vec<_>>().len();
            assert_eq!(
                parts(&whole),
                parts(&local_path(&path)),
                "{named:?} {path:?}"
            );
            assert!(
                local_path(&path).starts_with(local_path(&named)),
                "{named:?} {path:?}"
            );
        }
    }
}
