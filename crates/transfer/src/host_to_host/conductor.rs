//! Starts a copy between two hosts, passes their control messages on, and takes the receiver's
//! report.

use std::io::{Read, Write as _};
use std::net::{IpAddr, Shutdown};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ssh::direct_control::{
    self, DirectClientMessage, DirectMessageSplitter, GrowingFileBlocks, RestrictSourcesRequest,
    write_list,
};

use super::frames::{self, ReceiverCommand, ReceiverJob, ReceiverMessage};
use super::host_copy_error::HostCopyError;
use super::names::ReportedPathTranslator;
use super::receiver_dial_guard::ReceiverDialGuard;
use super::receiver_report_checker::ReceiverReportChecker;
use super::sources::SourcesInDirectory;
use crate::cancel::CancelToken;
use crate::connect::{RemoteCommand, SourceConnectionInfo};
use crate::escape;
use crate::report::{
    CopyEvent, CopyOutcome, CopySummary, EscapedName, HostCopyRoute, HostCopyRouteKind,
    ProgressCounters,
};

/// Interval at which a cancel is noticed.
const LOOK: Duration = Duration::from_millis(50);
/// Time limit for the receiver's report after a cancel.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// Time limit for the receiver's first message.
const FIRST_WORD: Duration = Duration::from_secs(15);
/// Maximum number of messages that are held until the receiver's first message arrives.
const MOST_HELD: usize = 64;
/// Maximum number of the hosts' messages that are queued; a host that sends more waits.
const MOST_HEARD: usize = 16;
/// Longest silence of a receiver that has answered. It sends a message every few seconds while it
/// copies, and its connection to the source takes up to 66 s.
const SILENT: Duration = Duration::from_secs(100);
/// Longest silence of a receiver for which the other copies of a run wait, as long as a lost
/// connection of such a run is given (`session::reconnect`).
const SILENT_AWAITED: Duration = Duration::from_secs(15);
/// Longest time until the first connection between the hosts. An honest receiver waits 60 s for the
/// source and connects for up to 66 s.
const CONNECTS: Duration = Duration::from_secs(180);
/// Time limit for writing a message to a host, whose SSH window may be closed.
const TAKES: Duration = Duration::from_secs(10);
/// Maximum bytes of the source's messages, which are about connections only.
const MOST_SAID: usize = 1 << 20;
/// Maximum bytes of the source's first output that are searched for the reason of its end.
const NOTED: usize = 4 << 10;
/// Bytes of a host's line that a message repeats.
const LONGEST_LINE: usize = 300;
/// Time for which the end of the source's control connection is awaited after the receiver has
/// reported that it lost the source. The two arrive over different connections, in any
/// order.
const SOURCE_ENDS: Duration = Duration::from_secs(5);
/// Largest message that the control protocol allows for the source.
const LONGEST_REQUEST: usize = 16 << 10;

/// A copy between two hosts on which longhaul was started.
pub struct HostToHostCopy {
    /// `longhaul serve --once` on the source's host.
    pub source: RemoteCommand,
    /// `longhaul receive` on the receiving host.
    pub receiver: RemoteCommand,
    /// The files that the receiver may read.
    pub files: SourcesInDirectory,
    /// True if symlinks in the sources are followed.
    pub follow: bool,
    /// The only source is still being written, and will have these blocks.
    pub growing: Option<GrowingFileBlocks>,
    /// The receiver's task. Addresses are added here.
    pub job: ReceiverJob,
    /// Names for messages.
    pub names: ReportedPathTranslator,
    /// Set while no copy of a run with several hosts moves data.
    pub awaited: Arc<AtomicBool>,
}

/// The end of a copy between two hosts.
#[derive(Debug)]
pub enum HostCopyOutcome {
    /// The receiver's report.
    Done(Box<CopySummary>),
    /// Nothing was copied, for this reason; the copy can go through this machine instead.
    NotPossible(String, MissingLonghaul),
    /// The control connection to a host was lost; the copy can be resumed.
    Lost(String),
}

/// The hosts on which longhaul was not found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingLonghaul {
    /// The source's host.
    pub source: bool,
    /// The receiving host.
    pub receiver: bool,
}

