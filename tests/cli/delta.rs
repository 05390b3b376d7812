//! Delta transfers of files that the receiving end has in an older version, with longhaul's server
//! at the far end.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use longhaul_tests::both_ends::BothEnds;
use longhaul_tests::{Scene, names_in};
use testkit::Seed;
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;

use crate::serving::served;

const SIZE: usize = 20_000_000;

/// Creates an older version at `distance/file` and a newer one at `new/file`.
fn two_forms(scene: &Scene) -> Vec<u8> {
    let old = Seed::new(4).bytes(SIZE);
    let mut new = old.clone();
    new[5_000_000..5_001_000].copy_from_slice(&Seed::new(5).bytes(1000));
    new.splice(12_000_000..12_000_000, *b"some more");
    for (name, data) in [("far/file", &old), ("new/file", &new)] {
        let path = scene.path(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("our folder");
        write_file(&path, data);
    }
    let mode = fs::Permissions::from_mode(0o600);
    fs::set_permissions(scene.path("far/file"), mode).expect("ours");
    new
}

#[track_caller]
fn is_there(path: &Path, data: &[u8]) {
    assert!(fs::read(path).expect("it is there") == data);
    let folder = path.parent().expect("it has one");
    assert_eq!(names_in(folder).len(), 1, "no temporary is left");
}

#[test]
fn what_is_there_is_not_sent() {
    let Some(scene) = served("") else { return };
    let flag_sets: [&[&str]; 4] = [
        &["--delta"],
        &["--delta", "--verify"],
        &["--delta", "-p", "--fsync"],
        &["--delta", "-r", "--manifest=/dev/null"],
    ];
    for flags in flag_sets {
        let new = two_forms(&scene);
        let from = if flags.contains(&"-r") {
            "new/."
        } else {
            "new/file"
        };
        let run = scene.client.cp().args(flags).arg("--json");
        let outcome = run.arg(scene.path(from)).arg(scene.remote("far")).run();
        let said = outcome.expect_code(0).out();
        let reused = said.split("\"reused\":").nth(1).unwrap_or_default();
        let reused: String = reused.chars().take_while(char::is_ascii_digit).collect();
        let reused: usize = reused.parse().expect(&said);
        assert!(
            (SIZE - 20_000..SIZE).contains(&reused),
            "{flags:?}: {reused}"
        );
        is_there(&scene.path("far/file"), &new);
        let meta = fs::metadata(scene.path("far/file")).expect("it is there");
        if !flags.contains(&"-p") {
            assert_eq!(meta.permissions().mode() & 0o777, 0o600, "the mode stays");
        }
    }
}

#[test]
fn it_is_done_where_it_pays_and_can_be() {
    let Some(scene) = served("") else { return };
    let stock = Scene::with(PeerBuilder::openssh());
    // The decision by the round trip is tested in virtual time
    // (`between_near_machines_a_file_is_sent_whole`): a busy machine may look like a long path.
    let cases: [(Option<&Scene>, &[&str]); 3] = [
        (Some(&scene), &["--delta", "--no-delta"]),
        (Some(&scene), &["--delta", "--inplace"]),
        (stock.as_ref(), &["--delta"]),
    ];
    for (scene, flags) in cases {
        let Some(scene) = scene else { continue };
        let new = two_forms(scene);
        let run = scene.client.cp().args(flags).arg("--json");
        let run = run.arg(scene.path("new/file")).arg(scene.remote("far"));
        let said = run.run().expect_code(0).out();
        assert!(said.contains("\"reused\":0"), "{flags:?}: {said}");
        let stock = flags == ["--delta"];
        let told =
            said.contains("sending files whole, because longhaul is not in use at the far end");
        assert_eq!(told, stock, "{flags:?}: {said}");
        is_there(&scene.path("far/file"), &new);
    }
}

#[test]
fn a_drop_box_is_asked_for_nothing_of_what_it_has() {
    let Some(scene) = served("--write-only") else {
        return;
    };
    write_file(&scene.path("file"), &Seed::new(4).bytes(SIZE));
    fs::create_dir(scene.path("far")).expect("our folder");
    scene.copies(&["--delta"], scene.path("file"), scene.remote("far/file"));
    is_there(&scene.path("far/file"), &Seed::new(4).bytes(SIZE));
}

/// On the first visit to a host, the server's own SFTP server is available at once and longhaul
/// later.
#[test]
fn it_waits_for_a_longhaul_that_nobody_knew_of() {
    let Some(both) = BothEnds::start() else {
        return;
    };
    both.install();
    let scene = &both.scene;
    let new = two_forms(scene);
    let run = scene.client.cp().args(["--delta", "--json"]);
    let run = run.arg(scene.path("new/file"));
    let said = run.arg(scene.remote("far")).run().expect_code(0).out();
    assert!(!said.contains("\"reused\":0"), "{said}");
    is_there(&scene.path("far/file"), &new);
}

/// Creates a newer version at `distance/file` and an older one at `here/file`.
fn two_forms_down(scene: &Scene) -> Vec<u8> {
    let new = two_forms(scene);
    fs::create_dir_all(scene.path("here")).expect("our folder");
    fs::copy(scene.path("far/file"), scene.path("here/file")).expect("ours");
    write_file(&scene.path("far/file"), &new);
    new
}

#[test]
fn what_is_here_is_not_read() {
    let Some(scene) = served("") else { return };
    let flag_sets: [&[&str]; 5] = [
        &["--delta"],
        &["--delta", "--verify"],
        &["--delta", "--manifest=/dev/null"],
        &["--delta", "-p", "--fsync"],
        &["--delta", "-r", "--sparse"],
    ];
    for flags in flag_sets {
        let new = two_forms_down(&scene);
        let recursive = flags.contains(&"-r");
        let from = if recursive { "far/." } else { "far/file" };
        let run = scene.client.cp().args(flags).arg("--json");
        let outcome = run.arg(scene.remote(from)).arg(scene.path("here")).run();
        let said = outcome.expect_code(0).out();
        let reused = said.split("\"reused\":").nth(1).unwrap_or_default();
        let reused: String = reused.chars().take_while(char::is_ascii_digit).collect();
        let reused: usize = reused.parse().expect(&said);
        let most = (SIZE - 20_000..SIZE).contains(&reused);
        assert!(most, "{flags:?}: {reused}");
        is_there(&scene.path("here/file"), &new);
        let meta = fs::metadata(scene.path("here/file")).expect("it is there");
        if !flags.contains(&"-p") {
            assert_eq!(meta.permissions().mode() & 0o777, 0o600, "the mode stays");
        }
    }
}

#[test]
fn a_download_is_rebuilt_where_it_pays_and_can_be() {
    let Some(scene) = served("") else { return };
    let stock = Scene::with(PeerBuilder::openssh());
    // The decision by the round trip is tested in virtual time
    // (`between_near_machines_a_file_is_read_whole`): a busy machine may look like a long path.
    let cases: [(Option<&Scene>, &[&str]); 3] = [
        (Some(&scene), &["--delta", "--no-delta"]),
        (Some(&scene), &["--delta", "--inplace"]),
        (stock.as_ref(), &["--delta"]),
    ];
    for (scene, flags) in cases {
        let Some(scene) = scene else { continue };
        let new = two_forms_down(scene);
        let run = scene.client.cp().args(flags).arg("--json");
        let run = run.arg(scene.remote("far/file")).arg(scene.path("here"));
        let outcome = run.run();
        let said = outcome.expect_code(0).out();
        assert!(said.contains("\"reused\":0"), "{flags:?}: {said}");
        let stock = flags == ["--delta"];
        let told =
            said.contains("sending files whole, because longhaul is not in use at the far end");
        assert_eq!(told, stock, "{flags:?}: {said}");
        is_there(&scene.path("here/file"), &new);
    }
}

#[test]
fn the_same_and_the_empty_file_come_down_as_they_are() {
    let Some(scene) = served("") else { return };
    let data = Seed::new(4).bytes(SIZE);
    for new in [&data[..], &[], &data[..100], &data[..SIZE / 2]] {
        fs::create_dir_all(scene.path("far")).expect("our folder");
        fs::create_dir_all(scene.path("here")).expect("our folder");
        write_file(&scene.path("here/file"), &data);
        write_file(&scene.path("far/file"), new);
        scene.copies(&["--delta"], scene.remote("far/file"), scene.path("here"));
        is_there(&scene.path("here/file"), new);
    }
}
