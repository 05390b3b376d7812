//! File metadata beyond SFTP: the capabilities of both ends, and the record of metadata that could
//! not be kept.

use std::cell::LazyCell;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::BuildHasher;

use schedule::{Attributes, JobId, Parts, RefusedOperations, directory_of};
use sftp::ServerInfo;

use super::DeltaUse;
use super::context::CopyContext;
use super::sides::CopySide;
use super::withheld::{InPlaceCause, LeftOutCounts, SpecialBitRules};
use crate::report::EscapedName;

/// Abilities of the ends of a copy; this machine can do everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MetadataSupport {
    /// The source reports, and the target sets, extended attributes and access control lists.
    pub tell_xattrs: bool,
    pub take_xattrs: bool,
    /// The source reports which names belong to one file.
    pub tell_links: bool,
    /// Both ends can translate owners between names and IDs.
    pub map_owners: bool,
}

/// Metadata that a copy keeps, leaves out on purpose or cannot keep.
#[derive(Debug, Default)]
pub(super) struct MetadataPreservation {
    /// Abilities of the far ends beyond those of stock servers.
    can: MetadataSupport,
    lost: MetadataLoss,
    withheld: LeftOutCounts,
    /// The names of the source that belong to one file are known, though its server does not tell them.
    knows_links: bool,
    refused: RefusedAttributes,
    /// The time of a file was not kept.
    loses_file_times: bool,
    /// Setting an owner was refused once and is not tried again.
    refuses_owners: bool,
    /// The user was told that `--delta` has no effect.
    told_sent_whole: bool,
}

/// Metadata that was not kept. A server may refuse a part twice for one entry: FSETSTAT and SETSTAT
/// of one file, or both of a job that moved to another connection.
#[derive(Debug, Default)]
struct MetadataLoss {
    counted: CountedLosses,
    parts: Vec<(Parts, LossCount)>,
    links: Option<LossCount>,
    /// Whole kinds of metadata that the source cannot report.
    untold: Vec<&'static str>,
}

/// Number of entries of which it is known what was counted, some 40 MB. What follows may be counted
/// twice.
const MOST_COUNTED: usize = 1 << 20;

/// Parts that were counted as lost, for each entry by the hash of its name: a server that refuses
/// one file often refuses all of a million, whose names would fill the memory.
#[derive(Debug, Default)]
struct CountedLosses {
    hasher: RandomState,
    parts: HashMap<u64, Parts>,
    links: HashSet<u64>,
}

impl CountedLosses {
    /// Notes the loss of `parts` of the entry; returns those that were not noted before. Entries
    /// without a name are all different.
    fn note(&mut self, entry: Option<&EscapedName>, parts: Parts) -> Parts {
        let Some(EscapedName(name)) = entry else {
            return parts;
        };
        let hash = self.hasher.hash_one(name);
        if self.parts.len() >= MOST_COUNTED && !self.parts.contains_key(&hash) {
            return parts;
        }
        let noted = self.parts.entry(hash).or_default();
        let new = Parts(parts.0 & !noted.0);
        noted.0 |= parts.0;
        new
    }

    /// Notes that the entry is no hard link; true if that was not noted before.
    fn note_link(&mut self, entry: Option<&EscapedName>) -> bool {
        let hash = |EscapedName(name): &EscapedName| self.hasher.hash_one(name);
        let is_full = self.links.len() >= MOST_COUNTED;
        entry
            .map(hash)
            .is_none_or(|hash| is_full || self.links.insert(hash))
    }
}

/// Number of entries that lost something, with the first one and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LossCount {
    entries: u64,
    why: String,
    first: Option<EscapedName>,
}

impl LossCount {
    fn new(why: &str, first: Option<EscapedName>) -> Self {
        Self {
            entries: 1,
            why: why.to_owned(),
            first,
        }
    }