enum ConductorInput {
    Source(Vec<u8>),
    SourceEnded,
    Receiver(ReceiverMessage),
    /// The receiver has ended, with its output before the marker.
    ReceiverEnded(Vec<u8>),
    /// The receiver has sent something that is no message, for this reason.
    Malformed(String),
}

/// Longest time without a message of a receiver that has answered. `copies` is true once it is
/// connected to the source, `awaited` while no copy of the run moves data.
fn longest_silence(copies: bool, awaited: bool) -> Duration {
    match copies && awaited {
        true => SILENT_AWAITED,
        false => SILENT,
    }
}

/// Runs the copy to its end.
pub fn conduct(
    copy: HostToHostCopy,
    progress: &ProgressCounters,
    events: &mut dyn FnMut(CopyEvent),
    cancel: &CancelToken,
) -> HostCopyOutcome {
    let (heard, hears) = sync_channel(MOST_HEARD);
    let growing = copy.growing.as_ref().map(|growing| growing.size);
    let streams = read_both(&copy, &heard);
    drop(heard);
    match streams {
        Ok((to_source, to_receiver)) => HostCopyConductor {
            copy,
            to_source,
            to_receiver,
            requests: DirectMessageSplitter::of_client(),
            noted: Vec::new(),
            source_over: false,
            way: None,
            cancelled: None,
            started: Instant::now(),
            answered: false,
            heard: Instant::now(),
            dials: ReceiverDialGuard::default(),
            reports: ReceiverReportChecker::new(Instant::now(), growing),
            held: Vec::new(),
            report: None,
        }
        .run(&hears, progress, events, cancel),
        Err(why) => HostCopyOutcome::NotPossible(why.into(), MissingLonghaul::default()),
    }
}

/// Starts a thread for each host's output; returns the streams for their input.
fn read_both(
    copy: &HostToHostCopy,
    heard: &SyncSender<ConductorInput>,
) -> Result<(UnixStream, UnixStream), HostCopyError> {
    let wrong = |e: std::io::Error| {
        HostCopyError::new(format!(
            "this machine cannot start the threads of the copy: {e}; check its limits (ulimit -n \
             and -u)"
        ))
    };
    let to_source = copy.source.stream.try_clone().map_err(wrong)?;
    let to_receiver = copy.receiver.stream.try_clone().map_err(wrong)?;
    let mut source = to_source.try_clone().map_err(wrong)?;
    let mut receiver = to_receiver.try_clone().map_err(wrong)?;
    let (tell_source, tell_receiver) = (heard.clone(), heard.clone());
    let thread = |name: &str| thread::Builder::new().name(name.to_owned());
    thread("source")
        .spawn(move || {
            let mut bytes = [0; 8 << 10];
            let mut room = MOST_SAID;
            while let Ok(n @ 1..) = source.read(&mut bytes) {
                let Some(left) = room.checked_sub(n) else {
                    break;
                };
                room = left;
                let read = bytes.get(..n).unwrap_or_default().to_vec();
                if tell_source.send(ConductorInput::Source(read)).is_err() {
                    return;
                }
            }
            let _ = tell_source.send(ConductorInput::SourceEnded);
        })
        .map_err(wrong)?;
    thread("receiver")
        .spawn(move || {
            let over = match frames::skip_login(&mut receiver) {
                Err(noise) => ConductorInput::ReceiverEnded(noise),
                Ok(()) => loop {
                    let message = match frames::next_of_receiver(&mut receiver) {
                        Ok(Some(message)) => ReceiverMessage::decode(message),
                        Ok(None) => break ConductorInput::ReceiverEnded(Vec::new()),
                        Err(e) => Err(e),
                    };
                    match message {
                        Ok(message) => {
                            if tell_receiver
                                .send(ConductorInput::Receiver(message))
                                .is_err()
                            {
                                return;
                            }
                        }
                        Err(e) => break ConductorInput::Malformed(e.0),
                    }
                },
            };
            let _ = tell_receiver.send(over);
        })
        .map_err(wrong)?;
    Ok((to_source, to_receiver))
}

