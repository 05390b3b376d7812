//! TLS legs: decrypted data is never left behind, and a truncated stream is never an orderly end.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use testkit::Seed;
use testkit::missing::{self, find_program};

use crate::world::{Relay, accept, both_ways, expect_all, expect_reset, expect_reset_at, server};

/// Keys and certificates: an authority, a server called localhost, a client called alice.
pub(crate) struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

/// Returns the certificates; `None`, after reporting the skip, without openssl.
pub(crate) fn certificates() -> Option<&'static Certificates> {
    static MADE: OnceLock<Option<Certificates>> = OnceLock::new();
    MADE.get_or_init(|| {
        if find_program("openssl").is_none() {
            missing::skip("openssl", "Debian: openssl");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let run = |args: &[&str]| {
            let mut command = Command::new("openssl");
            let output = command
                .args(args)
                .current_dir(folder.path())
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "{args:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        let curve = [
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ];
        let ca = [
            "req", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2",
        ];
        run(&[&ca[..], &curve].concat());
        for (name, alternative) in [
            ("server", "DNS:localhost,IP:127.0.0.1"),
            ("alice", "DNS:alice"),
            ("bob", "DNS:bob"),
        ] {
            let (key, csr, pem) = (
                format!("{name}.key"),
                format!("{name}.csr"),
                format!("{name}.pem"),
            );
            let (subject, ext) = (format!("/CN={name}"), format!("{name}.ext"));
            std::fs::write(
                folder.path().join(&ext),
                format!("subjectAltName={alternative}\n"),
            )
            .unwrap();
            let request = ["req", "-keyout", &key, "-out", &csr, "-subj", &subject];
            run(&[&request[..], &curve].concat());
            run(&[
                "x509",
                "-req",
                "-in",
                &csr,
                "-CA",
                "ca.pem",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-out",
                &pem,
                "-days",
                "2",
                "-extfile",
                &ext,
            ]);
        }
        Some(Certificates { folder })
    })
    .as_ref()
}

/// Two relays with TLS between them: one encrypts, the other decrypts.
struct Facing {
    encrypts: Relay,
    decrypts: Relay,
    listener: TcpListener,
}

fn facing(made: &Certificates, flags: &[&str]) -> Facing {
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let (key, cert, ca) = (
        made.path("server.key"),
        made.path("server.pem"),
        made.path("ca.pem"),
    );
    let words = [
        &["127.0.0.1:0/tls", &to, "--key", &key, "--cert", &cert],
        flags,
    ]
    .concat();
    let decrypts = Relay::start(&words);
    let there = format!("localhost:{}/tls", decrypts.address().port());
    let words = [&["127.0.0.1:0", &there, "--ca", &ca], flags].concat();
    Facing {
        encrypts: Relay::start(&words),
        decrypts,
        listener,
    }
}

impl Facing {
    fn pair(&self) -> (TcpStream, TcpStream) {
        self.encrypts.pair(&self.listener)
    }
}

/// Case 5: with a buffer of 512 bytes, 1.2 MB took 107 s.
#[test]
fn small_buffers_do_not_stall_what_is_decrypted() {
    let Some(made) = certificates() else {
        return;
    };
    for buffer in ["1", "2", "7", "512", "4096", "256k"] {
        let facing = facing(made, &["--buffer", buffer]);
        let bytes = Seed::new(5).bytes(1_200_000);
        for swapped in [false, true] {
            let (client, server) = facing.pair();
            let (mut from, mut to) = if swapped {
                (server, client)
            } else {
                (client, server)
            };
            // The handshake is not part of the measurement.
            from.write_all(b"x").unwrap();
            to.read_exact(&mut [0]).unwrap();
            let begun = Instant::now();
            thread::scope(|scope| {
                scope.spawn(|| {
                    from.write_all(&bytes).unwrap();
                    from.shutdown(Shutdown::Write).unwrap();
                });
                expect_all(&mut to, &bytes);
            });
            let took = begun.elapsed();
            println!("buffer {buffer}, swapped {swapped}: {took:?}");
            // The limit is one second on an idle machine; a stall never ends.
            assert!(took < Duration::from_secs(20), "{buffer}: {took:?}");
        }
    }
}

#[test]
fn bytes_come_out_as_they_went_in_both_ways_at_once() {
    let Some(made) = certificates() else {
        return;
    };
    let facing = facing(made, &[]);
    let (mut client, mut server) = facing.pair();
    both_ways(&mut client, &mut server, 20_000_000);
    let log = facing.decrypts.says("closed, ");
    assert!(
        log.contains("up=20000000 down=20000000") && log.contains("TLSv1_3"),
        "{log}"
    );
}

