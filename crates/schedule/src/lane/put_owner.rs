//! Owner and group of a file that an upload replaces. They stay, as where it is written into, if the
//! server permits that.
//!
//! Whose a new file is by itself is asked beside its CLOSE, of one file in a directory: where that is
//! who owns the one that is replaced, which is nearly always so, nothing is sent and nothing awaited.

use sftp::{Attrs, Reply, Request};

use super::core::{LaneContext, RequestTag};
use super::messages;
use super::put::{Part, Put, ReplacedAttributes, Target};
use crate::{LaneEvent, directory_of};

/// What was done about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnerOutcome {
    /// The temporary's own, and whether its name was asked for that.
    has: Option<(u32, u32)>,
    asked: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Untried,
    /// Its owner cannot be another.
    Refused,
    /// It is as it will be.
    Settled,
}

impl OwnerOutcome {
    /// What was told of the temporary.
    pub(super) fn learn(&mut self, reply: &Reply) {
        if let Reply::Attrs(attrs) = reply {
            self.has = attrs.owner;
        }
    }
}

impl Put {
    /// The owner to keep, as far as that is known.
    fn owner_was(&self) -> Option<(u32, u32)> {
        let named = matches!(self.part, Part::Whole { .. } | Part::Finish { .. });
        // Where it is to be somebody's, that is done. chown(2) would take setuid away.
        let said = self.options.beyond.owner.is_some() || self.options.special_bits;
        match self.target {
            Target::Existing(ReplacedAttributes { owner, .. }) if named && !said => owner,
            _ => None,
        }
    }

    /// Asks whose the open temporary is, where that may matter and is not known.
    pub(super) fn ask_owner(&mut self, core: &mut LaneContext, handle: &[u8]) {
        let may = self.target == Target::Unknown || self.owner_was().is_some();
        let whole = self.sets_attributes();
        let known = self.owner_here(core).is_some();
        if may && whole && !known && core.server.in_order {
            self.send(core, RequestTag::OwnerIs, &Request::Fstat { handle });
        }
    }

    /// Whose files are that are made beside the target.
    fn owner_here(&self, core: &LaneContext) -> Option<(u32, u32)> {
        let (dir, owner) = core.owner_in.as_ref()?;
        (*dir == directory_of(&self.path)).then_some(*owner)
    }

    /// Before it gets its name: whether something was sent, whose answer has to come first.
    pub(super) fn keep_owner(&mut self, core: &mut LaneContext, temp: &[u8]) -> bool {
        let (Some(was), OwnerOutcome { has, asked, stage }) =
            (self.owner_was(), self.attempt.owner)
        else {
            return false;
        };
        let has = has.or_else(|| self.owner_here(core));
        let path = temp;
        match (stage, has) {
            (Stage::Settled, _) => return false,
            (_, Some(has)) if has == was => {
                self.attempt.owner.stage = Stage::Settled;
                return false;
            }
            (Stage::Untried, _) => {
                let attrs = owner(was);
                self.send(
                    core,
                    RequestTag::KeepOwner,
                    &Request::Setstat { path, attrs },
                );
            }
            // It may be the same, at a server that never changes one.
            (Stage::Refused, None) if !asked => {
                self.attempt.owner.asked = true;
                self.send(core, RequestTag::OwnerIs, &Request::Lstat { path });
            }
            (Stage::Refused, Some((user, group))) if group != was.1 => {
                self.attempt.owner.stage = Stage::Settled;
                let attrs = owner((user, was.1));
                self.send(
                    core,
                    RequestTag::KeepGroup,
                    &Request::Setstat { path, attrs },
                );
            }
            (Stage::Refused, _) => {
                self.attempt.owner.stage = Stage::Settled;
                core.event(LaneEvent::Belonged(self.id, was));
                return false;
            }
        }
        true
    }

    pub(super) fn on_owner(&mut self, core: &mut LaneContext, what: RequestTag, reply: &Reply) {
        match (what, messages::status(reply)) {
            (RequestTag::OwnerIs, _) => {
                self.attempt.owner.learn(reply);
                if let Some(has) = self.attempt.owner.has {
                    core.owner_in = Some((directory_of(&self.path), has));
                }
            }
            (RequestTag::KeepOwner, Ok(())) => self.attempt.owner.stage = Stage::Settled,
            (RequestTag::KeepOwner, Err(_)) => self.attempt.owner.stage = Stage::Refused,
            // With its group it is still not whose it was.
            _ => {
                if let Some(was) = self.owner_was() {
                    core.event(LaneEvent::Belonged(self.id, was));
                }
            }
        }
    }
}

fn owner(owner: (u32, u32)) -> Attrs {
    Attrs {
        owner: Some(owner),
        ..Attrs::default()
    }
}