struct HostCopyConductor {
    copy: HostToHostCopy,
    to_source: UnixStream,
    to_receiver: UnixStream,
    /// The receiver's messages to the source.
    requests: DirectMessageSplitter,
    /// The source's first output.
    noted: Vec<u8>,
    source_over: bool,
    way: Option<SourceConnectionInfo>,
    cancelled: Option<Instant>,
    started: Instant,
    /// The receiver has sent a message.
    answered: bool,
    /// Time of the receiver's last message.
    heard: Instant,
    dials: ReceiverDialGuard,
    reports: ReceiverReportChecker,
    /// Messages about the source for a receiver that has not answered yet.
    held: Vec<ReceiverCommand>,
    /// The receiver's report of a lost source, and its time, while it is not known whether the
    /// source has ended.
    report: Option<(Instant, Box<CopySummary>)>,
}

impl HostCopyConductor {
    fn run(
        mut self,
        hears: &Receiver<ConductorInput>,
        progress: &ProgressCounters,
        events: &mut dyn FnMut(CopyEvent),
        cancel: &CancelToken,
    ) -> HostCopyOutcome {
        if let Err(why) = self.begin() {
            return self.not_possible(why.into(), MissingLonghaul::default());
        }
        loop {
            // A host that never stops sending cannot delay this.
            if let Some(ending) = self.stopped(cancel, progress) {
                return ending;
            }
            let heard = match hears.recv_timeout(LOOK) {
                Ok(heard) => heard,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => ConductorInput::ReceiverEnded(Vec::new()),
            };
            let ending = match heard {
                ConductorInput::Source(bytes) => {
                    self.note(&bytes);
                    self.tell_later(ReceiverCommand::FromSource(bytes))
                }
                ConductorInput::SourceEnded => self.source_ended(),
                ConductorInput::Receiver(message) => self.handle(message, progress, events),
                ConductorInput::ReceiverEnded(_) if self.report.is_some() => None,
                ConductorInput::ReceiverEnded(said) => Some(self.receiver_ended(&said)),
                ConductorInput::Malformed(what) if !self.answered => {
                    Some(self.receiver_ended(what.as_bytes()))
                }
                ConductorInput::Malformed(what) => {
                    Some(self.refused(&format!("sent an invalid message: {what}"), progress))
                }
            };
            if let Some(ending) = ending {
                return ending;
            }
        }
    }

    fn begin(&mut self) -> Result<(), HostCopyError> {
        let names = write_list(self.copy.files.names.iter().map(Vec::as_slice));
        let request = RestrictSourcesRequest {
            version: direct_control::VERSION,
            root: &self.copy.files.root,
            names: &names,
            follow: self.copy.follow,
        };
        let request = direct_control::framed(&request.to_bytes());
        if request.len() > LONGEST_REQUEST || names.len() > LONGEST_REQUEST {
            return Err(HostCopyError::new(
                "too many sources for one copy between two hosts: name their directory, or use \
                 several commands",
            ));
        }
        let source = self.copy.source.address.map(|at| at.ip());
        let here = self.copy.receiver.address.map(|at| at.ip());
        // A loopback address is this machine's, unless both hosts are.
        let both = [source, here]
            .iter()
            .all(|ip| ip.is_some_and(|ip| ip.is_loopback()));
        let usable = |ip: &IpAddr| both || !ip.is_loopback();
        self.copy.job.source = source.into_iter().filter(usable).collect();
        self.copy.job.here = here.into_iter().filter(usable).collect();
        let job = &mut self.copy.job;
        aws_lc_rs::rand::fill(&mut job.token)?;
        self.dials = ReceiverDialGuard::new(job.token, job.here.clone());
        for stream in [&self.to_source, &self.to_receiver] {
            stream.set_write_timeout(Some(TAKES))?;
        }
        send(&self.to_source, &request);
        if let Some(growing) = &self.copy.growing {
            send(
                &self.to_source,
                &direct_control::framed(&growing.to_bytes()),
            );
        }
        let job = ReceiverCommand::Job(Box::new(self.copy.job.clone()));
        self.tell(&job);
        Ok(())
    }

