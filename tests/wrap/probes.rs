//! Socket operations that a preloaded library could break (probe.c), each run plain and wrapped,
//! with equal results.

use std::path::PathBuf;
use std::time::Duration;

use longhaul_tests::wrapped::{Echo, Wrapping, probe_by};
use testkit::{Outcome, Run};

struct Probe {
    wrapping: Wrapping,
    program: PathBuf,
    echo: Echo,
}

impl Probe {
    fn new() -> Option<Self> {
        Self::by("cc", &[])
    }

    fn by(compiler: &str, flags: &[&str]) -> Option<Self> {
        let wrapping = Wrapping::new();
        let program = probe_by(compiler, wrapping.folder.path(), flags)?;
        Some(Self {
            wrapping,
            program,
            echo: Echo::start(),
        })
    }

    fn with(&self, run: Run, mode: &str) -> Outcome {
        let file = self.wrapping.folder.path().join("file");
        std::fs::write(&file, "a file of words").expect("the file");
        let port = self.echo.port.to_string();
        let run = run.args([mode, &port]).arg(file);
        run.timeout(Duration::from_secs(120)).run().expect_code(0)
    }

    fn plain(&self, mode: &str) -> String {
        self.with(Run::new(&self.program), mode).out()
    }

    fn wrapped(&self, flags: &[&str], mode: &str) -> String {
        let run = self.wrapping.run(flags).arg(&self.program);
        let outcome = self.with(run, mode);
        assert_eq!(outcome.err(), "", "{outcome}");
        outcome.out()
    }
}

#[test]
fn whatever_a_program_does_with_its_sockets_comes_to_the_same() {
    let Some(probe) = Probe::new() else {
        return;
    };
    let (report, _) = probe.wrapping.report();
    for mode in MODES {
        let expected = probe.plain(mode);
        for flags in [&[][..], &["--always"], &["--always", &report], &[&report]] {
            assert_eq!(probe.wrapped(flags, mode), expected, "{mode} {flags:?}");
        }
    }
}

/// Modes of the probe whose result is independent of the options.
const MODES: &[&str] = &[
    "wrong",
    "nonblocking",
    "threads",
    "forks",
    "exhausted",
    "reused",
    "signals",
    "ways",
    "waits",
    "asked",
    "epolled",
    "endings",
];

/// With musl's loader and functions instead of glibc's.
#[test]
fn with_musl_too() {
    let Some(probe) = Probe::by("musl-gcc", &[]) else {
        return;
    };
    let run = probe.wrapping.run(&["--check"]).arg(&probe.program);
    let checked = run.run().expect_code(0).out();
    assert!(checked.contains("with musl (/lib/ld-musl-"), "{checked}");
    let (report, _) = probe.wrapping.report();
    for mode in MODES {
        let expected = probe.plain(mode);
        for flags in [&["--always", &report][..], &["--filter", "*"]] {
            if *mode != "wrong" {
                assert_eq!(probe.wrapped(flags, mode), expected, "{mode} {flags:?}");
            }
        }
    }
    assert_eq!(probe.wrapped(&["--always"], "mark"), "0 0\n");
    assert_eq!(probe.wrapped(&["--always"], "wrong"), "ok\n");
    let reported = probe.wrapping.reported();
    assert!(reported.iter().all(|line| line["program"] == "probe"));
    assert!(reported.len() > 100, "{}", reported.len());
}

/// Address sanitizer must be the first library, and has functions of its own in front of the C
/// library's.
#[test]
fn with_address_sanitizer_too() {
    let Some(probe) = Probe::by("cc", &["-fsanitize=address"]) else {
        return;
    };
    for mode in ["mark", "nonblocking", "threads", "forks", "ways", "endings"] {
        let expected = match mode {
            "mark" => "0 0\n".to_owned(),
            mode => probe.plain(mode),
        };
        assert_eq!(probe.wrapped(&["--always"], mode), expected, "{mode}");
    }
}

#[test]
fn a_connection_of_this_machine_keeps_its_mark_and_always_takes_it() {
    let Some(probe) = Probe::new() else {
        return;
    };
    assert_eq!(probe.plain("mark"), "32 72\n");
    assert_eq!(probe.wrapped(&[], "mark"), "32 72\n");
    assert_eq!(probe.wrapped(&["--always"], "mark"), "0 0\n");
    assert_eq!(
        probe.wrapped(&["--always", "--dscp", "AF11"], "mark"),
        "40 40\n"
    );
    let (report, _) = probe.wrapping.report();
    assert_eq!(probe.wrapped(&["--no-tune", &report], "mark"), "32 72\n");
    let run = probe.wrapping.run(&["--always"]).arg(&probe.program);
    let off = probe.with(run.env("LONGHAUL_OFF", "1"), "mark");
    assert_eq!(off.out(), "32 72\n");
}

/// Children of vfork() run in their parent's memory: descriptors that they close stay open in the
/// parent.
#[test]
fn what_a_child_of_vfork_closes_is_still_watched_by_its_parent() {
    let Some(probe) = Probe::new() else {
        return;
    };
    assert_eq!(probe.plain("vforks"), "32\n");
    let (report, _) = probe.wrapping.report();
    for flags in [&["--always"][..], &["--always", &report]] {
        assert_eq!(probe.wrapped(flags, "vforks"), "0\n", "{flags:?}");
    }
    assert_eq!(probe.wrapping.reported().len(), 1);
}

#[test]
fn a_report_has_a_line_for_each_connection() {
    let Some(probe) = Probe::new() else {
        return;
    };
    let (report, _) = probe.wrapping.report();
    probe.wrapped(&["--always", &report], "mark");
    let lines = probe.wrapping.reported();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = &lines[0];
    assert_eq!(line["program"], "probe");
    assert_eq!(line["peer"], format!("127.0.0.1:{}", probe.echo.port));
    assert_eq!(
        (&line["tcp"]["sent"], &line["tcp"]["received"]),
        (&2.into(), &2.into())
    );
    assert_eq!((&line["dscp"], &line["kept_off"]), (&18.into(), &1.into()));
    assert_eq!(line["changed"][0], "dscp");

    probe.wrapped(&[&report], "waits");
    let lines = probe.wrapping.reported();
    let waits = &lines[0]["waits"]["reading"];
    assert!(waits["longest_us"].as_u64() >= Some(40_000), "{lines:?}");
    assert_eq!(lines[0]["changed"], serde_json::json!([]));

    // 8 threads with 200 connections, each under two descriptors, and one line for each connection.
    probe.wrapped(&[&report], "threads");
    let lines = probe.wrapping.reported();
    assert_eq!(lines.len(), 1600);
    let all = lines.iter().all(|line| line["tcp"]["sent"] == 10);
    assert!(
        all,
        "{:?}",
        lines.iter().find(|line| line["tcp"]["sent"] != 10)
    );
}

#[test]
fn a_report_for_people_is_at_the_end() {
    let Some(probe) = Probe::new() else {
        return;
    };
    let run = probe
        .wrapping
        .run(&["--always", "--report"])
        .arg(&probe.program);
    let outcome = probe.with(run, "mark");
    assert_eq!(outcome.out(), "0 0\n");
    let expected = format!("127.0.0.1:{}: 2 B sent, 2 B received", probe.echo.port);
    outcome.expect_err(&[&expected, "wanted the mark AF21", "changed dscp"]);
}
