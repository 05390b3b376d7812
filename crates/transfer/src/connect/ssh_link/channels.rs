//! Channels of a connection: the programs at their far ends, and the one that opens with the login.

use std::collections::BTreeMap;

use ssh::channel::ChannelId as SshChannel;

use crate::session::{LinkChannelId, LinkEvent, RemoteCommandError};

/// Longest line of standard error in bytes; a longer one is passed on in parts.
const LONGEST_LINE: usize = 1000;

/// The program at the remote end of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ChannelProgram {
    /// The stock SFTP server.
    #[default]
    Sftp,
    /// A longhaul started by command.
    Served,
    /// Another command.
    Command,
}

/// The remote end of a channel.
#[derive(Debug, Default)]
pub(super) struct RemoteChannelState {
    at: ChannelProgram,
    errors: Vec<u8>,
    status: Option<u32>,
    /// The program has sent something.
    has_answered: bool,
    /// Bytes received while the output is paused, whose window is not returned yet; `None` while it
    /// is not paused.
    held_window: Option<usize>,
}

impl RemoteChannelState {
    pub(super) fn new(at: ChannelProgram) -> Self {
        Self {
            at,
            ..Self::default()
        }
    }

    pub(super) fn program(&self) -> ChannelProgram {
        self.at
    }

    /// Pauses or resumes the output. Returns the number of bytes whose window is to be returned now.
    pub(super) fn pause_output(&mut self, paused: bool) -> usize {
        match (paused, self.held_window) {
            (true, None) => self.held_window = Some(0),
            (false, Some(held)) => {
                self.held_window = None;
                return held;
            }
            _ => {}
        }
        0
    }

    /// Notes received bytes. Returns the number of bytes whose window is to be returned now.
    pub(super) fn note_received(&mut self, bytes: usize) -> usize {
        self.has_answered |= bytes > 0;
        match &mut self.held_window {
            Some(held) => {
                *held += bytes;
                0
            }
            None => bytes,
        }
    }

    /// Describes the end of a program with this exit status.
    pub(super) fn exit_words(&self, status: u32) -> String {
        match (self.at, self.has_answered) {
            (ChannelProgram::Sftp, false) => format!(
                "the SFTP server did not start (status {status}): check Subsystem sftp in \
                 sshd_config there, and with ChrootDirectory that root owns that directory and all \
                 above it, and that nobody else may write to them; sshd's log may have the reason"
            ),
            (ChannelProgram::Sftp, true) => format!(
                "the SFTP server ended unexpectedly (status {status}): see its log, then run the \
                 same command again"
            ),
            (ChannelProgram::Served, false) => format!(
                "longhaul could not be started there (its command ended with status {status}; the \
                 account may be limited to SFTP)"
            ),
            (ChannelProgram::Served, true) => {
                format!("the command that starts longhaul there ended with status {status}")
            }
            (ChannelProgram::Command, _) => {
                format!("the command there ended with status {status}")
            }
        }
    }

    /// Exit status of the program, once reported.
    pub(super) fn status(&self) -> Option<u32> {
        self.status
    }

    /// Returns the event that reports the end of the channel with this reason.
    fn ended(&self, id: LinkChannelId, why: &str) -> LinkEvent {
        match self.at {
            ChannelProgram::Command => LinkEvent::Exited(id, Err(failed(why))),
            ChannelProgram::Sftp | ChannelProgram::Served => {
                LinkEvent::Closed(id, Some(why.to_owned()))
            }
        }
    }

    /// Returns the event that reports that the server refused the channel.
    fn refused(&self, id: LinkChannelId, why: &str) -> LinkEvent {
        let error = RemoteCommandError::SessionRefused(why.to_owned());
        match self.at {
            ChannelProgram::Command => LinkEvent::Exited(id, Err(error)),
            ChannelProgram::Sftp | ChannelProgram::Served => {
                LinkEvent::Refused(id, error.to_string())
            }
        }
    }