    fn tell(&self, message: &ReceiverCommand) {
        send(&self.to_receiver, &message.to_bytes());
    }

    /// Sends a message about the source, which may speak before the receiver is ready for it.
    fn tell_later(&mut self, message: ReceiverCommand) -> Option<HostCopyOutcome> {
        match self.answered {
            true => self.tell(&message),
            false if self.held.len() < MOST_HELD => self.held.push(message),
            false => {
                let why = format!(
                    "{}: longhaul there, or the shell's start-up files, printed too much before \
                     the copy began; make these files print nothing",
                    self.copy.names.source
                );
                return Some(self.not_possible(why, MissingLonghaul::default()));
            }
        }
        None
    }

    /// Keeps the beginning of the source's output, for the reason why it ended.
    fn note(&mut self, bytes: &[u8]) {
        let room = NOTED.saturating_sub(self.noted.len());
        self.noted.extend(bytes.iter().take(room));
    }

    /// Handles a cancel, and a receiver that does not react to it.
    fn stopped(
        &mut self,
        cancel: &CancelToken,
        progress: &ProgressCounters,
    ) -> Option<HostCopyOutcome> {
        let stuck = self.reports.stuck(Instant::now());
        let cancelled = cancel.is_cancelled();
        let is_due = |report: &mut (Instant, _)| cancelled || report.0.elapsed() > SOURCE_ENDS;
        if let Some((_, mut summary)) = self.report.take_if(is_due) {
            if cancelled {
                summary.outcome = CopyOutcome::Interrupted;
            }
            return Some(HostCopyOutcome::Done(summary));
        }
        match self.cancelled {
            None if cancel.is_cancelled() => {
                self.cancelled = Some(Instant::now());
                self.tell(&ReceiverCommand::Cancel);
                // Before the first connection there is nothing to report.
                self.way.is_none().then(interrupted)
            }
            Some(at) if at.elapsed() > LAST_WORDS => Some(interrupted()),
            None if self.answered && self.heard.elapsed() > self.longest_silence() => {
                let host = &self.copy.names.target;
                let why = format!(
                    "{host}: longhaul there has sent nothing for {} s",
                    self.heard.elapsed().as_secs()
                );
                Some(match self.way {
                    None => self.not_possible(why, MissingLonghaul::default()),
                    Some(_) => HostCopyOutcome::Lost(why),
                })
            }
            None if !self.answered && self.started.elapsed() > FIRST_WORD => {
                let host = &self.copy.names.target;
                let why = format!("longhaul on {host} did not answer in time");
                Some(self.not_possible(why, MissingLonghaul::default()))
            }
            None if self.way.is_none() && self.started.elapsed() > CONNECTS => {
                let why = format!(
                    "{}: longhaul there did not connect to the source within {} s; a firewall \
                     between the two hosts may drop the packets",
                    self.copy.names.target,
                    CONNECTS.as_secs()
                );
                Some(self.not_possible(why, MissingLonghaul::default()))
            }
            None => stuck.map(|time| {
                let seconds = time.as_secs();
                match self.copy.growing.is_some() {
                    // Another attempt would take as long.
                    true => {
                        let why = format!(
                            "{}: no data from this host for {seconds} s",
                            self.copy.names.source
                        );
                        self.not_possible(why, MissingLonghaul::default())
                    }
                    false => self.refused(&format!("has copied nothing for {seconds} s"), progress),
                }
            }),
            Some(_) => None,
        }
    }

    /// Longest time without a message of the receiver.
    fn longest_silence(&self) -> Duration {
        longest_silence(
            self.way.is_some(),
            self.copy.awaited.load(Ordering::Relaxed),
        )
    }

    /// Ends a copy whose receiver does what no honest one does. Another attempt would end in the
    /// same way.
    fn refused(&self, what: &str, progress: &ProgressCounters) -> HostCopyOutcome {
        let what = escape::name(what.as_bytes());
        let host = &self.copy.names.target;
        let why = format!(
            "{host}: longhaul there {what}: the copy was ended; check that host and its version of \
             longhaul"
        );
        self.ended_for_good(why, progress)
    }

