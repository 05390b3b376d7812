//! Names of the receiver's messages as the user knows them.

use crate::report::{Event, Name, Summary};

/// Translates paths that the receiver reports: its own, and those beneath the served root.
#[derive(Clone, Debug)]
pub struct HostNames {
    /// The source's host as the user wrote it.
    pub source: String,
    /// The served root as it would be written in an operand.
    pub root: Vec<u8>,
    /// The receiving host as the user wrote it.
    pub target: String,
}

impl HostNames {
    /// Returns a path as `host:path`.
    pub fn name(&self, name: &Name) -> Name {
        let prefix = [self.source.as_bytes(), b":/"].concat();
        let (host, path) = match name.0.strip_prefix(prefix.as_slice()) {
            Some(rest) => (&self.source, self.in_root(rest)),
            None => (&self.target, name.0.clone()),
        };
        Name([host.as_bytes(), b":", &path].concat())
    }

    fn in_root(&self, rest: &[u8]) -> Vec<u8> {
        match self.root.as_slice() {
            b"" => rest.to_vec(),
            root if root.ends_with(b"/") => [root, rest].concat(),
            root => [root, b"/", rest].concat(),
        }
    }

    /// Translates the names of an event.
    pub(super) fn event(&self, mut event: Event) -> Event {
        match &mut event {
            Event::FileStarted { source, target, .. } | Event::FileDone { source, target, .. } => {
                *source = self.name(source);
                *target = self.name(target);
            }
            Event::Mismatch { path, .. } | Event::Failed { path, .. } => *path = self.name(path),
            Event::DirectoryDone { target } | Event::SymlinkDone { target } => {
                *target = self.name(target);
            }
            Event::Warning { path, .. } => *path = path.as_ref().map(|path| self.name(path)),
            Event::Resumed { .. } | Event::Planned { .. } | Event::SyncPlanned { .. } => {}
        }
        event
    }

    /// Translates the names of a summary.
    pub(super) fn summary(&self, mut summary: Summary) -> Summary {
        for failure in &mut summary.failures {
            failure.path = self.name(&failure.path);
        }
        summary.journal = summary.journal.as_ref().map(|path| self.name(path));
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_named_as_in_the_operands() {
        let names = |root: &str| HostNames {
            source: "u@a".to_owned(),
            root: root.into(),
            target: "b".to_owned(),
        };
        let name = |root, name: &str| names(root).name(&Name(name.into())).to_string();
        assert_eq!(name("/srv", "u@a:/x/y"), "u@a:/srv/x/y");
        assert_eq!(name("/", "u@a:/x"), "u@a:/x");
        assert_eq!(name("", "u@a:/x"), "u@a:x");
        assert_eq!(name("/srv", "/to/x"), "b:/to/x");
        assert_eq!(name("/srv", "to/u@a:/x"), "b:to/u@a:/x");
    }
}
