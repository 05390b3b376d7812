//! Requests that set the metadata of a file, and what becomes of metadata that cannot be set.

use sftp::{Attrs, MetadataFlags, Parts, Reply, Request};

use super::context::LaneContext;
use super::job_requests::JobRequests;
use super::messages;
use super::request_purpose::RequestPurpose;
use crate::{JobId, LaneEvent, Xattrs};

/// Metadata that one set-metadata@longhaul sets.
const EVERYTHING: Parts =
    Parts(Parts::OWNER.0 | Parts::XATTRS.0 | Parts::MODE.0 | Parts::ACLS.0 | Parts::TIMES.0);
/// Reason why a stock server does not keep some metadata.
pub(super) const NOT_OURS: &str = "plain SFTP cannot carry them: install longhaul at the far end";

/// Sends a set-metadata@longhaul.
pub(super) fn set_all(
    requests: &mut JobRequests,
    core: &mut LaneContext,
    what: RequestPurpose,
    (of, flags): (&[u8], MetadataFlags),
    attrs: Attrs,
    xattrs: &Xattrs,
) {
    let mut list = Vec::new();
    sftp::xattrs::write(&xattrs.list, &mut list);
    let request = Request::SetMetadata {
        of,
        flags: MetadataFlags(flags.0 | xattrs.kinds.0),
        attrs,
        xattrs: &list,
    };
    requests.send(core, what, &request);
}

/// Reports that the server cannot set this metadata.
pub(super) fn cannot_set(core: &mut LaneContext, job: JobId, xattrs: Option<&Xattrs>) {
    let lost = xattrs.map(Xattrs::parts).filter(|parts| !parts.is_empty());
    if let Some(parts) = lost {
        core.event(LaneEvent::NotKept(job, parts, NOT_OURS.to_owned()));
    }
}

/// Handles the answer to setting an owner, or all metadata.
pub(super) fn on_set(core: &mut LaneContext, job: JobId, what: RequestPurpose, reply: &Reply) {
    let (parts, why) = match (reply, what) {
        (Reply::Set { not_kept, why }, _) if !not_kept.is_empty() => (*not_kept, why.clone()),
        (reply, what) => match (messages::status(reply), what) {
            (Ok(()), _) => return,
            (Err(status), RequestPurpose::Metadata) => (EVERYTHING, status.to_string()),
            (Err(status), _) => (Parts::OWNER, status.to_string()),
        },
    };
    core.event(LaneEvent::NotKept(job, parts, why));
}
