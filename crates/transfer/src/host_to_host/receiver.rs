//! The receiving end of a copy between two hosts: runs the copy, with the source's host as its only
//! server, and reports to the machine that started it.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use schedule::Told;
use tracing::debug;

use super::blocks::{FileBlockHashes, RequiredBlockHashes, differs};
use super::frames::{
    self, InvalidFrameError, ReceiverCommand, ReceiverJob, ReceiverMessage, VERSION,
};
use super::host_copy_error::HostCopyError;
use super::receiver_report_checker::{cut_failures, cut_texts};
use crate::cancel::CancelToken;
use crate::connect::{
    ConnectError, ConnectStep, HostToHostConnector, HostToHostSettings, ResponsibleParty,
};
use crate::copy::{self, CopyLocation, CopyRequest, HostId, SessionConnector, TransferEstimate};
use crate::disk::ExpectedContent;
use crate::report::{CopyOutcome, CopySummary, ItemFailure, ProgressCounters};
use crate::session::{ConnectionOpener, Link, Session, SessionOptions};
use crate::sums::{ChecksumLedger, WantedDigest};

/// Time in which the job must arrive.
const BEGIN: Duration = Duration::from_secs(30);
/// Time in which the source must say that it listens. It checks its files before.
const LISTENS: Duration = Duration::from_secs(60);
/// Interval of progress messages.
const PROGRESS: Duration = Duration::from_millis(100);
/// Interval at which unchanged progress is sent, so that the other end knows that this one is
/// alive.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// Number of failures in the summary; each was an event.
const FAILURES: usize = 100;

/// Receives one copy, with messages on these streams. The caller must exit afterwards, because
/// threads keep reading.
///
/// # Errors
/// One sentence, which was sent to the other end if possible.
pub fn receive(
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    own: Vec<IpAddr>,
) -> Result<(), HostCopyError> {
    let cancel = CancelToken::default();
    let voice = InitiatorMessageWriter {
        output: Arc::new(Mutex::new(Box::new(output))),
        cancel: cancel.clone(),
    };
    voice.mark()?;
    let between = Arc::new(OnceLock::new());
    let (steps, next) = channel();
    let reader = InitiatorMessageReader {
        between: Arc::clone(&between),
        steps,
        cancel: cancel.clone(),
    };
    let thread = thread::Builder::new().name("messages".to_owned());
    let reading = thread.spawn(move || reader.run(input));
    reading.map_err(|e| {
        HostCopyError::new(format!(
            "the receiving host cannot start a thread: {e}; check its limits (ulimit -u)"
        ))
    })?;
    let job = match next.recv_timeout(BEGIN) {
        Ok(ReceiverEvent::Job(job)) => job,
        Ok(ReceiverEvent::Discard(job)) => {
            discard(&job, &cancel);
            voice.say(&ReceiverMessage::Done(Box::default()));
            return Ok(());
        }
        Ok(ReceiverEvent::Invalid(why)) => {
            voice.say(&ReceiverMessage::NoRoute(why.to_string()));
            return Err(why);
        }
        _ => {
            let why = "receive is internal: longhaul cp starts it over ssh";
            return Err(HostCopyError::new(why));
        }
    };
    match begin(&job, own, &voice, &between, &next) {
        Ok(link) => {
            let summary = run(*job, link, &voice, &between, cancel);
            voice.say(&ReceiverMessage::Done(Box::new(summary)));
            Ok(())
        }
        Err(why) => {
            voice.say(&ReceiverMessage::NoRoute(why.to_string()));
            Err(why)
        }
    }
}

/// Messages that the main thread waits for.
enum ReceiverEvent {
    Job(Box<ReceiverJob>),
    Discard(Box<ReceiverJob>),
    Listening,
    Failed(HostCopyError),
    Invalid(HostCopyError),
}

/// Makes the first connection with the source's host.
fn begin(
    job: &ReceiverJob,
    own: Vec<IpAddr>,
    voice: &InitiatorMessageWriter,
    between: &OnceLock<Arc<HostToHostConnector>>,
    next: &Receiver<ReceiverEvent>,
) -> Result<Box<dyn Link>, HostCopyError> {
    if job.version != VERSION {
        return Err(HostCopyError::new(format!(
            "longhaul {} on this host uses version {VERSION} of the copy protocol, and the machine \
             that started the copy uses version {}: upgrade the older one",
            env!("CARGO_PKG_VERSION"),
            job.version
        )));
    }
    let mut here = job.here.clone();
    here.extend(own.into_iter().filter(|ip| !job.here.contains(ip)));
    let settings = HostToHostSettings {
        name: job.host.clone(),
        secured: job.secured.clone(),
        source: job.source.clone(),
        here,
        token: job.token,
    };
    let outlet = voice.clone();
    let outlet = move |bytes| outlet.say(&ReceiverMessage::ToSource(bytes));
    let (hosts, first) = HostToHostConnector::begin(settings, outlet)?;
    let hosts = between.get_or_init(|| hosts);
    voice.say(&ReceiverMessage::ToSource(first));
    match next.recv_timeout(LISTENS) {
        Ok(ReceiverEvent::Listening) => {}
        Ok(ReceiverEvent::Failed(why) | ReceiverEvent::Invalid(why)) => return Err(why),
        Ok(ReceiverEvent::Job(_) | ReceiverEvent::Discard(_)) => {
            let why = "protocol error: the machine that started the copy requested it twice";
            return Err(HostCopyError::violation(why));
        }
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            let why = "longhaul on the source's host did not get ready in time";
            return Err(HostCopyError::new(why));
        }
    }
    let link = hosts.connect()?;
    if let Some(way) = hosts.way() {
        voice.say(&ReceiverMessage::Route(way));
    }
    Ok(link)
}

