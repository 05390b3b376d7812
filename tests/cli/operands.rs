//! Targets of several sources, and copies that are refused because files would be lost.

use std::fs;
use std::path::Path;

use longhaul_tests::{Scene, names_in};
use testkit::tree::write_file;
use testkit::{Outcome, PeerKind};

fn scene() -> Option<Scene> {
    let mut scene = Scene::start(PeerKind::OpenSsh)?;
    if scene.client.is_scp() {
        return None;
    }
    scene.client.dir.add_host("other", &scene.peer);
    for (name, content) in [
        ("run-1/out/a", "one"),
        ("run-2/out/a", "two"),
        ("run-2/out/b", "b"),
        ("run-3/log", "log"),
    ] {
        let path = scene.path(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("our folder");
        write_file(&path, content.as_bytes());
    }
    for folder in ["to", "home"] {
        fs::create_dir(scene.path(folder)).expect("our folder");
    }
    Some(scene)
}

/// Runs a copy: `NAME` is a local path, `HOST:NAME` a remote one, below the folder of the scene.
fn copies(scene: &Scene, flags: &[&str], operands: &[&str]) -> Outcome {
    let mut run = scene.client.cp().args(flags);
    for operand in operands {
        run = run.arg(match operand.split_once(':') {
            Some((host, name)) => longhaul_tests::remote(host, &scene.path(name)),
            None => scene.path(operand).into_os_string(),
        });
    }
    run.run()
}

/// Sources with equal names are refused before anything is copied. Before this, four were copied,
/// three were there, and the exit code was 0.
#[test]
fn sources_of_one_name_are_refused_before_anything_is_copied() {
    let Some(scene) = scene() else { return };
    for (sources, first, second) in [
        (&["peer:run-*/out"][..], "run-1/out", "run-2/out"),
        (&["peer:run-?/out/"], "run-1/out", "run-2/out"),
        (&["run-1/out", "run-2/out/"], "run-1/out", "run-2/out"),
        (
            &["run-3", "peer:run-1/out", "run-2/./out"],
            "run-1/out",
            "run-2/./out",
        ),
        (
            &["peer:run-1/out/a", "other:run-2/out/a"],
            "run-1/out/a",
            "run-2/out/a",
        ),
        (
            &["peer:run-1/out/?", "other:run-2/out/*"],
            "run-1/out/a",
            "run-2/out/a",
        ),
        (
            &["run-3/log", "peer:run-1/ou*", "run-2/out"],
            "run-1/out",
            "run-2/out",
        ),
    ] {
        let local = sources.iter().any(|source| source.contains(':'));
        let targets: &[&str] = if local {
            &["to", "peer:to"]
        } else {
            &["peer:to"]
        };
        for target in targets {
            let operands: Vec<&str> = sources.iter().chain([target]).copied().collect();
            let outcome = copies(&scene, &["-r"], &operands).expect_code(1);
            let said = outcome.err();
            assert!(said.contains(first) && said.contains(second), "{outcome}");
            // The files of several hosts can be kept apart by host.
            let remedies = ["copy them to", "use --by-host"];
            assert!(
                remedies
                    .map(|remedy| format!("nothing was copied; {remedy}"))
                    .iter()
                    .any(|remedy| said.contains(remedy)),
                "{outcome}"
            );
            assert_eq!(names_in(&scene.path("to")), [""; 0], "{outcome}");
        }
    }
}

#[test]
fn a_source_that_is_named_twice_is_copied_once() {
    let Some(scene) = scene() else { return };
    let outcome = copies(&scene, &["-r"], &["peer:run-*", "peer:./run-3/", "to"]).expect_code(0);
    assert!(
        outcome.err().is_empty() || !outcome.err().contains("error"),
        "{outcome}"
    );
    assert_eq!(names_in(&scene.path("to")), ["run-1", "run-2", "run-3"]);
    let outcome = copies(&scene, &[], &["run-3/log", "run-3/./log", "peer:to"]).expect_code(0);
    assert!(
        outcome.err().contains("named twice, copied once"),
        "{outcome}"
    );
}

/// The contents of several sources are merged into one directory, and no file may be lost.
#[test]
fn merged_sources_lose_no_file() {
    let Some(scene) = scene() else { return };
    for (sources, target) in [
        (["peer:run-1/.", "peer:run-2/."], "to"),
        (["peer:run-1/.", "run-2/."], "peer:to"),
        (["run-1/.", "run-2/."], "peer:to"),
        (["run-1/.", "other:run-2/."], "peer:to"),
    ] {
        let operands = [sources[0], sources[1], target];
        let outcome = copies(&scene, &["-r"], &operands).expect_code(1);
        let said = outcome.err();
        assert!(said.contains("/out/a: not copied: "), "{outcome}");
        assert_eq!(said.matches("not copied").count(), 1, "{outcome}");
        let out = scene.path("to/out");
        assert_eq!(names_in(&out), ["a", "b"], "{outcome}");
        fs::remove_dir_all(&out).expect("what was copied");
    }
    // Without equal names the copy is permitted.
    copies(&scene, &["-r"], &["peer:run-1/out/.", "peer:run-3/.", "to"]).expect_code(0);
    assert_eq!(names_in(&scene.path("to")), ["a", "log"]);
}

/// A relative remote path starts in the server's home. Before this, `cp -r d other@localhost:`
/// failed with the error that a directory cannot be copied into itself.
#[test]
fn a_relative_remote_path_begins_in_the_home_of_the_server() {
    let Some(scene) = scene() else { return };
    let home = scene.path("home");
    fs::create_dir(home.join("d")).expect("our folder");
    write_file(&home.join("d/file"), b"content");
    let cp = |from: &str, to: &str| {
        let run = scene.client.cp().args(["-r", "--inplace", from, to]);
        run.env("HOME", &home).in_folder(&home).run().expect_code(0)
    };
    cp("d", "peer:");
    let there = scene.peer.home().join("d/file");
    assert_eq!(fs::read(&there).expect("it was copied"), b"content");
    write_file(&there, b"newer");
    cp("peer:d", ".");
    assert_eq!(fs::read(home.join("d/file")).expect("it"), b"newer");
    cp("d/file", "peer:d/file");
    assert_eq!(names_in(&home.join("d")), ["file"]);
}

#[test]
fn a_copy_onto_itself_loses_nothing() {
    let Some(scene) = scene() else { return };
    let before = |folder: &Path| {
        let content = fs::read(folder.join("out/a")).expect("it is there");
        (content, names_in(folder), names_in(&folder.join("out")))
    };
    let folder = scene.path("run-2");
    let was = before(&folder);
    for flags in [&["-r"][..], &["-r", "--inplace"]] {
        for operands in [
            ["run-2/out", "peer:run-2"],
            ["peer:run-2/out", "run-2"],
            ["peer:run-2/out", "other:run-2"],
            ["peer:run-2/out", "peer:run-2"],
        ] {
            let outcome = copies(&scene, flags, &operands).expect_code(1);
            let said = outcome.err();
            assert!(
                said.contains("the same") || said.contains("into itself"),
                "{operands:?}: {outcome}"
            );
            assert_eq!(before(&folder), was, "{operands:?}: {outcome}");
        }
    }
    for operands in [
        ["run-2/out/a", "peer:run-2/out/a"],
        ["run-2/out/a", "peer:run-2/out"],
        ["peer:run-2/out/a", "run-2/out/a"],
        ["peer:run-2/out/a", "run-2/out"],
        ["peer:run-2/out/a", "peer:run-2/out/a"],
        ["peer:run-2/out/a", "other:run-2/out/a"],
    ] {
        let outcome = copies(&scene, &["--inplace"], &operands).expect_code(1);
        assert!(
            outcome.err().contains("the same file"),
            "{operands:?}: {outcome}"
        );
        assert_eq!(before(&folder), was, "{operands:?}: {outcome}");
    }
}

#[test]
fn a_directory_is_not_copied_into_itself_by_another_name_of_the_host() {
    let Some(scene) = scene() else { return };
    let before = names_in(&scene.path("run-2"));
    // Bug: what was copied before the walk met the target depended on both ends, and the exit code
    // on whether it did.
    for operands in [
        ["run-2", "run-2/inside"],
        ["run-2", "run-2"],
        ["run-2", "run-2/out"],
        ["run-2", "peer:run-2/inside"],
        ["peer:run-2", "run-2/inside"],
        ["peer:run-2", "peer:run-2/inside"],
        ["peer:run-2", "peer:run-2/out"],
        ["peer:run-2", "other:run-2/inside"],
    ] {
        let outcome = copies(&scene, &["-r"], &operands).expect_code(1);
        outcome.expect_err(&["run-2: the target is inside this directory"]);
        assert_eq!(names_in(&scene.path("run-2")), before, "{operands:?}");
        assert_eq!(names_in(&scene.path("run-2/out")), ["a", "b"]);
    }
    // A target that is left out is not copied.
    let words = ["-r", "--exclude", "/inside"];
    copies(&scene, &words, &["run-2", "peer:run-2/inside"]).expect_code(0);
    assert_eq!(names_in(&scene.path("run-2/inside")), ["out"]);
}

/// Several sources made the missing directory in an upload, and were refused with three different
/// sentences in the other directions.
#[test]
fn several_sources_to_a_missing_directory_fared_differently_by_direction() {
    let Some(scene) = scene() else { return };
    let sources = ["run-2/out/a", "run-2/out/b"];
    for (from, target) in [
        ("", "peer:up"),
        ("peer:", "down"),
        ("", "local"),
        ("peer:", "other:new"),
    ] {
        let from = |name: &&str| format!("{from}{name}");
        let mut operands: Vec<String> = sources.iter().map(from).collect();
        operands.push(target.to_owned());
        let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
        copies(&scene, &["-3"], &operands).expect_code(0);
        let name = target.rsplit(':').next().unwrap_or_default();
        assert_eq!(names_in(&scene.path(name)), ["a", "b"], "{target}");
        // Its parent is not made, and a file is no directory.
        for (there, why) in [
            ("absent/to", "cannot create the directory"),
            ("run-3/log", "not a directory"),
        ] {
            let at = target.replace(name, there);
            let operands = [&operands[..2], &[at.as_str()]].concat();
            copies(&scene, &["-3"], &operands)
                .expect_code(1)
                .expect_err(&[why]);
        }
    }
    // A pattern with several matches does the same.
    for target in ["matched", "other:matched-3"] {
        copies(&scene, &["-3"], &["peer:run-2/out/*", target]).expect_code(0);
        let name = target.rsplit(':').next().unwrap_or_default();
        assert_eq!(names_in(&scene.path(name)), ["a", "b"], "{target}");
    }
}

/// `cp -3` filled holes and sent files whole, and a local copy had no limit, without a word.
#[test]
fn flags_without_effect_were_not_mentioned() {
    let Some(scene) = scene() else { return };
    let file = fs::File::create(scene.path("sparse")).expect("our file");
    file.set_len(40 << 20).expect("our file");
    std::os::unix::fs::FileExt::write_all_at(&file, b"data", 20 << 20).expect("our file");
    let outcome = copies(
        &scene,
        &["-3", "--sparse"],
        &["peer:sparse", "other:to/sparse"],
    );
    outcome.expect_code(0);
    let blocks = |name: &str| {
        let meta = fs::metadata(scene.path(name)).expect("it is there");
        std::os::unix::fs::MetadataExt::blocks(&meta) * 512
    };
    assert!(
        blocks("to/sparse") < 2 << 20,
        "{} bytes",
        blocks("to/sparse")
    );
    let content = |name: &str| fs::read(scene.path(name)).expect("it is there");
    assert!(content("to/sparse") == content("sparse"), "another content");
    for (flags, from, to, why) in [
        (
            &["-3", "--delta"][..],
            "peer:sparse",
            "other:to/sparse",
            "--delta: sending files whole",
        ),
        (
            &["--delta"],
            "sparse",
            "to/sparse",
            "--delta: sending files whole",
        ),
        (
            &["--limit", "80Mbit"],
            "run-3/log",
            "to/log",
            "--limit has no effect",
        ),
        (&["-l", "100000"], "run-3/log", "to/log", "-l has no effect"),
    ] {
        let outcome = copies(&scene, flags, &[from, to]).expect_code(0);
        outcome.expect_err(&[why]);
    }
}
