use sftp::{Attrs, Reply};

use super::core::{LaneContext, RequestTag};
use super::delta::DeltaUpload;
use super::get::Get;
use super::get_delta::GetDelta;
use super::hard_link::HardLink;
use super::list::List;
use super::list_tree::ListTree;
use super::put::{Put, UploadPart};
use super::simple_op::SimpleOp;
use super::sum::Sum;
use crate::{Attributes, DiskReply, DiskRequest, Fault, Job, JobId, JobKind};

/// A job that has started.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) job: Job,
    machine: JobMachine,
}

#[derive(Debug)]
enum JobMachine {
    Put(Box<Put>),
    Delta(Box<DeltaUpload>),
    Get(Box<Get>),
    GetDelta(Box<GetDelta>),
    List(List),
    Tree(ListTree),
    HardLink(HardLink),
    Single(Box<SimpleOp>),
    Sum(Box<Sum>),
}

/// Result of a step: the job continues or is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum TaskStep {
    Goes,
    Over,
}

/// The server differs from the one for which handles were predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misprediction {
    Handle,
    Extensions,
}

impl Task {
    pub(super) fn new(job: Job) -> Self {
        let id = job.id;
        let machine = match job.kind.clone() {
            JobKind::Put {
                source,
                target,
                options,
            } => {
                let part = UploadPart::Whole { source };
                JobMachine::Put(Box::new(Put::new(id, part, target.0, options)))
            }
            JobKind::PutDelta {
                source,
                target,
                options,
                always,
            } => {
                let delta = DeltaUpload::new(id, source, target.0, options, always);
                JobMachine::Delta(Box::new(delta))
            }
            JobKind::CreateTemp {
                file,
                target,
                attributes,
                len,
                alone,
                options,
            } => {
                let first = (attributes, len, alone);
                let head = Put::head(id, file, target.0, first, options);
                JobMachine::Put(Box::new(head))
            }
            JobKind::PutRange {
                file,
                attributes,
                temp,
                span,
            } => JobMachine::Put(Box::new(Put::range(id, file, attributes, temp.0, span))),
            JobKind::FinishTemp {
                temp,
                attributes,
                cut,
                set,
                options,
            } => {
                let finish = Put::finish(id, temp, attributes, (cut, set), options);
                JobMachine::Put(Box::new(finish))
            }
            JobKind::SyncTemp { temp } => JobMachine::Put(Box::new(Put::sync(id, temp.0))),
            JobKind::GetRange {
                file,
                source,
                known,
                span,
                sparse,
            } => {
                let range = Get::range(id, file, source.0, known, span, sparse);
                JobMachine::Get(Box::new(range))
            }
            JobKind::Get {
                source,
                target,
                known,
                options,
            } => JobMachine::Get(Box::new(Get::new(id, source.0, target, known, options))),
            JobKind::GetDelta {
                source,
                target,
                known,
                options,
                always,
            } => {
                let get = GetDelta::new(id, source.0, target, known, options, always);
                JobMachine::GetDelta(Box::new(get))
            }
            JobKind::List { path } => JobMachine::List(List::new(id, path.0)),
            JobKind::ListTree { path, count } => JobMachine::Tree(ListTree::new(id, path.0, count)),
            JobKind::MakeHardLink { path, of } => {
                JobMachine::HardLink(HardLink::new(id, path.0, of.0))
            }
            JobKind::Sum { path, span, size } => {
                JobMachine::Sum(Box::new(Sum::new(id, path.0, span, size)))
            }
            kind => JobMachine::Single(Box::new(SimpleOp::new(id, kind))),
        };
        Self { job, machine }
    }

    pub(super) fn start(&mut self, core: &mut LaneContext) -> TaskStep {
        match &mut self.machine {
            JobMachine::Put(put) => put.start(core),
            JobMachine::Delta(delta) => return delta.start(core),
            JobMachine::Get(get) => get.start(core),
            JobMachine::GetDelta(get) => return get.start(core),
            // A tree's contents are unknown before its listing, and files wait for their turn.
            JobMachine::List(_) => core.openers.push_front(self.job.id),
            JobMachine::Tree(tree) => return tree.start(core),
            JobMachine::HardLink(link) => return link.start(core),
            JobMachine::Single(single) => return single.start(core),
            JobMachine::Sum(sum) => return sum.start(core),
        }
        TaskStep::Goes
    }

    pub(super) fn open(&mut self, core: &mut LaneContext) {
        match &mut self.machine {
            JobMachine::Put(put) => put.open(core),
            JobMachine::Delta(delta) => delta.open(core),
            JobMachine::Get(get) => get.open(core),
            JobMachine::GetDelta(get) => get.open(core),
            JobMachine::List(list) => list.open(core),
            JobMachine::Sum(sum) => sum.open(core),
            JobMachine::Tree(_) | JobMachine::HardLink(_) | JobMachine::Single(_) => {}
        }
    }

    /// Sends the job as one request when its turn has come.
    pub(super) fn go_whole(&mut self, core: &mut LaneContext) {
        match &mut self.machine {
            JobMachine::Put(put) => put.go_whole(core),
            JobMachine::Get(get) => get.go_whole(core),
            JobMachine::Delta(_)
            | JobMachine::GetDelta(_)
            | JobMachine::List(_)
            | JobMachine::Tree(_)
            | JobMachine::HardLink(_)
            | JobMachine::Sum(_)
            | JobMachine::Single(_) => {}
        }
    }