    /// Ends a copy for a reason that another attempt would meet as well.
    fn ended_for_good(&self, why: String, progress: &ProgressCounters) -> HostCopyOutcome {
        match self.way {
            None => self.not_possible(why, MissingLonghaul::default()),
            Some(_) => HostCopyOutcome::Done(Box::new(CopySummary {
                outcome: CopyOutcome::NoConnection(why),
                unfinished: progress.bytes_done(),
                ..CopySummary::default()
            })),
        }
    }

    fn handle(
        &mut self,
        message: ReceiverMessage,
        progress: &ProgressCounters,
        events: &mut dyn FnMut(CopyEvent),
    ) -> Option<HostCopyOutcome> {
        self.answered = true;
        self.heard = Instant::now();
        for early in std::mem::take(&mut self.held) {
            self.tell(&early);
        }
        let message = match self.reports.check(Instant::now(), message) {
            Ok(message) => message?,
            Err(what) => return Some(self.refused(&what.to_string(), progress)),
        };
        let names = &self.copy.names;
        match message {
            ReceiverMessage::ToSource(bytes) => {
                let error = self.pass_on(&bytes).err()?;
                let why = format!("{}: {error}", self.copy.names.target);
                Some(match self.way {
                    _ if error.is_violation() => self.ended_for_good(why, progress),
                    None => self.not_possible(why, MissingLonghaul::default()),
                    Some(_) => HostCopyOutcome::Lost(why),
                })
            }
            ReceiverMessage::Route(way) => {
                self.way = Some(way);
                None
            }
            ReceiverMessage::NoRoute(why) => {
                let why = escape::name(why.as_bytes()).to_string();
                Some(match self.cancelled {
                    Some(_) => interrupted(),
                    None => self.not_possible(why, self.missing()),
                })
            }
            ReceiverMessage::Progress(mut values) => {
                values.rename(|name| names.name(name));
                progress.take_values(&values);
                None
            }
            ReceiverMessage::Event(event) => {
                events(names.event(*event));
                None
            }
            ReceiverMessage::Done(summary) => {
                let mut summary = names.summary(*summary);
                let lost = matches!(summary.outcome, CopyOutcome::NoConnection(_));
                if lost && self.source_over && self.cancelled.is_none() {
                    return Some(HostCopyOutcome::Lost(self.source_lost()));
                }
                summary.way = self.way.as_ref().map(|way| self.direct(way));
                let summary = Box::new(summary);
                if lost && self.cancelled.is_none() {
                    self.report.get_or_insert_with(|| (Instant::now(), summary));
                    return None;
                }
                Some(HostCopyOutcome::Done(summary))
            }
        }
    }

    fn direct(&self, way: &SourceConnectionInfo) -> HostCopyRoute {
        let names = &self.copy.names;
        let by = match way.dialed {
            true => &names.source,
            false => &names.target,
        };
        let host = match way.dialed {
            true => &names.target,
            false => &names.source,
        };
        HostCopyRoute {
            kind: HostCopyRouteKind::Direct,
            connected: Some(EscapedName(by.clone().into_bytes())),
            address: Some(way.address.to_string()),
            reason: format!("{by} can connect to {host}").into(),
        }
    }

    /// Passes requests of the receiver to the source. Only those that a copy needs are passed on.
    fn pass_on(&mut self, bytes: &[u8]) -> Result<(), HostCopyError> {
        self.requests.push(bytes)?;
        while let Some(message) = self.requests.next_message()? {
            match DirectClientMessage::decode(&message)? {
                DirectClientMessage::Start { .. } | DirectClientMessage::MoreKeys { .. } => {}
                DirectClientMessage::Dial {
                    addresses, token, ..
                } => self.dials.check(&addresses, &token)?,
                DirectClientMessage::Source { .. } | DirectClientMessage::Growing(_) => {
                    let why = "the receiving host requested files that are not part of this copy";
                    return Err(HostCopyError::violation(why));
                }
            }
            let framed = direct_control::framed(&message);
            send(&self.to_source, &framed);
        }
        Ok(())
    }