    /// Formats `what` of these entries, with the reason, for a warning about the first one.
    fn words(&self, what: &str) -> String {
        let why = &self.why;
        match (self.entries, &self.first) {
            (1, Some(_)) => format!("{what} ({why})"),
            (2, Some(_)) => format!("{what} of this and 1 more file or directory ({why})"),
            (n, Some(_)) => {
                let more = n - 1;
                format!("{what} of this and {more} more files or directories ({why})")
            }
            (1, None) => format!("{what} of one file or directory ({why})"),
            (n, None) => format!("{what} of {n} files or directories ({why})"),
        }
    }
}

/// Names of the metadata parts in messages.
const NAMES: [(Parts, &str); 6] = [
    (Parts::SIZE, "the length"),
    (Parts::OWNER, "owners"),
    (Parts::XATTRS, "extended attributes"),
    (Parts::MODE, "permissions"),
    (Parts::ACLS, "access control lists"),
    (Parts::TIMES, "times"),
];

/// Reason that a stock server reports and sets less.
pub(super) const STOCK: &str = "plain SFTP cannot carry them: install longhaul at the far end";

/// Reason that a time is changed.
const OUTSIDE: &str = "only times from 1970 to 2106 can be kept";

impl MetadataLoss {
    /// Notes parts of the file or directory `entry` that were not kept.
    fn note(&mut self, parts: Parts, why: &str, entry: impl FnOnce() -> Option<EscapedName>) {
        // After the first refusal owners are not tried again, so there is nothing to count.
        let is_counted = !Parts(parts.0 & !Parts::OWNER.0).is_empty();
        let entry = LazyCell::new(entry);
        let parts = match is_counted {
            true => self.counted.note(entry.as_ref(), parts),
            false => parts,
        };
        for (part, _) in NAMES.iter().filter(|(part, _)| parts.contains(*part)) {
            match self.parts.iter_mut().find(|(of, _)| of == part) {
                Some((_, lost)) => lost.entries += 1,
                None => self.parts.push((*part, LossCount::new(why, entry.clone()))),
            }
        }
    }

    /// Forgets that owners were not kept.
    fn forget_owners(&mut self) {
        self.parts.retain(|(part, _)| *part != Parts::OWNER);
    }

    /// Notes that a further name of a file, `entry`, became a separate file.
    fn note_link(&mut self, why: &str, entry: impl FnOnce() -> Option<EscapedName>) {
        let entry = entry();
        if !self.counted.note_link(entry.as_ref()) {
            return;
        }
        match &mut self.links {
            Some(lost) => lost.entries += 1,
            None => self.links = Some(LossCount::new(why, entry)),
        }
    }

    /// Formats the losses, in a sentence for each entry that was the first to lose something.
    fn sentences(&self) -> Vec<(Option<EscapedName>, String)> {
        let name = |part: &Parts| {
            NAMES
                .iter()
                .find(|(of, _)| of == part)
                .map(|(_, name)| *name)
        };
        // Parts that the same entries lost for the same reason are named together.
        let mut kinds: Vec<(Vec<&str>, &LossCount)> = Vec::new();
        let mut lost = LossesByEntry::default();
        for (part, of) in &self.parts {
            // After the first refusal owners are not tried again, so there is no count.
            if *part == Parts::OWNER {
                let refused = match &of.first {
                    Some(_) => format!("owners of this and all later entries ({})", of.why),
                    None => format!("owners ({})", of.why),
                };
                lost.add(of.first.as_ref(), refused);
                continue;
            }
            match kinds.iter_mut().find(|(_, other)| *other == of) {
                Some((names, _)) => names.extend(name(part)),
                None => kinds.push((name(part).into_iter().collect(), of)),
            }
        }
        for (names, of) in kinds {
            lost.add(of.first.as_ref(), of.words(&names.join(" and ")));
        }
        if let Some(of) = &self.links {
            lost.add(of.first.as_ref(), of.words("hard links"));
        }
        if !self.untold.is_empty() {
            lost.add(None, format!("{} ({STOCK})", self.untold.join(", ")));
        }
        let sentence =
            |(first, of): (_, Vec<String>)| (first, format!("not kept: {}", of.join("; ")));
        lost.0.into_iter().map(sentence).collect()
    }
}

