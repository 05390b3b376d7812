use std::collections::{BTreeMap, BTreeSet};

use crate::tree::{ModifiedTime, SortedTree, TreeEntry, TreeEntryKind};

/// Finest unit in which both ends report modification times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimeGranularity {
    /// Both ends report nanoseconds.
    Nanosecond,
    /// At least one end reports whole seconds, as SFTP version 3 does.
    #[default]
    Second,
    /// The target's file system stores even seconds, as FAT does.
    TwoSeconds,
}

/// Target files that must all have even seconds before a grain of two seconds is believed: by
/// chance that happens once in a million.
const EVEN_FILES: usize = 20;

impl TimeGranularity {
    /// Learns the grain of the target from the times of its files.
    pub fn of(target: &SortedTree) -> Self {
        let even =
            |time: &ModifiedTime| time.seconds % 2 == 0 && time.nanoseconds.unwrap_or(0) == 0;
        let mut distinct = BTreeSet::new();
        let (mut all_even, mut any_fine) = (true, false);
        for time in target.tree().file_times() {
            any_fine |= time.nanoseconds.is_some();
            all_even &= even(&time);
            if all_even && distinct.len() < EVEN_FILES {
                distinct.insert(time);
            }
            if any_fine && !all_even {
                break;
            }
        }
        match any_fine {
            _ if all_even && distinct.len() >= EVEN_FILES => Self::TwoSeconds,
            true => Self::Nanosecond,
            false => Self::Second,
        }
    }
}

/// Rules for the comparison of two entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComparisonRules {
    /// Unit of modification times.
    pub grain: TimeGranularity,
    /// Compare contents by checksum even if size and time are equal (`--checksum`).
    pub checksum: bool,
    /// Files of equal size count as equal, and a different time is set without a copy
    /// (`--size-only`).
    pub size_only: bool,
    /// Permissions and owners.
    pub metadata: MetadataRules,
    /// IDs at the target of the source's users and groups.
    pub owner_ids: OwnerIds,
    /// Files that are left as they are, whatever differs.
    pub skipped: SkipRules,
}

/// IDs that users and groups of the source have at the target. One that is not listed has the same
/// ID there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerIds {
    users: BTreeMap<u32, u32>,
    groups: BTreeMap<u32, u32>,
}

impl OwnerIds {
    /// Returns IDs by those at the source.
    pub fn new(users: BTreeMap<u32, u32>, groups: BTreeMap<u32, u32>) -> Self {
        Self { users, groups }
    }

    /// Returns the user and group that an owner at the source has at the target.
    pub fn at_target(&self, (user, group): (u32, u32)) -> (u32, u32) {
        let of = |ids: &BTreeMap<u32, u32>, id| ids.get(&id).copied().unwrap_or(id);
        (of(&self.users, user), of(&self.groups, group))
    }
}

/// Rules for the comparison of permissions and owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataRules {
    /// Compare permission bits.
    pub permissions: bool,
    /// Ignore setuid and setgid bits, and the sticky bits of files: they are not copied.
    pub ignore_special_bits: bool,
    /// Compare owner and group.
    pub owners: bool,
}

/// Rules for files that are not compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkipRules {
    /// Skip files whose target is newer than the source (`-u`).
    pub newer: bool,
    /// Skip files that do not exist at the target (`--existing`).
    pub missing: bool,
    /// Skip files that exist at the target (`--ignore-existing`).
    pub existing: bool,
}

/// Set of the attributes in which an entry differs at both ends. It decides between copying the
/// data and setting attributes only, and is shown to the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DifferenceReasons(u16);

impl DifferenceReasons {
    /// The types differ.
    pub const KIND: Self = Self(1);
    /// The sizes differ.
    pub const SIZE: Self = Self(2);
    /// The modification times differ.
    pub const TIME: Self = Self(4);
    /// The permission bits differ.
    pub const MODE: Self = Self(8);
    /// Owner or group differ.
    pub const OWNER: Self = Self(16);
    /// The texts of the symlinks differ.
    pub const LINK: Self = Self(32);
    /// The checksums differ.
    pub const CONTENT: Self = Self(64);
    /// The names of one file at the source are not those of one file at the target.
    pub const NAMES: Self = Self(128);
    /// The extended attributes differ.
    pub const XATTRS: Self = Self(256);
    /// The access control lists differ.
    pub const ACLS: Self = Self(512);

