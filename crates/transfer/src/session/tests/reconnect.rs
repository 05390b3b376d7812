use super::*;
use crate::session::RESUME_FROM;
use crate::session::tests::machine;

/// A loss after which reconnecting can help.
fn last(gained: u64) -> LastConnection {
    LastConnection {
        gained,
        cause: ConnectionLossCause::Path,
        open: true,
        answered: true,
        wanted: true,
    }
}

fn broken() -> LinkError {
    LinkError::Lost("the path is gone".to_owned())
}

fn refused(why: &str) -> FurtherConnectionError {
    FurtherConnectionError::Connection(why.to_owned())
}

fn denied(why: &str) -> FurtherConnectionError {
    FurtherConnectionError::Login(why.to_owned())
}

/// Begins with the loss of the last connection after `moved` bytes.
fn after_loss(now: Instant, moved: u64) -> ReconnectPolicy {
    let mut reconnect = ReconnectPolicy::new(now, machine());
    let after = reconnect.lost(now, last(moved), broken());
    assert!(
        matches!(after, ConnectionLossDecision::ConnectAgain(_)),
        "{after:?}"
    );
    reconnect
}

#[test]
fn waits_grow_and_differ() {
    assert_eq!(backoff(0, 0), FIRST);
    assert_eq!(backoff(3, 0), FIRST * 8);
    assert_eq!(backoff(40, 0), LONGEST);
    assert!(backoff(3, 255) > FIRST * 4 && backoff(3, 255) < backoff(3, 0));
}

#[test]
fn attempts_follow_a_loss_with_growing_waits() {
    let mut now = Instant::now();
    let mut reconnect = after_loss(now, RESUME_FROM);
    let mut waits = Vec::new();
    for _ in 0..7 {
        let at = reconnect
            .poll_timeout(false)
            .expect("an attempt is planned");
        waits.push(at.saturating_duration_since(now).as_millis());
        now = at;
        assert_eq!(
            reconnect.start(now, false),
            Some(ReconnectVisibility::Silently)
        );
        assert_eq!(reconnect.poll_timeout(false), None, "one at a time");
        assert_eq!(
            reconnect.failed(now, &refused("refused"), false, false),
            None
        );
    }
    assert_eq!(waits, [200, 400, 800, 1600, 3200, 5000, 5000]);
}

#[test]
fn an_attempt_that_took_as_long_as_the_wait_is_followed_at_once() {
    let now = Instant::now();
    let mut reconnect = after_loss(now, RESUME_FROM);
    let start = now + FIRST;
    assert!(reconnect.start(start, false).is_some());
    let end = start + Duration::from_secs(5);
    reconnect.failed(end, &refused("timed out"), false, false);
    assert_eq!(reconnect.poll_timeout(false), Some(end));
}

#[test]
fn nothing_starts_before_its_time() {
    let now = Instant::now();
    let mut reconnect = after_loss(now, RESUME_FROM);
    let early = now + FIRST - Duration::from_millis(1);
    assert_eq!(reconnect.start(early, false), None);
    assert!(reconnect.start(now + FIRST, false).is_some());
}

#[test]
fn a_loss_is_final_unless_connecting_again_can_help() {
    let now = Instant::now();
    let hopeless = [
        LastConnection {
            open: false,
            ..last(RESUME_FROM)
        },
        LastConnection {
            answered: false,
            ..last(RESUME_FROM)
        },
        LastConnection {
            wanted: false,
            ..last(RESUME_FROM)
        },
    ];
    for last in hopeless {
        let mut reconnect = ReconnectPolicy::new(now, machine());
        let after = reconnect.lost(now, last, broken());
        assert_eq!(
            after,
            ConnectionLossDecision::GiveUp("the path is gone".to_owned())
        );
        assert!(!reconnect.is_lost(), "{last:?}");
    }
}

#[test]
fn a_torn_message_and_an_optional_feature_are_repeated_however_little_moved() {
    let now = Instant::now();
    for cause in [
        ConnectionLossCause::SourceTruncated,
        ConnectionLossCause::OptionalFeature,
    ] {
        let mut reconnect = ReconnectPolicy::new(now, machine());
        let last = LastConnection { cause, ..last(0) };
        let after = reconnect.lost(now, last, broken());
        let ConnectionLossDecision::ConnectAgain(line) = after else {
            panic!("{after:?}");
        };
        // Bug: a file that shrank was reported as a lost connection.
        let lost = cause != ConnectionLossCause::SourceTruncated;
        assert_eq!(line.contains("the connection was lost"), lost, "{line}");
    }
}