fn run(
    job: ReceiverJob,
    link: Box<dyn Link>,
    voice: &InitiatorMessageWriter,
    between: &OnceLock<Arc<HostToHostConnector>>,
    cancel: CancelToken,
) -> CopySummary {
    let start = Instant::now();
    let ledger = job
        .options
        .verify
        .then(|| Arc::new(ChecksumLedger::new(WantedDigest::Verify)));
    let required = job
        .blocks
        .clone()
        .map(RequiredBlockHashes::new)
        .map(Arc::new);
    let source = SourceHostConnector {
        required: required.clone(),
        link: Mutex::new(Some(link)),
        connection_source: between.get().cloned(),
        ledger,
        job: &job,
    };
    let request = request(&job);
    let progress = ProgressCounters::default();
    let (running, stopped) = channel::<()>();
    let mut summary = thread::scope(|scope| {
        let shown = &progress;
        scope.spawn(move || show(shown, voice, &stopped));
        let mut events = |mut event| {
            cut_texts(&mut event);
            voice.say(&ReceiverMessage::Event(Box::new(event)));
        };
        let summary = copy::run(request, &source, &progress, &mut events, &cancel);
        drop(running);
        summary
    });
    // A file of an earlier run, or one that was written in place, was not compared.
    let proven = required.is_some_and(|required| required.is_proven());
    if let (Some(blocks), CopyOutcome::Complete, false) = (&job.blocks, &summary.outcome, proven) {
        check(blocks, &job, &mut summary);
    }
    voice.say(&ReceiverMessage::Progress(progress.values()));
    cut_failures(&mut summary, FAILURES);
    summary.elapsed = start.elapsed();
    summary
}

/// The job as a copy of this machine.
fn request(job: &ReceiverJob) -> CopyRequest {
    let remote = |path: &crate::report::EscapedName| CopyLocation::Remote {
        host: HostId(0),
        path: path.0.clone(),
    };
    CopyRequest {
        sources: job.sources.iter().map(remote).collect(),
        target: CopyLocation::Local(local(&job.target.0)),
        options: job.options.clone(),
    }
}

/// Removes what an interrupted run of a job has left here.
fn discard(job: &ReceiverJob, cancel: &CancelToken) {
    let source = SourceHostConnector {
        required: None,
        link: Mutex::new(None),
        connection_source: None,
        ledger: None,
        job,
    };
    copy::discard(request(job), &source, cancel);
}

/// Compares the copy with the checksums of the first source, which the host that it was read from
/// does not choose.
fn check(blocks: &FileBlockHashes, job: &ReceiverJob, summary: &mut CopySummary) {
    let reason = match blocks.first_difference(&local(&job.target.0)) {
        Ok(None) => return,
        Ok(Some(at)) => differs(at),
        Err(e) => format!("copied, but cannot be verified: {e}; copy it again"),
    };
    summary.outcome = CopyOutcome::Partial;
    summary.failed += 1;
    let path = job.target.clone();
    summary.failures.push(ItemFailure::new(path, reason));
}

/// Sends the progress until the copy ends.
fn show(progress: &ProgressCounters, voice: &InitiatorMessageWriter, stopped: &Receiver<()>) {
    let mut told = progress.values();
    let mut last = Instant::now();
    while stopped.recv_timeout(PROGRESS) == Err(RecvTimeoutError::Timeout) {
        let now = progress.values();
        if now != told || last.elapsed() >= SIGN_OF_LIFE {
            voice.say(&ReceiverMessage::Progress(now.clone()));
            told = now;
            last = Instant::now();
        }
    }
}

/// Converts a path as it is written in an operand: relative to the login directory, perhaps with
/// `~`.
fn local(path: &[u8]) -> PathBuf {
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    let os = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    match path {
        b"" => PathBuf::from("."),
        b"~" => home().unwrap_or_else(|| PathBuf::from(".")),
        path => match path.strip_prefix(b"~/") {
            Some(rest) => home().unwrap_or_default().join(os(rest)),
            None => os(path),
        },
    }
}

/// The messages to the machine that started the copy. If it has gone, the copy is cancelled.
#[derive(Clone)]
struct InitiatorMessageWriter {
    output: Arc<Mutex<Box<dyn Write + Send>>>,
    cancel: CancelToken,
}

