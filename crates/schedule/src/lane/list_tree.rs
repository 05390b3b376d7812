use sftp::{Reply, Request, StatusCode, TreeFlags};

use super::config::CompressionMode;
use super::context::LaneContext;
use super::listing_name_guard::{ListingNameGuard, is_safe};
use super::messages::{LISTING, endless, left_out, refused, remote};
use super::request_purpose::RequestPurpose;
use super::server::ServerCapabilities;
use super::task::{JobProgress, attributes};
use crate::{JobFailure, JobFailureKind, JobId, LaneEvent, TreeWalkStep};

/// Lists a whole tree by list-tree@longhaul. The server answers each request with the next part,
/// and sends no part without a request.
#[derive(Debug)]
pub(super) struct ListTree {
    id: JobId,
    path: Vec<u8>,
    /// Flags of the request for the first part.
    flags: TreeFlags,
    number: u32,
    pending: usize,
    answered: usize,
    /// Number of open directories, including the topmost.
    depth: usize,
    /// Number of open directories that are omitted: one with an impossible name, and those below
    /// it.
    dropped: usize,
    bounds: ListingNameGuard,
    /// Numbers of the open directories, the topmost first.
    open: Vec<u64>,
    /// Number of directories entered so far.
    entered: u64,
    /// Number of consecutive answers without any step.
    empty: usize,
    fault: Option<JobFailure>,
    /// True if the server was requested to drop the listing.
    forgotten: bool,
}

/// Verdict on a name from the server.
enum ListedNameCheck {
    Valid,
    /// No file can have the name; holds the warning.
    Invalid(String),
    /// The name lies in an omitted directory.
    Dropped,
}

/// Error text of [`crate::JobKind::ListTree`] on a lane whose server cannot list trees: a copy may
/// have lanes to several servers, and lose those that can.
pub const NO_TREES: &str = "the server cannot list a directory with all below it in one request";

/// Number of parts requested while answers travel: half a megabyte, 10,000 entries per round trip.
const AHEAD: usize = 8;
/// Number of parts requested before the first answer, since the first parts are small.
const FIRST: usize = 2;
/// Number of consecutive answers without any step after which the listing fails.
const MOST_EMPTY: usize = 1000;
/// Maximum depth of a path that servers accept.
const DEEPEST: usize = 4096;

impl ListTree {
    pub(super) fn new(id: JobId, path: Vec<u8>) -> Self {
        Self {
            id,
            path,
            flags: TreeFlags::BEGIN,
            number: 0,
            pending: 0,
            answered: 0,
            depth: 1,
            dropped: 0,
            bounds: ListingNameGuard::default(),
            open: vec![0],
            entered: 0,
            empty: 0,
            fault: None,
            forgotten: false,
        }
    }

    /// Asks for an estimate of the tree's contents as well.
    pub(super) fn counting(self, counts: bool) -> Self {
        self.with(TreeFlags::COUNT, counts)
    }

    /// Does not enter directories on other file systems than the topmost one.
    pub(super) fn on_same_device(self, stays: bool) -> Self {
        self.with(TreeFlags::SAME_DEVICE, stays)
    }

    fn with(mut self, flag: TreeFlags, is_set: bool) -> Self {
        if is_set {
            self.flags = self.flags | flag;
        }
        self
    }

    pub(super) fn start(&mut self, core: &mut LaneContext) -> JobProgress {
        if !core.can(ServerCapabilities::LIST_TREE) {
            let fault = remote(NO_TREES).of_kind(JobFailureKind::Unsupported);
            core.event(LaneEvent::Failed(self.id, fault));
            return JobProgress::Finished;
        }
        self.number = core.tree_number();
        let path = std::mem::take(&mut self.path);
        let mut flags = self.flags;
        if core.config().pack != CompressionMode::Never {
            flags = flags | TreeFlags::PACK;
        }
        self.ask(core, flags, &path);
        self.path = path;
        self.settle(core)
    }

    fn ask(&mut self, core: &mut LaneContext, flags: TreeFlags, path: &[u8]) {
        self.pending += 1;
        let tree = self.number;
        core.send(
            self.id,
            RequestPurpose::Tree,
            &Request::ListTree { tree, flags, path },
        );
    }

    pub(super) fn on_reply(&mut self, core: &mut LaneContext, reply: Reply) -> JobProgress {
        self.pending -= 1;
        self.answered += 1;
        match reply {
            Reply::Tree(steps) if self.fault.is_none() => self.on_steps(core, steps),
            Reply::Status(status) => {
                let over = self.depth == 0 || self.forgotten || self.fault.is_some();
                if !over && status.code == StatusCode::EOF {
                    self.fail(remote(
                        "the server ended the directory's listing before it was complete: run the \
                         same command again",
                    ));
                } else if !over {
                    self.fail(refused(LISTING, &status));
                }
            }
            _ => {}
        }
        self.settle(core)
    }