/// Descriptions of losses by the entry that a warning about them names.
#[derive(Default)]
struct LossesByEntry(Vec<(Option<EscapedName>, Vec<String>)>);

impl LossesByEntry {
    fn add(&mut self, entry: Option<&EscapedName>, what: String) {
        match self.0.iter_mut().find(|(of, _)| of.as_ref() == entry) {
            Some((_, all)) => all.push(what),
            None => self.0.push((entry.cloned(), vec![what])),
        }
    }
}

impl MetadataPreservation {
    /// Learns the abilities of the servers at the far ends, once these are known.
    pub(super) fn learn(&mut self, context: &mut CopyContext<'_>) {
        self.learn_support(context);
        self.tell_sent_whole(context);
        if !context.source_is_remote() {
            return;
        }
        let wanted = context.options();
        let lacks = [
            (
                wanted.xattrs && !self.can.tell_xattrs,
                "extended attributes",
            ),
            (wanted.acls && !self.can.tell_xattrs, "access control lists"),
            (
                wanted.hard_links && !self.can.tell_links && !self.knows_links,
                "hard links",
            ),
        ];
        for (_, what) in lacks.iter().filter(|(lacks, _)| *lacks) {
            if !self.lost.untold.contains(what) {
                self.lost.untold.push(what);
            }
        }
    }

    /// Learns the abilities of both ends without a warning about what they lack.
    pub(super) fn learn_support(&mut self, context: &CopyContext<'_>) {
        self.can = support(context);
    }

    /// Warns once that `--delta` has no effect, and why.
    fn tell_sent_whole(&mut self, context: &mut CopyContext<'_>) {
        if context.options().delta != DeltaUse::Always || self.told_sent_whole {
            return;
        }
        let why = match (
            context.side(CopySide::Source),
            context.side(CopySide::Target),
        ) {
            (None, None) => "the copy is within this machine",
            (Some(_), Some(_)) => "their data goes from host to host through this machine",
            (None, Some(side)) | (Some(side), None) => {
                let info = side.session().far_info();
                let rebuilds =
                    |info: &ServerInfo| info.has("hash@longhaul") && info.has("copy-data");
                if info.is_some_and(rebuilds) {
                    return;
                }
                "longhaul is not in use at the far end"
            }
        };
        self.told_sent_whole = true;
        context.warn(None, format!("--delta: sending files whole, because {why}"));
    }

    /// Abilities of the far ends beyond those of stock servers.
    pub(super) fn support(&self) -> MetadataSupport {
        self.can
    }

    /// True if owners are set: no attempt was refused.
    pub(super) fn sets_owners(&self) -> bool {
        !self.refuses_owners
    }

    /// Notes parts of the file `entry` that were not kept.
    pub(super) fn note_lost(
        &mut self,
        parts: Parts,
        why: &str,
        entry: impl FnOnce() -> Option<EscapedName>,
    ) {
        self.loses_file_times |= parts.contains(Parts::TIMES);
        self.note_lost_of_directory(parts, why, entry);
    }

    /// Notes parts of the directory `entry` that were not kept.
    pub(super) fn note_lost_of_directory(
        &mut self,
        parts: Parts,
        why: &str,
        entry: impl FnOnce() -> Option<EscapedName>,
    ) {
        self.refuses_owners |= parts.contains(Parts::OWNER);
        self.lost.note(parts, why, entry);
    }

    /// True if the target refused to set the modification time of a file.
    pub(super) fn loses_times(&self) -> bool {
        self.loses_file_times
    }