impl InitiatorMessageWriter {
    fn mark(&self) -> Result<(), HostCopyError> {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        frames::mark(&mut *output)
            .map_err(|e| HostCopyError::new(format!("cannot write to standard output: {e}")))
    }

    fn say(&self, message: &ReceiverMessage) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let written = output.write_all(&message.to_bytes());
        if written.and_then(|()| output.flush()).is_err() {
            self.cancel.cancel();
        }
    }
}

/// Reads the messages of the machine that started the copy.
struct InitiatorMessageReader {
    between: Arc<OnceLock<Arc<HostToHostConnector>>>,
    steps: Sender<ReceiverEvent>,
    cancel: CancelToken,
}

impl InitiatorMessageReader {
    fn run(self, mut input: impl Read) {
        loop {
            let message = match frames::next(&mut input) {
                Ok(Some(message)) => ReceiverCommand::decode(message),
                Ok(None) => break,
                Err(e) => Err(e),
            };
            match message {
                Ok(message) => self.handle(message),
                Err(InvalidFrameError(why)) => {
                    let why = format!(
                        "longhaul {} on this host cannot read the request: {why}",
                        env!("CARGO_PKG_VERSION")
                    );
                    let _ = self
                        .steps
                        .send(ReceiverEvent::Invalid(HostCopyError::violation(why)));
                    break;
                }
            }
        }
        // The starter has gone: the copy ends and can be resumed.
        self.cancel.cancel();
        if let Some(between) = self.between.get() {
            between
                .control_closed("the connection to the machine that started the copy was closed");
        }
    }

    fn handle(&self, message: ReceiverCommand) {
        let step = match message {
            ReceiverCommand::Job(job) => Some(ReceiverEvent::Job(job)),
            ReceiverCommand::Discard(job) => Some(ReceiverEvent::Discard(job)),
            ReceiverCommand::Cancel => {
                self.cancel.cancel();
                None
            }
            ReceiverCommand::FromSource(bytes) => {
                let between = self.between.get();
                match between.map(|between| between.heard(&bytes)) {
                    Some(Ok(true)) => Some(ReceiverEvent::Listening),
                    Some(Err(error)) => Some(ReceiverEvent::Failed(error.into())),
                    Some(Ok(false)) | None => None,
                }
            }
            ReceiverCommand::SourceEnded(why) => {
                debug!("the source has ended: {why}");
                if let Some(between) = self.between.get() {
                    between.control_closed(&why);
                }
                Some(ReceiverEvent::Failed(HostCopyError::new(why)))
            }
        };
        if let Some(step) = step {
            // The main thread may have ended.
            let _ = self.steps.send(step);
        }
    }
}

/// Connects the receiver's session to the source's host.
struct SourceHostConnector<'a> {
    /// Checksums of the file, if its source is not believed.
    required: Option<Arc<RequiredBlockHashes>>,
    /// The first connection.
    link: Mutex<Option<Box<dyn Link>>>,
    connection_source: Option<Arc<HostToHostConnector>>,
    ledger: Option<Arc<ChecksumLedger>>,
    job: &'a ReceiverJob,
}

impl SessionConnector for SourceHostConnector<'_> {
    fn connect(
        &self,
        _: HostId,
        _: Option<TransferEstimate>,
        _: &CancelToken,
    ) -> Result<Session, ConnectError> {
        let job = self.job;
        let wrong = |why: &str| {
            let why = format!("{}: {why}", job.host);
            ConnectError::new(ResponsibleParty::Host, ConnectStep::Session, why)
        };
        let link = self
            .link
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let link = link.ok_or_else(|| wrong("the first connection is in use"))?;
        let options = &job.options;
        let keeps_times = options.preserve || options.archive || options.acls;
        let session = SessionOptions {
            limit: job.limit,
            connections: job.connections,
            channels: job.channels,
            requests: job.requests,
            buffer: job.buffer,
            pack: job.pack,
            ledger: self.ledger.clone(),
            connection_source: self
                .connection_source
                .clone()
                .map(|connection_source| connection_source as Arc<dyn ConnectionOpener>),
            told: Told::default()
                .with(Told::NANOSECONDS, keeps_times)
                .with(Told::LINKS, options.hard_links),
            ..SessionOptions::default()
        };
        let started = Session::start(link, session);
        let started = started.map_err(|e| {
            wrong(&format!(
                "the receiving host cannot start the threads of a connection: {e}; check its \
                 limits (ulimit -n and -u)"
            ))
        })?;
        if let Some(required) = &self.required {
            started
                .directories()
                .expect(Arc::clone(required) as Arc<dyn ExpectedContent>);
        }
        Ok(started)
    }

    fn ledger(&self) -> Option<Arc<ChecksumLedger>> {
        self.ledger.clone()
    }

    fn name(&self, _: HostId) -> String {
        self.job.host.clone()
    }

    fn identity(&self, _: HostId) -> String {
        self.job.identity.clone()
    }
}
