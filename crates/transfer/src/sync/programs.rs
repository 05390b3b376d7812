//! Checksums of whole files where the server computes none: by a program that the account runs
//! there, as `--verify` finds it, and by this machine for its own end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::copy::{PlannedCopy, PlannedCopySide, RemoteCommandStep};
use crate::disk::open_regular;
use crate::file_error::FileError;
use crate::report::CopyEvent;
use crate::session::{
    PATIENCE, RemoteCommandEvent, RemoteCommandId, RemoteCommandStart, SessionEvent, SilenceNotices,
};
use crate::sums::{
    ChecksumOutputParser, Digest, Hasher, SumAlgorithm, SumProgram, SumProgramAnswer, list_command,
    list_line, program_command_from, program_script_from, whole_request,
};
use crate::walk::local_path;

/// Number of the next command, above those of the copy. No two have the same number: the end of a
/// stopped one may arrive later.
static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
/// Names sent to one command, and their bytes.
const NAMES: usize = 20_000;
const NAME_BYTES: usize = 2 << 20;
/// Time for an account's shell to start and to find a program. On a machine with ten busy processes
/// for each core, 15 s were not enough once.
const LONGEST_FIND: Duration = Duration::from_secs(60);
/// Time for a command to compute checksums, besides that for the bytes.
const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// Minimum rate of a command in bytes per second, as in `--verify`.
const SLOWEST: u64 = 4 << 20;
const CHECKSUMS: &str = "the checksum program";
const OTHER_SIZE: &str = "its size has changed";
/// Bytes read at once.
const PART: usize = 1 << 20;

/// True if the account of a remote end finds rsync.
pub(super) async fn has_rsync(run: &mut PlannedCopy<'_>, end: PlannedCopySide) -> bool {
    let words = b"command -v rsync".to_vec();
    let command = RunningSyncCommand::start(run, end, "the search for rsync", words);
    command.end_input(run);
    let command = command.within(run, LONGEST_FIND);
    let found = command.output(run).await;
    command.stop(run);
    found.is_some_and(|path| path.ends_with(b"rsync\n"))
}

/// Checksum programs with one algorithm at the remote ends. This machine needs none.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChecksumPrograms {
    source: Option<SumProgram>,
    target: Option<SumProgram>,
    algorithm: SumAlgorithm,
}

impl ChecksumPrograms {
    /// Finds a program at each remote end, all with the fastest algorithm that every end computes.
    ///
    /// # Errors
    /// The account of this end runs no commands, has no such program, or does not answer.
    pub(super) async fn find(
        run: &mut PlannedCopy<'_>,
    ) -> Result<Self, (PlannedCopySide, FileError)> {
        let mut found = Self {
            source: None,
            target: None,
            algorithm: SumAlgorithm::Xxh128,
        };
        // An end whose algorithm is faster than the other end's looks again.
        while let Some(end) = found.next_to_ask(run) {
            let program = ChecksumProgram::find(run, end, found.algorithm).await;
            let program = program.map_err(|why| (end, why))?;
            match end {
                PlannedCopySide::Source => found.source = Some(program),
                PlannedCopySide::Target => found.target = Some(program),
            }
            found.algorithm = program.algorithm;
        }
        Ok(found)
    }

    /// Returns a remote end without a program for the algorithm.
    fn next_to_ask(&self, run: &PlannedCopy<'_>) -> Option<PlannedCopySide> {
        let mut ends = [PlannedCopySide::Source, PlannedCopySide::Target].into_iter();
        ends.find(|end| {
            let program = self.program(*end);
            !run.is_local(*end) && program.is_none_or(|p| p.algorithm != self.algorithm)
        })
    }

    fn program(&self, end: PlannedCopySide) -> Option<SumProgram> {
        match end {
            PlannedCopySide::Source => self.source,
            PlannedCopySide::Target => self.target,
        }
    }

