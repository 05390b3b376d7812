//! File metadata beyond SFTP: the capabilities of both ends, and the record of metadata that could
//! not be kept.

use schedule::{Attributes, Parts, RefusedOperations, directory_of};
use sftp::ServerInfo;

use super::DeltaUse;
use super::context::CopyContext;
use super::sides::CopySide;
use super::withheld::{LeftOutCounts, SpecialBitRules};
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
    /// Setting an owner was refused once and is not tried again.
    refuses_owners: bool,
    /// The user was told that `--delta` has no effect.
    told_sent_whole: bool,
}

/// Metadata that was not kept: counts, and the reason of the first loss.
#[derive(Debug, Default)]
struct MetadataLoss {
    parts: Vec<(Parts, u64, String)>,
    links: Option<(u64, String)>,
    /// Whole kinds of metadata that the source cannot report.
    untold: Vec<&'static str>,
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
    /// Notes parts of one file or directory that were not kept.
    fn note(&mut self, parts: Parts, why: &str) {
        for (part, _) in NAMES.iter().filter(|(part, _)| parts.contains(*part)) {
            match self.parts.iter_mut().find(|(of, ..)| of == part) {
                Some((_, count, _)) => *count += 1,
                None => self.parts.push((*part, 1, why.to_owned())),
            }
        }
    }

    /// Notes that a further name of a file became a separate file.
    fn note_link(&mut self, why: &str) {
        let (count, _) = self.links.get_or_insert_with(|| (0, why.to_owned()));
        *count += 1;
    }

    /// Formats the losses as one sentence, if there are any.
    fn sentence(&self) -> Option<String> {
        let name = |part: &Parts| {
            NAMES
                .iter()
                .find(|(of, _)| of == part)
                .map(|(_, name)| *name)
        };
        let of = |count: u64, what: &str, why: &str| match count {
            1 => format!("{what} of one file or directory ({why})"),
            count => format!("{what} of {count} files or directories ({why})"),
        };
        let parts = self.parts.iter();
        let mut lost: Vec<String> = parts
            .filter_map(|(part, count, why)| match *part {
                // After the first refusal owners are not tried again, so there is no count.
                Parts::OWNER => Some(format!("owners ({why})")),
                _ => Some(of(*count, name(part)?, why)),
            })
            .collect();
        let links = self.links.iter();
        lost.extend(links.map(|(count, why)| of(*count, "hard links", why)));
        if !self.untold.is_empty() {
            lost.push(format!("{} ({STOCK})", self.untold.join(", ")));
        }
        (!lost.is_empty()).then(|| format!("not kept: {}", lost.join("; ")))
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
                "longhaul is not at the far end"
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

    /// Notes parts of one file or directory that were not kept.
    pub(super) fn note_lost(&mut self, parts: Parts, why: &str) {
        self.refuses_owners |= parts.contains(Parts::OWNER);
        self.lost.note(parts, why);
    }

    /// True if the target refused to set modification times.
    pub(super) fn loses_times(&self) -> bool {
        let mut parts = self.lost.parts.iter();
        parts.any(|(part, _, why)| *part == Parts::TIMES && why != OUTSIDE)
    }

    /// Notes that it is known which names of the source belong to one file.
    pub(super) fn note_source_links_known(&mut self) {
        self.knows_links = true;
    }

    /// Notes that a further name of a file became a separate file.
    pub(super) fn note_lost_link(&mut self, why: &str) {
        self.lost.note_link(why);
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
            self.lost.note(Parts::TIMES, OUTSIDE);
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
        let directory = (!found.in_place()).then(|| directory_of(target));
        if !found.in_place_somewhere() || !self.withheld.is_first_refusal(directory.clone()) {
            return;
        }
        let host = context
            .side(CopySide::Target)
            .map(|side| side.name().to_owned());
        let host = EscapedName(host.unwrap_or_default().into_bytes());
        let refuses = match found.renames || !found.renames_in.is_empty() {
            true => "the server does not rename files",
            false => "the server refuses the names of temporary files",
        };
        let place = match directory {
            Some(directory) => {
                let shown = directory.strip_suffix(b"/.").unwrap_or(&directory);
                format!(" in {}", EscapedName(shown.to_vec()))
            }
            None => String::new(),
        };
        let why = match why {
            "" => "as in an earlier copy",
            why => why,
        };
        let text = format!(
            "{refuses}{place} ({why}): writing directly to the final names instead. A file \
             whose copy is interrupted is incomplete (--inplace silences this warning)"
        );
        context.warn(Some(host), text);
    }

    /// Warns about all metadata that was lost, and about all that was left out.
    pub(super) fn tell_losses(&self, context: &mut CopyContext<'_>) {
        let lost = self.lost.sentence().into_iter();
        for warning in lost.chain(self.withheld.warnings()) {
            context.warn(None, warning);
        }
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
        assert_eq!(lost.sentence(), None);
        lost.note(
            Parts(Parts::OWNER.0 | Parts::ACLS.0),
            "operation not permitted",
        );
        lost.note(Parts::OWNER, "another reason");
        lost.note_link("no room");
        lost.untold.push("extended attributes");
        let said = "not kept: owners (operation not permitted); access control \
                    lists of one file or directory (operation not permitted); hard links of one \
                    file or directory (no room); extended attributes (plain SFTP cannot carry \
                    them: install longhaul at the far end)";
        assert_eq!(lost.sentence().as_deref(), Some(said));
    }
}
