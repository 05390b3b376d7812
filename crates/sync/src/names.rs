use std::fmt;

/// Relative names that the user listed (`--files-from`), sorted for lookups in logarithmic time.
#[derive(Clone, Debug, Default)]
pub struct ListedNames {
    names: Vec<Vec<u8>>,
    found: Vec<bool>,
    /// The source itself is listed, alone or as the `./` of a name.
    has_root: bool,
}

/// A listed name that cannot be below the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedNameError {
    line: usize,
}

impl std::error::Error for ListedNameError {}

impl fmt::Display for ListedNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}: the name leads out of the source; list names below the source, without ..",
            self.line
        )
    }
}

impl ListedNames {
    /// Parses a list: one name per line, or names that end with a zero byte if the list contains
    /// one. A leading `/` and empty lines are ignored. A leading `./`, as `find .` writes it, lists
    /// the source itself too, but not everything in it (as rsync 3.5.0 with -a --files-from, which
    /// then gives the target directory the source's mode and times).
    ///
    /// # Errors
    ///
    /// A name has a component `..`.
    pub fn parse(list: &[u8]) -> Result<Self, ListedNameError> {
        let end = if list.contains(&0) { 0 } else { b'\n' };
        let mut names = Vec::new();
        let mut has_root = false;
        for (at, line) in list.split(|byte| *byte == end).enumerate() {
            let line = match end {
                b'\n' => line.strip_suffix(b"\r").unwrap_or(line),
                _ => line,
            };
            let parts = line.split(|byte| *byte == b'/');
            let parts: Vec<&[u8]> = parts.filter(|p| !p.is_empty() && *p != b".").collect();
            if parts.contains(&&b".."[..]) {
                return Err(ListedNameError { line: at + 1 });
            }
            has_root |= line == b"." || line.starts_with(b"./");
            if !parts.is_empty() {
                names.push(parts.join(&b'/'));
            } else if line.contains(&b'.') {
                // The source itself, which selects everything.
                names.push(Vec::new());
            }
        }
        names.sort_unstable();
        names.dedup();
        let found = vec![false; names.len()];
        Ok(Self {
            names,
            found,
            has_root,
        })
    }

    /// Returns true if `path` is listed, lies below a listed directory, or leads to a listed name.
    pub fn select(&mut self, path: &[u8]) -> bool {
        let mut prefix = path;
        loop {
            if let Ok(at) = self
                .names
                .binary_search_by(|name| name.as_slice().cmp(prefix))
            {
                if let Some(found) = self.found.get_mut(at) {
                    *found = true;
                }
                return true;
            }
            match prefix.iter().rposition(|byte| *byte == b'/') {
                Some(end) => prefix = prefix.get(..end).unwrap_or_default(),
                None if prefix.is_empty() => break,
                None => prefix = &[],
            }
        }
        self.leads_to_listed(path)
    }

    /// Returns true if the source itself is listed.
    pub(crate) fn has_root(&self) -> bool {
        self.has_root
    }

    fn leads_to_listed(&self, path: &[u8]) -> bool {
        if path.is_empty() {
            return !self.names.is_empty();
        }
        let below = [path, b"/"].concat();
        let at = self
            .names
            .partition_point(|name| name.as_slice() < below.as_slice());
        self.names
            .get(at)
            .is_some_and(|name| name.starts_with(&below))
    }

    /// Returns the listed names that no call of [`ListedNames::select`] has found.
    pub fn missing(&self) -> impl Iterator<Item = &[u8]> {
        let pairs = self.names.iter().zip(&self.found);
        pairs
            .filter(|(_, found)| !**found)
            .map(|(name, _)| name.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_names_select_themselves_their_parents_and_what_is_below() {
        let mut names = ListedNames::parse(b"a/b.txt\n./dir/\n/x\r\n\nnever\n").unwrap();
        for path in ["a", "a/b.txt", "dir", "dir/deep/er", "x", ""] {
            assert!(names.select(path.as_bytes()), "{path}");
        }
        for path in ["b", "a/b", "a/b.txt2", "di", "dir2", "nev"] {
            assert!(!names.select(path.as_bytes()), "{path}");
        }
        assert_eq!(names.missing().collect::<Vec<_>>(), [b"never"]);
    }

    #[test]
    fn the_source_itself_is_listed_by_a_dot() {
        for (list, has_root) in [
            (&b"a\nb/c\n"[..], false),
            (b"/a\n", false),
            (b"a/./b\n", false),
            (b".a\n", false),
            (b"./a\n", true),
            (b"a\n.\n", true),
            (b"a\0./b\0", true),
        ] {
            assert_eq!(
                ListedNames::parse(list).unwrap().has_root(),
                has_root,
                "{list:?}"
            );
        }
    }

    #[test]
    fn names_with_newlines_are_listed_with_zero_bytes() {
        let mut names = ListedNames::parse(b"a\nb\0c\0").unwrap();
        assert!(names.select(b"a\nb") && names.select(b"c") && !names.select(b"a"));
    }

    #[test]
    fn a_name_that_leads_out_is_refused_with_its_line() {
        let error = ListedNames::parse(b"a\nb/../../c\n").unwrap_err();
        assert!(error.to_string().starts_with("line 2:"));
    }

    #[test]
    fn a_dot_selects_the_whole_source() {
        let mut names = ListedNames::parse(b".\n").unwrap();
        assert!(names.select(b"any/thing"));
    }
}
