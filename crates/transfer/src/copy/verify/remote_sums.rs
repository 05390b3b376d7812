//! Commands that make checksums at the far end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use schedule::{ByteRange, JobId, JobKind, RemotePath};

use super::early::{ChecksumRequest, ChecksumSelector};
use super::file_check::CheckAction;
use super::list_program::{ChecksumList, ChecksumListProgram, LIST, LIST_BYTES};
use super::longhaul_sums;
use super::watch::{ChecksumRestarts, ChecksumWatchdog};
use super::{READ_BACK, Verification};
use crate::copy::context::CopyContext;
use crate::copy::environment::RemoteCommandStep;
use crate::copy::file::{ActiveFiles, CopyFileId};
use crate::copy::jobs::JobPurpose;
use crate::session::{RemoteCommandError, RemoteCommandEvent, RemoteCommandId, RemoteCommandStart};
use crate::sums::{
    ChecksumOutputParser, Digest, SumAlgorithm, SumProgram, SumProgramAnswer, list_command,
    list_line, program_command, program_script, request, whole_request,
};

/// Time in which the far end must report its checksum program.
const LONGEST_FIND: Duration = Duration::from_secs(15);
/// Largest number of checksum commands side by side, if the far end has enough processors. sshd
/// allows ten channels on a connection (MaxSessions), and lanes use most of them.
const MOST_WORKERS: u32 = 4;
/// Requests sent ahead to one command. Summing a range takes a few milliseconds, the next request a
/// round trip: with four requests, 512 MiB took two seconds longer over a path of 114 ms.
const AHEAD: usize = 64;
/// Size in bytes up to which whole files are passed to a program in a list.
const SMALL: u64 = 8 << 20;
/// Number of files below which they are requested one by one.
const FEW: usize = 4;

/// State of the far end's checksum programs and of the requests to them.
#[derive(Default)]
pub(super) struct RemoteSumRequests {
    workers: Vec<SumWorker>,
    list: Option<ChecksumListProgram>,
    /// Files without any request.
    queue: VecDeque<CopyFileId>,
    /// Files among these that are collected for a list.
    small: VecDeque<CopyFileId>,
    small_bytes: u64,
    /// Checksums not requested yet.
    todo: VecDeque<ChecksumRequest>,
    /// Number of checksums requested from a remote longhaul.
    asked_ours: usize,
    restarts: ChecksumRestarts,
    state: SumProgramState,
}

#[derive(Default)]
enum SumProgramState {
    #[default]
    Unknown,
    /// The program was requested; `again` for the second time. `until` is set once the command that
    /// looks for it runs.
    Asking { until: Option<Instant>, again: bool },
    /// The far end has this program and this many processors.
    Available(SumProgram, u32),
    /// All files are verified by reading them back.
    ReadBack,
}

struct SumWorker {
    exec: RemoteCommandId,
    /// Number of restarts before its start.
    generation: u32,
    answers: ChecksumOutputParser,
    /// Open requests, with the number of bytes to sum.
    asked: VecDeque<(ChecksumRequest, u64)>,
    watch: ChecksumWatchdog,
}

/// Returns the start of a command that prints checksums.
/// The session gives the notices about a search for a program, and the watchdog the others.
fn sums_by(command: Vec<u8>, searches: bool) -> RemoteCommandStart {
    RemoteCommandStart {
        command,
        awaited: searches.then_some("the request to run a checksum program"),
        restarts: true,
    }
}