    /// Resumes a paused listing.
    pub(super) fn list_on(&mut self, core: &mut LaneContext) -> TaskStep {
        match &mut self.machine {
            JobMachine::Tree(tree) => tree.settle(core),
            JobMachine::List(list) => list.settle(core),
            _ => TaskStep::Goes,
        }
    }

    /// Returns true if [`Task::stream`] sends requests, false if it makes the disk side read.
    pub(super) fn receives(&self) -> bool {
        matches!(self.machine, JobMachine::Get(_) | JobMachine::GetDelta(_))
    }

    pub(super) fn stream(&mut self, core: &mut LaneContext) -> bool {
        match &mut self.machine {
            JobMachine::Put(put) => put.stream(core),
            JobMachine::Delta(delta) => delta.stream(core),
            JobMachine::Get(get) => get.stream(core),
            JobMachine::GetDelta(get) => get.stream(core),
            JobMachine::List(_)
            | JobMachine::Tree(_)
            | JobMachine::HardLink(_)
            | JobMachine::Sum(_)
            | JobMachine::Single(_) => false,
        }
    }

    pub(super) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestTag,
        reply: Reply,
    ) -> Result<TaskStep, Misprediction> {
        match &mut self.machine {
            JobMachine::Put(put) => put.on_reply(core, what, &reply),
            JobMachine::Delta(delta) => delta.on_reply(core, what, &reply),
            JobMachine::Get(get) => get.on_reply(core, what, reply),
            JobMachine::GetDelta(get) => get.on_reply(core, what, reply),
            JobMachine::List(list) => list.on_reply(core, what, reply),
            JobMachine::Tree(tree) => Ok(tree.on_reply(core, reply)),
            JobMachine::HardLink(link) => Ok(link.on_reply(core, what, &reply)),
            JobMachine::Single(single) => Ok(single.on_reply(core, what, reply)),
            JobMachine::Sum(sum) => sum.on_reply(core, what, &reply),
        }
    }

    pub(super) fn on_disk(&mut self, core: &mut LaneContext, reply: DiskReply) -> TaskStep {
        match &mut self.machine {
            JobMachine::Put(put) => put.on_disk(core, reply),
            JobMachine::Delta(delta) => delta.on_disk(core, reply),
            JobMachine::Get(get) => get.on_disk(core, reply),
            JobMachine::GetDelta(get) => get.on_disk(core, reply),
            JobMachine::List(_)
            | JobMachine::Tree(_)
            | JobMachine::HardLink(_)
            | JobMachine::Sum(_)
            | JobMachine::Single(_) => TaskStep::Goes,
        }
    }

    /// Fails the job after cleaning up; resumable temporaries stay if `leaving`.
    pub(super) fn cancel(
        &mut self,
        core: &mut LaneContext,
        fault: Fault,
        leaving: bool,
    ) -> TaskStep {
        match &mut self.machine {
            JobMachine::Put(put) => {
                put.cancel(fault, leaving);
                put.settle(core)
            }
            JobMachine::Delta(delta) => delta.cancel(core, fault, leaving),
            JobMachine::Get(get) => {
                get.fail(fault);
                get.settle(core)
            }
            JobMachine::GetDelta(get) => get.cancel(core, fault),
            JobMachine::List(list) => {
                list.fail(fault);
                list.settle(core)
            }
            JobMachine::Tree(tree) => {
                tree.fail(fault);
                tree.settle(core)
            }
            JobMachine::Sum(sum) => {
                sum.fail(fault);
                sum.settle(core)
            }
            // One round trip, and the job is done.
            JobMachine::HardLink(_) | JobMachine::Single(_) => TaskStep::Goes,
        }
    }

    /// Ends a part of a file early; other jobs continue.
    pub(super) fn abandon(&mut self, core: &mut LaneContext) -> TaskStep {
        match &mut self.machine {
            JobMachine::Put(put) if put.is_piece() => {
                put.abandoned = true;
                put.settle(core)
            }
            JobMachine::Get(get) if get.part.is_some() => {
                get.abandoned = true;
                get.settle(core)
            }
            _ => TaskStep::Goes,
        }
    }

    /// Returns the remote temporary that may exist and would stay behind.
    pub(super) fn temporary(&self) -> Option<(JobId, &[u8])> {
        match &self.machine {
            JobMachine::Put(put) => put.temporary(),
            JobMachine::Delta(delta) => delta.temporary(),
            JobMachine::HardLink(link) => link.temporary(),
            JobMachine::Single(single) => single.temporary(),
            JobMachine::Get(_)
            | JobMachine::GetDelta(_)
            | JobMachine::List(_)
            | JobMachine::Sum(_)
            | JobMachine::Tree(_) => None,
        }
    }

    /// Returns the request that makes the disk side release the job.
    pub(super) fn release(&self) -> Option<DiskRequest> {
        let job = self.job.id;
        match &self.machine {
            JobMachine::Put(put) if put.holds_source() => Some(DiskRequest::CloseSource { job }),
            JobMachine::Delta(delta) if delta.holds_source() => {
                Some(DiskRequest::CloseSource { job })
            }
            JobMachine::Get(get) if get.holds_target() => Some(DiskRequest::Discard { job }),
            JobMachine::GetDelta(get) if get.holds_target() => Some(DiskRequest::Discard { job }),
            _ => None,
        }
    }
}

/// Converts SFTP attributes to [`Attributes`].
pub(super) fn attributes(attrs: &Attrs) -> Attributes {
    Attributes {
        size: attrs.size,
        mode: attrs.permissions,
        owner: attrs.owner,
        times: attrs.times,
        nanoseconds: attrs.nanoseconds,
        link: attrs.link,
    }
}