    const WORDS: [(Self, &'static str); 10] = [
        (Self::KIND, "type"),
        (Self::SIZE, "size"),
        (Self::TIME, "time"),
        (Self::MODE, "permissions"),
        (Self::OWNER, "owner"),
        (Self::LINK, "symlink"),
        (Self::CONTENT, "content"),
        (Self::NAMES, "hard link"),
        (Self::XATTRS, "extended attributes"),
        (Self::ACLS, "access control list"),
    ];

    /// Returns true if any reason of `other` is set.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns true if nothing differs.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the set with the reasons of `other` as well.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the set without the reasons of `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns true if the data must be copied again.
    pub fn needs_data(self) -> bool {
        self.has(
            Self::KIND
                .with(Self::SIZE)
                .with(Self::TIME)
                .with(Self::LINK)
                .with(Self::CONTENT),
        )
    }

    /// Returns a word for each reason, such as `size`.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        Self::WORDS
            .into_iter()
            .filter(move |(reason, _)| self.has(*reason))
            .map(|(_, word)| word)
    }
}

/// Result of comparing an entry of the source with its counterpart at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonResult {
    /// Nothing differs that the rules compare.
    Equal,
    /// Size and second are equal, and a checksum must decide: the nanoseconds differ, or
    /// `--checksum` was given. The reasons are those that differ in any case.
    Unsure(DifferenceReasons),
    /// These attributes differ.
    Differs(DifferenceReasons),
}

/// Bits by which a program runs as its owner or group.
const SET_ID: u16 = 0o6000;

impl ComparisonRules {
    /// Compares an entry of the source with the one of that name at the target.
    pub fn compare(&self, source: &TreeEntry, target: &TreeEntry) -> ComparisonResult {
        if source.kind != target.kind {
            return ComparisonResult::Differs(DifferenceReasons::KIND);
        }
        let mut reasons = self.attributes(source, target);
        let mut unsure = false;
        match source.kind {
            TreeEntryKind::File => {
                if source.size != target.size {
                    reasons = reasons.with(DifferenceReasons::SIZE);
                }
                match self.times(source.modified, target.modified) {
                    TimeComparison::Equal => {}
                    TimeComparison::SameSecond => unsure |= !self.size_only,
                    TimeComparison::Differ => reasons = reasons.with(DifferenceReasons::TIME),
                }
                unsure |= self.checksum;
                if self.is_privileged(source) && !reasons.is_empty() {
                    reasons = reasons.with(DifferenceReasons::CONTENT);
                }
            }
            TreeEntryKind::Symlink if source.link != target.link => {
                reasons = reasons.with(DifferenceReasons::LINK)
            }
            // In whole seconds: a target that keeps fewer digits of the nanoseconds, as NTFS does, would
            // get them again in each sync. For files a checksum decides.
            TreeEntryKind::Directory if source.modified.is_some() && target.modified.is_some() => {
                if let TimeComparison::Differ = self.times(source.modified, target.modified) {
                    reasons = reasons.with(DifferenceReasons::TIME);
                }
            }
            TreeEntryKind::Symlink
            | TreeEntryKind::Directory
            | TreeEntryKind::Other
            | TreeEntryKind::Temporary => {}
        }
        // With --checksum the content decides, and a different time alone is set without a copy.
        let decided = match self.checksum {
            true => reasons.has(DifferenceReasons::SIZE) || reasons.has(DifferenceReasons::CONTENT),
            false => self.needs_data(reasons),
        };
        match (unsure && !decided, reasons.is_empty()) {
            (true, _) => ComparisonResult::Unsure(reasons),
            (false, true) => ComparisonResult::Equal,
            (false, false) => ComparisonResult::Differs(reasons),
        }
    }

    /// Returns true for a file to which nothing but a new copy may give its owner and its bits:
    /// somebody may have put a file of its size and time at the target, to get them.
    pub(crate) fn is_privileged(&self, source: &TreeEntry) -> bool {
        let bits = source.mode.unwrap_or(0) & self.kept_bits(source.kind) & SET_ID;
        self.metadata.owners && source.kind == TreeEntryKind::File && bits != 0
    }

    /// Returns true if the data of an entry that differs for these reasons must be copied.
    pub fn needs_data(&self, why: DifferenceReasons) -> bool {
        match self.size_only {
            true => why.without(DifferenceReasons::TIME).needs_data(),
            false => why.needs_data(),
        }
    }

    /// Returns the mode bits that an entry of this kind gets from the source.
    pub fn kept_bits(&self, kind: TreeEntryKind) -> u16 {
        match (self.metadata.ignore_special_bits, kind) {
            (false, _) => 0o7777,
            (true, TreeEntryKind::Directory) => 0o1777,
            (true, _) => 0o777,
        }
    }

