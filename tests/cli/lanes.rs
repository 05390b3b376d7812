//! Servers and paths that admit fewer connections or channels than would pay, or lose them: fewer
//! lanes or one clear error, and existing files are kept.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use longhaul_tests::password;
use testkit::delay_proxy::{Fate, Way};
use testkit::{Auth, PeerBuilder, PeerKind};

use crate::far::{BOTH, Far, To};

fn openssh() -> PeerBuilder {
    PeerBuilder::new(PeerKind::OpenSsh)
}

fn way(to: To) -> Way {
    match to {
        To::There => Way::Up,
        To::Here => Way::Down,
    }
}

/// Copies a file each way through this path and server.
fn a_file_each_way(builder: impl Fn() -> PeerBuilder) {
    for to in BOTH {
        let Some(far) = Far::start(builder(), |path| path) else {
            return;
        };
        let far = far.with_file();
        let outcome = far.run(to, &[]).run();
        far.assert_copied(&outcome);
    }
}

#[test]
fn several_connections_are_used_where_they_pay() {
    for to in BOTH {
        let Some(far) = Far::openssh(|path| path) else {
            return;
        };
        let far = far.with_file();
        let outcome = far.run(to, &["-p"]).run();
        far.assert_copied(&outcome);
        far.assert_several(&outcome);
        assert_eq!(far.mtime("from/file"), far.mtime("to/file"));
    }
}

/// A session with one lane must not sleep while the lane has work. It slept for 100 ms whenever the
/// lane had got a piece after it was last polled, so that loopback reached 50 MB/s. A test build
/// aborts the session where it would sleep like that.
#[test]
fn a_single_lane_is_not_forgotten_until_the_next_look() {
    for to in BOTH {
        let Some(far) = Far::openssh(|path| path) else {
            return;
        };
        let far = far.with_file();
        let outcome = far
            .run(to, &["--connections", "1", "--channels", "1"])
            .run();
        far.assert_copied(&outcome);
    }
}

#[test]
fn one_session_for_each_connection() {
    a_file_each_way(|| openssh().option("MaxSessions", "1"));
}

/// Two sessions are permitted: the second is used for a listing or a lane.
#[test]
fn two_sessions_for_each_connection() {
    for to in BOTH {
        let builder = openssh().option("MaxSessions", "2");
        let Some(far) = Far::start(builder, |path| path) else {
            return;
        };
        let far = far.with_many().with_file();
        far.assert_copied(&far.run(to, &[]).run());
    }
}

#[test]
fn one_login_at_a_time() {
    for startups in ["1", "1:100:1"] {
        a_file_each_way(|| openssh().option("MaxStartups", startups));
    }
}

/// The first connection of a copy was not tried again, as further ones are, where the server drops
/// it for the moment. Another client, which does not log in, takes the only place of MaxStartups
/// until the copy has connected twice.
#[test]
fn the_first_connection_was_dropped_by_max_startups_and_the_copy_failed() {
    for to in BOTH {
        let builder = openssh().option("MaxStartups", "1:100:1");
        let Some(far) = Far::start(builder, |path| path) else {
            return;
        };
        testkit::tree::write_file(&far.scene.path("from/file"), b"content");
        let mut other = TcpStream::connect(far.scene.peer.addr()).expect("sshd listens");
        let mut identification = [0; 4];
        other.read_exact(&mut identification).expect("sshd answers");
        let running = far.run(to, &["--connections=1"]).spawn();
        let again = running.until(|| far.proxy.connections() >= 2);
        drop(other);
        let outcome = running.wait();
        assert!(again, "{outcome}");
        far.assert_copied(&outcome);
        let said = outcome.err();
        assert!(said.contains("MaxStartups"), "{outcome}");
        assert!(said.contains("trying again for up to 10 s"), "{outcome}");
    }
}

/// A server that closes each connection is given up after a few attempts, and a login that it
/// refuses is not repeated.
#[test]
fn a_server_that_closes_each_connection_is_given_up() {
    let Some(far) = Far::openssh(|path| path.fate_of_each(1, Fate::Refused)) else {
        return;
    };
    let outcome = far.run(To::There, &["--connections=1"]).run();
    let outcome = outcome.expect_code(255).expect_err(&["MaxStartups"]);
    outcome.expect_err(&["(6 tries in "]);
    assert_eq!(far.proxy.connections(), 6);
}

/// Bug: a listener that resets each connection as it accepts it was given up after one to five tries,
/// in up to 1.4 s, and the reset of a later try named the host twice.
#[test]
fn a_server_that_resets_each_connection_at_once_was_not_tried_again() {
    let Some(mut far) = Far::openssh(|path| path) else {
        return;
    };
    testkit::tree::write_file(&far.scene.path("from/file"), b"content");
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let resets = std::thread::spawn(move || {
        for _ in 0..6 {
            let (socket, _) = listener.accept().expect("a connection");
            let socket = socket2::SockRef::from(&socket);
            socket.set_linger(Some(Duration::ZERO)).expect("a socket");
        }
    });
    let scene = &mut far.scene;
    scene.client.dir.add_host_at("peer", &scene.peer, port);
    let outcome = far.run(To::There, &["--connections=1"]).run();
    let outcome = outcome
        .expect_code(255)
        .expect_err(&["(6 tries in ", "MaxStartups"]);
    assert_eq!(outcome.err().matches("peer: ").count(), 2, "{outcome}");
    assert!(resets.is_finished(), "{outcome}");
    resets.join().expect("it has accepted six");
}

