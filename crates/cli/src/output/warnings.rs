//! Limits the warnings about entries: a server may list a million FIFOs.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Warnings with the same text, about different entries, that are shown one by one.
const MOST_ALIKE: u64 = 1000;
/// Different texts that are told apart; a server may choose them.
const MOST_TEXTS: usize = 100;

/// Counts warnings about entries by their text.
#[derive(Debug, Default)]
pub(super) struct WarningCounter {
    by_text: Mutex<BTreeMap<String, u64>>,
}

impl WarningCounter {
    /// Counts a warning; returns true if it is to be shown.
    pub(super) fn shows(&self, text: &str) -> bool {
        let mut by_text = self.by_text.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = by_text.contains_key(text) || by_text.len() < MOST_TEXTS;
        let text = if is_known { text } else { "" };
        let count = by_text.entry(text.to_owned()).or_default();
        *count += 1;
        *count <= MOST_ALIKE
    }

    /// Takes the counts; returns a line for each text with warnings that were not shown.
    pub(super) fn take_lines(&self) -> Vec<String> {
        let mut by_text = self.by_text.lock().unwrap_or_else(PoisonError::into_inner);
        let more = |(text, count): (String, u64)| {
            let more = count.checked_sub(MOST_ALIKE).filter(|more| *more > 0)?;
            let what = if text.is_empty() {
                "other warnings"
            } else {
                &text
            };
            Some(format!("{more} more entries: {what} (-v names them)"))
        };
        std::mem::take(&mut *by_text)
            .into_iter()
            .filter_map(more)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_of_each_kind_are_shown_and_the_rest_counted() {
        let warnings = WarningCounter::default();
        let shown = (0..1100).filter(|_| warnings.shows("a FIFO")).count();
        assert_eq!(shown, 1000);
        // Another warning is shown whatever came before.
        assert!(warnings.shows("nothing is deleted"));
        let chosen = (0..5000).filter(|n| warnings.shows(&n.to_string())).count();
        assert!(chosen < 1100, "{chosen}");
        let lines = warnings.take_lines();
        assert_eq!(lines[1], "100 more entries: a FIFO (-v names them)");
        assert!(lines[0].ends_with(" more entries: other warnings (-v names them)"));
        assert!(warnings.take_lines().is_empty());
    }
}
