//! Saves a round trip where one file goes to one remote place: whether that place is a directory
//! is asked in the same flight as the upload itself, which goes where the answer probably lies.
//!
//! A wrong guess does no harm. A file at the name of a directory fails by the lane's LSTAT, and
//! a rename onto a directory fails at the server; a temporary in a directory that is none fails
//! at its OPEN. Then the file goes to the other place.

use schedule::{Attributes, EntryKind};

use super::names::basename;

/// Where a file goes while the answer is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guess {
    /// To the target's own name.
    Itself,
    /// Into the target under the source's name.
    Into,
}

/// What the server said the target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetIs {
    Directory,
    SomethingElse,
    Missing,
}

impl TargetIs {
    pub(super) fn of(attributes: &Attributes) -> Self {
        match attributes.kind() {
            EntryKind::Directory => Self::Directory,
            _ => Self::SomethingElse,
        }
    }
}

/// What to do about an upload that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The guess was right: the failure stands.
    Stands,
    /// Again, as this.
    Again(Guess),
    /// The user wrote `target/`, and there is no such directory.
    NoDirectory,
}

impl Guess {
    /// A slash says directory; the source's own name, or one with the same extension, says file;
    /// so does that it `was_file`, or nothing, the last time.
    pub(super) fn new(target: &[u8], source_name: &[u8], was_file: bool) -> Self {
        let name = basename(target);
        if is_directory_by_name(target) {
            Self::Into
        } else if was_file
            || name == source_name
            || extension(name).is_some_and(|e| extension(source_name) == Some(e))
        {
            Self::Itself
        } else {
            Self::Into
        }
    }

    /// What a failed upload means once the server has said what the target is.
    pub(super) fn judge(self, target: &[u8], is: TargetIs) -> Verdict {
        match (self, is) {
            (Self::Itself, TargetIs::Directory) => Verdict::Again(Self::Into),
            (Self::Into, TargetIs::Directory) | (Self::Itself, _) => Verdict::Stands,
            (Self::Into, _) if is_directory_by_name(target) => Verdict::NoDirectory,
            (Self::Into, _) => Verdict::Again(Self::Itself),
        }
    }
}

/// Whether `path` can only be a directory.
pub(super) fn is_directory_by_name(path: &[u8]) -> bool {
    path.is_empty() || path.ends_with(b"/") || matches!(basename(path), b"." | b".." | b"~")
}

fn extension(name: &[u8]) -> Option<&[u8]> {
    let dot = name.iter().rposition(|b| *b == b'.')?;
    // `.profile` has none.
    (dot > 0 && dot + 1 < name.len()).then(|| &name[dot..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_files_from_directories() {
        for (target, guess) in [
            (&b"dir/"[..], Guess::Into),
            (b"", Guess::Into),
            (b"a/..", Guess::Into),
            (b"~", Guess::Into),
            (b"/srv/data", Guess::Into),
            (b"/srv/file.txt", Guess::Itself),
            (b"/srv/other.txt", Guess::Itself),
            (b"/srv/other.bin", Guess::Into),
        ] {
            assert_eq!(Guess::new(target, b"file.txt", false), guess, "{target:?}");
        }
        assert_eq!(Guess::new(b"Makefile", b"Makefile", false), Guess::Itself);
        assert_eq!(Guess::new(b"x/.profile", b".bashrc", false), Guess::Into);
        assert_eq!(Guess::new(b"copy", b"file", true), Guess::Itself);
        assert_eq!(Guess::new(b"copy/", b"file", true), Guess::Into);
    }

    #[test]
    fn a_wrong_guess_is_set_right() {
        use Verdict::{Again, NoDirectory, Stands};
        for (guess, target, is, verdict) in [
            (
                Guess::Itself,
                &b"a"[..],
                TargetIs::Directory,
                Again(Guess::Into),
            ),
            (Guess::Itself, b"a", TargetIs::Missing, Stands),
            (Guess::Itself, b"a", TargetIs::SomethingElse, Stands),
            (Guess::Into, b"a", TargetIs::Directory, Stands),
            (Guess::Into, b"a", TargetIs::Missing, Again(Guess::Itself)),
            (
                Guess::Into,
                b"a",
                TargetIs::SomethingElse,
                Again(Guess::Itself),
            ),
            (Guess::Into, b"a/", TargetIs::Missing, NoDirectory),
            (Guess::Into, b"a/", TargetIs::Directory, Stands),
        ] {
            assert_eq!(guess.judge(target, is), verdict);
        }
    }
}
