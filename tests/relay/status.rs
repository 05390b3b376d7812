//! Status of a relay for programs, browsers and terminals.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use longhaul_tests::longhaul;
use testkit::{Run, missing, wait};

use crate::world::{Relay, SOON, bounded, server};

fn get(address: &str, path: &str, host: &str) -> String {
    let mut stream = bounded(TcpStream::connect(address).expect("it listens"));
    let asked = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(asked.as_bytes()).unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).expect("an answer");
    told
}

/// Returns the address of the status page of a relay started with --status 127.0.0.1:0.
fn status_of(relay: &Relay) -> String {
    let at = relay.listening.iter().find_map(|at| {
        let rest = at.strip_prefix("status at http://")?;
        rest.strip_suffix('/')
    });
    at.expect("it says where").to_owned()
}

#[test]
fn live_connections_are_shown_with_what_they_move() {
    let listener = server();
    let folder = tempfile::tempdir().unwrap();
    let metrics = folder.path().join("metrics").display().to_string();
    let flags = ["--status", "127.0.0.1:0", "--metrics", &metrics];
    let relay = Relay::to(&flags, &listener);
    let at = status_of(&relay);
    let (mut client, mut server) = relay.pair(&listener);
    client.write_all(&[7; 100_000]).unwrap();
    server.read_exact(&mut vec![0; 100_000]).unwrap();
    server.write_all(&[7; 3000]).unwrap();
    client.read_exact(&mut vec![0; 3000]).unwrap();
    let name = client.local_addr().unwrap().to_string();
    // The chart needs a second of history.
    let page = wait::found(
        SOON,
        || Some(get(&at, "/", &at)).filter(|page| page.contains("<polyline class=up")),
        || get(&at, "/", &at),
    );
    assert!(
        page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html"),
        "{page}"
    );
    for text in [
        &*name,
        "100 kB",
        "3.0 kB",
        " ms, ",
        "Content-Security-Policy: default-src 'none'",
        // Without scripts the page reloads itself as well.
        "<noscript><meta http-equiv=refresh",
    ] {
        assert!(page.contains(text), "{text} in {page}");
    }
    for path in ["/page.js", "/page.css"] {
        assert!(get(&at, path, &at).starts_with("HTTP/1.1 200 OK"), "{path}");
    }
    let json = get(&at, "/status.json", "localhost");
    let (_, body) = json.split_once("\r\n\r\n").unwrap();
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(status["listed"][0]["client"]["peer"], *name);
    assert_eq!(
        status["listed"][0]["bytes"],
        serde_json::json!([100_000, 3000])
    );
    assert_eq!(status["relays"][0]["connections"], 1);
    // Prometheus gets the same, twice.
    let mut stream = UnixStream::connect(&metrics).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    for told in [told, get(&at, "/metrics", "127.0.0.1")] {
        let line = told.lines().find(|line| line.contains("way=\"up\""));
        assert!(
            line.is_some_and(|line| line.ends_with("} 100000")),
            "{told}"
        );
    }
    // A foreign host name that resolves to this machine is rejected (DNS rebinding).
    for host in ["attacker.example", "attacker.example:80", "192.0.2.1"] {
        let told = get(&at, "/status.json", host);
        assert!(
            told.starts_with("HTTP/1.1 421 ") && !told.contains(&name),
            "{told}"
        );
    }
    let top = Run::new(longhaul())
        .args(["relay", "top", &at])
        .run()
        .expect_code(0);
    let out = top.out();
    assert!(out.contains(&name) && out.contains("100 kB"), "{out}");
    drop((client, server));
    let log = relay.says("connection=");
    assert!(
        log.contains("up=100000") && log.contains("down=3000"),
        "{log}"
    );
    let ended = || get(&at, "/metrics", "127.0.0.1");
    wait::until(
        SOON,
        || {
            ended().contains("longhaul_relay_accepted_total")
                && ended().contains("how=\"closed\"} 1")
        },
        ended,
    );
}

#[test]
fn top_says_where_nobody_answers() {
    let gone = server();
    let at = gone.local_addr().unwrap().to_string();
    drop(gone);
    let run = |at: &str| Run::new(longhaul()).args(["relay", "top", at]).run();
    run(&at)
        .expect_code(1)
        .expect_err(&[&format!("cannot get the status of a relay from {at}")]);
    run("nonsense").expect_code(1).expect_err(&["--status"]);
}

/// Silent clients and invalid requests do not keep others from being served.
#[test]
fn those_who_say_nothing_hold_nobody_up() {
    let listener = server();
    let relay = Relay::to(&["--status", "127.0.0.1:0"], &listener);
    let at = status_of(&relay);
    let _silent: Vec<_> = (0..5).map(|_| TcpStream::connect(&at).unwrap()).collect();
    assert!(get(&at, "/", &at).starts_with("HTTP/1.1 200"));
    let mut stream = bounded(TcpStream::connect(&at).unwrap());
    stream.write_all(&[b'x'; 40_000]).unwrap_or_default();
    // The connection may be closed while the client still sends.
    let _ = stream.read_to_end(&mut Vec::new());
    assert!(get(&at, "/", &at).starts_with("HTTP/1.1 200"));
}

/// In a browser, the page updates itself with a script.
#[test]
fn a_browser_shows_the_page_and_keeps_it_new() {
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let Some(browser) = names.into_iter().find_map(missing::find_program) else {
        missing::not_here("no chromium is installed");
        return;
    };
    let listener = server();
    let inner = Relay::to(&["--status", "127.0.0.1:0"], &listener);
    let (mut client, mut server) = inner.pair(&listener);
    client.write_all(&[7; 5000]).unwrap();
    server.read_exact(&mut [0; 5000]).unwrap();
    let name = client.local_addr().unwrap().to_string();
    let at = status_of(&inner);
    wait::until(
        SOON,
        || get(&at, "/", &at).contains("<polyline"),
        || "nothing has moved".to_owned(),
    );
    // Another relay counts the requests: one connection each.
    let outer = Relay::start(&["127.0.0.1:0", &at]);
    let page = format!("http://{}/", outer.address());
    let profile = tempfile::tempdir().unwrap();
    let show = || {
        let run = Run::new(&browser)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--enable-logging=stderr",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(["--virtual-time-budget=30000", "--dump-dom", &page]);
        let outcome = run.timeout(6 * SOON).run().expect_code(0);
        // Errors of scripts, and what the page's content security policy blocks.
        let said = outcome.err();
        assert!(!said.contains("CONSOLE"), "{said}");
        outcome.out()
    };
    let asked = || outer.log().matches("closed").count();
    let shown = std::thread::scope(|scope| {
        // The first page is outdated by the time the browser shows it.
        scope.spawn(|| {
            wait::up_to(6 * SOON, || asked() >= 4);
            client.write_all(&[7; 70_000]).unwrap();
            server.read_exact(&mut vec![0; 70_000]).unwrap();
        });
        show()
    });
    for text in [&*name, "75 kB", "<svg ", "<polyline class=\"up\" points="] {
        assert!(shown.contains(text), "{text} in {shown}");
    }
    assert!(!shown.contains("class=\"stale\""), "{shown}");
    let with_script = asked();
    assert!(with_script >= 5, "{with_script} requests:\n{}", outer.log());
}
