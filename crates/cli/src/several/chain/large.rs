//! Finds the large files of a fan-out, which hosts pass on to each other.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use sync::{Filter, FilterBuilder};
use transfer::copy::{CopyLocation, CopyOptions, CopyRequest, DeltaUse, SourceFilter, SourceName};
use transfer::report::HostCopyReason;
use transfer::walk::{EntryInfo, LocalWalk, WalkEntry};

use super::{ChainObstacle, HostCopyRequest};

/// Smallest file that is passed on: for a smaller one, the further logins take longer than they
/// save.
pub(super) const LEAST: u64 = 32 << 20;
/// Most files that are passed on.
const MOST: usize = 1000;
/// Most entries that are looked at.
const MOST_ENTRIES: usize = 1_000_000;

/// A local file of at least [`LEAST`] bytes, which hosts pass on to each other.
pub(super) struct LargeFile {
    pub(super) source: PathBuf,
    /// Path that the file gets beneath the target.
    pub(super) below: Vec<u8>,
    /// Size in bytes.
    pub(super) size: u64,
}

/// Result of the search for large files: at most [`MOST`] of them, and the presence of anything
/// else to copy.
#[derive(Default)]
pub(super) struct LargeFileSearchResult {
    pub(super) files: Vec<LargeFile>,
    /// There is more to copy.
    pub(super) rest: bool,
}

/// Files of a copy on one side of the limit [`LEAST`]. A fan-out copies `Small` first and `Large`
/// afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::several) enum SizeSelection {
    Small,
    Large,
}

impl SizeSelection {
    /// Restricts a request to files of these sizes.
    pub(in crate::several) fn of(self, mut request: CopyRequest) -> CopyRequest {
        let mut filter = FilterBuilder::default();
        match self {
            Self::Small => filter.at_most(LEAST - 1),
            Self::Large => filter.at_least(LEAST),
        };
        // Without patterns there is nothing that cannot be compiled.
        let filter: Option<Filter> = filter.build().ok();
        request.options.filter = filter.map(|filter| SourceFilter::new(filter, false));
        request.options.part = match self {
            Self::Small => 1,
            Self::Large => 2,
        };
        request
    }
}

/// Finds the large files of a copy.
///
/// # Errors
/// A clause that says why none of them is passed on.
pub(super) fn find(request: &CopyRequest) -> Result<LargeFileSearchResult, ChainObstacle> {
    let mut search = LargeFileSearch::default();
    for source in &request.sources {
        let CopyLocation::Local(path) = source else {
            return Err("a source is remote".into());
        };
        let name = match SourceName::of(source) {
            SourceName::Known(name) => name,
            SourceName::Contents => Vec::new(),
            SourceName::Matched => return Err("a source is a pattern".into()),
        };
        search.add(path, &name, &request.options)?;
    }
    if search.found.files.is_empty() {
        let least = LEAST >> 20;
        return Err(
            format!("hosts pass on only files of {least} MiB or more to each other").into(),
        );
    }
    Ok(search.found)
}

/// Search for large files in progress; `entries` counts those seen, up to [`MOST_ENTRIES`].
#[derive(Default)]
struct LargeFileSearch {
    found: LargeFileSearchResult,
    entries: usize,
}

impl LargeFileSearch {
    /// Adds the files of a source, which gets the name `name` in the target, or none if its
    /// contents are copied.
    fn add(
        &mut self,
        source: &Path,
        name: &[u8],
        options: &CopyOptions,
    ) -> Result<(), ChainObstacle> {
        let mut walk = LocalWalk::new(source.to_owned(), true);
        while let Some(entry) = walk.next() {
            self.entries += usize::from(!matches!(entry, WalkEntry::Listed(_)));
            if self.entries > MOST_ENTRIES {
                return Err(format!(
                    "the source has more than {MOST_ENTRIES} entries, too many to search for large \
                     files"
                )
                .into());
            }
            match entry {
                WalkEntry::File(at) if at.attributes.size >= Some(LEAST) => {
                    if at.parent.is_some() && options.preserve {
                        return Err(
                            "-p sets the times of the directories with large files, so hosts \
                             cannot pass them on"
                                .into(),
                        );
                    }
                    self.add_large(source, name, at)?;
                }
                WalkEntry::Directory { id, .. } => {
                    self.found.rest = true;
                    if !options.recursive {
                        LocalWalk::skip(&mut walk, id);
                    }
                }
                // The copy reports what cannot be read.
                WalkEntry::File(_)
                | WalkEntry::Symlink(_)
                | WalkEntry::Special(_)
                | WalkEntry::Problem { .. } => {
                    self.found.rest = true;
                }
                WalkEntry::Listed(_) => {}
            }
        }
        Ok(())
    }

    fn add_large(
        &mut self,
        source: &Path,
        name: &[u8],
        at: EntryInfo,
    ) -> Result<(), ChainObstacle> {
        let path = PathBuf::from(OsString::from_vec(at.path));
        let inside = path.strip_prefix(source).unwrap_or(&path);
        let below = Path::new(OsStr::from_bytes(name)).join(inside);
        // A file that is a source itself has no path inside it.
        let below = below.components().as_path().as_os_str().as_bytes().to_vec();
        if below.iter().any(|b| b"*?[\\".contains(b)) {
            return Err("the name of a large file contains *, ?, [ or a backslash".into());
        }
        if self.found.files.len() == MOST {
            return Err(format!("more than {MOST} files have {} MiB or more", LEAST >> 20).into());
        }
        self.found.files.push(LargeFile {
            source: path,
            below,
            size: at.attributes.size.unwrap_or_default(),
        });
        Ok(())
    }
}