#[test]
fn one_record_and_then_silence_arrives() {
    let Some(made) = certificates() else {
        return;
    };
    for buffer in ["1", "5000", "256k"] {
        let facing = facing(made, &["--buffer", buffer]);
        let (mut client, mut server) = facing.pair();
        for n in [1, 100, 16_384, 16_385, 40_000] {
            let bytes = Seed::new(n as u64).bytes(n);
            client.write_all(&bytes).unwrap();
            let mut got = vec![0; n];
            server.read_exact(&mut got).unwrap();
            assert!(got == bytes, "{buffer} {n}");
            server.write_all(&bytes).unwrap();
            client.read_exact(&mut got).unwrap();
            assert!(got == bytes, "{buffer} {n}");
        }
    }
}

#[test]
fn half_an_end_and_resets_pass_through_tls() {
    let Some(made) = certificates() else {
        return;
    };
    let facing = facing(made, &[]);
    let (mut client, mut server) = facing.pair();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    expect_all(&mut server, b"question");
    server.write_all(b"answer").unwrap();
    drop(server);
    expect_all(&mut client, b"answer");

    let (mut client, mut server) = facing.pair();
    client.write_all(b"half").unwrap();
    server.read_exact(&mut [0; 4]).unwrap();
    socket2::SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(client);
    expect_reset(&mut server);
}

/// A killed relay leaves a reset; a peer without close_notify leaves an end of the TCP stream in
/// the middle of TLS.
#[test]
fn an_end_without_close_notify_is_a_reset() {
    let Some(made) = certificates() else {
        return;
    };
    let facing = facing(made, &[]);
    // A proxy that forwards bytes, and then a FIN.
    let between = server();
    let there = format!("localhost:{}/tls", between.local_addr().unwrap().port());
    let encrypts = Relay::start(&["127.0.0.1:0", &there, "--ca", &made.path("ca.pem")]);
    let mut client = encrypts.connect();
    let one = accept(&between);
    let other = TcpStream::connect(facing.decrypts.address()).unwrap();
    let pumps = [(&one, &other), (&other, &one)].map(|(from, to)| {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut part) {
                to.write_all(&part[..n]).unwrap();
            }
        })
    });
    let mut server = accept(&facing.listener);
    client.write_all(b"whole?").unwrap();
    server.read_exact(&mut [0; 6]).unwrap();
    other.shutdown(Shutdown::Write).unwrap();
    expect_reset(&mut server);
    facing.decrypts.says("close_notify");
    let _ = one.shutdown(Shutdown::Both);
    let _ = other.shutdown(Shutdown::Both);
    for pump in pumps {
        let _ = pump.join();
    }
}

#[test]
fn clients_need_a_certificate_with_one_of_the_names() {
    let Some(made) = certificates() else {
        return;
    };
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let (key, cert, ca) = (
        made.path("server.key"),
        made.path("server.pem"),
        made.path("ca.pem"),
    );
    let decrypts = Relay::start(&[
        "127.0.0.1:0/tls",
        &to,
        "--key",
        &key,
        "--cert",
        &cert,
        "--client-ca",
        &ca,
        "--client-name",
        "alice",
    ]);
    let there = format!("localhost:{}/tls", decrypts.address().port());
    let with = |name: Option<&str>| {
        let files = name.map(|name| {
            (
                made.path(&format!("{name}.key")),
                made.path(&format!("{name}.pem")),
            )
        });
        let mut words = vec!["127.0.0.1:0", &there, "--ca", &ca];
        if let Some((key, cert)) = &files {
            words.extend(["--key", key, "--cert", cert]);
        }
        Relay::start(&words)
    };
    let alice = with(Some("alice"));
    let (mut client, mut server) = alice.pair(&listener);
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut [0; 5]).unwrap();
    let log = decrypts.log();
    for (name, said) in [
        (Some("bob"), "--client-name"),
        (None, "reset: the client broke"),
    ] {
        let relay = with(name);
        expect_reset(&mut relay.connect());
        let before = log.matches(said).count();
        assert!(
            decrypts.says(said).matches(said).count() > before,
            "{name:?}"
        );
    }
    listener.set_nonblocking(true).unwrap();
    assert!(
        listener.accept().is_err(),
        "the server was asked for a stranger"
    );
}

#[test]
fn a_server_that_nobody_vouches_for_is_not_talked_to() {
    let Some(made) = certificates() else {
        return;
    };
    let facing = facing(made, &[]);
    let port = facing.decrypts.address().port();
    let there = format!("localhost:{port}/tls");
    let ca = made.path("ca.pem");
    for (flags, why) in [
        (
            &["--ca", &*made.path("alice.pem")][..],
            "signed by an untrusted authority",
        ),
        (
            &["--ca", &ca, "--server-name", "other"],
            "is for localhost, 127.0.0.1, not for other",
        ),
    ] {
        let relay = Relay::start(&[&["127.0.0.1:0", &there], flags].concat());
        let mut client = relay.connect();
        expect_reset_at(&mut client, b"secret");
        relay.says(why);
    }
}