    fn on_steps(&mut self, core: &mut LaneContext, steps: Vec<sftp::TreeRecord>) {
        self.empty = if steps.is_empty() { self.empty + 1 } else { 0 };
        if self.empty > MOST_EMPTY {
            self.fail(remote(
                "the server repeatedly sent parts of a directory listing without entries (SFTP \
                 protocol error): listing stopped",
            ));
        }
        let mut told = Vec::with_capacity(steps.len());
        for step in steps {
            if let Err(why) = self.note(&step) {
                self.fail(endless(why));
                break;
            }
            if self.depth == 0 || self.depth > DEEPEST {
                self.fail(remote(
                    "the server listed an entry outside of the requested directory (SFTP protocol \
                     error)",
                ));
                break;
            }
            let (step, change) = match step {
                sftp::TreeRecord::Entry(name) => match self.checked(&name.filename) {
                    ListedNameCheck::Valid => (
                        TreeWalkStep::Entry(name.filename, attributes(&name.attrs)),
                        0,
                    ),
                    ListedNameCheck::Invalid(what) => (TreeWalkStep::Failed(what), 0),
                    ListedNameCheck::Dropped => continue,
                },
                sftp::TreeRecord::Enter(name) => {
                    self.depth += 1;
                    match self.checked(&name.filename) {
                        ListedNameCheck::Valid => (
                            TreeWalkStep::Enter(name.filename, attributes(&name.attrs)),
                            0,
                        ),
                        ListedNameCheck::Invalid(what) => {
                            told.push(TreeWalkStep::Failed(what));
                            self.dropped += 1;
                            continue;
                        }
                        ListedNameCheck::Dropped => {
                            self.dropped += 1;
                            continue;
                        }
                    }
                }
                sftp::TreeRecord::Leave => (TreeWalkStep::Leave, 1),
                sftp::TreeRecord::Count { files, bytes } => {
                    (TreeWalkStep::Count { files, bytes }, 0)
                }
                sftp::TreeRecord::Failed(code, text) => {
                    let message = sftp::printable(&text, 256);
                    let status = sftp::Status { code, message };
                    let what = refused(LISTING, &status).what;
                    (TreeWalkStep::Failed(what), 0)
                }
            };
            self.depth -= change;
            let dropped = self.dropped > 0;
            self.dropped = self.dropped.saturating_sub(change);
            if !dropped {
                told.push(step);
            }
        }
        if !told.is_empty() {
            core.event(LaneEvent::Tree(self.id, told));
        }
    }

    /// Counts a step in its directory.
    fn note(&mut self, step: &sftp::TreeRecord) -> Result<(), &'static str> {
        let directory = self.open.last().copied().unwrap_or(0);
        match step {
            sftp::TreeRecord::Entry(name) => self.bounds.note_in(directory, &name.filename),
            sftp::TreeRecord::Enter(name) => {
                self.entered += 1;
                self.open.push(self.entered);
                self.bounds.note_in(directory, &name.filename)
            }
            sftp::TreeRecord::Leave => {
                self.open.pop();
                Ok(())
            }
            // Each directory has at most one of these steps, so it counts as a name in the
            // directory.
            sftp::TreeRecord::Count { .. } | sftp::TreeRecord::Failed(..) => {
                self.bounds.note_in(directory, b"")
            }
        }
    }

    /// Checks `name`. Names in omitted directories are not inspected.
    fn checked(&mut self, name: &[u8]) -> ListedNameCheck {
        if self.dropped > 0 {
            return ListedNameCheck::Dropped;
        }
        if is_safe(name) && !matches!(name, b"." | b"..") {
            return ListedNameCheck::Valid;
        }
        if let Err(why) = self.bounds.note_impossible() {
            self.fail(endless(why));
            return ListedNameCheck::Dropped;
        }
        ListedNameCheck::Invalid(left_out(name))
    }

    pub(super) fn settle(&mut self, core: &mut LaneContext) -> JobProgress {
        if self.fault.is_some() && self.depth > 0 && !self.forgotten {
            self.forgotten = true;
            self.ask(core, TreeFlags::END, &[]);
        }
        let goes = self.depth > 0 && self.fault.is_none();
        // TCP is still in slow start, and files share its bandwidth.
        let ahead = AHEAD.min(FIRST + 3 * self.answered);
        while goes && self.pending < ahead && !core.lists_held() {
            self.ask(core, TreeFlags::NEXT, &[]);
        }
        if goes || self.pending > 0 {
            return JobProgress::Continues;
        }
        core.event(match self.fault.take() {
            Some(fault) => LaneEvent::Failed(self.id, fault),
            None => LaneEvent::Done(self.id),
        });
        JobProgress::Finished
    }

    pub(super) fn fail(&mut self, fault: JobFailure) {
        self.fault.get_or_insert(fault);
    }
}
