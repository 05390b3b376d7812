//! The part of the source's host that the receiver may read.

/// Sources as paths beneath one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcesInDirectory {
    /// The directory, relative to the login directory if it does not begin with a slash.
    pub root: Vec<u8>,
    /// The sources beneath the root, each beginning with a slash.
    pub names: Vec<Vec<u8>>,
}

/// Finds the innermost directory that contains all sources.
///
/// # Errors
/// A clause that says why there is none: home directories of others, or absolute and relative paths
/// together.
pub fn files_of(sources: &[&[u8]]) -> Result<SourcesInDirectory, &'static str> {
    let split: Vec<_> = sources
        .iter()
        .map(|path| SplitPath::of(path))
        .collect::<Result<_, _>>()?;
    let Some(first) = split.first() else {
        return Err("no source is named");
    };
    if split.iter().any(|other| other.absolute != first.absolute) {
        return Err("some sources are absolute paths and others relative ones");
    }
    let common = |n: usize| {
        let all = split.iter();
        all.map(|other| other.parent.get(n))
            .all(|part| part.is_some() && part == first.parent.get(n))
    };
    let shared = (0..first.parent.len()).take_while(|n| common(*n)).count();
    let parts: Vec<&[u8]> = first.parent.iter().take(shared).copied().collect();
    let mut root = parts.join(&b'/');
    if first.absolute {
        root.insert(0, b'/');
    }
    let names = split.iter().map(|source| {
        let rest = source.parent.iter().skip(shared).copied();
        let all: Vec<&[u8]> = rest.chain([source.last]).collect();
        [b"/", all.join(&b'/').as_slice()].concat()
    });
    Ok(SourcesInDirectory {
        names: names.collect(),
        root,
    })
}

struct SplitPath<'a> {
    absolute: bool,
    /// Components in front of the name, without empty ones and `.`.
    parent: Vec<&'a [u8]>,
    last: &'a [u8],
}

impl<'a> SplitPath<'a> {
    fn of(path: &'a [u8]) -> Result<Self, &'static str> {
        let path = match path {
            b"~" => b"",
            path => path.strip_prefix(b"~/").unwrap_or(path),
        };
        if path.starts_with(b"~") {
            return Err("the source is in the home directory of another account (~NAME)");
        }
        let components = path.split(|b| *b == b'/');
        let plain = |part: &&[u8]| !part.is_empty() && *part != b".";
        let mut parent: Vec<&[u8]> = components.filter(plain).collect();
        let ends = path.rsplit(|b| *b == b'/').find(|part| !part.is_empty());
        let last = match ends {
            // The directory itself is the root.
            None | Some(b"." | b"..") => &b"."[..],
            Some(_) => parent.pop().unwrap_or(b"."),
        };
        let is_pattern = |part: &&[u8]| part.iter().any(|b| b"*?[\\".contains(b));
        if parent.iter().any(is_pattern) {
            return Err("a source has wildcards before the last part of its path");
        }
        Ok(Self {
            absolute: path.starts_with(b"/"),
            parent,
            last,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(sources: &[&str]) -> Result<(String, Vec<String>), &'static str> {
        let sources: Vec<&[u8]> = sources.iter().map(|s| s.as_bytes()).collect();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let files = files_of(&sources)?;
        let names = files.names.into_iter().map(text);
        Ok((text(files.root), names.collect()))
    }

    #[test]
    fn the_root_is_the_innermost_directory() {
        let case = |sources: &[&str], root: &str, names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            assert_eq!(files(sources), Ok((root.to_owned(), names)), "{sources:?}");
        };
        case(&["/srv/a"], "/srv", &["/a"]);
        case(&["/a"], "/", &["/a"]);
        case(&["a"], "", &["/a"]);
        case(&["~/d//./a/"], "d", &["/a"]);
        case(&[""], "", &["/."]);
        case(&["~"], "", &["/."]);
        case(&["/srv/d/."], "/srv/d", &["/."]);
        case(&["d/.."], "d/..", &["/."]);
        case(&["/"], "/", &["/."]);
        case(&["/srv/*.log"], "/srv", &["/*.log"]);
        case(&["/srv/a/x", "/srv/b/y"], "/srv", &["/a/x", "/b/y"]);
        case(&["/srv/a", "/srv/b"], "/srv", &["/a", "/b"]);
    }

    #[test]
    fn what_has_no_common_directory_is_told() {
        assert!(files(&["~other/x"]).is_err());
        assert!(files(&["/x", "y"]).is_err());
        assert!(files(&["/srv/*/x"]).is_err());
        assert!(files(&[]).is_err());
    }
}
