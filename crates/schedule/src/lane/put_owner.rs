//! Owner and group of a file that an upload replaces. The new file keeps them if the server permits
//! it, as if the old file had been overwritten.
//!
//! The owner of new files is queried beside a CLOSE, for one file in each directory. It nearly
//! always equals the owner of the replaced file; then nothing is sent and nothing awaited.

use sftp::{Attrs, Reply, Request};

use super::core::{LaneContext, RequestTag};
use super::messages;
use super::put::{Put, ReplacedAttributes, UploadPart, UploadTarget};
use crate::{LaneEvent, directory_of};

/// Progress of keeping owner and group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnerOutcome {
    /// Owner and group of the temporary (`has`), and a flag that they were queried by name
    /// (`asked`).
    has: Option<(u32, u32)>,
    asked: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Untried,
    /// The server refuses to change the owner.
    Refused,
    /// Owner and group are final.
    Settled,
}

impl OwnerOutcome {
    /// Records the temporary's owner from a reply.
    pub(super) fn learn(&mut self, reply: &Reply) {
        if let Reply::Attrs(attrs) = reply {
            self.has = attrs.owner;
        }
    }
}

impl Put {
    /// Returns the owner to keep, as far as known.
    fn owner_was(&self) -> Option<(u32, u32)> {
        let named = matches!(
            self.part,
            UploadPart::Whole { .. } | UploadPart::Finish { .. }
        );
        // An owner set by the user takes precedence. chown(2) would clear setuid.
        let said = self.options.beyond.owner.is_some() || self.options.special_bits;
        match self.target {
            UploadTarget::Existing(ReplacedAttributes { owner, .. }) if named && !said => owner,
            _ => None,
        }
    }

    /// Queries the owner of the open temporary, if it matters and is unknown.
    pub(super) fn ask_owner(&mut self, core: &mut LaneContext, handle: &[u8]) {
        let may = self.target == UploadTarget::Unknown || self.owner_was().is_some();
        let whole = self.sets_attributes();
        let known = self.owner_here(core).is_some();
        if may && whole && !known && core.server.in_order {
            self.send(core, RequestTag::OwnerIs, &Request::Fstat { handle });
        }
    }

    /// Returns the owner of new files in the target's directory, if known.
    fn owner_here(&self, core: &LaneContext) -> Option<(u32, u32)> {
        let (dir, owner) = core.owner_in.as_ref()?;
        (*dir == directory_of(&self.path)).then_some(*owner)
    }

    /// Sets owner and group before the rename; true if a request was sent whose answer must come
    /// first.
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
            // The owner may match anyway, at a server that never changes owners.
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
            // The group is kept, but the owner still differs.
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
