//! Transfers without a cipher between `longhaul cp` and `longhaul serve --listen`: only if both
//! were told so.

use std::fs;

use longhaul_tests::{Scene, longhaul};
use testkit::delay_proxy::Way;
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;
use testkit::{DelayProxy, Seed};

const CLEAR: &str = "NOT ENCRYPTED";
const UNPROVEN: &str = "NOT AUTHENTICATED";
/// Warning in the server's log.
const TOLD: &str =
    "data is NOT ENCRYPTED: the client requested it and --insecure-none-cipher allows it";

const CIPHER: &str = "--insecure-none-cipher";
const MAC: &str = "--insecure-none-mac";

/// Starts longhaul's server with these flags; `None` if the program under test is scp.
fn serving(flags: &[&str]) -> Option<Scene> {
    let scene = Scene::with(PeerBuilder::longhaul(longhaul(), flags.iter().copied()));
    let scene = scene.expect("longhaul is there");
    let content = Seed::new(11).bytes(9_000_001);
    write_file(&scene.path("file"), &content);
    (!scene.client.is_scp()).then_some(scene)
}

/// Copies a file up and down; returns the client's output for each, and the server's log for both.
fn there_and_back(scene: &Scene, flags: &[&str]) -> (Vec<String>, Vec<String>) {
    let before = scene.peer.log().len();
    let (file, back) = (scene.path("file"), scene.path("back"));
    let _ = fs::remove_file(&back);
    let ways = [
        (file.clone().into_os_string(), scene.remote("there")),
        (scene.remote("there"), back.clone().into_os_string()),
    ];
    let said = ways.map(|(from, to)| {
        let run = scene.client.cp().args(["--connections", "1"]).args(flags);
        run.arg(from).arg(to).run().expect_code(0).err()
    });
    let content = fs::read(file).expect("ours");
    for name in ["there", "back"] {
        let copy = fs::read(scene.path(name)).expect("it is there");
        assert!(copy == content, "{name} differs");
    }
    let log = scene.peer.log();
    let told = log[before..].lines().filter(|line| line.contains(TOLD));
    (said.into(), told.map(str::to_owned).collect())
}

#[test]
fn where_both_were_told_there_is_no_cipher_and_both_say_so() {
    for (server, client, mac) in [
        (CIPHER, CIPHER, true),
        (CIPHER, MAC, true),
        (MAC, CIPHER, true),
        (MAC, MAC, false),
    ] {
        let Some(scene) = serving(&[server]) else {
            return;
        };
        // Even with -q.
        for flags in [&[client][..], &[client, "-q"]] {
            let (said, told) = there_and_back(&scene, flags);
            for said in said {
                assert!(said.contains(CLEAR), "{flags:?}: {said:?}");
                assert_eq!(said.contains(UNPROVEN), !mac, "{flags:?}: {said:?}");
            }
            assert_eq!(told.len(), 2, "a line for each connection: {told:?}");
            let kept = |line: &String| line.contains("mac=\"hmac-sha2-");
            assert!(told.iter().all(|line| kept(line) == mac), "{told:?}");
        }
        // The server also warns once at its start, before any client.
        let log = scene.peer.log();
        assert!(log.contains("are NOT ENCRYPTED"), "{log}");
    }
}

/// Without cipher and MAC, file data is sent straight from the kernel's pages, and AES-GCM encrypts
/// it straight from them; with a MAC alone it is copied into packets.
#[test]
fn files_stay_where_they_are_as_long_as_the_cipher_bears_it() {
    for (flag, words) in [
        (MAC, "sent directly from the page cache"),
        (CIPHER, "copied into packets"),
    ] {
        let Some(scene) = serving(&[flag, "-v"]) else {
            return;
        };
        let (said, _) = there_and_back(&scene, &[flag, "-vv"]);
        let line = |stay: &str| format!("new session keys; file data is {stay}");
        assert!(said.iter().all(|said| said.contains(words)), "{said:?}");
        let log = scene.peer.log();
        assert_eq!(log.matches(&line(words)).count(), 2, "{log}");
        // Before the cipher was disabled.
        let words = "encrypted directly from the page cache";
        let sealed = line(words);
        assert!(said.iter().all(|said| said.contains(words)), "{said:?}");
        assert!(log.contains(&sealed), "{log}");
    }
}