    /// True if attributes that the target's server has refused for an open file can be set by path once
    /// the file is complete: OpenSSH's internal-sftp may be told to refuse SETSTAT and FSETSTAT, and
    /// permit lsetstat@openssh.com.
    pub(super) fn may_set_later(&self, context: &CopyContext<'_>, parts: Parts) -> bool {
        let by_path = Parts(Parts::MODE.0 | Parts::TIMES.0);
        Parts(parts.0 & !by_path.0).is_empty()
            && context.preserves()
            && context.target_is_remote()
            && has(context, CopySide::Target, "lsetstat@openssh.com")
    }

    /// Attributes that were refused for open files.
    pub(super) fn refused_attributes(&mut self) -> &mut RefusedAttributes {
        &mut self.refused
    }

    /// Notes that it is known which names of the source belong to one file.
    pub(super) fn note_source_links_known(&mut self) {
        self.knows_links = true;
    }

    /// Notes that a further name of a file, `entry`, became a separate file.
    pub(super) fn note_lost_link(
        &mut self,
        why: &str,
        entry: impl FnOnce() -> Option<EscapedName>,
    ) {
        self.lost.note_link(why, entry);
    }

    /// Notes a local modification time that is to be kept but does not fit into 32 bits of seconds.
    pub(super) fn note_times(
        &mut self,
        context: &CopyContext<'_>,
        path: &[u8],
        attributes: &Attributes,
    ) {
        let at_an_end = |seconds: u32| seconds == 0 || seconds == u32::MAX;
        let cut = attributes.times.is_some_and(|(_, at)| at_an_end(at));
        if context.source_is_remote() || !context.preserves() || !cut {
            return;
        }
        let there = context.local().stat(path);
        if there.is_ok_and(|stat| u32::try_from(stat.seconds).is_err()) {
            let shown = || Some(context.shown(CopySide::Source, path));
            self.lost.note(Parts::TIMES, OUTSIDE, shown);
        }
    }

    /// Entries and permission bits that are left out on purpose.
    pub(super) fn withheld(&mut self) -> &mut LeftOutCounts {
        &mut self.withheld
    }

    /// Warns once that the server refuses the requests for temporaries, whatever the file.
    pub(super) fn on_refused(
        &mut self,
        context: &mut CopyContext<'_>,
        (found, target): (RefusedOperations, &[u8]),
        why: &str,
    ) {
        let cause = match found.renames || !found.renames_in.is_empty() {
            true => InPlaceCause::Rename,
            false => InPlaceCause::TemporaryName,
        };
        if !found.in_place_somewhere() || !self.withheld.is_first_refusal(cause) {
            return;
        }
        let host = context
            .side(CopySide::Target)
            .map(|side| side.name().to_owned());
        let host = EscapedName(host.unwrap_or_default().into_bytes());
        let refuses = match cause {
            InPlaceCause::Rename => "the server does not rename files",
            InPlaceCause::TemporaryName => "the server refuses the names of temporary files",
        };
        // The server may refuse the same in other directories, of which there is no further warning.
        let (place, others) = match found.in_place() {
            true => (String::new(), ""),
            false => {
                let directory = directory_of(target);
                let shown = directory.strip_suffix(b"/.").unwrap_or(&directory);
                let place = format!(" in {}", EscapedName(shown.to_vec()));
                (
                    place,
                    " there, and in other directories where it refuses this too",
                )
            }
        };
        let why = match why {
            "" => "as in an earlier copy of the last 24 hours",
            why => why,
        };
        let text = format!(
            "{refuses}{place} ({why}): writing directly to the final names{others}. If the copy is \
             interrupted, the file in progress is left incomplete (--inplace silences this warning)"
        );
        context.warn(Some(host), text);
    }

    /// Warns that the file at `target` is written in place, with the first file of each reason; the
    /// others are counted, since a directory without write permission may have a million of them.
    pub(super) fn tell_in_place(
        &mut self,
        context: &mut CopyContext<'_>,
        target: &[u8],
        why: &str,
    ) {
        let shown = context.shown(CopySide::Target, target);
        if self.withheld.note_in_place(why, &shown) {
            let text = format!(
                "{why}: writing directly to the final name instead; if the copy is interrupted, the \
                 file there is incomplete (further files with this warning are counted at the end)"
            );
            context.warn(Some(shown), text);
        }
    }

