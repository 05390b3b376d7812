//! The flags that select entries of the sources.

use std::path::PathBuf;

use sync::RuleOrigin;

use crate::flags::argument_error::ArgumentError;
use crate::flags::flag::FlagInput;
use crate::flags::point_in_time::PointInTime;

/// The flags that select entries of the sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SelectionArgs {
    /// Rules with their places on the command line, by which they are ordered.
    pub(crate) filters: Vec<(usize, UncompiledFilterRule)>,
    pub(crate) gitignore: bool,
    pub(crate) files_from: Option<PathBuf>,
    pub(crate) min_size: Option<u64>,
    pub(crate) max_size: Option<u64>,
    pub(crate) newer: Option<PointInTime>,
    pub(crate) older: Option<PointInTime>,
}

/// One filter flag: a rule, or a file of rules that is not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UncompiledFilterRule {
    /// A line in gitignore's syntax, from this flag.
    Rule(String, RuleOrigin),
    /// A file of such lines.
    File(PathBuf),
}

impl SelectionArgs {
    /// Returns true if everything is selected.
    pub(crate) fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Orders the rules, after all flags were read.
    ///
    /// # Errors
    /// A rule can have no effect.
    pub(super) fn settle(&mut self) -> Result<(), ArgumentError> {
        self.filters.sort_by_key(|(place, _)| *place);
        match self.include_without_effect() {
            None => Ok(()),
            Some(pattern) => Err(format!(
                "--include {pattern}: has no effect before the first --exclude: of all patterns \
                 the last that matches decides, so put it after the --exclude"
            )
            .into()),
        }
    }

    /// Adds a rule for each value, with a prefix.
    pub(crate) fn rules(
        &mut self,
        given: FlagInput,
        origin: RuleOrigin,
        prefix: &str,
    ) -> Result<(), ArgumentError> {
        let places = given.places.clone();
        for (place, pattern) in places.into_iter().zip(given.texts()?) {
            // `--include !x` would be a pattern with two marks.
            let line = match pattern.strip_prefix('!').filter(|_| !prefix.is_empty()) {
                Some(_) => {
                    return Err(
                        "begins with !, which --include adds itself: leave out the !".into(),
                    );
                }
                None => format!("{prefix}{pattern}"),
            };
            self.filters
                .push((place, UncompiledFilterRule::Rule(line, origin.clone())));
        }
        Ok(())
    }

    /// Finds an `--include` that no earlier pattern makes necessary: of all patterns the last that
    /// matches decides.
    fn include_without_effect(&self) -> Option<&str> {
        // Files of patterns may exclude something, and those of --gitignore decide last.
        if self.gitignore {
            return None;
        }
        let excludes = |source: &UncompiledFilterRule| match source {
            UncompiledFilterRule::Rule(line, _) => !line.starts_with('!'),
            UncompiledFilterRule::File(_) => true,
        };
        match self.filters.first() {
            Some((_, UncompiledFilterRule::Rule(line, _)))
                if self.filters.iter().any(|(_, source)| excludes(source)) =>
            {
                line.strip_prefix('!')
            }
            _ => None,
        }
    }

    /// Adds files of rules.
    pub(crate) fn filter_files(&mut self, given: FlagInput) {
        for (place, file) in given.places.into_iter().zip(given.values) {
            self.filters
                .push((place, UncompiledFilterRule::File(file.into())));
        }
    }
}
