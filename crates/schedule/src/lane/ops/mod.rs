//! Jobs of one request, with a few more after a refusal, and jobs without a data stream.

mod adopt_temp;
mod create_shared;
mod link;
mod make_dir;
mod owner_write;
mod query;
mod set_attributes;
mod sum;

pub(super) use adopt_temp::ResumeTempCheck;
pub(super) use create_shared::CreateShared;
pub(super) use link::{LinkTarget, MakeLink};
pub(super) use make_dir::MakeDir;
pub(super) use owner_write::OwnerWriteChange;
pub(super) use query::QueryJob;
pub(super) use set_attributes::SetAttributes;
pub(super) use sum::ChecksumJob;

use sftp::{Attrs, OpenFlags, Request};

use super::context::LaneContext;
use super::task::JobProgress;
use crate::{JobFailure, JobId, LaneEvent};

/// Returns an OPEN of an existing file or directory.
fn open_for_reading(path: &[u8]) -> Request<'_> {
    Request::Open {
        path,
        flags: OpenFlags::READ,
        attrs: Attrs::default(),
    }
}

/// Reports the result of `job` and ends it.
fn end(core: &mut LaneContext, job: JobId, fault: Option<JobFailure>) -> JobProgress {
    core.event(match fault {
        Some(fault) => LaneEvent::Failed(job, fault),
        None => LaneEvent::Done(job),
    });
    JobProgress::Finished
}
