//! Saves a round trip when one file is copied to one remote path: the query whether that path is a
//! directory is sent together with the upload, which goes to the more likely target.
//!
//! A wrong guess does no harm. A file at the name of a directory fails by the lane's LSTAT, and a
//! rename onto a directory fails at the server; a temporary in a directory that does not exist
//! fails at its OPEN. The file is then sent to the other target.

use schedule::{Attributes, EntryKind};

use super::names::basename;

/// Guess at the target of a file while the answer to a query is pending: the target path itself, or
/// a name in that directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetGuess {
    /// The target path itself.
    Exact,
    /// The source's name inside the target.
    Into,
}

/// Kind of the target, as the server reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportedTargetKind {
    Directory,
    SomethingElse,
    /// Nothing has this name.
    Missing,
}

impl ReportedTargetKind {
    pub(super) fn of(attributes: &Attributes) -> Self {
        match attributes.kind() {
            EntryKind::Directory => Self::Directory,
            _ => Self::SomethingElse,
        }
    }
}

/// Decision after a failed upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadRetryDecision {
    /// The guess was right, so the failure is final.
    Final,
    /// Repeat the upload to this target.
    Retry(TargetGuess),
    /// The user wrote `target/`, and there is no such directory.
    NoDirectory,
}

impl TargetGuess {
    /// Guesses the kind of the target. A trailing slash means a directory. The source's own name,
    /// the same extension, or `was_file` (known from an earlier copy) means a file. Otherwise it is
    /// a directory.
    pub(super) fn new(target: &[u8], source_name: &[u8], was_file: bool) -> Self {
        let name = basename(target);
        if is_directory_by_name(target) {
            Self::Into
        } else if was_file
            || name == source_name
            || extension(name).is_some_and(|e| extension(source_name) == Some(e))
        {
            Self::Exact
        } else {
            Self::Into
        }
    }

    /// Interprets a failed upload once the server has reported the kind of the target.
    pub(super) fn judge(self, target: &[u8], is: ReportedTargetKind) -> UploadRetryDecision {
        match (self, is) {
            (Self::Exact, ReportedTargetKind::Directory) => UploadRetryDecision::Retry(Self::Into),
            (Self::Into, ReportedTargetKind::Directory) | (Self::Exact, _) => {
                UploadRetryDecision::Final
            }
            (Self::Into, _) if is_directory_by_name(target) => UploadRetryDecision::NoDirectory,
            (Self::Into, _) => UploadRetryDecision::Retry(Self::Exact),
        }
    }
}

/// True if `path` can only be a directory.
pub(super) fn is_directory_by_name(path: &[u8]) -> bool {
    // Below a directory, `~` is a name like any other.
    matches!(path, b"" | b"~") || path.ends_with(b"/") || matches!(basename(path), b"." | b"..")
}

fn extension(name: &[u8]) -> Option<&[u8]> {
    let dot = name.iter().rposition(|b| *b == b'.')?;
    // `.profile` has no extension.
    (dot > 0 && dot + 1 < name.len()).then(|| &name[dot..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_files_from_directories() {
        for (target, guess) in [
            (&b"dir/"[..], TargetGuess::Into),
            (b"", TargetGuess::Into),
            (b"a/..", TargetGuess::Into),
            (b"~", TargetGuess::Into),
            (b"/srv/data", TargetGuess::Into),
            (b"/srv/file.txt", TargetGuess::Exact),
            (b"/srv/other.txt", TargetGuess::Exact),
            (b"/srv/other.bin", TargetGuess::Into),
        ] {
            assert_eq!(
                TargetGuess::new(target, b"file.txt", false),
                guess,
                "{target:?}"
            );
        }
        assert_eq!(
            TargetGuess::new(b"Makefile", b"Makefile", false),
            TargetGuess::Exact
        );
        assert_eq!(
            TargetGuess::new(b"x/.profile", b".bashrc", false),
            TargetGuess::Into
        );
        assert_eq!(TargetGuess::new(b"copy", b"file", true), TargetGuess::Exact);
        assert_eq!(TargetGuess::new(b"copy/", b"file", true), TargetGuess::Into);
    }

    #[test]
    fn a_wrong_guess_is_set_right() {
        use UploadRetryDecision::{Final, NoDirectory, Retry};
        for (guess, target, is, verdict) in [
            (
                TargetGuess::Exact,
                &b"a"[..],
                ReportedTargetKind::Directory,
                Retry(TargetGuess::Into),
            ),
            (TargetGuess::Exact, b"a", ReportedTargetKind::Missing, Final),
            (
                TargetGuess::Exact,
                b"a",
                ReportedTargetKind::SomethingElse,
                Final,
            ),
            (
                TargetGuess::Into,
                b"a",
                ReportedTargetKind::Directory,
                Final,
            ),
            (
                TargetGuess::Into,
                b"a",
                ReportedTargetKind::Missing,
                Retry(TargetGuess::Exact),
            ),
            (
                TargetGuess::Into,
                b"a",
                ReportedTargetKind::SomethingElse,
                Retry(TargetGuess::Exact),
            ),
            (
                TargetGuess::Into,
                b"a/",
                ReportedTargetKind::Missing,
                NoDirectory,
            ),
            (
                TargetGuess::Into,
                b"a/",
                ReportedTargetKind::Directory,
                Final,
            ),
        ] {
            assert_eq!(guess.judge(target, is), verdict);
        }
    }

    /// A wrong guess costs one repeated upload: whatever the server reports, the second one is the
    /// last.
    #[test]
    fn a_file_is_sent_to_two_targets_at_most() {
        let kinds = [
            ReportedTargetKind::Directory,
            ReportedTargetKind::SomethingElse,
            ReportedTargetKind::Missing,
        ];
        for target in [&b"a"[..], b"a/", b"", b"~", b"a/.", b"..", b"/", b"a/b.c"] {
            for guess in [TargetGuess::Exact, TargetGuess::Into] {
                for is in kinds {
                    if let UploadRetryDecision::Retry(second) = guess.judge(target, is) {
                        assert_ne!(second, guess, "the same place again");
                        let last = second.judge(target, is);
                        assert_eq!(last, UploadRetryDecision::Final, "{target:?}, {is:?}");
                    }
                }
            }
        }
    }

    /// A file in the place of a directory that the user has named would hide a mistake.
    #[test]
    fn a_name_that_can_only_be_a_directory_never_becomes_a_file() {
        let kinds = [
            ReportedTargetKind::SomethingElse,
            ReportedTargetKind::Missing,
        ];
        for target in [
            &b"dir/"[..],
            b"",
            b"~",
            b"a/.",
            b"a/..",
            b".",
            b"//",
            b"a//",
        ] {
            assert!(is_directory_by_name(target), "{target:?}");
            for (name, was_file) in [(&b"file.txt"[..], true), (b"dir", false)] {
                let guess = TargetGuess::new(target, name, was_file);
                assert_eq!(guess, TargetGuess::Into, "{target:?}");
                for is in kinds {
                    let decision = guess.judge(target, is);
                    assert_eq!(decision, UploadRetryDecision::NoDirectory, "{target:?}");
                }
            }
        }
        for target in [&b"dir"[..], b"a/~", b"a/...", b"..a", b"a.", b"./a"] {
            assert!(!is_directory_by_name(target), "{target:?}");
        }
    }
}