    /// Warns about all metadata that was lost, and about all that was left out.
    pub(super) fn tell_losses(&mut self, context: &mut CopyContext<'_>) {
        // Others than root do not expect to give files away, and rsync and cp say nothing either.
        if !context.is_root(CopySide::Target) && !context.runs_as_root() {
            self.lost.forget_owners();
        }
        let lost = self.lost.sentences().into_iter();
        for (entry, warning) in lost.chain(self.withheld.warnings()) {
            context.warn(entry, warning);
        }
    }
}

/// Attributes of files in flight that a server has refused, by the job that uploads the file.
#[derive(Debug, Default)]
pub(super) struct RefusedAttributes(BTreeMap<JobId, (Parts, String)>);

impl RefusedAttributes {
    /// Notes parts that were refused for the reason `why`.
    pub(super) fn note(&mut self, job: JobId, parts: Parts, why: String) {
        let noted = self.0.entry(job).or_insert_with(|| (Parts::default(), why));
        noted.0 = Parts(noted.0.0 | parts.0);
    }

    /// Takes what was refused in a job that is over.
    pub(super) fn take(&mut self, job: JobId) -> Option<(Parts, String)> {
        self.0.remove(&job)
    }
}

/// Rules about setuid, setgid and sticky bits.
pub(super) fn special_bits(context: &CopyContext<'_>) -> SpecialBitRules {
    SpecialBitRules::new(context.options(), context.source_is_remote())
}

/// True if both ends can translate owners between names and IDs.
pub(super) fn maps_owners(context: &CopyContext<'_>) -> bool {
    support(context).map_owners
}

/// True if both ends report extended attributes and access control lists, and the target sets them.
pub(super) fn compares_xattrs(context: &CopyContext<'_>) -> bool {
    let can = support(context);
    can.tell_xattrs && can.take_xattrs && has(context, CopySide::Target, "get-xattrs@longhaul")
}

/// True if an end has an SFTP extension; this machine needs none.
fn has(context: &CopyContext<'_>, end: CopySide, name: &str) -> bool {
    match context.side(end) {
        None => true,
        Some(side) => side.session().far_info().is_some_and(|info| info.has(name)),
    }
}