    fn attributes(&self, source: &TreeEntry, target: &TreeEntry) -> DifferenceReasons {
        let mut reasons = DifferenceReasons::default();
        let compared =
            |entry: &TreeEntry| entry.mode.map(|mode| mode & self.kept_bits(source.kind));
        let modes = compared(source).zip(compared(target));
        // The mode of a symlink means nothing.
        if self.metadata.permissions
            && source.kind != TreeEntryKind::Symlink
            && modes.is_some_and(|(s, t)| s != t)
        {
            reasons = reasons.with(DifferenceReasons::MODE);
        }
        let wanted = source.owner.map(|owner| self.owner_ids.at_target(owner));
        let owners = wanted.zip(target.owner);
        if self.metadata.owners && owners.is_some_and(|(s, t)| s != t) {
            reasons = reasons.with(DifferenceReasons::OWNER);
        }
        reasons
    }

    /// Returns true for an entry of the target that stays as it is, whatever differs.
    pub(crate) fn is_skipped(&self, source: &TreeEntry, target: &TreeEntry) -> bool {
        let are = |kind| source.kind == kind && target.kind == kind;
        let keeps_newer =
            self.skipped.newer && are(TreeEntryKind::File) && Self::target_is_newer(source, target);
        !are(TreeEntryKind::Directory) && (self.skipped.existing || keeps_newer)
    }

    /// Returns true if the file at the target is newer.
    pub(crate) fn target_is_newer(source: &TreeEntry, target: &TreeEntry) -> bool {
        let times = source.modified.zip(target.modified);
        times.is_some_and(|(source, target)| target.seconds > source.seconds)
    }

    fn times(&self, source: Option<ModifiedTime>, target: Option<ModifiedTime>) -> TimeComparison {
        let (Some(source), Some(target)) = (source, target) else {
            return TimeComparison::Differ;
        };
        let apart = source.seconds.abs_diff(target.seconds);
        match (self.grain, apart) {
            (TimeGranularity::TwoSeconds, 0 | 1) => TimeComparison::Equal,
            (_, 1..) => TimeComparison::Differ,
            (TimeGranularity::Nanosecond, 0) => match source.nanoseconds.zip(target.nanoseconds) {
                Some((source, target)) if source != target => TimeComparison::SameSecond,
                _ => TimeComparison::Equal,
            },
            (_, 0) => TimeComparison::Equal,
        }
    }
}

/// Comparison of two modification times in the unit that both ends can store.
enum TimeComparison {
    Equal,
    /// In one second, with different nanoseconds.
    SameSecond,
    Differ,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::EntryTree;

    fn at(seconds: i64, nanoseconds: Option<u32>) -> TreeEntry {
        TreeEntry {
            modified: Some(ModifiedTime {
                seconds,
                nanoseconds,
            }),
            ..TreeEntry::file(10, 0)
        }
    }

    fn fine() -> ComparisonRules {
        ComparisonRules {
            grain: TimeGranularity::Nanosecond,
            ..ComparisonRules::default()
        }
    }

    /// Attack: a file with the size and time of a setuid program got its owner and bits, also by a
    /// checksum, after which its owner could change it.
    #[test]
    fn a_setuid_file_of_root_with_other_attributes_is_copied() {
        let mut rules = ComparisonRules {
            metadata: MetadataRules {
                permissions: true,
                owners: true,
                ..MetadataRules::default()
            },
            ..fine()
        };
        let file = |mode: u16, owner: u32| TreeEntry {
            mode: Some(mode),
            owner: Some((owner, owner)),
            ..TreeEntry::file(5, 1_600_000_000)
        };
        let has_data = |rules: &ComparisonRules, source: &TreeEntry, target: &TreeEntry| match rules
            .compare(source, target)
        {
            ComparisonResult::Differs(why) => rules.needs_data(why),
            ComparisonResult::Equal | ComparisonResult::Unsure(_) => false,
        };
        for checksum in [false, true] {
            for size_only in [false, true] {
                (rules.checksum, rules.size_only) = (checksum, size_only);
                let copies = |source, target| has_data(&rules, &source, &target);
                assert!(copies(file(0o4755, 0), file(0o4755, 7)));
                assert!(copies(file(0o2755, 0), file(0o755, 0)));
                assert!(!copies(file(0o4755, 0), file(0o4755, 0)));
                assert!(!copies(file(0o755, 0), file(0o755, 7)));
            }
        }
        // Another account sets no owners, and may not keep the bits.
        rules.metadata.owners = false;
        (rules.checksum, rules.size_only) = (false, false);
        assert!(!has_data(&rules, &file(0o2755, 5), &file(0o755, 5)));
    }

    #[test]
    fn whole_seconds_at_one_end_are_compared_as_seconds() {
        let compared = fine().compare(&at(7, Some(5)), &at(7, None));
        assert_eq!(compared, ComparisonResult::Equal);
    }

    #[test]
    fn equal_seconds_with_other_nanoseconds_are_unsure() {
        let compared = fine().compare(&at(7, Some(5)), &at(7, Some(6)));
        assert_eq!(
            compared,
            ComparisonResult::Unsure(DifferenceReasons::default())
        );
    }

