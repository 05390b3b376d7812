//! File metadata beyond SFTP: the capabilities of both ends, and the record of metadata that could
//! not be kept.

use std::time::Duration;

use schedule::{Attributes, JobKind, Parts, RemotePath};

use super::DeltaUse;
use super::engine::{CopyEngine, CopySide};
use super::wait_conditions::{WaitConditions, wait_for};
use super::withheld::SpecialBitRules;

/// Longest wait until the server at the far end is known; longer than the session's own limits.
const LONGEST: Duration = Duration::from_secs(30);

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

/// Metadata that was not kept: counts, and the reason of the first loss.
#[derive(Debug, Default)]
pub(super) struct MetadataLoss {
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
pub(super) const STOCK: &str = "SFTP cannot carry them unless longhaul is at the far end";

/// Reason that a time is changed.
const OUTSIDE: &str = "only times from 1970 to 2106 can be kept";

impl MetadataLoss {
    /// Notes parts of one file or directory that were not kept.
    pub(super) fn note(&mut self, parts: Parts, why: &str) {
        for (part, _) in NAMES.iter().filter(|(part, _)| parts.contains(*part)) {
            match self.parts.iter_mut().find(|(of, ..)| of == part) {
                Some((_, count, _)) => *count += 1,
                None => self.parts.push((*part, 1, why.to_owned())),
            }
        }
    }

    /// Notes that a further name of a file became a separate file.
    pub(super) fn note_link(&mut self, why: &str) {
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
            1 => format!("{what} of one entry ({why})"),
            count => format!("{what} of {count} entries ({why})"),
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

impl CopyEngine<'_> {
    /// Waits until the servers at the far ends are known if the copy keeps more than stock servers
    /// can, so that all its files are treated alike.
    pub(super) async fn settle_far(&mut self) {
        if !self.options.settle {
            return;
        }
        for end in [CopySide::Source, CopySide::Target] {
            self.settle_end(end).await;
        }
        self.can = self.find_out();
        self.tell_sent_whole();
        let mut untold = Vec::new();
        if self.source_is_remote() {
            let wanted = self.options;
            let lacks = [
                (
                    wanted.xattrs && !self.can.tell_xattrs,
                    "extended attributes",
                ),
                (wanted.acls && !self.can.tell_xattrs, "access control lists"),
                (wanted.hard_links && !self.can.tell_links, "hard links"),
            ];
            untold.extend(
                lacks
                    .iter()
                    .filter(|(lacks, _)| *lacks)
                    .map(|(_, what)| *what),
            );
        }
        for what in untold {
            if !self.not_kept.untold.contains(&what) {
                self.not_kept.untold.push(what);
            }
        }
    }

    fn find_out(&self) -> MetadataSupport {
        let has = |end, name: &str| match self.side(end) {
            None => true,
            Some(side) => side.session().far_info().is_some_and(|info| info.has(name)),
        };
        let names = has(CopySide::Source, "users-groups-by-id@openssh.com");
        MetadataSupport {
            tell_xattrs: has(CopySide::Source, "get-xattrs@longhaul"),
            take_xattrs: has(CopySide::Target, "set-metadata@longhaul"),
            tell_links: has(CopySide::Source, "attributes@longhaul"),
            map_owners: names && has(CopySide::Target, "ids-by-name@longhaul"),
        }
    }

    /// Warns that `--delta` has no effect because the far end cannot rebuild files.
    fn tell_sent_whole(&mut self) {
        // Files between two hosts are always sent whole.
        let sides = (self.side(CopySide::Source), self.side(CopySide::Target));
        let ((None, Some(side)) | (Some(side), None)) = sides else {
            return;
        };
        let info = side.session().far_info();
        let rebuilds = info.is_some_and(|info| info.has("hash@longhaul") && info.has("copy-data"));
        if self.options.delta == DeltaUse::Always && !rebuilds {
            let text = "--delta: sending files whole, because longhaul is not at the far end";
            self.warn(None, text.to_owned());
        }
    }

    /// Waits until it is known which server handles the lanes of an end.
    pub(super) async fn settle_end(&mut self, end: CopySide) {
        let settled = |engine: &Self| {
            let side = engine.side(end);
            side.is_none_or(|side| side.session().is_settled())
        };
        if settled(self) {
            return;
        }
        // The session opens a channel only if it has a job.
        let path = RemotePath(b".".to_vec());
        let _ = self.ask(end, JobKind::RealPath { path }).await;
        let until = self.environment.now() + LONGEST;
        while !settled(self) && !self.stopped() {
            let Some(side) = self.side(end) else { return };
            let conditions = WaitConditions {
                sessions: vec![side.number()],
                cancel: true,
                until: Some(until),
                ..WaitConditions::default()
            };
            wait_for(self.environment, conditions).await;
            self.check_cancel();
            if !self.sides.take_events() && self.environment.now() >= until {
                return;
            }
            self.handle_events();
        }
    }

    pub(super) fn on_not_kept(&mut self, parts: Parts, why: &str) {
        if parts.contains(Parts::OWNER) {
            self.owners.refuse();
        }
        self.not_kept.note(parts, why);
    }

    /// Notes a local modification time that is to be kept but does not fit into 32 bits of seconds.
    pub(super) fn note_times(&mut self, path: &[u8], attributes: &Attributes) {
        let keeps = self.options.preserve || self.options.archive;
        let at_an_end = |seconds: u32| seconds == 0 || seconds == u32::MAX;
        let cut = attributes.times.is_some_and(|(_, at)| at_an_end(at));
        if self.source_is_remote() || !keeps || !cut {
            return;
        }
        let there = self.local().stat(path);
        if there.is_ok_and(|stat| u32::try_from(stat.seconds).is_err()) {
            self.not_kept.note(Parts::TIMES, OUTSIDE);
        }
    }

    /// Rules about setuid, setgid and sticky bits.
    pub(super) fn special_bits(&self) -> SpecialBitRules {
        SpecialBitRules::new(self.options, self.source_is_remote())
    }

    pub(super) fn tell_not_kept(&mut self) {
        if let Some(sentence) = self.not_kept.sentence() {
            self.warn(None, sentence);
        }
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
                    lists of one entry (operation not permitted); hard links of one entry (no \
                    room); extended attributes (SFTP cannot carry them unless longhaul is at the \
                    far end)";
        assert_eq!(lost.sentence().as_deref(), Some(said));
    }
}