    /// Returns the event that reports the end of the channel when the connection starts over.
    fn restarted(&self, id: LinkChannelId, why: &str) -> LinkEvent {
        match self.at {
            ChannelProgram::Command => LinkEvent::Exited(id, Ok(None)),
            ChannelProgram::Sftp | ChannelProgram::Served => {
                LinkEvent::Closed(id, Some(why.to_owned()))
            }
        }
    }

    /// Passes standard error on line by line.
    pub(super) fn hear(&mut self, bytes: &[u8], events: &mut Vec<LinkEvent>) {
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            self.errors.extend_from_slice(part);
            if part.ends_with(b"\n") || self.errors.len() > LONGEST_LINE {
                let line = std::mem::take(&mut self.errors);
                let text = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
                if !text.is_empty() {
                    events.push(LinkEvent::Message(text));
                }
            }
        }
    }
}

fn failed(why: &str) -> RemoteCommandError {
    RemoteCommandError::Failed(why.to_owned())
}

/// End of a channel, for the event that reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelEndReason<'a> {
    /// The channel ended for this reason.
    Closed(&'a str),
    /// The server refused the channel, for this reason: its words, and where to look.
    Refused(&'a str),
}

/// Channels that are open on a connection, by their number.
#[derive(Debug, Default)]
pub(super) struct ChannelTable {
    open: BTreeMap<u32, RemoteChannelState>,
}

impl ChannelTable {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn contains(&self, id: SshChannel) -> bool {
        self.open.contains_key(&id.0)
    }

    pub(super) fn insert(&mut self, id: SshChannel, far: RemoteChannelState) {
        self.open.insert(id.0, far);
    }

    pub(super) fn get(&self, id: SshChannel) -> Option<&RemoteChannelState> {
        self.open.get(&id.0)
    }

    pub(super) fn get_mut(&mut self, id: SshChannel) -> Option<&mut RemoteChannelState> {
        self.open.get_mut(&id.0)
    }

    /// Notes the exit status of the program on a channel.
    pub(super) fn note_status(&mut self, id: SshChannel, status: u32) {
        if let Some(far) = self.open.get_mut(&id.0) {
            far.status = Some(status);
        }
    }

    /// Removes a channel without an event. Returns true if it was open.
    pub(super) fn close(&mut self, id: SshChannel) -> bool {
        self.open.remove(&id.0).is_some()
    }

    /// Removes a channel that has ended, and reports it. Returns true if it was open.
    pub(super) fn end(
        &mut self,
        id: SshChannel,
        end: ChannelEndReason<'_>,
        events: &mut Vec<LinkEvent>,
    ) -> bool {
        let Some(mut far) = self.open.remove(&id.0) else {
            return false;
        };
        if far.at == ChannelProgram::Sftp {
            far.hear(b"\n", events);
        }
        let id = LinkChannelId(id.0);
        events.push(match end {
            ChannelEndReason::Closed(why) => far.ended(id, why),
            ChannelEndReason::Refused(why) => far.refused(id, why),
        });
        true
    }

    /// Removes all channels, since the connection starts over, and reports their ends.
    pub(super) fn restart(&mut self, why: &str, events: &mut Vec<LinkEvent>) {
        for (id, far) in std::mem::take(&mut self.open) {
            events.push(far.restarted(LinkChannelId(id), why));
        }
    }

    /// Forgets all channels, since the login that opened them was given up.
    pub(super) fn clear(&mut self) {
        self.open.clear();
    }
}

/// The session's first channel, which may open together with the login.
#[derive(Debug, Default)]
pub(super) enum FirstChannel {
    /// No session will use the connection.
    #[default]
    Unwanted,
    /// A session will use the connection.
    Wanted,
    /// The channel was opened with the login.
    Opened(EarlyChannel),
}

/// A channel that was opened with the login, before the session requests it.
#[derive(Debug)]
pub(super) struct EarlyChannel {
    id: LinkChannelId,
    program: ChannelProgram,
    use_: EarlyChannelUse,
    /// Events that arrived before the session used the channel.
    events: Vec<LinkEvent>,
}

/// Progress of the session with the channel that was opened with the login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EarlyChannelUse {
    /// The session has not requested a channel.
    Unused,
    /// The session uses the channel, or another one.
    Taken,
    /// The session has sent its INIT, which was already on the wire.
    Greeted,
}

