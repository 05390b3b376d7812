//! Expands home directories and patterns in the words of a command, as a shell does.

use sftp::{Request, StatusCode};

use super::files::{FileError, ScpFileOps, UnsuitableReason};
use super::joined;
use super::pattern::GlobPattern;
use crate::words::CommandWord;

/// Maximum bytes of paths that all words of a command may expand to.
const ROOM: usize = 16 << 20;
/// Bytes that each path counts in addition.
const OVERHEAD: usize = 64;
/// Maximum number of directory entries that all words may examine.
const NAMES: usize = 1 << 20;
/// Maximum number of directories that all words may list; a few symlinks to `.` make many of them.
const LISTINGS: usize = 4096;
/// Longest path that the kernel accepts; a longer word cannot match anything.
const LONGEST_PATH: usize = 4096;

/// Path that failed, and the reason.
pub(super) type FailedPath = (Vec<u8>, FileError);

/// Expands the paths of an scp command step by step, because the client has other channels.
pub(super) struct WordExpansion {
    words: std::vec::IntoIter<CommandWord>,
    walk: Option<PatternWalk>,
    paths: Vec<Vec<u8>>,
    left: PatternExpansionLimits,
}

/// Names and directory listings that the expansion of a pattern may still use.
struct PatternExpansionLimits {
    room: usize,
    names: usize,
    listings: usize,
}

/// Progress through the components of one pattern.
struct PatternWalk {
    text: Vec<u8>,
    /// Remaining components, the next one last.
    parts: Vec<PatternPart>,
    /// Paths matched so far, and those that are one component longer.
    found: Vec<Vec<u8>>,
    further: Vec<Vec<u8>>,
    /// Path and handle of the directory that is being listed.
    open: Option<(Vec<u8>, Vec<u8>)>,
}

/// Component of a path that contains a pattern: literal names, a pattern to match against a
/// directory's entries, or a check at the end.
enum PatternPart {
    Name(Vec<u8>),
    Pattern(GlobPattern),
    /// The path must exist.
    MustExist,
    /// The path must be a directory, because the pattern ends with a slash.
    Directory,
}

impl WordExpansion {
    pub(super) fn new(words: Vec<CommandWord>) -> Self {
        Self {
            words: words.into_iter(),
            walk: None,
            paths: Vec::new(),
            left: PatternExpansionLimits {
                room: ROOM,
                names: NAMES,
                listings: LISTINGS,
            },
        }
    }

    /// Carries out one or two requests; returns all paths once they are complete: the matches of
    /// each word in order, or the word itself if nothing matches, as in a shell.
    ///
    /// # Errors
    /// A limit is exceeded, or a directory cannot be read, so that matches would be missing.
    pub(super) fn step(
        &mut self,
        files: &mut ScpFileOps<'_>,
    ) -> Result<Option<Vec<Vec<u8>>>, FailedPath> {
        if let Some(walk) = &mut self.walk {
            let stepped = walk.step(&mut self.left, files);
            let found = stepped.map_err(|why| (walk.text.clone(), why))?;
            if let Some(found) = found {
                self.paths.extend(found);
                self.walk = None;
            }
            return Ok(None);
        }
        let Some(word) = self.words.next() else {
            return Ok(Some(std::mem::take(&mut self.paths)));
        };
        let (text, wild) = at_home(word, files);
        if wild.is_empty() || text.len() > LONGEST_PATH {
            self.paths.push(text);
        } else {
            self.walk = Some(PatternWalk::new(text, &wild));
        }
        Ok(None)
    }
}

impl PatternExpansionLimits {
    /// Takes `n` from a limit.
    ///
    /// # Errors
    /// The limit is exceeded.
    fn take(of: &mut usize, n: usize) -> Result<(), FileError> {
        *of = of.checked_sub(n).ok_or(UnsuitableReason::Pattern)?;
        Ok(())
    }
}

/// Replaces a leading `~` with the home directory, and returns the positions of the wildcards in
/// the result.
fn at_home(word: CommandWord, files: &mut ScpFileOps<'_>) -> (Vec<u8>, Vec<usize>) {
    let (text, wild, home) = word.into_parts();
    let slash = text.iter().position(|byte| *byte == b'/');
    let end = slash.unwrap_or(text.len());
    // A user's name cannot be a pattern.
    if !home || wild.first().is_some_and(|at| *at < end) {
        return (text, wild);
    }
    let (path, rest) = text.split_at(end);
    let mut names = files.names(Request::ExpandPath { path });
    let Some(home) = names.as_mut().ok().and_then(Vec::pop) else {
        return (text, wild);
    };
    let whole = match rest.strip_prefix(b"/") {
        Some(rest) => joined(&home, rest),
        None => home,
    };
    let moved = |at: usize| whole.len() - (text.len() - at);
    let wild = wild.into_iter().map(moved).collect();
    (whole, wild)
}

