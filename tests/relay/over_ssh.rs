//! Pairs whose peer relay is started over ssh: they carry what any pair carries, and end with the
//! relay that has started them.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use longhaul_tests::both_ends::BothEnds;
use longhaul_tests::facing::Keys;
use longhaul_tests::longhaul;
use rustix::process::{Pid, Signal, kill_process};
use testkit::tree::write_file;
use testkit::{Seed, wait};

use crate::world::{Relay, accept, both_ways, expect_all, server};

/// Time limit for logins and shells on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn ends() -> Option<BothEnds> {
    let ends = BothEnds::start()?;
    ends.install();
    Some(ends)
}

fn config(ends: &BothEnds) -> String {
    ends.scene.client.dir.config().display().to_string()
}

/// Starts a relay to this listener by way of relays over ssh.
fn relay_to(ends: &BothEnds, listener: &TcpListener, flags: &[&str]) -> Relay {
    let to = format!("ssh://peer/{}", listener.local_addr().unwrap());
    let config = config(ends);
    let words = [&["127.0.0.1:0", "-F", &config, &to], flags].concat();
    Relay::start(&words)
}

/// Sends this many bytes each way at once, and then ends both streams.
fn there_and_back(relay: &Relay, listener: &TcpListener, bytes: usize) {
    let (mut client, mut server) = relay.pair(listener);
    both_ways(&mut client, &mut server, bytes);
}

/// Returns the processes of longhaul at the far end.
fn halves(ends: &BothEnds) -> Vec<u32> {
    let mut all = ends.scene.peer.processes();
    all.retain(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.starts_with("longhaul"))
    });
    all
}

#[track_caller]
fn none_is_left(ends: &BothEnds) {
    wait::until(
        PATIENCE,
        || ends.scene.peer.sessions().is_empty(),
        || format!("{:?} run on", halves(ends)),
    );
}

#[test]
fn a_half_is_started_over_ssh_and_ends_with_who_started_it() {
    let Some(ends) = ends() else { return };
    let listener = server();
    let relay = relay_to(&ends, &listener, &["--stripes", "3"]);
    relay.says("is the peer relay, at 127.0.0.1:");
    there_and_back(&relay, &listener, 10_000_000);
    // The number of stripes still open by then varies.
    relay.says(" stripes of 3, ");
    assert_eq!(halves(&ends).len(), 1);
    relay.signal(Signal::KILL);
    none_is_left(&ends);
}

#[test]
fn nothing_is_left_whenever_it_is_killed() {
    let Some(ends) = ends() else { return };
    let listener = server();
    let to = format!("ssh://peer/{}", listener.local_addr().unwrap());
    let lines = || ends.scene.peer.log().lines().count();
    // The stages of a start: lines that sshd logs, and the relay at the far end.
    let before = lines();
    let relay = relay_to(&ends, &listener, &[]);
    relay.says("is the peer relay, at 127.0.0.1:");
    let stages = lines() - before;
    relay.signal(Signal::KILL);
    none_is_left(&ends);
    assert!(stages > 2, "{}", ends.scene.peer.log());
    for stage in 0..=stages {
        let before = lines();
        let mut child = Command::new(longhaul())
            .args(["relay", "127.0.0.1:0", "-F", &config(&ends), &to])
            .env("XDG_STATE_HOME", "/nonexistent")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let reached = || match stage == stages {
            true => !halves(&ends).is_empty(),
            false => lines() >= before + stage,
        };
        wait::until(PATIENCE, reached, || ends.scene.peer.log());
        child.kill().unwrap();
        child.wait().unwrap();
        none_is_left(&ends);
    }
}

