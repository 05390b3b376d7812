//! Warnings about entries that a copy leaves out on purpose, one for each kind: special permission
//! bits that a server chose, symlinks that lead outside, other names of replaced files.

use std::collections::{BTreeMap, BTreeSet};

use schedule::MetadataFlags;
use sftp::xattrs::Xattr;

use super::CopyOptions;
use crate::report::EscapedName;

/// Setuid, setgid and sticky bits.
const SPECIAL: u32 = 0o7000;
/// Attribute of file capabilities, which grant privileges like a setuid bit.
const CAPABILITY: &[u8] = b"security.capability";

/// Number of entries that one warning is about, and the first of them.
#[derive(Debug, Default)]
struct AffectedEntryCount {
    entries: u64,
    first: Option<EscapedName>,
}

impl AffectedEntryCount {
    fn note(&mut self, entry: impl FnOnce() -> EscapedName) {
        self.entries += 1;
        self.first.get_or_insert_with(entry);
    }

    /// The first entry, and `3 files, of which this is the first`.
    fn words(&self, one: &str, many: &str) -> Option<(EscapedName, String)> {
        let words = match self.entries {
            1 => format!("this {one}"),
            entries => format!("{entries} {many}, of which this is the first"),
        };
        Some((self.first.clone()?, words))
    }
}

/// Rules about setuid, setgid and sticky bits and file capabilities.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpecialBitRules {
    keeps: bool,
    keeps_capabilities: bool,
    /// The user asked for permissions, and a server chose the bits that are cleared.
    warns: bool,
}

impl SpecialBitRules {
    /// Bits of local files are kept with -a, as rsync does, and those that a server reports only
    /// with --preserve-setuid.
    pub(super) fn new(options: &CopyOptions, source_is_remote: bool) -> Self {
        let asked = options.preserve || options.archive;
        let own = options.archive && !source_is_remote;
        Self {
            keeps: own || asked && options.preserve_setuid,
            keeps_capabilities: !source_is_remote || options.preserve_setuid,
            warns: asked && source_is_remote,
        }
    }

    /// True if setuid, setgid and sticky bits are kept.
    pub(super) fn keeps(self) -> bool {
        self.keeps
    }

    /// True if the extended attribute of this name is kept, unlike capabilities that a server
    /// chose.
    pub(super) fn keeps_xattr(self, name: &[u8]) -> bool {
        self.keeps_capabilities || name != CAPABILITY
    }
}

/// Cause of writing files directly to their final names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum InPlaceCause {
    /// The server renames no file.
    Rename,
    /// The server refuses the names of temporaries.
    TemporaryName,
}

/// Counts, by kind, of what the run has left out on purpose so far.
#[derive(Debug, Default)]
pub(super) struct LeftOutCounts {
    special_bits: AffectedEntryCount,
    links: AffectedEntryCount,
    replaced: AffectedEntryCount,
    /// Targets that have one more name, which this run has made for a backup.
    backed_up: BTreeSet<Vec<u8>>,
    /// Causes of writing in place of which the user was told.
    told_in_place: BTreeSet<InPlaceCause>,
    /// Files that were written in place, by the reason.
    in_place: BTreeMap<String, AffectedEntryCount>,
    /// True for a sync or a plan's shard.
    is_planned: bool,
}

/// Reasons that are told apart for files that are written in place; a server chooses the words.
const MOST_REASONS: usize = 100;

impl LeftOutCounts {
    /// True at the first call with this cause, for the warning about it. A refusal is found first in
    /// one directory, then in another, and only then taken to hold for the whole server.
    pub(super) fn is_first_refusal(&mut self, cause: InPlaceCause) -> bool {
        self.told_in_place.insert(cause)
    }

    /// Counts a file that is written in place for this reason. True for the first one, for the warning
    /// about it.
    pub(super) fn note_in_place(&mut self, reason: &str, target: &EscapedName) -> bool {
        let is_known = self.in_place.contains_key(reason) || self.in_place.len() < MOST_REASONS;
        let reason = if is_known { reason } else { "other reasons" };
        let count = self.in_place.entry(reason.to_owned()).or_default();
        count.note(|| target.clone());
        count.entries == 1
    }