    /// Computes the checksums of files of an end, given with their sizes in bytes, or says why a
    /// file has none.
    pub(super) async fn sums(
        &self,
        run: &mut PlannedCopy<'_>,
        end: PlannedCopySide,
        files: &[(Vec<u8>, u64)],
    ) -> Vec<Result<Digest, FileError>> {
        let Some(program) = self.program(end) else {
            let files = files.iter();
            return files
                .map(|(path, size)| sum_of(run, path, *size, self.algorithm))
                .map(|sum| Ok(sum?))
                .collect();
        };
        let bytes = files
            .iter()
            .fold(0, |sum: u64, (_, size)| sum.saturating_add(*size));
        let paths: Vec<Vec<u8>> = files.iter().map(|(path, _)| path.clone()).collect();
        let program = ChecksumProgram { end, program };
        let sums = program.sums_there(run, &paths, bytes).await.into_iter();
        sums.map(|sum| sum.ok_or_else(|| "the checksum program there cannot read it".into()))
            .collect()
    }
}

/// Says why an end has no checksums by `algorithm` or a slower one.
fn no_program(
    run: &PlannedCopy<'_>,
    end: PlannedCopySide,
    algorithm: SumAlgorithm,
    late: bool,
) -> FileError {
    let (longhaul, whose) = match has_longhaul(run, end) {
        true => ("no longhaul is used at the other end", "this"),
        false => ("no longhaul is used there", "the"),
    };
    let program = match (late, algorithm) {
        (true, _) => {
            let seconds = LONGEST_FIND.as_secs();
            format!(
                "account's shell did not finish the search for a checksum program within {seconds} s: try \
                 again when the host is less busy"
            )
        }
        (false, SumAlgorithm::Xxh128) => "account runs no checksum program".to_owned(),
        (false, algorithm) => format!(
            "account runs no checksum program for {}, which the other end computes",
            algorithm.name()
        ),
    };
    format!("{longhaul}, and {whose} {program}").into()
}

/// True if a longhaul at an end computes checksums.
pub(super) fn has_longhaul(run: &PlannedCopy<'_>, end: PlannedCopySide) -> bool {
    let server = run.server(end);
    server.is_some_and(|info| info.has("hash@longhaul"))
}

/// Checksum program at one end.
#[derive(Clone, Copy, Debug)]
struct ChecksumProgram {
    end: PlannedCopySide,
    program: SumProgram,
}

impl ChecksumProgram {
    /// Finds a program at a remote end, with `fastest` or a slower algorithm.
    ///
    /// # Errors
    /// The account runs no commands, has no such program, or does not answer.
    async fn find(
        run: &mut PlannedCopy<'_>,
        end: PlannedCopySide,
        fastest: SumAlgorithm,
    ) -> Result<SumProgram, FileError> {
        let what = "the search for a checksum program";
        let command = RunningSyncCommand::start(run, end, what, program_command_from(fastest));
        command.send(run, program_script_from(fastest).into_bytes());
        command.end_input(run);
        let command = command.within(run, LONGEST_FIND);
        let mut answers = ChecksumOutputParser::default();
        while let Some(bytes) = command.output(run).await {
            answers.receive(&bytes);
            match answers.next() {
                Ok(None) => {}
                // A lying server must not have both ends asked for ever.
                Ok(Some(SumProgramAnswer::Program(program))) if program.algorithm >= fastest => {
                    command.stop(run);
                    tracing::info!("the far end computes checksums with {}", program.name);
                    return Ok(program);
                }
                Ok(Some(_)) | Err(_) => {
                    command.stop(run);
                    return Err(no_program(run, end, fastest, false));
                }
            }
        }
        command.stop(run);
        Err(no_program(run, end, fastest, command.is_late(run)))
    }

