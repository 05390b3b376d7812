//! `--json`, checked against its description in docs/json.md.

use longhaul_tests::{Scene, longhaul};
use serde_json::Value;
use testkit::tree::{Tree, write_file};
use testkit::{Outcome, PeerKind, Run};

fn events(outcome: &Outcome) -> Vec<Value> {
    outcome
        .out()
        .lines()
        .map(|line| {
            serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{error} in {line}\n{outcome}"))
        })
        .collect()
}

fn kind(event: &Value) -> &str {
    event["event"]
        .as_str()
        .expect("every event says what it is")
}

#[test]
fn a_tree_from_start_to_summary() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    Tree::full(1).make(&scene.path("tree"));
    let files = files_in(&scene.path("tree"));
    for up in [true, false] {
        let (from, to) = if up {
            (scene.path("tree").into_os_string(), scene.remote("up"))
        } else {
            (scene.remote("tree"), scene.path("down").into_os_string())
        };
        let outcome = scene
            .client
            .cp()
            .args(["--json", "-r"])
            .arg(from)
            .arg(to)
            .run();
        let outcome = outcome.expect_code(0);
        let events = events(&outcome);
        assert_eq!(kind(&events[0]), "start");
        let summary = events.last().expect("there are events");
        assert_eq!(kind(summary), "summary", "{outcome}");
        assert_eq!(summary["exit"], 0);
        assert_eq!(summary["outcome"], "complete");
        assert_eq!(summary["files"], files);
        assert_eq!(summary["failed"], 0);
        let done = events
            .iter()
            .filter(|event| kind(event) == "file_done")
            .count();
        assert_eq!(done as u64, files, "{outcome}");
        for event in &events {
            assert_eq!(event["v"], 1);
            assert!(event["t"].is_number());
        }
        assert!(
            events
                .iter()
                .any(|event| kind(event) == "host" && event["cipher"].is_string())
        );
        assert!(
            !outcome.stdout.contains(&0x1b),
            "escapes are JSON's own: {outcome}"
        );
    }
}

fn files_in(folder: &std::path::Path) -> u64 {
    std::fs::read_dir(folder)
        .expect("our folder")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| if path.is_dir() { files_in(&path) } else { 1 })
        .sum()
}

#[test]
fn failures_are_events_too() {
    let Some(mut scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    write_file(&scene.path("file"), b"content");
    let run = scene
        .client
        .cp()
        .arg("--json")
        .arg(scene.path("file"))
        .arg(scene.path("missing"));
    let outcome = run.arg(scene.remote(".")).run().expect_code(1);
    let events_seen = events(&outcome);
    let failed: Vec<_> = events_seen
        .iter()
        .filter(|event| kind(event) == "failed")
        .collect();
    assert_eq!(failed.len(), 1, "{outcome}");
    assert!(
        failed[0]["path"]
            .as_str()
            .is_some_and(|path| path.ends_with("missing")),
        "{outcome}"
    );
    assert!(
        failed[0]["reason"]
            .as_str()
            .is_some_and(|reason| !reason.is_empty())
    );
    let summary = events_seen.last().expect("there are events");
    assert_eq!(
        (&summary["exit"], &summary["outcome"]),
        (&1.into(), &"partial".into())
    );
    assert_eq!(summary["failures"].as_array().map(Vec::len), Some(1));

    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, testkit::port::free());
    let run = scene
        .client
        .cp()
        .arg("--json")
        .arg(scene.path("file"))
        .arg(scene.remote("copy"));
    let outcome = run.run().expect_code(255);
    let events_seen = events(&outcome);
    let summary = events_seen.last().expect("there are events");
    assert_eq!(
        (&summary["exit"], &summary["outcome"]),
        (&255.into(), &"no_connection".into())
    );
}

/// Bug: a full disk behind standard output ended a copy as if the user had interrupted it.
#[test]
fn events_that_cannot_be_written_are_a_failure_and_no_interruption() {
    let folder = longhaul_tests::scratch();
    let from = folder.path().join("from");
    write_file(&from, b"content");
    let command = r#"exec "$0" cp --json "$1" "$2" >/dev/full"#;
    let run = Run::new("sh").arg("-c").arg(command).arg(longhaul());
    let run = run.arg(&from).arg(folder.path().join("to"));
    let outcome = run.run().expect_code(1);
    let said = outcome.err();
    assert_eq!(
        said.matches("cannot write to standard output").count(),
        1,
        "{said}"
    );
}
