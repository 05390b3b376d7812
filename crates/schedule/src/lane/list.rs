use sftp::{Handle, NameRecord, Reply, Request, StatusCode};

use super::context::LaneContext;
use super::listing_name_guard::{ListingNameGuard, is_safe};
use super::messages::{LISTING, endless, longer_than_wanted, refused};
use super::request_purpose::RequestPurpose;
use super::task::{JobProgress, Misprediction, attributes};
use crate::{JobFailure, JobId, LaneEvent};

/// Lists one directory.
///
/// With predicted handles, OPENDIR, some READDIRs and CLOSE leave together, so that no other
/// request meets a directory's handle and the listing takes one round trip. A longer directory is
/// left to a lane that does not predict, which reports the first entries again; to hold them back
/// until the end had come would cost a round trip and a half in the middle of slow start.
#[derive(Debug)]
pub(super) struct ListDirectoryJob {
    id: JobId,
    path: Vec<u8>,
    handle: Option<Handle>,
    opening: bool,
    closing: bool,
    at_end: bool,
    pending: usize,
    /// All requests were sent in one flight.
    one_flight: bool,
    bounds: ListingNameGuard,
    /// Number of names that the owner still wants, `.`, `..` and impossible ones included; `None`
    /// without a bound.
    most: Option<usize>,
    fault: Option<JobFailure>,
}

/// Bytes of an impossible name that are kept for the message about it.
const LONGEST_SHOWN: usize = 1024;
/// Number of names in an answer to READDIR (sftp-server.c, process_readdir).
const NAMES: usize = 100;
/// Number of READDIRs that wait at the server while answers travel: one beyond the end costs 50
/// bytes.
const AHEAD: usize = 8;
/// Number of READDIRs in one flight, for 700 names. A directory of usual size needs no second round
/// trip, and the flight of a small one is below a kilobyte.
pub(super) const FLIGHT: usize = 8;

impl ListDirectoryJob {
    pub(super) fn new(id: JobId, path: Vec<u8>, most: Option<usize>) -> Self {
        Self {
            id,
            path,
            handle: None,
            opening: false,
            closing: false,
            at_end: false,
            pending: 0,
            one_flight: false,
            bounds: ListingNameGuard::default(),
            most,
            fault: None,
        }
    }

    pub(super) fn open(&mut self, core: &mut LaneContext) {
        if self.fault.is_some() {
            return;
        }
        self.opening = true;
        let predicted = core.opens(self.id);
        let path = std::mem::take(&mut self.path);
        self.send(
            core,
            RequestPurpose::Open,
            &Request::Opendir { path: &path },
        );
        self.path = path;
        if let Some(handle) = predicted {
            self.fly(core, handle);
        }
    }

    /// Sends all requests behind the OPENDIR. With any result the server's handle table is empty
    /// again.
    fn fly(&mut self, core: &mut LaneContext, handle: Handle) {
        self.one_flight = true;
        for _ in 0..self.at_most(FLIGHT) {
            let handle = handle.as_bytes();
            self.send(core, RequestPurpose::Readdir, &Request::Readdir { handle });
        }
        self.closing = true;
        let bytes = handle.as_bytes();
        self.send(
            core,
            RequestPurpose::Close,
            &Request::Close { handle: bytes },
        );
        core.closes(self.id);
        self.handle = Some(handle);
    }

    /// Returns `requests`, or fewer if those bring all entries that the owner wants, and the end.
    fn at_most(&self, requests: usize) -> usize {
        let wanted = self.most.map_or(requests, |most| most / NAMES + 2);
        requests.min(wanted)
    }

    fn send(&mut self, core: &mut LaneContext, what: RequestPurpose, request: &Request<'_>) {
        self.pending += 1;
        core.send(self.id, what, request);
    }

    pub(super) fn on_reply(
        &mut self,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: Reply,
    ) -> Result<JobProgress, Misprediction> {
        self.pending -= 1;
        match (what, reply) {
            (RequestPurpose::Open, Reply::Handle(handle)) => {
                self.opening = false;
                if self.one_flight && self.handle.as_ref() != Some(&handle) {
                    return Err(Misprediction::Handle);
                }
                self.handle = Some(handle);
            }
            (RequestPurpose::Open, Reply::Status(status)) => {
                self.opening = false;
                if !self.one_flight {
                    core.closes(self.id);
                }
                self.fail(refused(LISTING, &status));
            }
            (RequestPurpose::Readdir, Reply::Names(names)) => self.on_names(core, names),
            (RequestPurpose::Readdir, Reply::Status(status)) => {
                self.at_end = true;
                // After a refused OPENDIR or a first error, later errors have the same cause.
                if self.fault.is_none() && status.code != StatusCode::EOF {
                    self.fail(refused(LISTING, &status));
                }
            }
            _ => {}
        }
        Ok(self.settle(core))
    }

    fn on_names(&mut self, core: &mut LaneContext, names: Vec<NameRecord>) {
        // A server that answers without names would be asked forever.
        if names.is_empty() {
            self.at_end = true;
        }
        if let Some(most) = &mut self.most {
            match most.checked_sub(names.len()) {
                Some(left) => *most = left,
                None => return self.fail(longer_than_wanted()),
            }
        }
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            if self.fault.is_some() {
                break;
            }
            if let Err(why) = self.bounds.note(&name.filename) {
                self.fail(endless(why));
                break;
            }
            match name.filename.as_slice() {
                b"." | b".." => {}
                filename if is_safe(filename) => {
                    entries.push((name.filename, attributes(&name.attrs)));
                }
                _ => match self.bounds.note_impossible() {
                    Ok(()) => {
                        let mut name = name.filename;
                        name.truncate(LONGEST_SHOWN);
                        core.event(LaneEvent::LeftOut(self.id, name));
                    }
                    Err(why) => self.fail(endless(why)),
                },
            }
        }
        if !entries.is_empty() {
            core.event(LaneEvent::Entries(self.id, entries));
        }
    }

    pub(super) fn settle(&mut self, core: &mut LaneContext) -> JobProgress {
        if let (Some(handle), false) = (self.handle.clone(), self.closing) {
            let handle = handle.as_bytes();
            let ends = self.at_end || self.fault.is_some();
            while !ends && self.pending < self.at_most(AHEAD) && !core.lists_held() {
                self.send(core, RequestPurpose::Readdir, &Request::Readdir { handle });
            }
            if ends {
                self.closing = true;
                self.send(core, RequestPurpose::Close, &Request::Close { handle });
                core.closes(self.id);
            }
        }
        if self.pending > 0 || (self.fault.is_none() && !self.closing) {
            return JobProgress::Continues;
        }
        let end = match self.fault.take() {
            Some(fault) => LaneEvent::Failed(self.id, fault),
            None if !self.at_end => LaneEvent::Abandoned(self.id),
            None => LaneEvent::Done(self.id),
        };
        core.event(end);
        JobProgress::Finished
    }

    pub(super) fn fail(&mut self, fault: JobFailure) {
        self.fault.get_or_insert(fault);
    }
}
