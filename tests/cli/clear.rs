//! Without a cipher, between `longhaul cp` and `longhaul serve --listen`: only where both were told so.

use std::fs;

use longhaul_tests::{Scene, longhaul};
use testkit::Seed;
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;

const CLEAR: &str = "NOT ENCRYPTED";
const UNPROVEN: &str = "NOT AUTHENTICATED";
/// Whoever is told by the server's log.
const TOLD: &str = "NOT ENCRYPTED: the client and this server were told to do without";

const CIPHER: &str = "--insecure-none-cipher";
const MAC: &str = "--insecure-none-mac";

/// Our server with these flags; None where the program under test is scp.
fn serving(flags: &[&str]) -> Option<Scene> {
    let scene = Scene::with(PeerBuilder::longhaul(longhaul(), flags.iter().copied()));
    let scene = scene.expect("longhaul is there");
    let content = Seed::new(11).bytes(9_000_001);
    write_file(&scene.path("file"), &content);
    (!scene.client.is_scp()).then_some(scene)
}

/// A copy there and one back; what the client said of each, and what the server wrote of both.
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
        // Whatever -q says.
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
        // It is said once, before anybody comes, as well.
        let log = scene.peer.log();
        assert!(log.contains("will NOT BE ENCRYPTED"), "{log}");
    }
}

#[test]
fn new_keys_on_the_way_do_not_bring_the_cipher_back() {
    let Some(scene) = serving(&[CIPHER]) else {
        return;
    };
    let (said, told) = there_and_back(&scene, &[CIPHER, "-o", "RekeyLimit=1M"]);
    assert!(
        said.iter().all(|said| said.matches(CLEAR).count() == 1),
        "{said:?}"
    );
    assert_eq!(told.len(), 2, "{told:?}");
}

#[test]
fn where_one_end_was_not_told_everything_is_encrypted() {
    let Some(scene) = serving(&[]) else { return };
    for flag in [CIPHER, MAC] {
        let (said, told) = there_and_back(&scene, &[flag]);
        for said in said {
            let says = said.contains("was not told to do without encryption");
            assert!(says && !said.contains(CLEAR), "{said}");
        }
        assert!(told.is_empty(), "{told:?}");
    }
    let Some(scene) = serving(&[MAC]) else { return };
    let (said, told) = there_and_back(&scene, &[]);
    assert!(said.iter().all(|said| !said.contains(CLEAR)), "{said:?}");
    assert!(told.is_empty(), "{told:?}");
}
