//! Names of the receiver's messages as the user knows them.

use crate::escape;
use crate::report::{CopyEvent, CopyOutcome, CopySummary, EscapedName};

/// Translates paths that the receiver reports: its own, and those beneath the served root.
#[derive(Clone, Debug)]
pub struct ReportedPathTranslator {
    /// The source's host as the user wrote it.
    pub source: String,
    /// The served root as it would be written in an operand.
    pub root: Vec<u8>,
    /// The receiving host as the user wrote it.
    pub target: String,
}

impl ReportedPathTranslator {
    /// Returns a path as `host:path`.
    pub fn name(&self, name: &EscapedName) -> EscapedName {
        let prefix = [self.source.as_bytes(), b":/"].concat();
        let (host, path) = match name.0.strip_prefix(prefix.as_slice()) {
            Some(rest) => (&self.source, self.in_root(rest)),
            None => (&self.target, name.0.clone()),
        };
        EscapedName([host.as_bytes(), b":", &path].concat())
    }

    fn in_root(&self, rest: &[u8]) -> Vec<u8> {
        match self.root.as_slice() {
            b"" => rest.to_vec(),
            root if root.ends_with(b"/") => [root, rest].concat(),
            root => [root, b"/", rest].concat(),
        }
    }

    /// Makes a text of the receiver one line that drives no terminal.
    fn text(text: &mut String) {
        *text = escape::name(text.as_bytes()).to_string();
    }

    /// Translates the names of an event.
    pub(super) fn event(&self, mut event: CopyEvent) -> CopyEvent {
        match &mut event {
            CopyEvent::FileStarted { source, target, .. }
            | CopyEvent::FileDone { source, target, .. } => {
                *source = self.name(source);
                *target = self.name(target);
            }
            CopyEvent::Mismatch { path, .. } => *path = self.name(path),
            CopyEvent::Failed { path, reason, .. } => {
                *path = self.name(path);
                Self::text(reason);
            }
            CopyEvent::DirectoryDone { target } | CopyEvent::SymlinkDone { target } => {
                *target = self.name(target);
            }
            CopyEvent::Warning { path, message } => {
                *path = path.as_ref().map(|path| self.name(path));
                Self::text(message);
            }
            CopyEvent::Resumed { .. }
            | CopyEvent::Planned { .. }
            | CopyEvent::SyncPlanned { .. } => {}
        }
        event
    }

    /// Translates the names of a summary.
    pub(super) fn summary(&self, mut summary: CopySummary) -> CopySummary {
        for failure in &mut summary.failures {
            failure.path = self.name(&failure.path);
            Self::text(&mut failure.reason);
        }
        if let CopyOutcome::NoConnection(why) | CopyOutcome::Misconfigured(why) =
            &mut summary.outcome
        {
            Self::text(why);
        }
        if let Some(verified) = &mut summary.verified {
            let texts = [&mut verified.program, &mut verified.reason];
            texts.into_iter().flatten().for_each(Self::text);
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
        let names = |root: &str| ReportedPathTranslator {
            source: "u@a".to_owned(),
            root: root.into(),
            target: "b".to_owned(),
        };
        let name = |root, name: &str| names(root).name(&EscapedName(name.into())).to_string();
        assert_eq!(name("/srv", "u@a:/x/y"), "u@a:/srv/x/y");
        assert_eq!(name("/", "u@a:/x"), "u@a:/x");
        assert_eq!(name("", "u@a:/x"), "u@a:x");
        assert_eq!(name("/srv", "/to/x"), "b:/to/x");
        assert_eq!(name("/srv", "to/u@a:/x"), "b:to/u@a:/x");
    }

    /// Regression test: a receiver's text forged lines and drove the terminal.
    #[test]
    fn texts_of_the_receiver_are_one_line() {
        let names = ReportedPathTranslator {
            source: "a".to_owned(),
            root: Vec::new(),
            target: "b".to_owned(),
        };
        let text = "x\nroot@b password:\u{1b}[2J\u{202e}";
        let warning = CopyEvent::Warning {
            path: None,
            message: text.to_owned(),
        };
        let CopyEvent::Warning { message, .. } = names.event(warning) else {
            panic!("another event");
        };
        let mut summary = CopySummary {
            outcome: CopyOutcome::NoConnection(text.to_owned()),
            ..CopySummary::default()
        };
        summary.verified = Some(crate::report::VerifyResult {
            reason: Some(text.to_owned()),
            program: Some(text.to_owned()),
            ..Default::default()
        });
        let summary = names.summary(summary);
        let verified = summary.verified.unwrap_or_default();
        let CopyOutcome::NoConnection(why) = summary.outcome else {
            panic!("another outcome");
        };
        for text in [
            message,
            why,
            verified.reason.unwrap_or_default(),
            verified.program.unwrap_or_default(),
        ] {
            assert!(text.starts_with("x\\"), "{text}");
            let drives = |c: char| c.is_control() || c == '\u{202e}';
            assert!(!text.contains(drives), "{text}");
        }
    }
}