    /// Returns the mode bits of a directory that are kept. The sticky bit of a directory only
    /// restricts other users, and scp keeps it.
    pub(super) fn kept_directory_mode(
        &mut self,
        rules: SpecialBitRules,
        mode: u32,
        shown: impl FnOnce() -> EscapedName,
    ) -> u32 {
        if rules.keeps {
            return mode & 0o7777;
        }
        let cleared = mode & SPECIAL & !0o1000;
        self.note_special_bits(rules, cleared, shown);
        mode & 0o1777
    }

    /// Notes a file whose source has this mode.
    pub(super) fn note_file_mode(
        &mut self,
        rules: SpecialBitRules,
        mode: u32,
        shown: impl FnOnce() -> EscapedName,
    ) {
        if !rules.keeps {
            self.note_special_bits(rules, mode & SPECIAL, shown);
        }
    }

    fn note_special_bits(
        &mut self,
        rules: SpecialBitRules,
        cleared: u32,
        shown: impl FnOnce() -> EscapedName,
    ) {
        if cleared != 0 && rules.warns {
            self.special_bits.note(shown);
        }
    }

    /// Removes file capabilities that a server chose from the attributes to set.
    pub(super) fn without_capabilities(
        &mut self,
        rules: SpecialBitRules,
        (list, kinds): (&mut Vec<Xattr>, MetadataFlags),
        entry: impl FnOnce() -> Option<EscapedName>,
    ) {
        let keeps = |(name, _): &Xattr| rules.keeps_xattr(name);
        let sets = kinds.contains(MetadataFlags::XATTRS);
        if sets && !list.iter().all(keeps) {
            list.retain(keeps);
            let unnamed = || EscapedName(CAPABILITY.to_vec());
            self.special_bits.note(|| entry().unwrap_or_else(unnamed));
        }
    }

    /// Notes that this run has made another name of the file at `target`, which keeps the old
    /// contents on purpose.
    pub(super) fn note_backup_name(&mut self, target: Vec<u8>) {
        self.backed_up.insert(target);
    }

    /// Notes that the entries were chosen before, by a sync or a plan, which have no --inplace.
    pub(super) fn set_planned(&mut self) {
        self.is_planned = true;
    }

    /// Notes that the replaced file at `target` has this number of other names.
    pub(super) fn note_other_names(
        &mut self,
        target: &[u8],
        names: u64,
        shown: impl FnOnce() -> EscapedName,
    ) {
        if names > u64::from(self.backed_up.contains(target)) {
            self.replaced.note(shown);
        }
    }

    /// Returns true for a symlink that --safe-links leaves out, which the warning at the end
    /// mentions. `below` is its path below the copy's target.
    pub(super) fn leaves_link_out(
        &mut self,
        below: &[u8],
        points_to: &[u8],
        shown: impl FnOnce() -> EscapedName,
    ) -> bool {
        let out = leads_out(below, points_to);
        if out {
            self.links.note(shown);
        }
        out
    }

    /// Warnings about all that was left out, each with the first entry that it is about.
    pub(super) fn warnings(&self) -> impl Iterator<Item = (Option<EscapedName>, String)> {
        let bits = self.special_bits.words("entry", "entries");
        let bits = bits.map(|(first, of)| {
            let text = format!(
                "cleared setuid, setgid or sticky bits or file capabilities of {of}; \
                 --preserve-setuid keeps them"
            );
            (Some(first), text)
        });
        let links = self.links.words("symlink", "symlinks");
        let links = links.map(|(first, links)| {
            let text = format!("--safe-links: skipped {links}: pointing outside the copy");
            (Some(first), text)
        });
        let replaced = self.replaced.words("file", "files");
        let replaced = replaced.map(|(first, files)| {
            let hint = match self.is_planned {
                true => "",
                false => "; --inplace updates all names",
            };
            let text = format!("hard links: other names of {files} keep the old contents{hint}");
            (Some(first), text)
        });
        let in_place = self.in_place.iter().filter(|(_, of)| of.entries > 1);
        let in_place = in_place.filter_map(|(reason, of)| {
            let (first, files) = of.words("file", "files")?;
            let text = format!("{files}, were written directly to their final names: {reason}");
            Some((Some(first), text))
        });
        let all = [bits, links, replaced].into_iter().flatten();
        all.chain(in_place)
    }
}