#[test]
fn penalties_at_their_strictest() {
    for to in BOTH {
        let strict = "crash:600 authfail:600 noauth:600 grace-exceeded:600 refuseconnection:600 \
                      min:1";
        let builder = PeerBuilder::new(PeerKind::NewestOpenSsh)
            .option("PerSourcePenalties", strict)
            .option("MaxStartups", "2:100:2");
        let Some(far) = Far::start(builder, |path| path) else {
            return;
        };
        let far = far.with_file();
        far.assert_copied(&far.run(to, &[]).run());
        // The next run is admitted as well.
        far.assert_copied(&far.run(to, &[]).run());
    }
}

/// Emulates a firewall that limits connections.
#[test]
fn each_third_connection_is_closed() {
    for to in BOTH {
        for fate in [Fate::Refused, Fate::Reset(way(to), 2_000_000)] {
            let Some(far) = Far::openssh(|path| path.fate_of_each(3, fate)) else {
                return;
            };
            let far = far.with_file();
            let outcome = far.run(to, &[]).run();
            far.assert_copied(&outcome);
            far.assert_several(&outcome);
        }
    }
}

#[test]
fn connections_that_are_reset_in_the_middle() {
    for to in BOTH {
        for nth in [1, 2] {
            let fate = Fate::Reset(way(to), 5_000_000);
            let Some(far) = Far::openssh(|path| path.fate(nth, fate)) else {
                return;
            };
            let far = far.with_file().with_many();
            let outcome = far.run(to, &[]).run();
            far.assert_copied(&outcome);
            far.assert_several(&outcome);
        }
    }
}

/// The connection stops carrying data, and neither end is notified.
#[test]
fn a_connection_that_stalls_for_good() {
    for to in BOTH {
        for nth in [1, 2] {
            let fate = Fate::Stalls(way(to), 4_000_000);
            let Some(far) = Far::openssh(|path| path.fate(nth, fate)) else {
                return;
            };
            let far = far.with_file();
            let outcome = far.run(to, &[]).run();
            far.assert_copied(&outcome);
            far.assert_several(&outcome);
            let bound = Duration::from_secs(30);
            assert!(outcome.elapsed < bound, "connection {nth}: {outcome}");
        }
    }
}

/// Small files, some of which wait on the stalled connection.
#[test]
fn small_files_do_not_wait_for_a_connection_that_stalls() {
    for to in BOTH {
        let Some(far) = Far::openssh(|path| path.fate(2, Fate::Stalls(way(to), 200_000))) else {
            return;
        };
        let far = far.with_file().with_many();
        let outcome = far.run(to, &[]).run();
        far.assert_copied(&outcome);
        far.assert_several(&outcome);
        assert!(outcome.elapsed < Duration::from_secs(45), "{outcome}");
    }
}

/// All connections are lost at once: one error, and existing files are kept.
#[test]
fn all_connections_are_lost() {
    for to in BOTH {
        let Some(far) = Far::openssh(|path| path) else {
            return;
        };
        let far = far.with_file();
        testkit::tree::write_file(&far.scene.path("to/file"), b"the old one");
        let running = far.until(to, 15_000_000);
        far.proxy.cut_now();
        let outcome = running.wait();
        // The client reconnects and continues.
        assert!(!outcome.timed_out && outcome.code == Some(0), "{outcome}");
        assert!(outcome.err().contains("reconnecting"), "{outcome}");
        let read = |name| std::fs::read(far.scene.path(name)).expect("it is there");
        assert!(read("to/file") == read("from/file"), "{outcome}");
        far.assert_no_temporaries(&outcome);
    }
}

/// The server accepts the key of the first login only.
#[test]
fn further_logins_are_refused() {
    for to in BOTH {
        let Some(server) = testkit::missing::sftp_server() else {
            return;
        };
        let once = longhaul_tests::scratch();
        let (keys, script) = (once.path().join("keys"), once.path().join("server"));
        let text = format!(
            "#!/bin/sh\n: > {}\nexec {}\n",
            keys.display(),
            server.display()
        );
        testkit::tree::write_file(&script, text.as_bytes());
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, executable).expect("our file");
        let builder = openssh()
            .option("AuthorizedKeysFile", keys.display().to_string())
            .option("Subsystem", format!("sftp {}", script.display()));
        let Some(far) = Far::start(builder, |path| path) else {
            return;
        };
        let far = far.with_file();
        let allowed = far.scene.peer.folder().join("authorized_keys");
        std::fs::copy(allowed, &keys).expect("our file");
        let outcome = far.run(to, &[]).run();
        far.assert_copied(&outcome);
        // Each refused login may count as a penalty, or lock the account.
        let connections = far.proxy.connections();
        assert!(
            (2..=4).contains(&connections),
            "{connections} connections\n{outcome}"
        );
    }
}

/// If a login needs the user, only one connection is opened.
#[test]
fn a_password_is_asked_for_once() {
    for to in BOTH {
        let builder = openssh().auth(Auth::Password);
        let Some(mut far) = Far::start(builder, |path| path) else {
            return;
        };
        far = far.with_file();
        let everybody: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        for folder in ["", "to", "from"] {
            std::fs::set_permissions(far.scene.path(folder), everybody.clone()).expect("ours");
        }
        let askpass = far.scene.client.dir.askpass(password());
        far.scene.client.dir.set_for_all("BatchMode", "no");
        far.scene
            .client
            .dir
            .set("peer", "PubkeyAuthentication", "no");
        let run = far.run(to, &[]).env("SSH_ASKPASS", askpass);
        let outcome = run.env("SSH_ASKPASS_REQUIRE", "force").run();
        far.assert_copied(&outcome);
        assert_eq!(far.proxy.connections(), 1, "{outcome}");
    }
}
