use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::names::ListedNames;
use crate::tree::{TreeEntry, TreeEntryKind, parent_path};

/// Selects entries of a tree. Paths are relative to the root of the copy, without a leading slash.
///
/// A rule of the command line decides before one of a `.gitignore` file. Among the rules of one
/// place the last that matches decides, as in git; among `.gitignore` files the deepest.
#[derive(Clone, Debug)]
pub struct Filter {
    rules: Gitignore,
    nested: BTreeMap<Vec<u8>, Gitignore>,
    listed: Option<ListedNames>,
    left_out: Option<Vec<u8>>,
    limits: FilterLimits,
}

/// Limits of files: sizes in bytes, inclusive, and modification times in seconds since 1970,
/// exclusive.
#[derive(Clone, Debug, Default)]
struct FilterLimits {
    smallest: Option<u64>,
    largest: Option<u64>,
    newest: Option<i64>,
    oldest: Option<i64>,
}

impl FilterLimits {
    fn admit(&self, entry: &TreeEntry) -> bool {
        let seconds = entry.modified.map(|time| time.seconds);
        let size = Some(entry.size);
        size >= self.smallest
            && self.largest.is_none_or(|most| entry.size <= most)
            && self
                .oldest
                .is_none_or(|from| seconds.is_none_or(|s| s > from))
            && self.newest.is_none_or(|to| seconds.is_none_or(|s| s < to))
    }
}

/// Decision of a [`Filter`] about an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterDecision {
    /// The entry takes part in the copy.
    Selected,
    /// The entry and everything below it is left alone at both ends.
    Excluded,
    /// The file is not copied because of its size or time; its counterpart stays.
    OutOfLimits,
}

/// Place where the user has written a rule, for messages about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleOrigin {
    /// Flag of the command line, such as `--exclude`.
    Flag(&'static str),
    /// Line of a file, counted from 1.
    Line(PathBuf, usize),
}

impl fmt::Display for RuleOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => f.write_str(flag),
            Self::Line(file, line) => write!(f, "{}, line {line}", file.display()),
        }
    }
}

/// A rule that is not a pattern of gitignore's syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterRuleError {
    origin: RuleOrigin,
    rule: String,
    reason: String,
}

impl std::error::Error for FilterRuleError {}

impl fmt::Display for FilterRuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            origin,
            rule,
            reason,
        } = self;
        write!(f, "{origin}: the pattern '{rule}' is invalid: {reason}")
    }
}

/// Collects the rules of a [`Filter`] in the order of the command line, and compiles them.
#[derive(Clone, Debug)]
pub struct FilterBuilder {
    rules: GitignoreBuilder,
    listed: Option<ListedNames>,
    limits: FilterLimits,
}

impl Default for FilterBuilder {
    fn default() -> Self {
        Self {
            rules: GitignoreBuilder::new(""),
            listed: None,
            limits: FilterLimits::default(),
        }
    }
}

impl FilterBuilder {
    /// Adds a line of gitignore's syntax: a pattern to exclude, or `!` and a pattern to include.
    ///
    /// # Errors
    ///
    /// The pattern cannot be parsed.
    pub fn rule(&mut self, line: &str, origin: RuleOrigin) -> Result<&mut Self, FilterRuleError> {
        add_rule(&mut self.rules, line, origin, UnclosedBracket::Closed)?;
        Ok(self)
    }

    /// Adds the lines of a file ([`FilterBuilder::rule`]).
    ///
    /// # Errors
    ///
    /// A line cannot be parsed or is not UTF-8.
    pub fn lines(&mut self, text: &[u8], file: &Path) -> Result<&mut Self, FilterRuleError> {
        add_lines(&mut self.rules, text, file, UnclosedBracket::Closed)?;
        Ok(self)
    }

    /// Selects only listed names, what is below them, and the directories that lead to them.
    pub fn listed(&mut self, names: ListedNames) -> &mut Self {
        self.listed = Some(names);
        self
    }

    /// Excludes files of fewer bytes.
    pub fn at_least(&mut self, size: u64) -> &mut Self {
        self.limits.smallest = Some(size);
        self
    }

    /// Excludes files of more bytes.
    pub fn at_most(&mut self, size: u64) -> &mut Self {
        self.limits.largest = Some(size);
        self
    }

    /// Excludes files that were modified at `seconds` since 1970 or before.
    pub fn newer_than(&mut self, seconds: i64) -> &mut Self {
        self.limits.oldest = Some(seconds);
        self
    }

    /// Excludes files that were modified at `seconds` since 1970 or later.
    pub fn older_than(&mut self, seconds: i64) -> &mut Self {
        self.limits.newest = Some(seconds);
        self
    }