#[test]
fn garbage_and_slow_handshakes_end_with_one_line() {
    let Some(made) = certificates() else {
        return;
    };
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let (key, cert) = (made.path("server.key"), made.path("server.pem"));
    let decrypts = Relay::start(&[
        "127.0.0.1:0/tls",
        &to,
        "--key",
        &key,
        "--cert",
        &cert,
        "--entry-timeout",
        "500ms",
    ]);
    let mut silent: Vec<_> = (0..50).map(|_| decrypts.connect()).collect();
    for nth in 0..20 {
        let mut client = decrypts.connect();
        let _ = client.write_all(&Seed::new(nth).bytes(100 + nth as usize * 50));
        let _ = client.shutdown(Shutdown::Write);
        // An alert and an end, or a reset.
        let _ = client.read_to_end(&mut Vec::new());
    }
    for client in &mut silent {
        expect_reset(client);
    }
    testkit::wait::up_to(Duration::from_secs(5), || {
        decrypts.log().lines().count() >= 70
    });
    assert_eq!(decrypts.log().lines().count(), 70, "{}", decrypts.log());
    let _: PathBuf = made.path("ca.pem").into();
}

#[test]
fn files_that_make_no_tls_are_said() {
    let Some(made) = certificates() else {
        return;
    };
    let (key, cert) = (made.path("server.key"), made.path("server.pem"));
    for (words, word) in [
        (&["0/tls", "h:22"][..], "--cert and --key"),
        (&["0/tls", "h:22", "--key", &key], "must be given together"),
        (&["0/tls", "h:22", "--key", &cert, "--cert", &cert], "--key"),
        (
            &["0/tls", "h:22", "--key", &key, "--cert", &key],
            "no certificate",
        ),
        (&["0", "h:22/tls", "--ca", "/nowhere"], "/nowhere"),
        (
            &["0.0.0.0:0/tls", "h:22", "--key", &key, "--cert", &cert],
            "--allow",
        ),
    ] {
        let outcome = testkit::Run::new(longhaul_tests::longhaul())
            .arg("relay")
            .args(words)
            .run();
        outcome.expect_code(2).expect_err(&[word]);
    }
}

/// Runs the commands of the man page in a folder of their own, with the host name replaced.
fn run_recipe(folder: &std::path::Path) {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/man/longhaul-relay.1");
    let page = std::fs::read_to_string(page).unwrap().replace("\\-", "-");
    let (_, section) = page.split_once(".SH CERTIFICATES").unwrap();
    let section = section.split(".SH").next().unwrap();
    let commands: Vec<&str> = section
        .lines()
        .filter_map(|line| line.strip_prefix("\\fB")?.strip_suffix("\\fR"))
        .filter(|line| line.starts_with("openssl req") || line.starts_with("openssl x509"))
        .collect();
    assert_eq!(commands.len(), 4, "{section}");
    for command in commands {
        let command = command.replace("relay.example", "localhost");
        let mut words = command.split_whitespace();
        let mut run = Command::new(words.next().unwrap());
        let done = run.args(words).current_dir(folder).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{command}: {said}");
    }
}

/// `openssl req -x509` makes a certificate that is its own authority. Given as --ca or --client-ca,
/// it was refused.
#[test]
fn certificates_made_by_the_recipe_of_the_man_page_work() {
    if find_program("openssl").is_none() {
        missing::skip("openssl", "Debian: openssl");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    run_recipe(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let of = |name: &str| (file(&format!("{name}.pem")), file(&format!("{name}.key")));
    for (server_is, ca) in [("relay", "relay.pem"), ("host", "ca.pem")] {
        for (client_is, client_ca) in [("relay", "relay.pem"), ("host", "ca.pem")] {
            let listener = server();
            let to = listener.local_addr().unwrap().to_string();
            let ((cert, key), client_ca) = (of(server_is), file(client_ca));
            let decrypts = Relay::start(&[
                "127.0.0.1:0/tls",
                &to,
                "--cert",
                &cert,
                "--key",
                &key,
                "--client-ca",
                &client_ca,
            ]);
            let there = format!("localhost:{}/tls", decrypts.address().port());
            let ((cert, key), ca) = (of(client_is), file(ca));
            let encrypts = Relay::start(&[
                "127.0.0.1:0",
                &there,
                "--ca",
                &ca,
                "--cert",
                &cert,
                "--key",
                &key,
            ]);
            let (mut client, mut server) = encrypts.pair(&listener);
            both_ways(&mut client, &mut server, 10_000);
        }
    }
    // Another certificate and another name are rejected with a readable error.
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let (cert, key) = of("relay");
    let decrypts = Relay::start(&["127.0.0.1:0/tls", &to, "--cert", &cert, "--key", &key]);
    let port = decrypts.address().port();
    for (host, ca, why) in [
        (
            "localhost",
            "host.pem",
            "is an authority's own certificate (CA:TRUE)",
        ),
        (
            "127.0.0.1",
            "relay.pem",
            "is for localhost, not for 127.0.0.1",
        ),
    ] {
        let there = format!("{host}:{port}/tls");
        let relay = Relay::start(&["127.0.0.1:0", &there, "--ca", &file(ca)]);
        let _client = relay.connect();
        let log = relay.says(why);
        assert!(!log.contains("Error("), "{log}");
    }
}