#[test]
fn a_half_that_dies_is_started_again() {
    let Some(ends) = ends() else { return };
    let listener = server();
    let relay = relay_to(&ends, &listener, &[]);
    let (mut client, _server) = relay.pair(&listener);
    client.write_all(b"x").unwrap();
    let [half] = halves(&ends)[..] else {
        panic!("there is one")
    };
    kill_process(Pid::from_raw(half.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let ended = client.read_to_end(&mut Vec::new());
    assert!(ended.is_err(), "a reset is no end of file");
    relay.says("starting the relays on the hosts again");
    let restarted = || {
        let log = relay.log();
        log.matches("is the peer relay, at").count() >= 2 && log.contains("reloaded")
    };
    wait::until(PATIENCE, restarted, || relay.log());
    there_and_back(&relay, &listener, 100_000);
}

#[test]
fn where_the_port_cannot_be_reached_data_go_over_ssh() {
    let Some(mut ends) = ends() else { return };
    let port = ends.scene.peer.port();
    let command = format!("{} dial 127.0.0.1 {port}", longhaul().display());
    ends.scene.client.dir.set("peer", "ProxyCommand", command);
    let listener = server();
    let relay = relay_to(&ends, &listener, &[]);
    let log = relay.says("data goes over the ssh connection:");
    assert!(log.contains("ProxyCommand"), "{log}");
    there_and_back(&relay, &listener, 5_000_000);
    // Several connections at once, of which one does not read.
    let (stalled, mut silent) = relay.pair(&listener);
    silent
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    while silent.write_all(&[7; 65_536]).is_ok() {}
    there_and_back(&relay, &listener, 2_000_000);
    drop(stalled);
    relay.signal(Signal::KILL);
    none_is_left(&ends);
}

#[test]
fn what_is_missing_there_is_said_with_what_to_do() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    let refused = |script: Option<&str>| {
        if let Some(script) = script {
            ends.install_script(script);
        }
        let outcome = ends.scene.client.dir.run(longhaul());
        let outcome = outcome.args(["relay", "127.0.0.1:0", "-F", &config(&ends)]);
        let outcome = outcome
            .arg("ssh://peer/localhost:9")
            .timeout(PATIENCE)
            .run();
        outcome.expect_code(1).err()
    };
    let said = refused(None);
    assert!(
        said.contains("longhaul is not installed there")
            && said.contains("run longhaul bootstrap ")
            && said.contains(" peer, "),
        "{said}"
    );
    let said = refused(Some("echo it is older >&2; exit 2"));
    assert!(said.contains("older than this one"), "{said}");
    let said = refused(Some("echo; echo longhaul-half 7; exec cat"));
    assert!(said.contains("upgrade the older"), "{said}");
}

#[test]
fn a_chain_of_halves_leads_to_the_target() {
    let Some(mut ends) = ends() else { return };
    // Another name of the same server, which is reached through it.
    let port = ends.scene.peer.port();
    ends.scene
        .client
        .dir
        .add_host_at("behind", &ends.scene.peer, port);
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let config = config(&ends);
    let words = ["127.0.0.1:0", "-F", &config, "--via", "peer,behind", &to];
    let relay = Relay::start(&words);
    let log = relay.says("is the peer relay, at 127.0.0.1:");
    assert!(!log.contains("over ssh"), "{log}");
    assert_eq!(halves(&ends).len(), 2);
    there_and_back(&relay, &listener, 5_000_000);
    relay.signal(Signal::KILL);
    none_is_left(&ends);
}

/// Returns the error of a chain that cannot be set up.
fn no_chain(ends: &BothEnds, via: &str) -> String {
    let outcome = ends.scene.client.dir.run(longhaul());
    let words = ["relay", "127.0.0.1:0", "--via", via, "localhost:9", "-F"];
    let outcome = outcome.args(words).arg(config(ends));
    let said = outcome.timeout(PATIENCE).run().expect_code(1).err();
    none_is_left(ends);
    said
}

#[test]
fn a_chain_that_lacks_a_host_says_which_and_leaves_nothing() {
    let Some(mut ends) = ends() else { return };
    let gone = server();
    let port = gone.local_addr().unwrap().port();
    drop(gone);
    let dir = &mut ends.scene.client.dir;
    dir.add_host_at("nowhere", &ends.scene.peer, port);
    let port = ends.scene.peer.port();
    dir.add_host_at("behind", &ends.scene.peer, port);
    for (via, why) in [
        ("nowhere,peer", "nowhere: cannot connect to 127.0.0.1 port "),
        ("peer,nowhere", "nowhere: cannot connect to 127.0.0.1 port "),
    ] {
        let said = no_chain(&ends, via);
        assert!(said.contains(&format!("error: {why}")), "{said}");
        assert_eq!(said.matches("error").count(), 1, "{said}");
    }
    // The second relay to be started has no longhaul.
    let once = ends.scene.path("once");
    let real = longhaul();
    let (real, once) = (real.display(), once.display());
    ends.install_script(&format!(
        "mkdir {once} && exec {real} \"$@\"\necho longhaul-absent Linux x86_64"
    ));
    let said = no_chain(&ends, "peer,behind");
    assert!(
        said.contains("behind: longhaul is not installed there"),
        "{said}"
    );
}

#[test]
fn a_chain_begins_at_the_host_that_the_one_before_does_not_reach() {
    let Some(mut ends) = ends() else { return };
    let port = ends.scene.peer.port();
    let dir = &mut ends.scene.client.dir;
    dir.add_host_at("behind", &ends.scene.peer, port);
    // The second relay listens at a port that the first does not know.
    let once = ends.scene.path("once");
    let real = longhaul();
    let (real, once) = (real.display(), once.display());
    ends.install_script(&format!(
        "mkdir {once} 2>/dev/null && exec {real} \"$@\"\n\
         SSH_CONNECTION=\"127.0.0.1 1 127.0.0.9 22\" exec {real} \"$@\""
    ));
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let config = config(&ends);
    let words = ["127.0.0.1:0", "-F", &config, "--via", "peer,behind", &to];
    let relay = Relay::start(&words);
    let log = relay.says("data goes over the ssh connection:");
    assert!(
        log.contains("data passes this host over the ssh connection"),
        "{log}"
    );
    there_and_back(&relay, &listener, 2_000_000);
    wait::until(
        PATIENCE,
        || halves(&ends).len() <= 1,
        || "the first half runs on".to_owned(),
    );
    relay.signal(Signal::KILL);
    none_is_left(&ends);
}

#[test]
fn a_half_listens_where_it_may() {
    let Some(ends) = ends() else { return };
    let listener = server();
    // A port that is taken, and the next one, which is free.
    let (taken, free) = loop {
        let taken = server();
        let next = taken.local_addr().unwrap().port().saturating_add(1);
        if TcpListener::bind(("127.0.0.1", next)).is_ok() {
            break (taken, next);
        }
    };
    let range = format!("{}-{free}", free - 1);
    let relay = relay_to(&ends, &listener, &["--port-range", &range]);
    relay.says(&format!("is the peer relay, at 127.0.0.1:{free}"));
    there_and_back(&relay, &listener, 1_000_000);
    let range = taken.local_addr().unwrap().port().to_string();
    let relay = relay_to(&ends, &listener, &["--port-range", &range]);
    let log = relay.says("data goes over the ssh connection:");
    assert!(log.contains("none of the ports"), "{log}");
    there_and_back(&relay, &listener, 100_000);
}

#[test]
fn programs_of_ssh_go_through_it_as_a_proxy_command() {
    let Some(ends) = ends() else { return };
    let content = Seed::new(1).bytes(5_000_000);
    write_file(&ends.scene.path("file"), &content);
    let (longhaul, config, port) = (longhaul(), config(&ends), ends.scene.peer.port());
    let commands = [
        format!(
            "{} relay -F {config} - ssh://peer/127.0.0.1:{port}",
            longhaul.display()
        ),
        format!(
            "{} dial -F {config} --via peer 127.0.0.1 {port}",
            longhaul.display()
        ),
    ];
    for (nth, command) in commands.into_iter().enumerate() {
        let there = ends.scene.path(&format!("there{nth}"));
        let option = format!("ProxyCommand={command}");
        let scp = ends.scene.client.dir.run("scp");
        let scp = scp.args(["-F", &config, "-o", &option]);
        let scp = scp.arg(ends.scene.path("file"));
        let scp = scp.arg(longhaul_tests::remote("peer", &there));
        scp.timeout(PATIENCE).run().expect_code(0);
        assert!(std::fs::read(&there).unwrap() == content, "{option}");
    }
    none_is_left(&ends);
}

#[test]
fn dial_goes_through_a_facing_relay_that_runs() {
    let keys = Keys::new();
    let listener = server();
    let to = listener.local_addr().unwrap().to_string();
    let words = keys.far("127.0.0.1:0/pair", &to, &[]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let far = Relay::start(&words);
    let home = longhaul_tests::scratch();
    let folder = home.path().join("longhaul");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(keys.file(0), folder.join("pair_key")).unwrap();
    std::fs::write(folder.join("known_pairs"), keys.print(1)).unwrap();
    let mut dial = Command::new(longhaul())
        .args(["dial", "--pair", &far.address().to_string(), "host", "22"])
        .env("XDG_STATE_HOME", home.path())
        .env("XDG_CONFIG_HOME", home.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut server = accept(&listener);
    dial.stdin.take().unwrap().write_all(b"there").unwrap();
    expect_all(&mut server, b"there");
    server.write_all(b"back").unwrap();
    drop(server);
    let output = dial.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"back");
    assert!(output.status.success());
}