    /// Returns the filter.
    ///
    /// # Errors
    ///
    /// The patterns together are too large to be compiled.
    pub fn build(self) -> Result<Filter, ignore::Error> {
        Ok(Filter {
            rules: self.rules.build()?,
            nested: BTreeMap::new(),
            listed: self.listed,
            left_out: None,
            limits: self.limits,
        })
    }
}

/// Treatment of a bracket without its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnclosedBracket {
    /// An error: the user would not learn that the pattern matches nothing.
    Closed,
    /// As in git.
    Any,
}

fn add_lines(
    rules: &mut GitignoreBuilder,
    text: &[u8],
    file: &Path,
    brackets: UnclosedBracket,
) -> Result<(), FilterRuleError> {
    // As git does: a byte order mark is no part of the first pattern.
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let origin = RuleOrigin::Line(file.to_owned(), at + 1);
        match std::str::from_utf8(line) {
            Ok(line) => add_rule(
                rules,
                line.strip_suffix('\r').unwrap_or(line),
                origin,
                brackets,
            )?,
            Err(_) => {
                let rule = String::from_utf8_lossy(line).into_owned();
                let reason = "it is not UTF-8: save the file in that encoding".to_owned();
                return Err(FilterRuleError {
                    origin,
                    rule,
                    reason,
                });
            }
        }
    }
    Ok(())
}

fn add_rule(
    rules: &mut GitignoreBuilder,
    line: &str,
    origin: RuleOrigin,
    brackets: UnclosedBracket,
) -> Result<(), FilterRuleError> {
    // Only a line of a file can be a comment.
    if matches!(origin, RuleOrigin::Flag(_)) && line.starts_with('#') {
        return add_rule(rules, &format!("\\{line}"), origin, brackets);
    }
    let of_rsync = line.starts_with("- ") || line.starts_with("+ ");
    if of_rsync && brackets == UnclosedBracket::Closed {
        return Err(FilterRuleError {
            origin,
            rule: line.to_owned(),
            reason: "rules have the syntax of .gitignore, and not that of rsync: leave out the \
                     sign, and begin a rule that includes with !; a name that begins so is \
                     written with a backslash before it"
                .to_owned(),
        });
    }
    let (text, open) = without_alternatives(line);
    if open && brackets == UnclosedBracket::Closed && !line.starts_with('#') {
        return Err(FilterRuleError {
            origin,
            rule: line.to_owned(),
            reason: "the bracket [ has no closing ]; write \\[ to match the character itself"
                .to_owned(),
        });
    }
    match rules.add_line(None, &text) {
        Ok(_) => Ok(()),
        Err(error) => Err(FilterRuleError {
            origin,
            rule: line.to_owned(),
            reason: match error {
                ignore::Error::Glob { err, .. } => err,
                other => other.to_string(),
            },
        }),
    }
}

/// Escapes the braces outside of brackets: `{a,b}` is a name in gitignore's syntax, and two
/// alternatives in that of the crate. True if a bracket has no end.
fn without_alternatives(line: &str) -> (String, bool) {
    let mut text = String::with_capacity(line.len());
    let mut rest = line.chars().peekable();
    // Characters since the bracket that is open.
    let mut inside: Option<usize> = None;
    while let Some(letter) = rest.next() {
        match (letter, inside) {
            ('\\', _) => {
                text.push(letter);
                text.extend(rest.next());
                inside = inside.map(|count| count + 1);
                continue;
            }
            ('{' | '}', None) => text.push('\\'),
            ('[', None) => {
                inside = Some(0);
                text.push(letter);
                text.extend(rest.next_if(|next| matches!(next, '!' | '^')));
                continue;
            }
            (']', Some(1..)) => inside = None,
            _ => inside = inside.map(|count| count + 1),
        }
        text.push(letter);
    }
    (text, inside.is_some())
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            rules: Gitignore::empty(),
            nested: BTreeMap::new(),
            listed: None,
            left_out: None,
            limits: FilterLimits::default(),
        }
    }
}

