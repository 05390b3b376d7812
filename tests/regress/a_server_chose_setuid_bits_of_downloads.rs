//! Setuid bits of downloads. `cp -a host:file .` as root gave a file the setuid bit that the server
//! reported, and a second `longhaul sync` gave it one that the first had cleared.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use longhaul_tests::Scene;
use testkit::PeerKind;
use testkit::tree::write_file;

#[test]
fn they_are_kept_where_a_flag_names_them() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    fs::create_dir(scene.path("tree")).expect("ours");
    write_file(&scene.path("tree/tool"), b"#!");
    let set = |name: &str, mode| {
        fs::set_permissions(scene.path(name), Permissions::from_mode(mode)).expect("ours");
    };
    set("tree/tool", 0o6755);
    set("tree", 0o3775);
    let mode = |name: &str| {
        let meta = fs::metadata(scene.path(name)).expect("it is there");
        meta.permissions().mode() & 0o7777
    };
    for (n, (flags, tool, tree)) in [
        (&["-a"][..], 0o755, 0o1775),
        (&["-pr"], 0o755, 0o1775),
        (&["-a", "--preserve-setuid"], 0o6755, 0o3775),
        (&["-pr", "--preserve-setuid"], 0o6755, 0o3775),
    ]
    .into_iter()
    .enumerate()
    {
        let to = format!("to{n}");
        let run = scene.client.cp().args(flags).arg(scene.remote("tree"));
        let outcome = run.arg(scene.path(&to)).run().expect_code(0);
        assert_eq!(mode(&format!("{to}/tool")), tool, "{flags:?}");
        assert_eq!(mode(&to), tree, "{flags:?}");
        let told = outcome
            .err()
            .matches("--preserve-setuid keeps them")
            .count();
        assert_eq!(told, usize::from(tool == 0o755), "{outcome}");
    }
    // Setuid bits of the user's own files are preserved.
    let run = scene.client.cp().arg("-a").arg(scene.path("tree"));
    run.arg(scene.remote("up")).run().expect_code(0);
    assert_eq!((mode("up/tool"), mode("up")), (0o6755, 0o3775));
}

#[test]
fn no_later_sync_sets_what_the_first_has_cleared() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let set = |name: &str, mode| {
        fs::set_permissions(scene.path(name), Permissions::from_mode(mode)).expect("ours");
    };
    let mode = |name: &str| {
        let meta = fs::metadata(scene.path(name)).expect("it is there");
        meta.permissions().mode() & 0o7777
    };
    fs::create_dir_all(scene.path("tree/sub")).expect("ours");
    for name in ["tree/tool", "tree/moved", "tree/sub/other"] {
        write_file(&scene.path(name), format!("#!{name}").as_bytes());
        set(name, 0o6755);
    }
    set("tree/sub", 0o7775);
    let sync = |flags: &[&str]| {
        let run = scene.client.dir.run(longhaul_tests::longhaul()).arg("sync");
        let run = run.arg("-F").arg(scene.client.dir.config()).args(flags);
        let run = run.arg(scene.remote("tree")).arg(scene.path("to"));
        run.run().expect_code(0)
    };
    let copied = ["to/tool", "to/sub/other"];
    sync(&["--delete"]);
    fs::rename(scene.path("tree/moved"), scene.path("tree/sub/moved")).expect("ours");
    set("tree/tool", 0o6750);
    for _ in 0..2 {
        sync(&["--delete"]);
        assert_eq!(copied.map(mode), [0o750, 0o755]);
        assert_eq!(mode("to/sub/moved"), 0o755);
        assert_eq!(mode("to/sub"), 0o1775);
    }
    // Bits that are not copied are no difference.
    let outcome = sync(&["--delete", "--dry-run"]);
    assert!(!outcome.out().contains("tool"), "{outcome}");
    assert!(!outcome.out().contains("sub"), "{outcome}");
    sync(&["--preserve-setuid"]);
    assert_eq!(copied.map(mode), [0o6750, 0o6755]);
    assert_eq!(mode("to/sub"), 0o7775);
}
