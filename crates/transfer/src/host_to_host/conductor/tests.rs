//! Tests of the conductor with scripted hosts.

use schedule::CompressionMode;

use super::*;
use crate::copy::CopyOptions;

/// Conducts a copy whose receiver sends these messages after the marker.
fn conducted(messages: &[ReceiverMessage]) -> HostCopyOutcome {
    let (source, _source_far) = UnixStream::pair().expect("a socket");
    let (receiver, mut far) = UnixStream::pair().expect("a socket");
    frames::mark(&mut far).expect("the marker is sent");
    for message in messages {
        far.write_all(&message.to_bytes())
            .expect("a message is sent");
    }
    far.shutdown(Shutdown::Write)
        .expect("the receiver's output ends");
    let none = serde_json::json!({ "kex": [], "ciphers": [], "macs": [] });
    let copy = HostToHostCopy {
        source: RemoteCommand::of_stream(source),
        receiver: RemoteCommand::of_stream(receiver),
        files: SourcesInDirectory {
            root: b"/".to_vec(),
            names: vec![b"/f".to_vec()],
        },
        follow: false,
        growing: None,
        job: ReceiverJob {
            version: ReceiverJob::VERSION,
            host: "s".to_owned(),
            identity: "s".to_owned(),
            sources: Vec::new(),
            target: EscapedName::default(),
            options: CopyOptions::default(),
            limit: None,
            connections: None,
            channels: None,
            requests: None,
            buffer: None,
            pack: CompressionMode::default(),
            secured: serde_json::from_value(none).expect("preferences"),
            blocks: None,
            source: Vec::new(),
            here: Vec::new(),
            token: Default::default(),
        },
        names: ReportedPathTranslator {
            source: "s".to_owned(),
            root: b"/".to_vec(),
            target: "t".to_owned(),
        },
        awaited: Arc::default(),
    };
    let (progress, cancel) = (ProgressCounters::default(), CancelToken::default());
    conduct(copy, &progress, &mut |_| {}, &cancel)
}

/// Bug: a receiver that asked for other files after it was connected ended the copy as a lost
/// connection does, so that the copy was begun again several times.
#[test]
fn a_request_for_other_files_was_taken_for_a_lost_connection() {
    let route = || {
        ReceiverMessage::Route(SourceConnectionInfo {
            dialed: false,
            address: ([192, 0, 2, 1], 22).into(),
        })
    };
    let other = RestrictSourcesRequest {
        version: direct_control::VERSION,
        root: b"/etc",
        names: &write_list([&b"/shadow"[..]]),
        follow: true,
    };
    let other = direct_control::framed(&other.to_bytes());
    let malformed = direct_control::framed(b"");
    for request in [other, malformed] {
        let ending = conducted(&[route(), ReceiverMessage::ToSource(request)]);
        let HostCopyOutcome::Done(summary) = ending else {
            panic!("{ending:?}");
        };
        let CopyOutcome::NoConnection(why) = &summary.outcome else {
            panic!("{:?}", summary.outcome);
        };
        assert!(why.starts_with("t: "), "{why}");
    }
    let ending = conducted(&[route()]);
    assert!(matches!(ending, HostCopyOutcome::Lost(_)), "{ending:?}");
}

/// Bug: when a host in the middle of a fan-out fell silent, the hosts behind it waited 100 s for
/// it, although no host received data any more.
#[test]
fn a_silent_receiver_is_given_up_sooner_when_all_hosts_wait() {
    assert_eq!(longest_silence(true, true), SILENT_AWAITED);
    assert_eq!(longest_silence(true, false), SILENT);
    // It may be connecting to the source, of which it sends no word.
    assert_eq!(longest_silence(false, true), SILENT);
}

/// An account whose shell is nologin was told to upgrade longhaul.
#[test]
fn the_words_of_a_shell_that_runs_nothing_are_repeated() {
    let said = unanswered("h", "", b"\nThis account is currently not available.\n");
    assert_eq!(
        said,
        "h: longhaul cannot be started: This account is currently not available."
    );
    let said = unanswered("h", "sh: permission denied", b"");
    assert_eq!(said, "h: longhaul cannot be started: sh: permission denied");
    for (words, output) in [("", &b""[..]), ("For more, try --help", b""), ("", b" \n")] {
        assert!(
            unanswered("h", words, output).contains("too old"),
            "{words}"
        );
    }
    assert!(!unanswered("h", "", b"\x1b[2J").contains('\x1b'));
}