impl PatternWalk {
    fn new(text: Vec<u8>, wild: &[usize]) -> Self {
        let from_root = text.starts_with(b"/");
        let mut parts = Vec::new();
        let mut at = 0;
        for part in text.split(|byte| *byte == b'/') {
            let (start, end) = (at, at + part.len());
            at = end + 1;
            let own = wild.iter().filter(|n| (start..end).contains(n));
            let own: Vec<usize> = own.map(|n| n - start).collect();
            match (own.is_empty(), parts.last_mut()) {
                (true, _) if part.is_empty() => {}
                (true, Some(PatternPart::Name(before))) => *before = joined(before, part),
                (true, _) => parts.push(PatternPart::Name(part.to_vec())),
                (false, _) => parts.push(PatternPart::Pattern(GlobPattern::new(part, &own))),
            }
        }
        if text.ends_with(b"/") {
            parts.push(PatternPart::Directory);
        } else if let Some(PatternPart::Name(_)) = parts.last() {
            parts.push(PatternPart::MustExist);
        }
        parts.reverse();
        Self {
            text,
            parts,
            found: vec![if from_root { b"/".to_vec() } else { Vec::new() }],
            further: Vec::new(),
            open: None,
        }
    }

    /// Carries out a step; returns the matches once they are complete.
    fn step(
        &mut self,
        left: &mut PatternExpansionLimits,
        files: &mut ScpFileOps<'_>,
    ) -> Result<Option<Vec<Vec<u8>>>, FileError> {
        if let Some((path, handle)) = self.open.take() {
            self.listed(path, handle, left, files)?;
            return Ok(None);
        }
        let Some(part) = self.parts.last() else {
            self.found.sort();
            if self.found.is_empty() {
                self.found.push(std::mem::take(&mut self.text));
            }
            return Ok(Some(std::mem::take(&mut self.found)));
        };
        let Some(path) = self.found.pop() else {
            self.parts.pop();
            self.found = std::mem::take(&mut self.further);
            return Ok(None);
        };
        let further = match part {
            PatternPart::Name(name) => Some(joined(&path, name)),
            PatternPart::MustExist => files
                .attrs(Request::Lstat { path: &path })
                .is_ok()
                .then_some(path),
            PatternPart::Directory => files.is_dir(&path).then(|| joined(&path, b"")),
            PatternPart::Pattern(_) => {
                PatternExpansionLimits::take(&mut left.listings, 1)?;
                let asked = if path.is_empty() { b"." } else { &path[..] };
                match files.handle(Request::Opendir { path: asked }) {
                    Ok(handle) => self.open = Some((path, handle)),
                    // As in a shell, a directory that does not exist or cannot be read has no
                    // matches.
                    Err(e) if e.code().is_some_and(is_nothing) => {}
                    Err(e) => return Err(e),
                }
                None
            }
        };
        if let Some(path) = further {
            self.keep(path, left)?;
        }
        Ok(None)
    }

    /// Examines some of the names in a directory.
    fn listed(
        &mut self,
        path: Vec<u8>,
        handle: Vec<u8>,
        left: &mut PatternExpansionLimits,
        files: &mut ScpFileOps<'_>,
    ) -> Result<(), FileError> {
        let names = files.names(Request::Readdir { handle: &handle })?;
        if names.is_empty() {
            // The directory was only read, so an error of CLOSE does not matter.
            let _ = files.done(Request::Close { handle: &handle });
            return Ok(());
        }
        PatternExpansionLimits::take(&mut left.names, names.len())?;
        for name in names {
            let Some(PatternPart::Pattern(pattern)) = self.parts.last() else {
                break;
            };
            if name != b"." && name != b".." && pattern.matches(&name) {
                self.keep(joined(&path, &name), left)?;
            }
        }
        self.open = Some((path, handle));
        Ok(())
    }

    fn keep(&mut self, path: Vec<u8>, left: &mut PatternExpansionLimits) -> Result<(), FileError> {
        PatternExpansionLimits::take(&mut left.room, path.len() + OVERHEAD)?;
        self.further.push(path);
        Ok(())
    }
}

fn is_nothing(code: StatusCode) -> bool {
    [
        StatusCode::NO_SUCH_FILE,
        StatusCode::PERMISSION_DENIED,
        StatusCode::BAD_MESSAGE,
    ]
    .contains(&code)
}

#[cfg(test)]
#[path = "expand_tests.rs"]
mod tests;