impl Filter {
    /// Adds the `.gitignore` file of the directory `dir`, before the entries of `dir` are decided.
    ///
    /// # Errors
    ///
    /// A line cannot be parsed; git ignores such a line, so the caller warns.
    pub fn add_nested(
        &mut self,
        dir: &[u8],
        text: &[u8],
        file: &Path,
    ) -> Result<(), FilterRuleError> {
        let mut rules = GitignoreBuilder::new("");
        let mut first = Ok(());
        for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let added = match at {
                0 => add_lines(&mut rules, line, file, UnclosedBracket::Any),
                _ => add_lines_from(&mut rules, line, file, at + 1),
            };
            if first.is_ok() {
                first = added;
            }
        }
        match rules.build() {
            Ok(rules) => {
                self.nested.insert(dir.to_vec(), rules);
            }
            Err(error) => {
                return Err(FilterRuleError {
                    origin: RuleOrigin::Line(file.to_owned(), 1),
                    rule: String::new(),
                    reason: error.to_string(),
                });
            }
        }
        first
    }

    /// Excludes the entry at `path` and everything below it, whatever the rules say.
    pub fn leave_out(&mut self, path: &[u8]) {
        let parts = path.split(|byte| *byte == b'/');
        let parts: Vec<&[u8]> = parts.filter(|p| !p.is_empty() && *p != b".").collect();
        self.left_out = Some(parts.join(&b'/'));
    }

    /// Decides about the entry at `path`. The entry's directory must have been selected before.
    pub fn decide(&mut self, path: &[u8], entry: &TreeEntry) -> FilterDecision {
        match self.decide_name(path, entry.kind) {
            FilterDecision::Selected
                if entry.kind == TreeEntryKind::File && !self.limits.admit(entry) =>
            {
                FilterDecision::OutOfLimits
            }
            selection => selection,
        }
    }

    /// Decides about an entry by its path and type alone, as for the target, whose sizes and times
    /// select nothing.
    pub fn decide_name(&mut self, path: &[u8], kind: TreeEntryKind) -> FilterDecision {
        if path.is_empty() {
            return FilterDecision::Selected;
        }
        if self.ignores(path, kind == TreeEntryKind::Directory)
            || self.left_out.as_deref() == Some(path)
        {
            return FilterDecision::Excluded;
        }
        match self
            .listed
            .as_mut()
            .is_none_or(|listed| listed.select(path))
        {
            true => FilterDecision::Selected,
            false => FilterDecision::Excluded,
        }
    }

    /// Returns true if the rules exclude an entry of this name in the root, whatever its type is.
    pub fn excludes_every_kind(&self, name: &[u8]) -> bool {
        [false, true]
            .into_iter()
            .all(|is_dir| self.ignores(name, is_dir))
    }

    /// Returns true if only listed names are selected.
    pub fn lists_names(&self) -> bool {
        self.listed.is_some()
    }

    /// Returns true if only listed names are selected, and the source itself is none of them.
    pub fn leaves_root(&self) -> bool {
        self.listed.as_ref().is_some_and(|names| !names.has_root())
    }

    /// Returns the listed names that were not found in the tree.
    pub fn missing(&self) -> impl Iterator<Item = &[u8]> {
        self.listed.iter().flat_map(ListedNames::missing)
    }

    fn ignores(&self, path: &[u8], is_dir: bool) -> bool {
        match self.rules.matched(as_path(path), is_dir) {
            Match::Ignore(_) => return true,
            Match::Whitelist(_) => return false,
            Match::None => {}
        }
        if self.nested.is_empty() {
            return false;
        }
        let mut dir = parent_path(path);
        loop {
            if let Some(rules) = self.nested.get(dir) {
                let start = if dir.is_empty() { 0 } else { dir.len() + 1 };
                let below = path.get(start..).unwrap_or_default();
                match rules.matched(as_path(below), is_dir) {
                    Match::Ignore(_) => return true,
                    Match::Whitelist(_) => return false,
                    Match::None => {}
                }
            }
            if dir.is_empty() {
                return false;
            }
            dir = parent_path(dir);
        }
    }
}