#[test]
fn connections_that_are_lost_before_they_move_anything_end_the_session() {
    let now = Instant::now();
    let mut reconnect = ReconnectPolicy::new(now, machine());
    for nth in 0..FRUITLESS + 1 {
        let after = reconnect.lost(now, last(0), broken());
        let ends = nth >= FRUITLESS;
        assert_eq!(
            matches!(after, ConnectionLossDecision::GiveUp(_)),
            ends,
            "{nth}"
        );
        if !ends {
            reconnect.start(now + LONGEST, false);
            reconnect.succeeded(now);
        }
    }
}

/// Bug: one request that was never answered, on any connection, kept a session alive for ever.
#[test]
fn losses_are_forgiven_only_if_something_was_gained() {
    let mut reconnect = ReconnectPolicy::new(Instant::now(), machine());
    let forgiven = [0, 1, 1, 1, 2, 2].map(|gained| reconnect.forgives(gained));
    assert_eq!(forgiven, [false, true, false, false, true, false]);
}

#[test]
fn connections_that_move_something_are_replaced_for_ever() {
    let now = Instant::now();
    let mut reconnect = ReconnectPolicy::new(now, machine());
    for nth in 1..50 {
        let after = reconnect.lost(now, last(RESUME_FROM * nth), broken());
        assert!(
            matches!(after, ConnectionLossDecision::ConnectAgain(_)),
            "{nth}"
        );
        reconnect.start(now + LONGEST, false);
        assert_eq!(reconnect.succeeded(now), ReconnectEffect::Replaced);
    }
}

#[test]
fn a_login_that_is_refused_three_times_after_a_loss_is_final() {
    let mut now = Instant::now();
    let mut reconnect = after_loss(now, RESUME_FROM);
    for nth in 1..=REFUSED {
        now = reconnect.poll_timeout(false).expect("an attempt");
        reconnect.start(now, false);
        let over = reconnect.failed(now, &denied("permission denied"), false, false);
        let text = "the path is gone; reconnecting failed: permission denied".to_owned();
        assert_eq!(over, (nth == REFUSED).then_some(text));
    }
}

/// The host key of a further connection that differs is a failure of the login.
#[test]
fn another_host_key_after_a_loss_ends_the_session_with_that_reason() {
    let mut now = Instant::now();
    let mut reconnect = after_loss(now, RESUME_FROM);
    let key = "its host key is another one than the first connection's";
    let mut last = None;
    for _ in 0..REFUSED {
        now = reconnect.poll_timeout(false).expect("an attempt");
        reconnect.start(now, false);
        last = reconnect.failed(now, &denied(key), false, false);
    }
    assert!(last.is_some_and(|why| why.ends_with(key)));
}

#[test]
fn refused_connections_are_tried_for_two_minutes() {
    let began = Instant::now();
    let (mut now, mut tries) = (began, 0);
    let mut reconnect = after_loss(now, RESUME_FROM);
    let why = loop {
        now = reconnect.poll_timeout(false).expect("an attempt");
        reconnect.start(now, false);
        tries += 1;
        if let Some(why) = reconnect.failed(now, &refused("no route to host"), false, false) {
            break why;
        }
    };
    assert!(why.ends_with("no route to host"), "{why}");
    assert!(now - began > GIVEN_UP && now - began < GIVEN_UP + LONGEST * 2);
    assert!((20..40).contains(&tries), "{tries}");
}

/// The copy to the only host left of a fan-out kept the command waiting for two minutes.
#[test]
fn a_session_for_which_the_run_waits_is_given_up_earlier() {
    let began = Instant::now();
    let mut now = began;
    let mut reconnect = after_loss(now, RESUME_FROM);
    loop {
        now = reconnect.poll_timeout(false).expect("an attempt");
        reconnect.start(now, false);
        let awaited = now - began > AWAITED / 2;
        let given_up = reconnect.failed(now, &refused("connection refused"), false, awaited);
        if given_up.is_some() {
            break;
        }
    }
    assert!(now - began > AWAITED && now - began < AWAITED + LONGEST * 2);
}