/// True if a symlink at `link`, a path below the target, leads out of the target: by an absolute
/// path, by more `..` than its depth, or by a `..` after a name, which may itself be a symlink (the
/// rule of rsync since CVE-2024-12088).
fn leads_out(link: &[u8], points_to: &[u8]) -> bool {
    if points_to.is_empty() || points_to.starts_with(b"/") {
        return true;
    }
    let names = |path: &[u8]| {
        let names = path.split(|byte| *byte == b'/');
        names.filter(|name| !matches!(*name, b"" | b".")).count()
    };
    let mut depth = names(link).saturating_sub(1);
    let mut named = false;
    for part in points_to.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if named || depth == 0 => return true,
            b".." => depth -= 1,
            _ => named = true,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symlink_leads_out_by_its_words() {
        for (link, points_to, out) in [
            ("a", "b", false),
            ("a", "b/c", false),
            ("a", "./b", false),
            ("d/a", "../b", false),
            ("d/a", "..", false),
            ("/d/e/a", "../../b", false),
            ("d/./a", "../b", false),
            ("a", "..", true),
            ("a", "../b", true),
            ("d/a", "../../b", true),
            ("a", "/etc/passwd", true),
            ("a", "", true),
            ("d/e/a", "b/../c", true),
            ("d/e/a", "../b/../../..", true),
        ] {
            assert_eq!(
                leads_out(link.as_bytes(), points_to.as_bytes()),
                out,
                "{link} -> {points_to}"
            );
        }
    }

    /// Bug: a directory in which no temporary can be created brought a warning for each of its files.
    #[test]
    fn each_file_that_was_written_in_place_had_a_warning() {
        let mut withheld = LeftOutCounts::default();
        let target = |n: u32| EscapedName(format!("h:/dst/f{n}").into_bytes());
        let first =
            |withheld: &mut LeftOutCounts, why: &str, n| withheld.note_in_place(why, &target(n));
        assert!(first(&mut withheld, "it is closed", 1));
        assert!(first(&mut withheld, "it is odd", 2));
        for n in 3..100 {
            assert!(!first(&mut withheld, "it is closed", n));
        }
        let said: Vec<_> = withheld.warnings().collect();
        let text = "98 files, of which this is the first, were written directly to their final names: it \
                    is closed";
        assert_eq!(said, [(Some(target(1)), text.to_owned())]);
        let reasons = (0..1000).filter(|n| first(&mut withheld, &n.to_string(), 1));
        assert!(reasons.count() <= MOST_REASONS);
    }

    #[test]
    fn each_kind_is_one_warning() {
        let mut withheld = LeftOutCounts::default();
        assert_eq!(withheld.warnings().count(), 0);
        for name in ["x", "y"] {
            withheld.special_bits.note(|| EscapedName(name.into()));
        }
        withheld.replaced.note(|| EscapedName(b"z".to_vec()));
        let said: Vec<_> = withheld.warnings().collect();
        assert_eq!(said.len(), 2);
        let name = |text: &str| Some(EscapedName(text.into()));
        let ((bits, bits_of), (replaced, files)) = (&said[0], &said[1]);
        assert_eq!((bits, replaced), (&name("x"), &name("z")));
        let of = "of 2 entries, of which this is the first;";
        assert!(bits_of.contains(of), "{said:?}");
        assert!(files.contains("names of this file keep"), "{said:?}");
        assert!(files.ends_with("; --inplace updates all names"), "{said:?}");
        withheld.set_planned();
        let said: Vec<_> = withheld.warnings().collect();
        assert!(said[1].1.ends_with("keep the old contents"), "{said:?}");
    }

    /// Directory to which `points_to` leads from a symlink at `link`, by its words alone; `None` for
    /// one outside of the tree.
    fn lexical<'p>(link: &'p str, points_to: &'p str) -> Option<Vec<&'p str>> {
        let mut at: Vec<&str> = link
            .split('/')
            .filter(|part| !matches!(*part, "" | "."))
            .collect();
        at.pop();
        for part in points_to.split('/') {
            match part {
                "" | "." => {}
                ".." => {
                    at.pop()?;
                }
                name => at.push(name),
            }
        }
        Some(at)
    }

    /// --safe-links keeps no symlink that leads out of the tree, and leaves out no other one, except
    /// where a name comes before `..`, which may itself be a symlink.
    #[test]
    fn safe_links_keeps_exactly_the_symlinks_that_stay_inside() {
        let mut seed = testkit::Seed::new(4);
        let mut random = |parts: &[&'static str]| {
            let len = 1 + seed.below(5);
            let part = |_| parts[seed.below(parts.len() as u64) as usize];
            (0..len).map(part).collect::<Vec<_>>().join("/")
        };
        let (mut kept, mut out) = (0, 0);
        for _ in 0..20_000 {
            let link = random(&["a", "b", ".", ""]);
            let points_to = random(&["..", "..", "a", "b", ".", ""]);
            let leaves = leads_out(link.as_bytes(), points_to.as_bytes());
            let is_absolute = points_to.starts_with('/') || points_to.is_empty();
            let escapes = is_absolute || lexical(&link, &points_to).is_none();
            assert!(
                leaves || !escapes,
                "{link} -> {points_to} leads out and is kept"
            );
            let parts: Vec<&str> = points_to
                .split('/')
                .filter(|part| !matches!(*part, "" | "."))
                .collect();
            let first_name = parts.iter().position(|part| *part != "..");
            let is_plain = first_name.is_none_or(|at| !parts[at..].contains(&".."));
            assert!(escapes || leaves != is_plain, "{link} -> {points_to}");
            kept += usize::from(!leaves);
            out += usize::from(leaves);
        }
        assert!(kept > 2000 && out > 2000, "{kept} {out}");
    }

    /// Setuid bits of this machine's own files are kept by -a, and those that a server reports only
    /// if the user asks for them by name; without -p or -a none are.
    #[test]
    fn special_bits_are_kept_only_where_the_user_trusts_the_source() {
        for number in 0..16 {
            let flag = |bit: u32| number & (1 << bit) != 0;
            let options = CopyOptions {
                preserve: flag(0),
                archive: flag(1),
                preserve_setuid: flag(2),
                ..CopyOptions::default()
            };
            let from_server = flag(3);
            let rules = SpecialBitRules::new(&options, from_server);
            let keeps = match (options.archive, options.preserve, from_server) {
                (true, _, false) => true,
                (true, ..) | (_, true, _) => options.preserve_setuid,
                _ => false,
            };
            assert_eq!(
                rules.keeps(),
                keeps,
                "{options:?}, from a server: {from_server}"
            );
            let trusts = !from_server || options.preserve_setuid;
            assert_eq!(rules.keeps_xattr(CAPABILITY), trusts);
            assert!(rules.keeps_xattr(b"user.comment"));
        }
    }

    #[test]
    fn a_directory_keeps_its_sticky_bit_and_loses_the_others_with_a_word() {
        let options = CopyOptions {
            preserve: true,
            ..CopyOptions::default()
        };
        for (from_server, told) in [(true, 3), (false, 0)] {
            let rules = SpecialBitRules::new(&options, from_server);
            let mut counts = LeftOutCounts::default();
            for (mode, kept) in [
                (0o755, 0o755),
                (0o1777, 0o1777),
                (0o2755, 0o755),
                (0o4755, 0o755),
                (0o7777, 0o1777),
            ] {
                let shown = || EscapedName(b"d".to_vec());
                assert_eq!(
                    counts.kept_directory_mode(rules, 0o040_000 | mode, shown),
                    kept
                );
            }
            assert_eq!(counts.special_bits.entries, told);
        }
    }

    #[test]
    fn each_cause_of_writing_in_place_is_told_once() {
        let mut counts = LeftOutCounts::default();
        assert!(counts.is_first_refusal(InPlaceCause::TemporaryName));
        assert!(!counts.is_first_refusal(InPlaceCause::TemporaryName));
        assert!(counts.is_first_refusal(InPlaceCause::Rename));
        assert!(!counts.is_first_refusal(InPlaceCause::Rename));
    }

    /// The name that --backup gives to an old file is no other name that the user has to know of.
    #[test]
    fn a_backup_name_is_not_told_as_another_name_of_a_replaced_file() {
        let mut counts = LeftOutCounts::default();
        let shown = || EscapedName(b"f".to_vec());
        counts.note_backup_name(b"f".to_vec());
        counts.note_other_names(b"f", 1, shown);
        assert_eq!(counts.warnings().count(), 0);
        counts.note_other_names(b"f", 2, shown);
        counts.note_other_names(b"g", 0, shown);
        counts.note_other_names(b"h", 1, shown);
        assert_eq!(counts.replaced.entries, 2);
    }
}