fn add_lines_from(
    rules: &mut GitignoreBuilder,
    line: &[u8],
    file: &Path,
    at: usize,
) -> Result<(), FilterRuleError> {
    add_lines(rules, line, file, UnclosedBracket::Any).map_err(|error| FilterRuleError {
        origin: RuleOrigin::Line(file.to_owned(), at),
        ..error
    })
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(rules: &[&str]) -> Filter {
        let mut builder = FilterBuilder::default();
        for rule in rules {
            builder.rule(rule, RuleOrigin::Flag("--exclude")).unwrap();
        }
        builder.build().unwrap()
    }

    fn excluded(filter: &mut Filter, path: &str, kind: TreeEntryKind) -> bool {
        filter.decide(path.as_bytes(), &TreeEntry::new(kind)) == FilterDecision::Excluded
    }

    /// Bug: `--exclude '#h'` was taken for a comment and `--exclude '- *.o'` for a name, without a word.
    #[test]
    fn rules_of_the_command_line_have_no_comments_and_no_signs_of_rsync() {
        let mut filter = filter(&["#h", "\\- x"]);
        assert!(excluded(&mut filter, "#h", TreeEntryKind::File));
        assert!(excluded(&mut filter, "- x", TreeEntryKind::File));
        for rule in ["- *.o", "+ *.c"] {
            let refused = FilterBuilder::default()
                .rule(rule, RuleOrigin::Flag("--exclude"))
                .map(drop)
                .unwrap_err();
            assert!(
                refused.to_string().contains("not that of rsync"),
                "{refused}"
            );
        }
        // A comment in a file, and a name in a repository's own file.
        let mut lines = FilterBuilder::default();
        lines
            .lines(b"# comment\n*.o\n", Path::new("rules"))
            .unwrap();
        assert!(lines.lines(b"- *.o\n", Path::new("rules")).is_err());
    }

    #[test]
    fn the_last_rule_that_matches_decides() {
        let mut filter = filter(&["*.o", "!keep.o", "/build/"]);
        assert!(excluded(&mut filter, "a/b.o", TreeEntryKind::File));
        assert!(!excluded(&mut filter, "a/keep.o", TreeEntryKind::File));
        assert!(excluded(&mut filter, "build", TreeEntryKind::Directory));
        assert!(!excluded(&mut filter, "build", TreeEntryKind::File));
        assert!(!excluded(&mut filter, "a/build", TreeEntryKind::Directory));
    }

    #[test]
    fn a_deeper_gitignore_overrides_those_above_and_flags_override_both() {
        let mut filter = filter(&["!always"]);
        let file = Path::new(".gitignore");
        filter.add_nested(b"", b"*.log\nalways\n", file).unwrap();
        filter
            .add_nested(b"sub", b"!kept.log\n/top\n", file)
            .unwrap();
        assert!(excluded(&mut filter, "x.log", TreeEntryKind::File));
        assert!(excluded(&mut filter, "sub/x.log", TreeEntryKind::File));
        assert!(!excluded(&mut filter, "sub/kept.log", TreeEntryKind::File));
        assert!(excluded(&mut filter, "sub/top", TreeEntryKind::File));
        assert!(!excluded(&mut filter, "sub/deep/top", TreeEntryKind::File));
        assert!(!excluded(&mut filter, "always", TreeEntryKind::File));
    }

    #[test]
    fn braces_are_part_of_a_name() {
        let mut filter = filter(&["{a,b}", "[{]x", "\\{c}"]);
        for name in ["{a,b}", "{x", "{c}"] {
            assert!(excluded(&mut filter, name, TreeEntryKind::File), "{name}");
        }
        assert!(!excluded(&mut filter, "a", TreeEntryKind::File));
    }

    #[test]
    fn a_pattern_that_cannot_be_parsed_names_its_file_and_line() {
        let mut builder = FilterBuilder::default();
        let error = builder
            .lines(b"ok\n[z-a]\n", Path::new("rules"))
            .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("rules, line 2: the pattern '[z-a]'")
        );
    }

    #[test]
    fn a_gitignore_with_one_bad_line_keeps_its_other_rules() {
        let mut filter = Filter::default();
        let file = Path::new(".gitignore");
        let error = filter.add_nested(b"", b"a\n[z-a]\nb\n", file).unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
        assert!(excluded(&mut filter, "a", TreeEntryKind::File));
        assert!(excluded(&mut filter, "b", TreeEntryKind::File));
    }

    #[test]
    fn sizes_and_times_limit_files_and_never_directories() {
        let mut builder = FilterBuilder::default();
        builder
            .at_least(10)
            .at_most(20)
            .newer_than(100)
            .older_than(200);
        let mut filter = builder.build().unwrap();
        let mut decide = |size, seconds| filter.decide(b"f", &TreeEntry::file(size, seconds));
        assert_eq!(decide(10, 101), FilterDecision::Selected);
        assert_eq!(decide(20, 199), FilterDecision::Selected);
        for (size, seconds) in [(9, 150), (21, 150), (15, 100), (15, 200)] {
            assert_eq!(
                decide(size, seconds),
                FilterDecision::OutOfLimits,
                "{size} {seconds}"
            );
        }
        assert!(!excluded(&mut filter, "d", TreeEntryKind::Directory));
    }

    #[test]
    fn names_that_are_not_utf8_are_matched_as_bytes() {
        let mut filter = filter(&["*.tmp"]);
        let entry = TreeEntry::new(TreeEntryKind::File);
        assert_eq!(
            filter.decide(b"caf\xe9.tmp", &entry),
            FilterDecision::Excluded
        );
        assert_eq!(
            filter.decide(b"caf\xe9.txt", &entry),
            FilterDecision::Selected
        );
    }
}