/// A connection that was lost before 4 MiB had moved was not made again, and the user had to repeat
/// the command.
#[test]
fn a_session_is_resumed_however_little_it_has_moved() {
    for moved in [0, 1, RESUME_FROM - 1] {
        let reconnect = after_loss(Instant::now(), moved);
        assert!(reconnect.is_lost(), "{moved}");
    }
}

#[test]
fn a_silent_path_is_left_after_twelve_seconds_and_the_user_is_told_once() {
    let began = Instant::now();
    let mut reconnect = ReconnectPolicy::new(began, machine());
    assert_eq!(reconnect.poll_timeout(false), None, "nothing is awaited");
    assert_eq!(reconnect.poll_timeout(true), Some(began + DARK));
    let first = reconnect.start(began + DARK, true).expect("an attempt");
    assert_eq!(
        first.line().as_deref(),
        Some("no data from the server for 12 s; reconnecting")
    );
    reconnect.failed(began + DARK, &refused("timed out"), true, false);
    let next = reconnect.poll_timeout(true).expect("another attempt");
    let second = reconnect.start(next, true).expect("another attempt");
    assert_eq!(second.line(), None);
}

/// Bug: a copy that read a file back after 24 s without requests said "no data from the server for
/// 12 s" and connected anew.
#[test]
fn a_pause_without_requests_was_taken_for_a_silent_path() {
    let began = Instant::now();
    let asked = began + Duration::from_secs(24);
    let mut reconnect = ReconnectPolicy::new(began, machine());
    assert!(reconnect.start(asked, false).is_none());
    assert!(reconnect.start(asked, true).is_none());
    assert_eq!(reconnect.poll_timeout(true), Some(asked + DARK));
}

/// Bug: the hour before a request counted as silence of the server that answered it.
#[test]
fn time_in_which_no_answer_was_due_was_a_silence() {
    let began = Instant::now();
    let asked = began + Duration::from_secs(3600);
    let mut reconnect = ReconnectPolicy::new(began, machine());
    assert!(reconnect.start(asked, false).is_none());
    let answered = asked + Duration::from_secs(2);
    assert!(reconnect.start(answered, true).is_none());
    assert_eq!(reconnect.heard(answered), Duration::from_secs(2));
}

#[test]
fn data_end_the_attempts_beside_a_silent_connection() {
    let now = Instant::now();
    let mut reconnect = ReconnectPolicy::new(now, machine());
    reconnect.start(now + DARK, true);
    reconnect.failed(now + DARK, &refused("timed out"), true, false);
    let heard = now + DARK + Duration::from_millis(50);
    assert_eq!(reconnect.heard(heard), DARK + Duration::from_millis(50));
    assert_eq!(reconnect.poll_timeout(true), Some(heard + DARK));
}

#[test]
fn attempts_beside_a_silent_connection_end_when_nothing_is_awaited_any_more() {
    let now = Instant::now();
    let mut reconnect = ReconnectPolicy::new(now, machine());
    reconnect.start(now + DARK, true);
    assert_eq!(
        reconnect.failed(now + DARK, &refused("timed out"), false, false),
        None
    );
    assert_eq!(reconnect.poll_timeout(false), None);
}

#[test]
fn late_data_of_a_lost_connection_do_not_end_the_attempts() {
    let now = Instant::now();
    let mut reconnect = after_loss(now, RESUME_FROM);
    reconnect.heard(now);
    assert_eq!(reconnect.poll_timeout(false), Some(now + FIRST));
}

/// Bug: a further login that succeeded after the last connection was lost left the session in the
/// state without a connection, so that it connected once more, and gave up after two minutes if it
/// could not.
#[test]
fn a_login_that_was_in_progress_at_the_loss_is_the_new_connection() {
    let now = Instant::now();
    let mut reconnect = after_loss(now, RESUME_FROM);
    assert_eq!(reconnect.connected(now), ReconnectEffect::Replaced);
    assert!(!reconnect.is_lost());
    assert_eq!(reconnect.poll_timeout(false), None, "no attempt is needed");
}