impl FirstChannel {
    pub(super) fn is_wanted(&self) -> bool {
        !matches!(self, Self::Unwanted)
    }

    /// True if the channel may still be opened with the login.
    pub(super) fn may_open(&self) -> bool {
        !matches!(self, Self::Opened(_))
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Opened(_))
    }

    /// Notes that the channel was opened.
    pub(super) fn open(&mut self, id: LinkChannelId, program: ChannelProgram) {
        *self = Self::Opened(EarlyChannel {
            id,
            program,
            use_: EarlyChannelUse::Unused,
            events: Vec::new(),
        });
    }

    /// Forgets the channel, since the login that opened it was given up.
    pub(super) fn forget(&mut self) {
        if self.is_wanted() {
            *self = Self::Wanted;
        }
    }

    fn opened(&mut self) -> Option<&mut EarlyChannel> {
        match self {
            Self::Opened(opened) => Some(opened),
            Self::Unwanted | Self::Wanted => None,
        }
    }

    /// Keeps events until the session uses the channel.
    pub(super) fn keep(&mut self, events: &mut Vec<LinkEvent>) {
        let waits = |opened: &&mut EarlyChannel| opened.use_ == EarlyChannelUse::Unused;
        if let Some(opened) = self.opened().filter(waits) {
            let keeps = |event: &mut LinkEvent| !matches!(event, LinkEvent::Message(_));
            opened.events.extend(events.extract_if(.., keeps));
        }
    }

    /// Returns the kept events once the session uses the channel.
    pub(super) fn release(&mut self, events: &mut Vec<LinkEvent>) {
        let used = |opened: &&mut EarlyChannel| opened.use_ != EarlyChannelUse::Unused;
        if let Some(opened) = self.opened().filter(used) {
            events.append(&mut opened.events);
        }
    }

    /// Answers the session's first request for a channel: the channel that was opened with the
    /// login, and true if it leads to the program that the session wants.
    pub(super) fn take(&mut self, program: ChannelProgram) -> Option<(LinkChannelId, bool)> {
        let waits = |opened: &&mut EarlyChannel| opened.use_ == EarlyChannelUse::Unused;
        let opened = self.opened().filter(waits)?;
        opened.use_ = EarlyChannelUse::Taken;
        Some((opened.id, opened.program == program))
    }

    /// Removes INIT from the session's first bytes on the channel, since INIT was already sent.
    pub(super) fn without_init<'a>(&mut self, channel: LinkChannelId, bytes: &'a [u8]) -> &'a [u8] {
        let first = |opened: &&mut EarlyChannel| {
            opened.id == channel && opened.use_ != EarlyChannelUse::Greeted
        };
        match self.opened().filter(first) {
            Some(opened) => {
                opened.use_ = EarlyChannelUse::Greeted;
                bytes.strip_prefix(&sftp::INIT).unwrap_or(bytes)
            }
            None => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SshChannel = SshChannel(3);

    fn table(at: ChannelProgram) -> ChannelTable {
        let mut table = ChannelTable::default();
        table.insert(ID, RemoteChannelState::new(at));
        table
    }

    /// Bug: a refused channel was reported as closed, and the report was rewritten afterwards.
    #[test]
    fn a_refused_channel_is_reported_as_refused_and_a_refused_command_as_over() {
        let mut events = Vec::new();
        let refused = ChannelEndReason::Refused("administratively prohibited");
        assert!(table(ChannelProgram::Served).end(ID, refused, &mut events));
        assert!(matches!(
            &events[..],
            [LinkEvent::Refused(LinkChannelId(3), _)]
        ));
        events.clear();
        assert!(table(ChannelProgram::Command).end(ID, refused, &mut events));
        assert!(matches!(
            &events[..],
            [LinkEvent::Exited(LinkChannelId(3), Err(_))]
        ));
    }

    /// Bug: the log of the SFTP server and its configuration were named in either case.
    #[test]
    fn an_sftp_server_that_had_answered_was_said_not_to_be_configured() {
        let mut far = RemoteChannelState::new(ChannelProgram::Sftp);
        assert!(far.exit_words(255).contains("check Subsystem sftp"));
        far.note_received(9);
        assert!(far.exit_words(124).contains("ended unexpectedly"));
    }

    #[test]
    fn a_channel_ends_once() {
        let mut table = table(ChannelProgram::Sftp);
        let mut events = Vec::new();
        assert!(table.end(ID, ChannelEndReason::Closed("it ended"), &mut events));
        assert!(!table.end(ID, ChannelEndReason::Closed("it ended"), &mut events));
        assert_eq!(events.len(), 1);
    }

    #[test]
    fn the_last_line_without_a_newline_is_shown_before_the_end() {
        let mut table = table(ChannelProgram::Sftp);
        let mut events = Vec::new();
        let far = table.get_mut(ID).unwrap();
        far.hear(b"first\nno such", &mut events);
        far.hear(b" file", &mut events);
        table.end(ID, ChannelEndReason::Closed("it ended"), &mut events);
        let shown: Vec<_> = events.iter().map(|event| format!("{event:?}")).collect();
        let ended = r#"Closed(LinkChannelId(3), Some("it ended"))"#;
        assert_eq!(
            shown,
            [r#"Message("first")"#, r#"Message("no such file")"#, ended]
        );
    }

    #[test]
    fn a_command_on_a_connection_that_starts_over_has_no_status() {
        let mut events = Vec::new();
        table(ChannelProgram::Command).restart("refused", &mut events);
        assert!(matches!(
            &events[..],
            [LinkEvent::Exited(LinkChannelId(3), Ok(None))]
        ));
    }

    #[test]
    fn events_before_the_session_are_kept_for_it() {
        let mut first = FirstChannel::Wanted;
        first.open(LinkChannelId(0), ChannelProgram::Sftp);
        let mut events = vec![
            LinkEvent::Message("Welcome".to_owned()),
            LinkEvent::Closed(LinkChannelId(0), None),
        ];
        first.keep(&mut events);
        assert!(
            matches!(&events[..], [LinkEvent::Message(_)]),
            "lines are shown at once"
        );
        first.release(&mut events);
        assert_eq!(events.len(), 1, "nobody uses the channel yet");
        assert_eq!(
            first.take(ChannelProgram::Sftp),
            Some((LinkChannelId(0), true))
        );
        assert_eq!(first.take(ChannelProgram::Sftp), None, "it is taken once");
        first.release(&mut events);
        assert!(matches!(&events[..], [_, LinkEvent::Closed(..)]));
    }

    #[test]
    fn a_session_that_wants_another_program_is_told_so() {
        let mut first = FirstChannel::Wanted;
        first.open(LinkChannelId(0), ChannelProgram::Served);
        assert_eq!(
            first.take(ChannelProgram::Sftp),
            Some((LinkChannelId(0), false))
        );
    }

    #[test]
    fn init_is_not_sent_twice() {
        let mut first = FirstChannel::Wanted;
        first.open(LinkChannelId(0), ChannelProgram::Sftp);
        let greeting = [&sftp::INIT[..], b"more"].concat();
        let other = first.without_init(LinkChannelId(1), &greeting).len();
        assert_eq!(other, greeting.len(), "another channel's INIT is sent");
        assert_eq!(first.without_init(LinkChannelId(0), &greeting), b"more");
        let later = first.without_init(LinkChannelId(0), &greeting).len();
        assert_eq!(later, greeting.len(), "later bytes only look like it");
    }
}