#[test]
fn new_keys_on_the_way_do_not_bring_the_cipher_back() {
    for flag in [CIPHER, MAC] {
        let Some(scene) = serving(&[flag]) else {
            return;
        };
        let (said, told) = there_and_back(&scene, &[flag, "-o", "RekeyLimit=1M"]);
        assert!(
            said.iter().all(|said| said.matches(CLEAR).count() == 1),
            "{said:?}"
        );
        assert_eq!(told.len(), 2, "{told:?}");
    }
}

#[test]
fn where_one_end_was_not_told_everything_is_encrypted() {
    let Some(scene) = serving(&[]) else { return };
    for flag in [CIPHER, MAC] {
        let (said, told) = there_and_back(&scene, &[flag]);
        for said in said {
            let says = said
                .contains("the server refused to turn encryption off, so the data is encrypted");
            assert!(says && !said.contains(CLEAR), "{said}");
        }
        assert!(told.is_empty(), "{told:?}");
    }
    let Some(scene) = serving(&[MAC]) else { return };
    let (said, told) = there_and_back(&scene, &[]);
    assert!(said.iter().all(|said| !said.contains(CLEAR)), "{said:?}");
    assert!(told.is_empty(), "{told:?}");
}

/// Data without cipher and MAC is sent from the file's own pages. If the file changes meanwhile,
/// its new content must not pass for the old.
#[test]
fn a_file_that_shrinks_while_it_is_sent_from_where_it_is() {
    let Some(mut scene) = serving(&[MAC]) else {
        return;
    };
    let content = fs::read(scene.path("file")).expect("ours");
    let name = "shrinking";
    let proxy = DelayProxy::to(scene.peer.addr()).rate(6_000_000).start();
    let dir = &mut scene.client.dir;
    dir.add_host_at("peer", &scene.peer, proxy.port());
    for (way, left) in [Way::Up, Way::Down]
        .into_iter()
        .flat_map(|way| [0, 500_000, 1_500_000, 2_000_000].map(|left| (way, left)))
    {
        let _ = fs::remove_file(scene.path("copy"));
        write_file(&scene.path(name), &content);
        let before = proxy.carried(way);
        let (file, copy) = (scene.path(name), scene.path("copy"));
        let (from, to) = match way {
            Way::Up => (file.clone().into_os_string(), scene.remote("copy")),
            Way::Down => (scene.remote(name), copy.clone().into_os_string()),
        };
        // Compression is not tried either.
        let flags = ["--connections", "1", "--compress=never", MAC];
        let running = scene.client.cp().args(flags);
        let running = running.arg(from).arg(to).spawn();
        assert!(running.until(|| proxy.carried(way) > before + 1_000_000));
        let file = fs::OpenOptions::new().write(true).open(file);
        file.and_then(|file| file.set_len(left)).expect("our file");
        let outcome = running.wait();
        assert!(!outcome.timed_out, "{outcome}");
        match outcome.success() {
            true => {
                let copy = fs::read(copy).expect("it is there");
                assert!(copy.len() as u64 >= left, "{outcome}");
                assert!(
                    content.starts_with(&copy),
                    "bytes that never were in the file\n{outcome}"
                );
            }
            false => {
                // The sender continues over another connection. A server cannot open one, and this
                // client does not if little has been copied yet.
                assert!(way == Way::Down, "{outcome}");
                assert!(matches!(outcome.code, Some(1 | 255)), "{outcome}");
                outcome.expect_err(&[name]);
                assert!(!copy.exists());
            }
        }
    }
}