impl RemoteSumRequests {
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            SumProgramState::Asking { until, .. } => until,
            SumProgramState::Available(..) => {
                let watches = self.watches();
                watches.filter_map(ChecksumWatchdog::poll_timeout).min()
            }
            _ => None,
        }
    }

    fn watches(&self) -> impl Iterator<Item = &ChecksumWatchdog> {
        let workers = self.workers.iter().map(|w| &w.watch);
        workers.chain(self.list.as_ref().map(ChecksumListProgram::watch))
    }

    /// Returns the notice that is due at `now` about a program that does not answer.
    fn take_notice(&mut self, now: Instant) -> Option<String> {
        let program = format!("{} at the far end", self.program()?.name);
        let watches = self.workers.iter_mut().map(|w| &mut w.watch);
        let watches = watches.chain(self.list.as_mut().map(ChecksumListProgram::watch_mut));
        // Every notice that is due is taken, and one is given.
        let due = watches.filter_map(|watch| watch.take_notice(now, &program));
        due.last()
    }

    /// Checksum program of the far end, if known.
    pub(super) fn program(&self) -> Option<SumProgram> {
        match self.state {
            SumProgramState::Available(program, _) => Some(program),
            _ => None,
        }
    }

    /// Processors of the far end; two if unknown.
    pub(super) fn processors(&self) -> u32 {
        match self.state {
            SumProgramState::Available(_, processors) => processors.max(1),
            _ => 2,
        }
    }

    /// True until the far end's program is known.
    pub(super) fn is_undecided(&self) -> bool {
        matches!(
            self.state,
            SumProgramState::Unknown | SumProgramState::Asking { .. }
        )
    }

    /// Adds a checksum to request.
    pub(super) fn want(&mut self, sum: ChecksumRequest) {
        self.todo.push_back(sum);
    }

    /// Takes a checksum to request from a remote longhaul, of which fewer than `most` are open.
    pub(super) fn next_of_ours(&mut self, most: usize) -> Option<ChecksumRequest> {
        match self.asked_ours < most {
            true => self.todo.pop_front(),
            false => None,
        }
    }

    /// Notes that a checksum was requested from a remote longhaul.
    pub(super) fn ours_begins(&mut self) {
        self.asked_ours += 1;
    }

    /// Notes that a remote longhaul has answered a request.
    pub(super) fn ours_ends(&mut self) {
        self.asked_ours = self.asked_ours.saturating_sub(1);
    }

    pub(super) fn is_given_up(&self) -> bool {
        matches!(self.state, SumProgramState::ReadBack)
    }

    pub(super) fn queue(&mut self, id: CopyFileId) {
        self.queue.push_back(id);
    }

    /// Switches to reading files back.
    pub(super) fn give_up(&mut self, why: &str) {
        tracing::info!("no checksums from the far end: {why}");
        self.state = SumProgramState::ReadBack;
    }

    /// Removes a command that has ended, and queues its open requests again.
    fn remove_worker(&mut self, exec: RemoteCommandId) -> bool {
        let Some(at) = self.workers.iter().position(|w| w.exec == exec) else {
            return false;
        };
        let worker = self.workers.remove(at);
        for (ask, _) in worker.asked.into_iter().rev() {
            self.todo.push_front(ask);
        }
        true
    }

    /// Generation of a command that has something to do.
    fn busy_generation(&self, exec: RemoteCommandId) -> Option<u32> {
        let worker = self.workers.iter().find(|w| w.exec == exec)?;
        let busy = self.is_undecided() || !worker.asked.is_empty();
        busy.then_some(worker.generation)
    }

    /// Takes back all open requests and returns their files.
    fn take_back(&mut self) -> Vec<CopyFileId> {
        let workers = self.workers.iter_mut();
        let mut ids: Vec<CopyFileId> = workers
            .flat_map(|w| w.asked.drain(..))
            .map(|(ask, _)| ask.file)
            .collect();
        ids.extend(self.todo.drain(..).map(|ask| ask.file));
        ids.extend(self.small.drain(..));
        self.small_bytes = 0;
        if let Some(list) = &mut self.list {
            ids.extend(list.take_files());
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

impl SumWorker {
    /// Removes the request that was answered.
    fn answered(&mut self, now: Instant) -> Option<(ChecksumRequest, u64)> {
        let asked = self.asked.pop_front();
        let next = self.asked.front().map(|(_, len)| *len);
        self.watch.answered(now, next);
        asked
    }
}

impl Verification {
    /// Submits the checksum requests that can be submitted now; looks for a checksum program first if
    /// none is known.
    pub(in crate::copy) fn go_on(&mut self, context: &mut CopyContext<'_>, files: &ActiveFiles) {
        if !self.wanted || context.stopped() || context.far_end().is_none() {
            return;
        }
        self.find_ours(context);
        let now = context.now();
        // While files are copied, something is shown in any case.
        if let Some(notice) = self.far.take_notice(now)
            && context.jobs().is_empty()
        {
            context.warn(None, notice);
        }
        match self.far.state {
            // Nothing is copied before the server at the far end is known.
            SumProgramState::Unknown
                if context.far_session().is_none_or(|s| s.far_info().is_none()) => {}
            SumProgramState::Unknown => self.ask_for_program(context, false),
            SumProgramState::Asking { until, .. } if until.is_some_and(|until| now >= until) => {
                self.no_program(
                    context,
                    "the shell at the far end did not name a checksum program",
                );
                // No event follows that would start reading.
                self.go_on(context, files);
            }
            SumProgramState::Asking { .. } => {}
            SumProgramState::Available(program, _)
                if self.far.watches().any(|w| w.is_over(now)) =>
            {
                let name = program.name;
                let why = format!("{name} at the far end stopped answering");
                context.warn(None, format!("{why}: reading files back instead"));
                self.no_program(context, &why);
                self.go_on(context, files);
            }
            SumProgramState::Available(program, _) if program.is_ours() => {
                self.sort_queue(context, program);
                self.ask_ours(context, files);
            }
            SumProgramState::Available(program, processors) => {
                self.sort_queue(context, program);
                self.ask_workers(context, files, processors);
                self.start_list(context, program);
            }
            SumProgramState::ReadBack => {
                while self.reading < READ_BACK {
                    let Some(id) = self.far.queue.pop_front() else {
                        return;
                    };
                    self.read_back(context, id);
                }
            }
        }
    }

    fn ask_for_program(&mut self, context: &CopyContext<'_>, again: bool) {
        self.far.state = SumProgramState::Asking { until: None, again };
        self.start_worker(context);
    }

    fn start_worker(&mut self, context: &CopyContext<'_>) {
        let exec = self.exec_id();
        if let Some(session) = context.far_session() {
            let start = sums_by(program_command(), self.far.is_undecided());
            session.command(exec, RemoteCommandStep::Run(start));
            session.command(
                exec,
                RemoteCommandStep::Input(program_script().into_bytes()),
            );
        }
        self.far.workers.push(SumWorker {
            exec,
            generation: self.far.restarts.generation(),
            answers: ChecksumOutputParser::default(),
            asked: VecDeque::new(),
            watch: ChecksumWatchdog::default(),
        });
    }

    pub(super) fn no_program(&mut self, context: &mut CopyContext<'_>, why: &str) {
        // Checksums that use a program's algorithm already continue with it.
        if let Some(ledger) = &self.ledger
            && ledger.algorithm().is_none()
        {
            ledger.choose(Some(SumAlgorithm::Xxh128));
        }
        self.far.give_up(why);
        Self::note_reason(context, why);
        self.stop_asking(context);
    }

    /// Takes all files from the programs, to be read back.
    fn stop_asking(&mut self, context: &CopyContext<'_>) {
        self.moving.clear();
        for id in self.far.take_back() {
            if let Some(checking) = self.files.get_mut(&id)
                && !checking.is_read_back()
            {
                checking.begin_anew();
                self.far.queue.push_back(id);
            }
        }
        self.stop_workers(context);
    }

    /// Stops the commands at the far end.
    pub(super) fn stop_workers(&mut self, context: &CopyContext<'_>) {
        let far = &mut self.far;
        let workers = std::mem::take(&mut far.workers).into_iter().map(|w| w.exec);
        let execs: Vec<RemoteCommandId> =
            workers.chain(far.list.take().map(|l| l.exec())).collect();
        if let Some(session) = context.far_session() {
            let stop = |exec| session.command(exec, RemoteCommandStep::Stop);
            execs.into_iter().for_each(stop);
        }
    }

    /// Turns queued files into checksum requests or list entries.
    fn sort_queue(&mut self, context: &mut CopyContext<'_>, program: SumProgram) {
        while let Some(id) = self.far.queue.pop_front() {
            let Some(checking) = self.files.get_mut(&id) else {
                continue;
            };
            let asks = match program.is_ours() {
                true => checking.ask_for_runs(program.algorithm, longhaul_sums::fits),
                false => checking.ask_for(program.algorithm),
            };
            let Some(asks) = asks else {
                self.read_back(context, id);
                continue;
            };
            let one = !program.is_ours() && checking.is_one_sum() && checking.size() <= SMALL;
            if one && list_line(checking.path()).is_some() {
                self.far.small_bytes += checking.size();
                self.far.small.push_back(id);
            } else if checking.is_right() {
                self.is_right(context, id);
            } else {
                let asks = asks.into_iter().map(|sum| checking.request(id, sum));
                self.far.todo.extend(asks);
            }
        }
    }

    fn ask_workers(&mut self, context: &CopyContext<'_>, files: &ActiveFiles, processors: u32) {
        let now = context.now();
        if context.jobs().is_empty() && self.far.small.len() <= FEW {
            self.far.small_bytes = 0;
            for id in std::mem::take(&mut self.far.small) {
                self.ask_singly(id);
            }
        }
        let most = processors.clamp(1, MOST_WORKERS) as usize;
        let far = &self.far;
        let asked: usize = far.workers.iter().map(|w| w.asked.len()).sum();
        if far.workers.len() < most && asked + far.todo.len() > far.workers.len() {
            self.start_worker(context);
        }
        loop {
            let far = &mut self.far;
            let free = far.workers.iter_mut().filter(|w| w.asked.len() < AHEAD);
            let Some(worker) = free.min_by_key(|w| w.asked.len()) else {
                return;
            };
            let exec = worker.exec;
            let Some(ask) = far.todo.pop_front() else {
                return;
            };
            let Some((line, len)) = self.sum_request_line(files, ask) else {
                continue;
            };
            let far = &mut self.far;
            if let Some(worker) = far.workers.iter_mut().find(|w| w.exec == exec) {
                worker.watch.asked(now, len, worker.asked.is_empty());
                worker.asked.push_back((ask, len));
            }
            if let Some(session) = context.far_session() {
                session.command(exec, RemoteCommandStep::Input(line));
            }
        }
    }

    /// Requests the checksum of a file of one range that no list contains.
    fn ask_singly(&mut self, id: CopyFileId) {
        if let Some(checking) = self.files.get(&id) {
            let ask = checking.request(id, ChecksumSelector::Run(0));
            self.far.todo.push_back(ask);
        }
    }

    /// Request line for a checksum, and the number of bytes to sum; `None` if it is no longer
    /// needed.
    fn sum_request_line(
        &self,
        files: &ActiveFiles,
        ask: ChecksumRequest,
    ) -> Option<(Vec<u8>, u64)> {
        if let Some(checking) = self.files.get(&ask.file)
            && checking.is_attempt(ask.attempt)
        {
            let ChecksumSelector::Run(at) = ask.sum else {
                return Some((whole_request(checking.path()), checking.size()));
            };
            let sum = checking.seen().runs().get(at)?;
            let line = request(checking.path(), None, sum, checking.size());
            return Some((line, sum.len));
        }
        self.moving.sum_request_line(files, ask)
    }

    fn start_list(&mut self, context: &CopyContext<'_>, program: SumProgram) {
        let far = &mut self.far;
        let enough = far.small.len() >= LIST || far.small_bytes >= LIST_BYTES;
        let last = context.jobs().is_empty() && !far.small.is_empty();
        if far.list.is_some() || !(enough || last) {
            return;
        }
        let mut list = ChecksumList::default();
        let mut twice = Vec::new();
        while !list.is_full()
            && let Some(id) = far.small.pop_front()
        {
            if let Some(checking) = self.files.get(&id) {
                far.small_bytes = far.small_bytes.saturating_sub(checking.size());
                twice.extend(list.add(id, checking.path(), checking.size()));
            }
        }
        for id in twice {
            self.ask_singly(id);
        }
        let exec = self.exec_id();
        if let Some(session) = context.far_session() {
            let start = sums_by(list_command(program), false);
            session.command(exec, RemoteCommandStep::Run(start));
            session.command(exec, RemoteCommandStep::Input(list.take_input()));
            session.command(exec, RemoteCommandStep::EndInput);
        }
        let generation = self.far.restarts.generation();
        let program = ChecksumListProgram::new(context.now(), exec, generation, list);
        self.far.list = Some(program);
    }

    /// Handles an event of a command at the far end.
    pub(in crate::copy) fn on_exec(
        &mut self,
        context: &mut CopyContext<'_>,
        id: RemoteCommandId,
        event: RemoteCommandEvent,
    ) {
        if self.far.list.as_ref().is_some_and(|l| l.exec() == id) {
            return self.on_list(context, event);
        }
        let Some(at) = self.far.workers.iter().position(|w| w.exec == id) else {
            return;
        };
        match event {
            RemoteCommandEvent::Started => self.worker_started(context.now(), at),
            RemoteCommandEvent::Output(bytes) => {
                self.far.workers[at].answers.receive(&bytes);
                self.take_answers(context, id);
            }
            RemoteCommandEvent::Ended(Err(RemoteCommandError::ConnectionLost(_))) => {
                self.worker_lost(context, id);
            }
            RemoteCommandEvent::Ended(how) => {
                // No exit status means that the connection started over during the command.
                let asks = matches!(self.far.state, SumProgramState::Asking { again: false, .. });
                if asks && how == Ok(None) {
                    self.far.workers.clear();
                    return self.ask_for_program(context, true);
                }
                let why = match how {
                    Err(RemoteCommandError::SessionRefused(why)) => {
                        format!("the server allows no second session for checksums ({why})")
                    }
                    Err(error) => error.to_string(),
                    Ok(_) => "the far end does not run the checksum command".to_owned(),
                };
                self.worker_over(context, id, why);
            }
        }
    }

    /// Handles the start of a command over a connection. Its time counts from here.
    fn worker_started(&mut self, now: Instant, at: usize) {
        if let SumProgramState::Asking { until, .. } = &mut self.far.state {
            *until = Some(now + LONGEST_FIND);
        }
        if let Some(worker) = self.far.workers.get_mut(at) {
            worker.watch.started(now);
        }
    }

    fn take_answers(&mut self, context: &mut CopyContext<'_>, exec: RemoteCommandId) {
        let now = context.now();
        loop {
            let workers = &mut self.far.workers;
            let Some(worker) = workers.iter_mut().find(|w| w.exec == exec) else {
                return;
            };
            match worker.answers.next() {
                Ok(None) => return,
                Ok(Some(SumProgramAnswer::Program(program))) => {
                    let processors = worker.answers.processors();
                    self.has_program(context, program, processors);
                }
                Ok(Some(SumProgramAnswer::NoProgram)) => {
                    return self.no_program(context, "the far end has no checksum program");
                }
                Ok(Some(answer)) => {
                    let digest = match answer {
                        SumProgramAnswer::Sum(digest) => Some(digest),
                        _ => None,
                    };
                    let Some((ask, _)) = worker.answered(now) else {
                        let why = "the checksum program at the far end sent an unexpected answer";
                        return self.worker_over(context, exec, why.to_owned());
                    };
                    self.on_sum(context, ask, digest);
                }
                Err(why) => return self.worker_over(context, exec, why.to_string()),
            }
        }
    }

    pub(super) fn has_program(
        &mut self,
        context: &mut CopyContext<'_>,
        program: SumProgram,
        processors: u32,
    ) {
        let undecided = self.far.is_undecided();
        if !undecided {
            return;
        }
        tracing::info!("the far end computes checksums with {}", program.name);
        self.far.state = SumProgramState::Available(program, processors);
        if let Some(ledger) = &self.ledger {
            ledger.choose(Some(program.algorithm));
        }
        if let Some(verified) = &mut context.summary_mut().verified {
            verified.program = Some(program.name.to_owned());
            verified.algorithm = Some(program.algorithm);
        }
    }

    /// Handles a command whose connection was lost: the next command, on another connection, gets
    /// its requests.
    fn worker_lost(&mut self, context: &mut CopyContext<'_>, exec: RemoteCommandId) {
        let busy = self.far.busy_generation(exec);
        self.far.remove_worker(exec);
        if busy.is_some_and(|generation| self.command_lost(context, generation)) {
            return;
        }
        if let SumProgramState::Asking { again, .. } = self.far.state {
            self.ask_for_program(context, again);
        }
    }

    /// Counts a lost connection of a busy command. Returns true if files are read back from now on,
    /// because commands have lost too many connections without a result.
    fn command_lost(&mut self, context: &mut CopyContext<'_>, generation: u32) -> bool {
        let Some(losses) = self.far.restarts.lost(generation) else {
            return false;
        };
        let program = self
            .far
            .program()
            .map_or("the checksum command", |p| p.name);
        let why = format!(
            "the connection was lost {losses} times in a row while {program} ran at the far end"
        );
        context.warn(None, format!("{why}: reading files back instead"));
        self.no_program(context, &why);
        true
    }

    /// Handles a command that ended or sent invalid output.
    fn worker_over(&mut self, context: &mut CopyContext<'_>, exec: RemoteCommandId, why: String) {
        if !self.far.remove_worker(exec) {
            return;
        }
        if let Some(session) = context.far_session() {
            session.command(exec, RemoteCommandStep::Stop);
        }
        match self.far.state {
            SumProgramState::Asking { .. } => self.no_program(context, &why),
            SumProgramState::Available(..) if self.far.workers.is_empty() => {
                self.no_program(context, &why)
            }
            // The server grants no channel for more commands.
            SumProgramState::Available(program, _) => {
                self.far.state = SumProgramState::Available(program, 1)
            }
            _ => {}
        }
    }

    fn on_list(&mut self, context: &mut CopyContext<'_>, event: RemoteCommandEvent) {
        let now = context.now();
        match event {
            RemoteCommandEvent::Started => {
                if let Some(list) = &mut self.far.list {
                    list.watch_mut().started(now);
                }
            }
            RemoteCommandEvent::Output(bytes) => {
                let Some(list) = &mut self.far.list else {
                    return;
                };
                let exec = list.exec();
                let listed = list.receive(now, &bytes);
                for (id, digest) in listed.sums {
                    if let Some(checking) = self.files.get(&id) {
                        let ask = checking.request(id, ChecksumSelector::Run(0));
                        self.on_sum(context, ask, Some(digest));
                    }
                }
                if !listed.is_valid {
                    if let Some(session) = context.far_session() {
                        session.command(exec, RemoteCommandStep::Stop);
                    }
                    self.ask_rest_singly();
                }
            }
            RemoteCommandEvent::Ended(Err(RemoteCommandError::ConnectionLost(_))) => {
                let generation = self.far.list.as_ref().map(|list| list.generation());
                if !generation.is_some_and(|g| self.command_lost(context, g)) {
                    self.list_rest_again();
                }
            }
            RemoteCommandEvent::Ended(_) => self.ask_rest_singly(),
        }
    }

    /// Requests the files of the list without an answer one by one.
    fn ask_rest_singly(&mut self) {
        let list = self.far.list.take();
        for id in list.into_iter().flat_map(|mut list| list.take_files()) {
            self.ask_singly(id);
        }
    }

    /// Queues the files of the list without an answer for another list.
    fn list_rest_again(&mut self) {
        let list = self.far.list.take();
        for id in list.into_iter().flat_map(|mut list| list.take_files()) {
            if let Some(checking) = self.files.get(&id) {
                self.far.small_bytes += checking.size();
                self.far.small.push_back(id);
            }
        }
    }

    /// Handles the far end's checksum of a range; `None` if it could not read the file.
    pub(super) fn on_sum(
        &mut self,
        context: &mut CopyContext<'_>,
        ask: ChecksumRequest,
        digest: Option<Digest>,
    ) {
        let Some(program) = self.far.program() else {
            return;
        };
        self.far.restarts.note_result();
        let found = self.files.get_mut(&ask.file);
        let Some(checking) = found.filter(|c| c.is_attempt(ask.attempt)) else {
            return self.moving.on_sum(ask, digest.as_ref(), program.algorithm);
        };
        match checking.answer(ask.sum, digest, ask.early, program.algorithm) {
            CheckAction::Wait => {}
            CheckAction::AskAgain => self.far.todo.push_back(ChecksumRequest {
                early: false,
                ..ask
            }),
            CheckAction::ReadBack => self.read_back(context, ask.file),
            CheckAction::Verified => self.is_right(context, ask.file),
        }
    }

    /// Uses a longhaul at the far end for checksums, unless checksums of whole files are in use
    /// here, which a longhaul does not make.
    pub(super) fn find_ours(&mut self, context: &mut CopyContext<'_>) {
        let undecided = self.far.is_undecided();
        let whole = self.ledger.as_ref().is_none_or(|l| l.is_whole());
        if !undecided || whole {
            return;
        }
        let info = context.far_session().and_then(|session| session.far_info());
        if info.is_some_and(|info| info.has("hash@longhaul") && info.has("copy-data")) {
            self.stop_workers(context);
            // One processor, because a channel's requests are done one after the other.
            self.has_program(context, longhaul_sums::OURS, 1);
        }
    }

    /// Submits the pending checksum requests.
    pub(super) fn ask_ours(&mut self, context: &mut CopyContext<'_>, files: &ActiveFiles) {
        while let Some(ask) = self.far.next_of_ours(longhaul_sums::ASKED) {
            let Some((path, span, size)) = self.range_of(files, ask) else {
                continue;
            };
            let Some(end) = context.far_end() else { return };
            let path = RemotePath(path);
            let kind = JobKind::Sum { path, span, size };
            if context.submit(end, kind, JobPurpose::Sum(ask)).is_none() {
                // The run is ending.
                return;
            }
            self.far.ours_begins();
        }
    }

    /// Path and range of a checksum, and the expected file size.
    fn range_of(
        &self,
        files: &ActiveFiles,
        ask: ChecksumRequest,
    ) -> Option<(Vec<u8>, ByteRange, Option<u64>)> {
        let ChecksumSelector::Run(at) = ask.sum else {
            return None;
        };
        let span = |from, len| ByteRange {
            offset: from,
            len: Some(len),
        };
        if let Some(checking) = self.files.get(&ask.file)
            && checking.is_attempt(ask.attempt)
        {
            let sum = checking.seen().runs().get(at)?;
            let size = Some(checking.size());
            return Some((checking.path().to_vec(), span(sum.from, sum.len), size));
        }
        let (path, sum) = self.moving.range_of(files, ask, at)?;
        Some((path, span(sum.from, sum.len), None))
    }

    /// Handles a checksum from the remote longhaul.
    pub(in crate::copy) fn on_our_sum(
        &mut self,
        context: &mut CopyContext<'_>,
        job: JobId,
        sum: &[u8],
    ) {
        let Some((_, JobPurpose::Sum(ask))) = context.jobs().get(&job) else {
            return;
        };
        let ask = *ask;
        let digest = match sum {
            [] => Digest::new(blake3::hash(&[]).as_bytes()),
            sum => Digest::new(sum),
        };
        self.on_sum(context, ask, Some(digest));
    }

    /// Handles the end of a request; `made` means that a checksum arrived.
    pub(in crate::copy) fn on_our_sum_over(
        &mut self,
        context: &mut CopyContext<'_>,
        ask: ChecksumRequest,
        made: bool,
    ) {
        self.far.ours_ends();
        if !made {
            self.on_sum(context, ask, None);
        }
    }
}
