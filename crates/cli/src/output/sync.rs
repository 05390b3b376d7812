//! Lines of `longhaul sync`: the plan, and the totals at the end.

use transfer::report::{CopyEvent, EscapedName, SyncChange};
use transfer::sync::SyncResult;

use crate::output::units;

/// Returns the line for a planned change, if changes are itemized, and the first line of the plan.
pub(crate) fn line(event: &CopyEvent, itemize: bool, quiet: bool) -> Option<String> {
    match event {
        CopyEvent::SyncPlanned {
            source,
            target,
            files,
            bytes,
            deletions,
            equal,
            entries,
            excluded,
            unlisted,
        } if !quiet => {
            if *entries == 0 {
                let ends = format!("{source} -> {target}");
                return Some(nothing(&ends, *deletions, (*excluded, *unlisted)));
            }
            let mut text = format!("{source} -> {target}: {} to copy", units::files(*files));
            if *files > 0 {
                text.push_str(&format!(" ({})", units::size(*bytes)));
            }
            if *deletions > 0 {
                text.push_str(&format!(", {deletions} to delete"));
            }
            let equal = units::counted(*equal, "entry", "entries");
            text.push_str(&format!(", {equal} unchanged"));
            Some(text)
        }
        CopyEvent::Planned {
            change,
            path,
            from,
            reasons,
        } if itemize => Some(match (change, from) {
            (SyncChange::Create, _) => format!("+ {path}"),
            (SyncChange::Update, _) => format!("~ {path} ({})", reasons.join(", ")),
            (SyncChange::Delete, _) => format!("- {path}"),
            (SyncChange::Move, Some(from)) => format!("> {from} -> {path}"),
            (SyncChange::Move, None) => format!("> {path}"),
            (SyncChange::Link, _) => format!("+ {path} (linked)"),
            (SyncChange::HardLink, first) => hard_link(path, first.as_ref(), reasons),
            (SyncChange::Equal, _) => format!("= {path}"),
        }),
        _ => None,
    }
}

/// Returns the first line of the plan for a source of which no entry takes part.
fn nothing(ends: &str, deletions: u64, (excluded, unlisted): (u64, u64)) -> String {
    let why = match (excluded, unlisted) {
        (0, 0) => ", because nothing was found in the source",
        (_, 0) => ", because all entries of the source are excluded",
        // The failures have the reason.
        _ => "",
    };
    match deletions {
        0 => format!("{ends}: nothing to copy{why}"),
        _ => format!("{ends}: nothing to copy{why}; {deletions} to delete"),
    }
}

/// Returns the line for a name that becomes a hard link to `first`: `+` for a new name, `~` for one
/// that exists.
fn hard_link(path: &EscapedName, first: Option<&EscapedName>, reasons: &[&str]) -> String {
    let first = first.map(|first| format!("hard link to {first}"));
    let first = first.unwrap_or_else(|| "hard link".to_owned());
    let others = reasons.iter().filter(|reason| **reason != "hard link");
    let others: String = others.map(|reason| format!(", {reason}")).collect();
    let sign = if reasons.is_empty() { '+' } else { '~' };
    format!("{sign} {path} ({first}{others})")
}

/// Returns the line with the numbers that only a sync has, if any is not zero. The first line of
/// the plan has the number of unchanged entries.
pub(crate) fn totals(result: &SyncResult) -> Option<String> {
    let counts = [
        (result.moved, "moved"),
        (result.replaced, "replaced by another type of entry"),
        (result.linked, "linked"),
        (result.deleted, "deleted"),
    ];
    let told = counts.iter().filter(|(count, _)| *count > 0);
    let told: Vec<String> = told
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// Returns the line about changed files that were sent whole to a host with rsync alone.
pub(crate) fn savings(result: &SyncResult) -> Option<String> {
    let size = units::size(result.sent_whole?);
    Some(format!(
        "{size} of changed files were sent whole, because the far end has no longhaul; longhaul \
         bootstrap HOST installs it, and only the differences are sent then"
    ))
}

/// The closing line of `--dry-run`.
pub(crate) const DRY: &str = "nothing was changed (--dry-run)";

#[cfg(test)]
mod tests {
    use super::*;

    /// "9 unchanged" was shown twice, and a type change without --delete as a deletion.
    #[test]
    fn totals_name_what_no_other_line_has() {
        let result = SyncResult {
            summary: transfer::report::CopySummary::default(),
            equal: 9,
            deleted: 1,
            replaced: 2,
            moved: 0,
            refused: None,
            linked: 0,
            sent_whole: None,
        };
        let said = Some("2 replaced by another type of entry, 1 deleted".to_owned());
        assert_eq!(totals(&result), said);
    }

    /// Bug: "206 unchanged" came after a number of files, and counted directories too.
    #[test]
    fn unchanged_entries_are_not_called_files() {
        let planned = |equal| CopyEvent::SyncPlanned {
            source: EscapedName(b"a".to_vec()),
            target: EscapedName(b"b".to_vec()),
            files: 0,
            bytes: 0,
            deletions: 0,
            equal,
            entries: 300,
            excluded: 0,
            unlisted: 0,
        };
        let said = |equal| line(&planned(equal), false, false).unwrap();
        assert_eq!(said(206), "a -> b: 0 files to copy, 206 entries unchanged");
        assert_eq!(said(1), "a -> b: 0 files to copy, 1 entry unchanged");
    }

    /// Bug: an empty source was "0 files to copy, 0 entries unchanged".
    #[test]
    fn a_source_without_entries_is_called_empty() {
        let said = |deletions, excluded, unlisted| {
            let planned = CopyEvent::SyncPlanned {
                source: EscapedName(b"a/".to_vec()),
                target: EscapedName(b"b/".to_vec()),
                files: 0,
                bytes: 0,
                deletions,
                equal: 0,
                entries: 0,
                excluded,
                unlisted,
            };
            line(&planned, false, false).unwrap()
        };
        let empty = "a/ -> b/: nothing to copy, because nothing was found in the source";
        assert_eq!(said(0, 0, 0), empty);
        assert_eq!(said(3, 0, 0), format!("{empty}; 3 to delete"));
        let excluded = "a/ -> b/: nothing to copy, because all entries of the source are excluded";
        assert_eq!(said(0, 2, 0), excluded);
        // Bug: "nothing was found" in a source that could not be listed.
        assert_eq!(said(0, 0, 1), "a/ -> b/: nothing to copy");
    }

    #[test]
    fn a_hard_link_names_the_other_name() {
        let said = |reasons| {
            let event = CopyEvent::Planned {
                change: SyncChange::HardLink,
                path: EscapedName(b"b".to_vec()),
                from: Some(EscapedName(b"a\n".to_vec())),
                reasons,
            };
            line(&event, true, false).unwrap()
        };
        assert_eq!(said(vec![]), "+ b (hard link to a\\n)");
        let both = vec!["size", "hard link"];
        assert_eq!(said(both), "~ b (hard link to a\\n, size)");
    }

    #[test]
    fn a_change_is_one_line_that_drives_no_terminal() {
        let event = CopyEvent::Planned {
            change: SyncChange::Update,
            path: EscapedName(b"a\x1b[2J".to_vec()),
            from: None,
            reasons: vec!["size", "time"],
        };
        let text = line(&event, true, false).unwrap();
        assert_eq!(text, "~ a\\x1b[2J (size, time)");
        assert_eq!(line(&event, false, false), None);
    }
}
