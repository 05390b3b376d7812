//! Warnings about entries that a copy leaves out on purpose, one for each kind: special permission
//! bits that a server chose, symlinks that lead outside, other names of replaced files.

use std::collections::BTreeSet;

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
    /// True for a sync or a plan's shard.
    is_planned: bool,
}

impl LeftOutCounts {
    /// True at the first call with this cause, for the warning about it. A refusal is found first in
    /// one directory, then in another, and only then taken to hold for the whole server.
    pub(super) fn is_first_refusal(&mut self, cause: InPlaceCause) -> bool {
        self.told_in_place.insert(cause)
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
        [bits, links, replaced].into_iter().flatten()
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
}