    fn source_ended(&mut self) -> Option<HostCopyOutcome> {
        self.source_over = true;
        let why = self.source_lost();
        if self.way.is_none() && !says_refused(&self.noted) {
            return Some(self.not_possible(why, self.missing()));
        }
        if self.report.is_some() {
            return Some(HostCopyOutcome::Lost(why));
        }
        // The receiver reports what it has copied, or the reason in the source's refusal.
        self.tell_later(ReceiverCommand::SourceEnded(why))
    }

    fn missing(&self) -> MissingLonghaul {
        MissingLonghaul {
            source: says_absent(&self.noted),
            receiver: false,
        }
    }

    fn source_lost(&mut self) -> String {
        let host = self.copy.names.source.clone();
        match says_absent(&self.noted) {
            true => {
                format!("longhaul was not found on {host}")
            }
            false => {
                let words = self.copy.source.last_words();
                // What the account's shell says instead, such as nologin.
                let said = match says_refused(&self.noted) {
                    true => None,
                    false => last_line(&self.noted),
                };
                ended(
                    &host,
                    said.filter(|_| words.is_empty())
                        .as_deref()
                        .unwrap_or(&words),
                )
            }
        }
    }

    fn receiver_ended(&mut self, said: &[u8]) -> HostCopyOutcome {
        let host = self.copy.names.target.clone();
        if self.cancelled.is_some() {
            return interrupted();
        }
        let absent = says_absent(said);
        let words = self.copy.receiver.last_words();
        let why = match (absent, self.answered) {
            (true, _) => {
                format!("longhaul was not found on {host}")
            }
            (_, true) => ended(&host, &words),
            (_, false) => unanswered(&host, &words, said),
        };
        match self.way {
            Some(_) => HostCopyOutcome::Lost(why),
            None => {
                let missing = MissingLonghaul {
                    receiver: absent,
                    ..self.missing()
                };
                self.not_possible(why, missing)
            }
        }
    }

    fn not_possible(&self, why: String, missing: MissingLonghaul) -> HostCopyOutcome {
        HostCopyOutcome::NotPossible(why, missing)
    }
}

impl Drop for HostCopyConductor {
    fn drop(&mut self) {
        // The ends of their standard inputs end both programs.
        for stream in [&self.to_source, &self.to_receiver] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Sends a message to a host. One that does not take it in time is given up, which shows when its
/// output is read.
fn send(mut stream: &UnixStream, message: &[u8]) {
    if stream.write_all(message).is_err() {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn ended(host: &str, words: &str) -> String {
    match words {
        "" => format!("{host}: the connection was closed"),
        words => format!("{host}: {words}"),
    }
}

/// The reason why a host has not answered: the words of its shell, or an old longhaul.
fn unanswered(host: &str, words: &str, output: &[u8]) -> String {
    let said = match words {
        "" => last_line(output),
        words => Some(words.to_owned()),
    };
    // Usage errors name the command or the help.
    let usage = |said: &String| said.contains("receive") || said.contains("--help");
    match said.filter(|said| !usage(said)) {
        Some(said) => format!("{host}: longhaul cannot be started: {said}"),
        None => format!(
            "longhaul on {host} ended before it answered: it may be too old for copies between \
             hosts; upgrade it"
        ),
    }
}

/// The last line of a host's output, escaped.
fn last_line(output: &[u8]) -> Option<String> {
    let lines = output.split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
    let line = lines.rev().find(|line| !line.is_empty())?;
    let line = line.get(..LONGEST_LINE).unwrap_or(line);
    Some(escape::name(line).to_string())
}

/// True if the command that starts longhaul has found none.
fn says_absent(output: &[u8]) -> bool {
    let text = String::from_utf8_lossy(output);
    ["absent", "gone", "altered"]
        .iter()
        .any(|word| text.contains(&format!("longhaul-{word} ")))
}

/// True if the source has answered with messages.
fn says_refused(output: &[u8]) -> bool {
    let marker = direct_control::marker();
    let marker = marker.strip_prefix(b"\n").unwrap_or(marker);
    output.windows(marker.len()).any(|window| window == marker)
}

fn interrupted() -> HostCopyOutcome {
    HostCopyOutcome::Done(Box::new(CopySummary::interrupted()))
}

#[cfg(test)]
mod tests;
