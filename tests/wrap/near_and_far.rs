//! `longhaul wrap` over an emulated path: far connections are tuned, and near ones are not.

use std::path::Path;
use std::time::Duration;

use longhaul_tests::longhaul;
use longhaul_tests::wrapped::Wrapping;
use testkit::{Run, missing};

/// Runs `scp -o IPQoS=cs1` of 6 MB in a lab with these flags, and returns the report of its
/// connection.
fn copied(lab: &[&str], wrap: &[&str]) -> Option<serde_json::Value> {
    for program in ["scp", "sshd"] {
        if missing::find_program(program).is_none() {
            missing::skip(program, "run scripts/setup-tests.sh");
            return None;
        }
    }
    let wrapping = Wrapping::new();
    let file = wrapping.folder.path().join("file");
    std::fs::write(&file, vec![b'x'; 6_000_000]).expect("the file");
    let (report, _) = wrapping.report();
    let longhaul = longhaul().display().to_string();
    let words = |words: &[&str]| words.join(" ");
    let script = format!(
        "{longhaul} wrap {} {report} scp -q -F \"$LONGHAUL_LAB_CONFIG\" -o IPQoS=cs1 {} far:{}",
        words(wrap),
        file.display(),
        wrapping.folder.path().join("copy").display()
    );
    let run = Run::new(&longhaul).args(["lab", "-q", "--sshd"]).args(lab);
    let run = run.args(["--", "sh", "-c", &script]);
    let run = run.env("TMPDIR", wrapping.folder.path());
    let run = run.env("XDG_CACHE_HOME", wrapping.folder.path().join("cache"));
    let outcome = run.timeout(Duration::from_secs(90)).run();
    if outcome.code == Some(125) {
        missing::skip("a lab's namespaces and TUN devices", outcome.err().trim());
        return None;
    }
    outcome.expect_code(0);
    assert_eq!(len(&wrapping.folder.path().join("copy")), 6_000_000);
    let lines = wrapping.reported();
    assert_eq!(lines.len(), 1, "{lines:?}");
    Some(lines[0].clone())
}

fn len(path: &Path) -> u64 {
    std::fs::metadata(path).expect("it is there").len()
}

fn changed(line: &serde_json::Value, what: &str) -> bool {
    let all = line["changed"].as_array().expect("a list");
    all.iter().any(|changed| changed == what)
}

#[test]
fn scp_to_a_far_host_has_no_mark_and_is_prepared_for_bulk() {
    let Some(line) = copied(&["--rtt", "20ms"], &[]) else {
        return;
    };
    assert_eq!(line["program"], "ssh");
    assert_eq!(line["dscp"], 8, "{line}");
    assert!(line["kept_off"].as_u64() >= Some(1), "{line}");
    assert!(line["tcp"]["sent"].as_u64() > Some(6_000_000), "{line}");
    assert!(line["tcp"]["min_rtt_us"].as_u64() >= Some(20_000), "{line}");
    assert!(changed(&line, "notsent_lowat"), "{line}");
}

#[test]
fn the_marks_of_scp_are_left_when_nothing_is_to_be_tuned() {
    let Some(line) = copied(&["--rtt", "20ms"], &["--no-tune"]) else {
        return;
    };
    assert_eq!(line["changed"], serde_json::json!([]), "{line}");
    assert_eq!((&line["dscp"], &line["kept_off"]), (&8.into(), &0.into()));
}