    /// Bug: docs/guide/sync.md promised that directory times are synced to the nanosecond.
    #[test]
    fn directories_of_one_second_are_equal_whatever_their_nanoseconds() {
        let dir = |seconds, nanoseconds| TreeEntry {
            modified: Some(ModifiedTime {
                seconds,
                nanoseconds: Some(nanoseconds),
            }),
            ..TreeEntry::new(TreeEntryKind::Directory)
        };
        let compare = |target| fine().compare(&dir(7, 123_456_789), &target);
        assert_eq!(compare(dir(7, 123_456_700)), ComparisonResult::Equal);
        let differs = ComparisonResult::Differs(DifferenceReasons::TIME);
        assert_eq!(compare(dir(8, 123_456_789)), differs);
    }

    #[test]
    fn a_grain_of_two_seconds_is_learnt_from_many_even_times() {
        let tree = |step: i64, count: i64| {
            let mut tree = EntryTree::new();
            for n in 0..count {
                tree.add(
                    EntryTree::ROOT,
                    n.to_string().as_bytes(),
                    TreeEntry::file(1, n * step),
                );
            }
            tree.sorted()
        };
        assert_eq!(
            TimeGranularity::of(&tree(2, 40)),
            TimeGranularity::TwoSeconds
        );
        assert_eq!(TimeGranularity::of(&tree(2, 5)), TimeGranularity::Second);
        assert_eq!(TimeGranularity::of(&tree(1, 40)), TimeGranularity::Second);
        let even = ComparisonRules {
            grain: TimeGranularity::TwoSeconds,
            ..ComparisonRules::default()
        };
        assert_eq!(
            even.compare(&at(7, None), &at(6, None)),
            ComparisonResult::Equal
        );
        assert_ne!(
            even.compare(&at(7, None), &at(5, None)),
            ComparisonResult::Equal
        );
    }

    #[test]
    fn with_checksum_a_different_time_alone_copies_no_data() {
        let rules = ComparisonRules {
            checksum: true,
            ..ComparisonRules::default()
        };
        let compared = rules.compare(&at(7, None), &at(9, None));
        assert_eq!(compared, ComparisonResult::Unsure(DifferenceReasons::TIME));
        let other_size = TreeEntry::file(11, 7);
        let compared = rules.compare(&at(7, None), &other_size);
        assert!(
            matches!(compared, ComparisonResult::Differs(why) if why.has(DifferenceReasons::SIZE))
        );
    }

    #[test]
    fn with_size_only_a_different_time_is_set_and_no_data_are_copied() {
        let rules = ComparisonRules {
            size_only: true,
            ..fine()
        };
        let compared = rules.compare(&at(7, None), &at(9, None));
        assert_eq!(compared, ComparisonResult::Differs(DifferenceReasons::TIME));
        assert!(!rules.needs_data(DifferenceReasons::TIME));
        assert!(rules.needs_data(DifferenceReasons::TIME.with(DifferenceReasons::SIZE)));
        let close = rules.compare(&at(7, Some(5)), &at(7, Some(6)));
        assert_eq!(close, ComparisonResult::Equal);
    }

    #[test]
    fn special_bits_that_are_not_copied_are_no_difference() {
        let with = |kind, mode| TreeEntry {
            mode: Some(mode),
            ..TreeEntry::new(kind)
        };
        for (kind, bits, differs) in [
            (TreeEntryKind::File, 0o7000, false),
            (TreeEntryKind::Directory, 0o6000, false),
            (TreeEntryKind::Directory, 0o1000, true),
            (TreeEntryKind::File, 0o002, true),
        ] {
            let (source, target) = (with(kind, 0o755 ^ bits), with(kind, 0o755));
            for (ignore_special_bits, expected) in [(true, differs), (false, true)] {
                let rules = ComparisonRules {
                    metadata: MetadataRules {
                        permissions: true,
                        ignore_special_bits,
                        owners: false,
                    },
                    ..ComparisonRules::default()
                };
                let reasons = rules.attributes(&source, &target);
                assert_eq!(
                    reasons.has(DifferenceReasons::MODE),
                    expected,
                    "{kind:?} {bits:o}"
                );
            }
        }
    }

    #[test]
    fn a_different_mode_alone_needs_no_data() {
        let rules = ComparisonRules {
            metadata: MetadataRules {
                permissions: true,
                ..MetadataRules::default()
            },
            ..ComparisonRules::default()
        };
        let with = |mode| TreeEntry {
            mode: Some(mode),
            ..at(7, None)
        };
        let ComparisonResult::Differs(why) = rules.compare(&with(0o644), &with(0o600)) else {
            panic!("equal");
        };
        assert!(!why.needs_data());
        assert_eq!(why.words().collect::<Vec<_>>(), ["permissions"]);
    }
}
