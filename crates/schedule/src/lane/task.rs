use sftp::{Attrs, Reply};

use super::core::{LaneContext, RequestTag};
use super::delta::Delta;
use super::get::Get;
use super::get_delta::GetDelta;
use super::hard_link::HardLink;
use super::list::List;
use super::list_tree::ListTree;
use super::put::{Part, Put};
use super::simple_op::SimpleOp;
use super::sum::Sum;
use crate::{Attributes, DiskReply, DiskRequest, Fault, Job, JobId, JobKind};

/// A job that has started.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) job: Job,
    machine: Machine,
}

#[derive(Debug)]
enum Machine {
    Put(Box<Put>),
    Delta(Box<Delta>),
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
pub(super) enum Step {
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
                let part = Part::Whole { source };
                Machine::Put(Box::new(Put::new(id, part, target.0, options)))
            }
            JobKind::PutDelta {
                source,
                target,
                options,
                always,
            } => {
                let delta = Delta::new(id, source, target.0, options, always);
                Machine::Delta(Box::new(delta))
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
                Machine::Put(Box::new(head))
            }
            JobKind::PutRange {
                file,
                attributes,
                temp,
                span,
            } => Machine::Put(Box::new(Put::range(id, file, attributes, temp.0, span))),
            JobKind::FinishTemp {
                temp,
                attributes,
                cut,
                set,
                options,
            } => {
                let finish = Put::finish(id, temp, attributes, (cut, set), options);
                Machine::Put(Box::new(finish))
            }
            JobKind::SyncTemp { temp } => Machine::Put(Box::new(Put::sync(id, temp.0))),
            JobKind::GetRange {
                file,
                source,
                known,
                span,
                sparse,
            } => {
                let range = Get::range(id, file, source.0, known, span, sparse);
                Machine::Get(Box::new(range))
            }
            JobKind::Get {
                source,
                target,
                known,
                options,
            } => Machine::Get(Box::new(Get::new(id, source.0, target, known, options))),
            JobKind::GetDelta {
                source,
                target,
                known,
                options,
                always,
            } => {
                let get = GetDelta::new(id, source.0, target, known, options, always);
                Machine::GetDelta(Box::new(get))
            }
            JobKind::List { path } => Machine::List(List::new(id, path.0)),
            JobKind::ListTree { path, count } => Machine::Tree(ListTree::new(id, path.0, count)),
            JobKind::MakeHardLink { path, of } => {
                Machine::HardLink(HardLink::new(id, path.0, of.0))
            }
            JobKind::Sum { path, span, size } => {
                Machine::Sum(Box::new(Sum::new(id, path.0, span, size)))
            }
            kind => Machine::Single(Box::new(SimpleOp::new(id, kind))),
        };
        Self { job, machine }
    }

    pub(super) fn start(&mut self, core: &mut LaneContext) -> Step {
        match &mut self.machine {
            Machine::Put(put) => put.start(core),
            Machine::Delta(delta) => return delta.start(core),
            Machine::Get(get) => get.start(core),
            Machine::GetDelta(get) => return get.start(core),
            // A tree's contents are unknown before its listing, and files wait for their turn.
            Machine::List(_) => core.openers.push_front(self.job.id),
            Machine::Tree(tree) => return tree.start(core),
            Machine::HardLink(link) => return link.start(core),
            Machine::Single(single) => return single.start(core),
            Machine::Sum(sum) => return sum.start(core),
        }
        Step::Goes
    }

    pub(super) fn open(&mut self, core: &mut LaneContext) {
        match &mut self.machine {
            Machine::Put(put) => put.open(core),
            Machine::Delta(delta) => delta.open(core),
            Machine::Get(get) => get.open(core),
            Machine::GetDelta(get) => get.open(core),
            Machine::List(list) => list.open(core),
            Machine::Sum(sum) => sum.open(core),
            Machine::Tree(_) | Machine::HardLink(_) | Machine::Single(_) => {}
        }
    }

    /// Sends the job as one request when its turn has come.
    pub(super) fn go_whole(&mut self, core: &mut LaneContext) {
        match &mut self.machine {
            Machine::Put(put) => put.go_whole(core),
            Machine::Get(get) => get.go_whole(core),
            Machine::Delta(_)
            | Machine::GetDelta(_)
            | Machine::List(_)
            | Machine::Tree(_)
            | Machine::HardLink(_)
            | Machine::Sum(_)
            | Machine::Single(_) => {}
        }
    }

    /// Resumes a paused listing.
    pub(super) fn list_on(&mut self, core: &mut LaneContext) -> Step {
        match &mut self.machine {
            Machine::Tree(tree) => tree.settle(core),
            Machine::List(list) => list.settle(core),
            _ => Step::Goes,
        }
    }

    /// Returns true if [`Task::stream`] sends requests, false if it makes the disk side read.
    pub(super) fn receives(&self) -> bool {
        matches!(self.machine, Machine::Get(_) | Machine::GetDelta(_))
    }

    pub(super) fn stream(&mut self, core: &mut LaneContext) -> bool {
        match &mut self.machine {
            Machine::Put(put) => put.stream(core),
            Machine::Delta(delta) => delta.stream(core),
            Machine::Get(get) => get.stream(core),
            Machine::GetDelta(get) => get.stream(core),
            Machine::List(_)
            | Machine::Tree(_)
            | Machine::HardLink(_)
            | Machine::Sum(_)
            | Machine::Single(_) => false,
        }
    }

    pub(super) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestTag,
        reply: Reply,
    ) -> Result<Step, Misprediction> {
        match &mut self.machine {
            Machine::Put(put) => put.on_reply(core, what, &reply),
            Machine::Delta(delta) => delta.on_reply(core, what, &reply),
            Machine::Get(get) => get.on_reply(core, what, reply),
            Machine::GetDelta(get) => get.on_reply(core, what, reply),
            Machine::List(list) => list.on_reply(core, what, reply),
            Machine::Tree(tree) => Ok(tree.on_reply(core, reply)),
            Machine::HardLink(link) => Ok(link.on_reply(core, what, &reply)),
            Machine::Single(single) => Ok(single.on_reply(core, what, reply)),
            Machine::Sum(sum) => sum.on_reply(core, what, &reply),
        }
    }

    pub(super) fn on_disk(&mut self, core: &mut LaneContext, reply: DiskReply) -> Step {
        match &mut self.machine {
            Machine::Put(put) => put.on_disk(core, reply),
            Machine::Delta(delta) => delta.on_disk(core, reply),
            Machine::Get(get) => get.on_disk(core, reply),
            Machine::GetDelta(get) => get.on_disk(core, reply),
            Machine::List(_)
            | Machine::Tree(_)
            | Machine::HardLink(_)
            | Machine::Sum(_)
            | Machine::Single(_) => Step::Goes,
        }
    }

    /// Fails the job after cleaning up; resumable temporaries stay if `leaving`.
    pub(super) fn cancel(&mut self, core: &mut LaneContext, fault: Fault, leaving: bool) -> Step {
        match &mut self.machine {
            Machine::Put(put) => {
                put.cancel(fault, leaving);
                put.settle(core)
            }
            Machine::Delta(delta) => delta.cancel(core, fault, leaving),
            Machine::Get(get) => {
                get.fail(fault);
                get.settle(core)
            }
            Machine::GetDelta(get) => get.cancel(core, fault),
            Machine::List(list) => {
                list.fail(fault);
                list.settle(core)
            }
            Machine::Tree(tree) => {
                tree.fail(fault);
                tree.settle(core)
            }
            Machine::Sum(sum) => {
                sum.fail(fault);
                sum.settle(core)
            }
            // One round trip, and the job is done.
            Machine::HardLink(_) | Machine::Single(_) => Step::Goes,
        }
    }

    /// Ends a part of a file early; other jobs continue.
    pub(super) fn abandon(&mut self, core: &mut LaneContext) -> Step {
        match &mut self.machine {
            Machine::Put(put) if put.is_piece() => {
                put.abandoned = true;
                put.settle(core)
            }
            Machine::Get(get) if get.part.is_some() => {
                get.abandoned = true;
                get.settle(core)
            }
            _ => Step::Goes,
        }
    }

    /// Returns the remote temporary that may exist and would stay behind.
    pub(super) fn temporary(&self) -> Option<(JobId, &[u8])> {
        match &self.machine {
            Machine::Put(put) => put.temporary(),
            Machine::Delta(delta) => delta.temporary(),
            Machine::HardLink(link) => link.temporary(),
            Machine::Single(single) => single.temporary(),
            Machine::Get(_)
            | Machine::GetDelta(_)
            | Machine::List(_)
            | Machine::Sum(_)
            | Machine::Tree(_) => None,
        }
    }

    /// Returns the request that makes the disk side release the job.
    pub(super) fn release(&self) -> Option<DiskRequest> {
        let job = self.job.id;
        match &self.machine {
            Machine::Put(put) if put.holds_source() => Some(DiskRequest::CloseSource { job }),
            Machine::Delta(delta) if delta.holds_source() => Some(DiskRequest::CloseSource { job }),
            Machine::Get(get) if get.holds_target() => Some(DiskRequest::Discard { job }),
            Machine::GetDelta(get) if get.holds_target() => Some(DiskRequest::Discard { job }),
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
