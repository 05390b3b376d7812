//! Owner and group of a file that an upload replaces. The new file keeps them if the server permits
//! it, as if the old file had been overwritten.
//!
//! The owner of new files is queried beside a CLOSE, for one file in each directory. It nearly
//! always equals the owner of the replaced file; then nothing is sent and nothing awaited.

use sftp::{Attrs, ExpectedEntry, Reply, Request};

use super::target::ReplacedAttributes;
use super::{LaneContext, UploadState};
use crate::lane::messages;
use crate::lane::request_purpose::RequestPurpose;
use crate::{LaneEvent, directory_of};

/// Progress of giving the new file owner and group of the replaced one. If the server refuses both,
/// the group alone is tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::lane) struct OwnerPreservation {
    /// Owner and group of the temporary (`has`), and a flag that they were queried by name
    /// (`asked`).
    has: Option<(u32, u32)>,
    asked: bool,
    stage: OwnerStage,
}

/// Attempts made so far to set owner and group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OwnerStage {
    #[default]
    Untried,
    /// The server refuses to change the owner.
    Refused,
    /// Owner and group are final.
    Settled,
}

impl OwnerPreservation {
    /// Records the temporary's owner from a reply.
    pub(in crate::lane) fn learn(&mut self, reply: &Reply) {
        if let Reply::Attrs(attrs) = reply {
            self.has = attrs.owner;
        }
    }

    /// Sets owner and group of the temporary `path` before the rename; true if a request was sent whose answer
    /// must come first.
    pub(super) fn keep(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
        path: &[u8],
    ) -> bool {
        let Some(was) = owner_was(up) else {
            return false;
        };
        let has = self.has.or_else(|| owner_here(up, core));
        match (self.stage, has) {
            (OwnerStage::Settled, _) => return false,
            (_, Some(has)) if has == was => {
                self.stage = OwnerStage::Settled;
                return false;
            }
            (OwnerStage::Untried, _) => {
                let attrs = owner(core, was);
                let request = Request::Setstat { path, attrs };
                up.requests.send(core, RequestPurpose::KeepOwner, &request);
            }
            // The owner may match anyway, at a server that never changes owners.
            (OwnerStage::Refused, None) if !self.asked => {
                self.asked = true;
                let request = Request::Lstat { path };
                up.requests.send(core, RequestPurpose::TempOwner, &request);
            }
            (OwnerStage::Refused, Some((user, group))) if group != was.1 => {
                self.stage = OwnerStage::Settled;
                let attrs = owner(core, (user, was.1));
                let request = Request::Setstat { path, attrs };
                up.requests.send(core, RequestPurpose::KeepGroup, &request);
            }
            (OwnerStage::Refused, _) => {
                self.stage = OwnerStage::Settled;
                core.event(LaneEvent::Belonged(up.job(), was));
                return false;
            }
        }
        true
    }

    /// Handles the answer to one of these requests.
    pub(super) fn on_reply(
        &mut self,
        up: &UploadState,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) {
        match (what, messages::status(reply)) {
            (RequestPurpose::TempOwner, _) => {
                self.learn(reply);
                if let Some(has) = self.has {
                    core.set_owner_in(directory_of(&up.path), has);
                }
            }
            (RequestPurpose::KeepOwner, Ok(())) => self.stage = OwnerStage::Settled,
            (RequestPurpose::KeepOwner, Err(_)) => self.stage = OwnerStage::Refused,
            // The group is kept, but the owner still differs.
            _ => {
                if let Some(was) = owner_was(up) {
                    core.event(LaneEvent::Belonged(up.job(), was));
                }
            }
        }
    }
}

/// Queries the owner of the open temporary, if it matters and is unknown.
pub(super) fn ask_owner(up: &mut UploadState, core: &mut LaneContext, handle: &[u8]) {
    let may = up.target.is_unknown() || owner_was(up).is_some();
    let known = owner_here(up, core).is_some();
    if may && up.part.sets_attributes() && !known && core.in_order() {
        let request = Request::Fstat { handle };
        up.requests.send(core, RequestPurpose::TempOwner, &request);
    }
}

/// Returns the owner to keep, as far as known.
fn owner_was(up: &UploadState) -> Option<(u32, u32)> {
    // An owner set by the user takes precedence. chown(2) would clear setuid.
    let said = up.options.beyond.owner.is_some() || up.options.beyond.special_bits;
    let named = up.part.renames() && !said;
    let replaced = up.target.replaced().filter(|_| named);
    replaced.and_then(ReplacedAttributes::owner)
}

/// Returns the owner of new files in the target's directory, if known.
fn owner_here(up: &UploadState, core: &LaneContext) -> Option<(u32, u32)> {
    core.owner_in(&directory_of(&up.path))
}

fn owner(core: &LaneContext, owner: (u32, u32)) -> Attrs {
    Attrs {
        owner: Some(owner),
        expected: core.expects(ExpectedEntry::TEMPORARY),
        ..Attrs::default()
    }
}