    /// Computes the checksums of files there, which have `bytes` bytes in all; `None` for one that
    /// cannot be read, or whose checksum does not come in time.
    async fn sums_there(
        &self,
        run: &mut PlannedCopy<'_>,
        paths: &[Vec<u8>],
        bytes: u64,
    ) -> Vec<Option<Digest>> {
        let longest = LONGEST_WAIT + Duration::from_secs(bytes / SLOWEST);
        let mut sums = vec![None; paths.len()];
        let mut names = BTreeMap::new();
        let mut input = Vec::new();
        let mut singly = Vec::new();
        for (at, path) in paths.iter().enumerate() {
            match list_line(path) {
                Some(name) if !names.contains_key(&name) => {
                    input.extend_from_slice(&name);
                    input.push(0);
                    names.insert(name, at);
                }
                _ => singly.push(at),
            }
            if names.len() >= NAMES || input.len() >= NAME_BYTES || at + 1 == paths.len() {
                let names = std::mem::take(&mut names);
                let input = std::mem::take(&mut input);
                let asked = ChecksumNameList { names, input };
                self.list(run, longest, asked, &mut sums).await;
            }
        }
        let asked = (paths, singly.as_slice());
        self.one_by_one(run, longest, asked, &mut sums).await;
        sums
    }

    async fn list(
        &self,
        run: &mut PlannedCopy<'_>,
        longest: Duration,
        ChecksumNameList { mut names, input }: ChecksumNameList,
        sums: &mut [Option<Digest>],
    ) {
        if names.is_empty() {
            return;
        }
        let command =
            RunningSyncCommand::start(run, self.end, CHECKSUMS, list_command(self.program));
        command.send(run, input);
        command.end_input(run);
        let command = command.within(run, longest);
        let mut answers = ChecksumOutputParser::default();
        while let Some(bytes) = command.output(run).await {
            answers.receive(&bytes);
            loop {
                match answers.next_listed(&mut names) {
                    Ok(Some((at, digest))) => {
                        if let Some(sum) = sums.get_mut(at) {
                            *sum = Some(digest);
                        }
                    }
                    Ok(None) => break,
                    Err(_) => return command.stop(run),
                }
            }
        }
        command.stop(run);
    }

    /// Asks for files whose names the program may print in another form.
    async fn one_by_one(
        &self,
        run: &mut PlannedCopy<'_>,
        longest: Duration,
        (paths, singly): (&[Vec<u8>], &[usize]),
        sums: &mut [Option<Digest>],
    ) {
        if singly.is_empty() {
            return;
        }
        let fastest = self.program.algorithm;
        let command =
            RunningSyncCommand::start(run, self.end, CHECKSUMS, program_command_from(fastest));
        let mut input = program_script_from(fastest).into_bytes();
        let asked = singly.iter().filter_map(|at| paths.get(*at));
        input.extend(asked.flat_map(|path| whole_request(path)));
        command.send(run, input);
        command.end_input(run);
        let command = command.within(run, longest);
        let mut answers = ChecksumOutputParser::default();
        let mut waiting = singly.iter();
        while let Some(bytes) = command.output(run).await {
            answers.receive(&bytes);
            loop {
                match answers.next() {
                    Ok(Some(SumProgramAnswer::Program(program))) if program == self.program => {}
                    Ok(Some(SumProgramAnswer::Sum(digest))) => {
                        let sum = waiting.next().and_then(|at| sums.get_mut(*at));
                        if let Some(sum) = sum {
                            *sum = Some(digest);
                        }
                    }
                    Ok(Some(SumProgramAnswer::Unreadable)) => drop(waiting.next()),
                    Ok(None) => break,
                    Ok(Some(_)) | Err(_) => return command.stop(run),
                }
            }
        }
        command.stop(run);
    }
}

/// Computes the checksum of a file of `size` bytes on this machine.
fn sum_of(
    run: &mut PlannedCopy<'_>,
    path: &[u8],
    size: u64,
    algorithm: SumAlgorithm,
) -> io::Result<Digest> {
    let mut file = open_regular(&local_path(path))?;
    let mut hasher = Hasher::new(Some(algorithm));
    let mut part = vec![0; PART];
    let mut left = size;
    loop {
        let read = file.read(&mut part)?;
        if read == 0 {
            break;
        }
        if run.stopped() {
            return Err(io::Error::other("interrupted"));
        }
        if read as u64 > left {
            return Err(io::Error::other(OTHER_SIZE));
        }
        left -= read as u64;
        hasher.update(part.get(..read).unwrap_or_default());
    }
    let sums = hasher.finish().into_iter();
    let mut sums = sums.filter(|(by, _)| *by == algorithm && left == 0);
    let sum = sums.next().map(|(_, digest)| digest);
    sum.ok_or_else(|| io::Error::other(OTHER_SIZE))
}