/// Options of the copies between the hosts.
pub(super) fn options(options: &CopyOptions) -> Result<CopyOptions, ChainObstacle> {
    let needs = [
        (options.archive, "--archive"),
        (options.inplace, "--inplace"),
        (options.temp_dir.is_some(), "--temp-dir"),
        (options.verify, "--verify"),
        (options.xattrs, "--xattrs"),
        (options.acls, "--acls"),
        (options.hard_links, "--hard-links"),
        (options.sparse, "--sparse"),
        (options.safe_links, "--safe-links"),
        (options.delta == DeltaUse::Always, "--delta"),
        (options.filter.is_some(), "a filter"),
    ];
    match needs.into_iter().find(|(set, _)| *set) {
        Some((_, flag)) => Err(format!("hosts cannot pass files on with {flag}").into()),
        None => Ok(CopyOptions {
            delta: DeltaUse::Never,
            ..options.clone()
        }),
    }
}

/// Path that a file gets at a host, whose target must be a directory by its form.
pub(super) fn path_at(part: &HostCopyRequest, below: &[u8]) -> Result<Vec<u8>, ChainObstacle> {
    match &part.request.target {
        CopyLocation::Remote { path, .. } if path == b"." => Ok(below.to_vec()),
        CopyLocation::Remote { path, .. } if path.ends_with(b"/") => Ok([path, below].concat()),
        _ => {
            let advice = format!(
                "To let hosts pass the file on to each other, name a directory with a slash at its \
                 end as the target of {}",
                part.name
            );
            Err(HostCopyReason::Advice(advice).into())
        }
    }
}

/// The only source if that is a directory. Its name in the target depends on the target: a
/// directory that does not exist becomes the copy itself.
pub(super) fn only_tree(request: &CopyRequest) -> Option<Vec<u8>> {
    match request.sources.as_slice() {
        [source @ CopyLocation::Local(path)] if path.is_dir() => match SourceName::of(source) {
            SourceName::Known(name) => Some(name),
            SourceName::Contents | SourceName::Matched => None,
        },
        _ => None,
    }
}

/// Copies the contents of the only source, a directory whose copy is the target itself.
pub(in crate::several) fn contents(mut request: CopyRequest) -> CopyRequest {
    for source in &mut request.sources {
        if let CopyLocation::Local(path) = source {
            *path = path.join(".");
        }
    }
    request
}

/// The copy of a single large file from here to a host.
pub(super) fn alone(request: &CopyRequest, file: &LargeFile, path: &[u8]) -> CopyRequest {
    let folder = path.iter().rposition(|b| *b == b'/');
    let folder = folder.and_then(|at| path.get(..=at)).unwrap_or(b".");
    CopyRequest {
        sources: vec![CopyLocation::Local(file.source.clone())],
        target: CopyLocation::Remote {
            host: transfer::copy::HostId(0),
            path: folder.to_vec(),
        },
        options: request.options.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn request(sources: &[&Path], recursive: bool) -> CopyRequest {
        CopyRequest {
            sources: sources
                .iter()
                .map(|path| CopyLocation::Local((*path).to_owned()))
                .collect(),
            target: CopyLocation::Local(PathBuf::new()),
            options: CopyOptions {
                recursive,
                ..CopyOptions::default()
            },
        }
    }

    fn found(request: &CopyRequest) -> Result<(Vec<String>, bool), ChainObstacle> {
        let found = find(request)?;
        let below = |file: &LargeFile| String::from_utf8_lossy(&file.below).into_owned();
        let mut names: Vec<String> = found.files.iter().map(below).collect();
        names.sort();
        Ok((names, found.rest))
    }

    /// One file of the operands was passed on, and none of a tree.
    #[test]
    fn large_files_are_found_in_operands_and_trees() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("tree/sub")).unwrap();
        for name in ["one", "tree/two", "tree/sub/three"] {
            fs::File::create(at(name)).unwrap().set_len(LEAST).unwrap();
        }
        fs::write(at("tree/small"), b"x").unwrap();
        std::os::unix::fs::symlink("..", at("tree/sub/loop")).unwrap();
        let (one, tree) = (at("one"), at("tree"));
        assert_eq!(
            found(&request(&[&one], false)),
            Ok((vec!["one".to_owned()], false))
        );
        let all = ["one", "tree/sub/three", "tree/two"].map(str::to_owned);
        assert_eq!(
            found(&request(&[&one, &tree], true)),
            Ok((all.to_vec(), true))
        );
        let contents = ["sub/three", "two"].map(str::to_owned);
        let dot = at("tree/.");
        assert_eq!(
            found(&request(&[&dot], true)),
            Ok((contents.to_vec(), true))
        );
        let small = at("tree/small");
        let why = found(&request(&[&small], false)).unwrap_err();
        assert_eq!(
            why.to_string(),
            "hosts pass on only files of 32 MiB or more to each other"
        );
        let mut kept = request(&[&tree], true);
        kept.options.preserve = true;
        assert!(found(&kept).is_err());
    }

    /// A directory that is reached by two paths is copied twice, and was searched once: its large
    /// files went from here to every host.
    #[test]
    fn a_directory_behind_a_symlink_is_searched_as_it_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("tree/sub")).unwrap();
        let file = fs::File::create(at("tree/sub/one")).unwrap();
        file.set_len(LEAST).unwrap();
        std::os::unix::fs::symlink("sub", at("tree/again")).unwrap();
        let both = ["tree/again/one", "tree/sub/one"].map(str::to_owned);
        let tree = at("tree");
        let all = found(&request(&[&tree], true));
        assert_eq!(all, Ok((both.to_vec(), true)));
    }
}