#[test]
fn an_attempt_that_ends_after_another_login_gives_one_more_connection() {
    let now = Instant::now();
    let mut reconnect = after_loss(now, RESUME_FROM);
    reconnect.start(now + FIRST, false);
    assert_eq!(reconnect.connected(now + FIRST), ReconnectEffect::Replaced);
    assert_eq!(reconnect.succeeded(now + FIRST), ReconnectEffect::Added);
}

#[test]
fn an_attempt_that_fails_after_another_login_is_not_repeated() {
    let now = Instant::now();
    let mut reconnect = after_loss(now, RESUME_FROM);
    reconnect.start(now + FIRST, false);
    reconnect.connected(now + FIRST);
    assert_eq!(
        reconnect.failed(now + FIRST, &denied("refused"), false, false),
        None
    );
    assert_eq!(reconnect.poll_timeout(false), None);
}

/// Bug: a loss during an attempt planned a second one, which ran although the first succeeded.
#[test]
fn a_loss_during_an_attempt_waits_for_that_attempt() {
    let now = Instant::now();
    let mut reconnect = ReconnectPolicy::new(now, machine());
    reconnect.start(now + DARK, true);
    let after = reconnect.lost(now + DARK, last(RESUME_FROM), broken());
    assert!(matches!(after, ConnectionLossDecision::ConnectAgain(_)));
    assert_eq!(reconnect.poll_timeout(false), None);
    assert_eq!(reconnect.succeeded(now + DARK), ReconnectEffect::Replaced);
    assert_eq!(reconnect.poll_timeout(false), None);
}

/// Whatever fails, a session without a connection ends after two minutes or one attempt more, and
/// waits no longer than five seconds between attempts.
#[test]
fn a_host_that_does_not_come_back_is_given_up_in_time() {
    let mut seed = testkit::Seed::new(18);
    for _ in 0..200 {
        let start = Instant::now();
        let mut now = start;
        let mut reconnect = after_loss(now, RESUME_FROM);
        let awaited = seed.below(2) == 0;
        let patience = if awaited { AWAITED } else { GIVEN_UP };
        loop {
            let at = reconnect.poll_timeout(true).expect("an attempt is planned");
            assert!(at <= now + LONGEST, "it waits too long");
            now = now.max(at);
            assert!(reconnect.start(now, true).is_some());
            let took = Duration::from_millis(seed.below(8000));
            now += took;
            let why = match seed.below(6) {
                0 => denied("denied"),
                _ => refused("refused"),
            };
            let since = now.saturating_duration_since(start);
            match reconnect.failed(now, &why, true, awaited) {
                Some(said) => {
                    let is_denied = matches!(why, FurtherConnectionError::Login(_));
                    assert!(since > patience || is_denied, "{since:?}: {said}");
                    assert!(
                        said.contains("the path is gone"),
                        "the first reason is missing: {said}"
                    );
                    break;
                }
                None => assert!(since <= patience, "{since:?}"),
            }
        }
    }
}

/// Connections that are made and lost again, and gain nothing: each counts, and one that gains
/// starts the count over.
#[test]
fn connections_that_gain_nothing_are_made_a_bounded_number_of_times() {
    let mut seed = testkit::Seed::new(19);
    for _ in 0..200 {
        let now = Instant::now();
        let mut reconnect = ReconnectPolicy::new(now, machine());
        let (mut gained, mut fruitless) = (0, 0);
        loop {
            let more = [0, LITTLE - 1, LITTLE, 5 * LITTLE][seed.below(4) as usize];
            gained += more;
            fruitless = if more < LITTLE { fruitless + 1 } else { 0 };
            match reconnect.lost(now, last(gained), broken()) {
                ConnectionLossDecision::GiveUp(_) => {
                    assert_eq!(fruitless, FRUITLESS + 1);
                    break;
                }
                ConnectionLossDecision::ConnectAgain(_) => {
                    assert!(fruitless <= FRUITLESS && reconnect.is_lost());
                    assert_eq!(reconnect.connected(now), ReconnectEffect::Replaced);
                    assert!(!reconnect.is_lost());
                }
            }
        }
    }
}