fn support(context: &CopyContext<'_>) -> MetadataSupport {
    let has = |end, name: &str| has(context, end, name);
    let names = has(CopySide::Source, "users-groups-by-id@openssh.com");
    MetadataSupport {
        tell_xattrs: has(CopySide::Source, "get-xattrs@longhaul"),
        take_xattrs: has(CopySide::Target, "set-metadata@longhaul"),
        tell_links: has(CopySide::Source, "attributes@longhaul"),
        map_owners: names && has(CopySide::Target, "ids-by-name@longhaul"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_one_sentence() {
        let mut lost = MetadataLoss::default();
        assert_eq!(lost.sentences(), []);
        lost.note(
            Parts(Parts::OWNER.0 | Parts::ACLS.0),
            "operation not permitted",
            || None,
        );
        lost.note(Parts::OWNER, "another reason", || None);
        lost.note_link("no room", || None);
        lost.untold.push("extended attributes");
        let said = "not kept: owners (operation not permitted); access control \
                    lists of one file or directory (operation not permitted); hard links of one \
                    file or directory (no room); extended attributes (plain SFTP cannot carry \
                    them: install longhaul at the far end)";
        assert_eq!(lost.sentences(), [(None, said.to_owned())]);
    }

    /// Bug: nearly every `cp -a` and `sync` of an ordinary user ended with this warning.
    #[test]
    fn owners_that_nobody_expects_to_keep_are_not_reported() {
        let mut lost = MetadataLoss::default();
        lost.note(Parts::OWNER, "permission denied", || None);
        lost.forget_owners();
        assert_eq!(lost.sentences(), []);
    }

    /// Bug: "permissions of one file or directory" did not say of which, nor on which host.
    #[test]
    fn the_first_file_whose_metadata_was_lost_was_not_named() {
        let name = |text: &'static str| move || Some(EscapedName(text.as_bytes().to_vec()));
        let mut lost = MetadataLoss::default();
        let both = Parts(Parts::MODE.0 | Parts::TIMES.0);
        lost.note(both, "permission denied", name("h:/f"));
        let one = "not kept: permissions and times (permission denied)";
        assert_eq!(lost.sentences(), [(name("h:/f")(), one.to_owned())]);
        lost.note(Parts::TIMES, "permission denied", name("h:/g"));
        lost.note_link("no room", name("h:/l"));
        let several = "not kept: permissions (permission denied); times of this and 1 more file or \
                       directory (permission denied)";
        let links = "not kept: hard links (no room)";
        let expected = [
            (name("h:/f")(), several.to_owned()),
            (name("h:/l")(), links.to_owned()),
        ];
        assert_eq!(lost.sentences(), expected);
    }

    /// Bug: "times of 29 files or directories" of 20, where a server refused FSETSTAT and then
    /// SETSTAT, or where a job moved to another connection.
    #[test]
    fn a_file_was_counted_once_for_each_refusal() {
        let name = |text: &'static str| move || Some(EscapedName(text.as_bytes().to_vec()));
        let mut lost = MetadataLoss::default();
        let both = Parts(Parts::MODE.0 | Parts::TIMES.0);
        for file in ["h:/f", "h:/g"] {
            lost.note(both, "permission denied", name(file));
        }
        lost.note(Parts::MODE, "permission denied", name("h:/f"));
        lost.note(both, "permission denied", name("h:/g"));
        lost.note_link("no room", name("h:/l"));
        lost.note_link("no room", name("h:/l"));
        let said = "not kept: permissions and times of this and 1 more file or directory (permission \
                    denied)";
        let links = "not kept: hard links (no room)";
        let expected = [
            (name("h:/f")(), said.to_owned()),
            (name("h:/l")(), links.to_owned()),
        ];
        assert_eq!(lost.sentences(), expected);
    }

    /// Each part is counted for each entry that lost it, with the first entry and its reason.
    #[test]
    fn each_loss_is_counted_and_its_first_entry_is_named() {
        let mut seed = testkit::Seed::new(12);
        let parts = [Parts::XATTRS, Parts::MODE, Parts::ACLS, Parts::TIMES];
        for _ in 0..300 {
            let mut lost = MetadataLoss::default();
            let mut counts: Vec<(Parts, u64, usize)> = Vec::new();
            for nth in 0..seed.below(12) as usize {
                let part = parts[seed.below(4) as usize];
                lost.note(part, &format!("reason {nth}"), || {
                    Some(EscapedName(format!("file{nth}").into_bytes()))
                });
                match counts.iter_mut().find(|(of, ..)| *of == part) {
                    Some((_, count, _)) => *count += 1,
                    None => counts.push((part, 1, nth)),
                }
            }
            let said = lost.sentences();
            for (part, count, first) in counts {
                let name = NAMES
                    .iter()
                    .find(|(of, _)| *of == part)
                    .expect("it has a name")
                    .1;
                let of = match count {
                    1 => String::new(),
                    2 => " of this and 1 more file or directory".to_owned(),
                    n => format!(" of this and {} more files or directories", n - 1),
                };
                let expected = format!("{name}{of} (reason {first})");
                let entry = Some(EscapedName(format!("file{first}").into_bytes()));
                let is_told = |(of, said): &(_, String)| *of == entry && said.contains(&expected);
                assert!(said.iter().any(is_told), "{said:?}: {expected}");
            }
        }
    }
}