/// Names for one command, with the numbers of their files, and its input.
struct ChecksumNameList {
    names: BTreeMap<Vec<u8>, usize>,
    input: Vec<u8>,
}

/// Command of a sync that is running at one of its ends, with the time limit for its output.
pub(super) struct RunningSyncCommand {
    end: PlannedCopySide,
    id: RemoteCommandId,
    /// Name for messages.
    what: &'static str,
    /// Time limit for the program's output.
    until: Option<Instant>,
    /// Notices that it is waited for.
    notices: RefCell<SilenceNotices>,
}

impl RunningSyncCommand {
    /// Starts a command of the account's shell.
    pub(super) fn start(
        run: &PlannedCopy<'_>,
        end: PlannedCopySide,
        what: &'static str,
        words: Vec<u8>,
    ) -> Self {
        let id = RemoteCommandId(NEXT.fetch_add(1, Ordering::Relaxed));
        let start = RemoteCommandStart {
            command: words,
            awaited: None,
            restarts: false,
        };
        run.command(end, id, RemoteCommandStep::Run(start));
        Self {
            end,
            id,
            what,
            until: None,
            notices: RefCell::new(SilenceNotices::new(run.now())),
        }
    }

    /// Waits for output until `longest` from now.
    pub(super) fn within(self, run: &PlannedCopy<'_>, longest: Duration) -> Self {
        Self {
            until: run.now().checked_add(longest),
            ..self
        }
    }

    /// Sends bytes of its input.
    pub(super) fn send(&self, run: &PlannedCopy<'_>, bytes: Vec<u8>) {
        run.command(self.end, self.id, RemoteCommandStep::Input(bytes));
    }

    /// Ends its input.
    pub(super) fn end_input(&self, run: &PlannedCopy<'_>) {
        run.command(self.end, self.id, RemoteCommandStep::EndInput);
    }

    /// Stops it, if it still runs.
    pub(super) fn stop(&self, run: &PlannedCopy<'_>) {
        run.command(self.end, self.id, RemoteCommandStep::Stop);
    }

    fn is_late(&self, run: &PlannedCopy<'_>) -> bool {
        self.until.is_some_and(|until| run.now() >= until)
    }

    /// Waits for the next bytes of its output; `None` at the end, or if the run ends.
    pub(super) async fn output(&self, run: &mut PlannedCopy<'_>) -> Option<Vec<u8>> {
        let now = run.now();
        self.notices.replace(SilenceNotices::new(now));
        loop {
            let notice = self
                .notices
                .borrow_mut()
                .take(run.now(), PATIENCE, self.what);
            if let Some(notice) = notice {
                let path = Some(run.shown(self.end, run.root(self.end)));
                let message = notice.line;
                run.tell(CopyEvent::Warning { path, message });
            }
            let next = self.notices.borrow().next_at(PATIENCE);
            if self.is_late(run) || run.stopped() {
                return None;
            }
            match run.next_event(self.end) {
                Ok(Some(SessionEvent::Exec(id, event))) if id == self.id => match event {
                    RemoteCommandEvent::Started => {}
                    RemoteCommandEvent::Output(bytes) => return Some(bytes.to_vec()),
                    RemoteCommandEvent::Ended(_) => return None,
                },
                Ok(Some(_)) => {}
                Ok(None) => {
                    let until = self.until.map_or(next, |until| until.min(next));
                    run.wait_until(Some(until)).await;
                }
                Err(why) => {
                    run.lose(why);
                    return None;
                }
            }
        }
    }
}
