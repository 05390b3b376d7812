//! Programs that cannot be wrapped, and invalid arguments: one error, and nothing is run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use longhaul_tests::wrapped::{Wrapping, probe};
use testkit::{Outcome, missing};

#[track_caller]
fn one_sentence(outcome: Outcome, code: i32, parts: &[&str]) {
    let outcome = outcome.expect_code(code);
    assert_eq!(outcome.out(), "", "{outcome}");
    assert_eq!(outcome.err().lines().count(), 1, "{outcome}");
    outcome.expect_err(parts);
}

#[test]
fn a_static_program_is_not_run() {
    let wrapping = Wrapping::new();
    let folder = wrapping.folder.path();
    let Some(program) = probe(folder, &["-static"]) else {
        return;
    };
    let name = program.display().to_string();
    one_sentence(
        wrapping.run(&[]).arg(&program).args(["refused", "1"]).run(),
        126,
        &[&name, "statically", "longhaul dial", "longhaul relay"],
    );
    let run = wrapping
        .run(&["--anyway"])
        .arg(&program)
        .args(["refused", "1"]);
    assert_eq!(run.run().expect_code(0).out(), "-1 111\n");
    let outcome = wrapping
        .run(&["--check"])
        .arg(&program)
        .run()
        .expect_code(1);
    assert!(outcome.out().contains("statically"), "{outcome}");
    // A script is as its interpreter.
    let script = folder.join("script");
    write_program(&script, format!("#!{name} refused\n").as_bytes());
    let outcome = wrapping.run(&["--check"]).arg(&script).run().expect_code(1);
    assert!(outcome.out().contains("is a script for"), "{outcome}");
}

fn write_program(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("the program");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode");
}

#[test]
fn a_program_of_gos_is_not_run() {
    let built = missing::built_peers().join("bin/go-server");
    let go = missing::find_program("go").and_then(|go| go.canonicalize().ok());
    let Some(program) = Some(built).filter(|file| file.is_file()).or(go) else {
        missing::skip("a program written in Go", "install Go");
        return;
    };
    let run = Wrapping::new().run(&[]).arg(&program).arg("version");
    one_sentence(run.run(), 126, &["Go", "longhaul dial"]);
}

/// Go programs are recognized independent of the linker: another linker puts its own note before
/// Go's, or omits Go's.
#[test]
fn a_program_of_gos_is_known_whoever_has_linked_it() {
    let Some(go) = missing::find_program("go") else {
        missing::skip("a program written in Go", "install Go");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("main.go");
    // cgo links the program dynamically.
    let text = "package main\n\n// #include <stdlib.h>\nimport \"C\"\n\nfunc main() { C.abs(1) }\n";
    fs::write(&source, text).unwrap();
    for (name, flags) in [
        ("external", "-linkmode=external -B 0x0123456789abcdef"),
        ("stripped", "-linkmode=external -s -w -buildid="),
        ("plain", ""),
    ] {
        let program = folder.path().join(name);
        let mut build = std::process::Command::new(&go);
        build
            .args(["build", "-buildmode=pie", "-ldflags", flags, "-o"])
            .arg(&program)
            .arg(&source);
        build
            .env("CGO_ENABLED", "1")
            .env("GOCACHE", folder.path().join("cache"));
        build.env("GOFLAGS", "-mod=mod").current_dir(folder.path());
        let built = build.output().unwrap();
        if !built.status.success() {
            let why = String::from_utf8_lossy(&built.stderr).into_owned();
            missing::not_here(&format!("go builds nothing with cgo: {why}"));
            return;
        }
        let outcome = Wrapping::new()
            .run(&["--check"])
            .arg(&program)
            .run()
            .expect_code(1);
        assert!(outcome.out().contains("written in Go"), "{name}: {outcome}");
    }
}

#[test]
fn a_setuid_program_is_not_run_by_whom_it_gives_rights() {
    if !missing::is_root() {
        missing::not_here("only root can make a setuid program of another's");
        return;
    }
    let wrapping = Wrapping::new();
    let Some(program) = probe(wrapping.folder.path(), &[]) else {
        return;
    };
    std::os::unix::fs::chown(&program, Some(64_322), None).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let run = wrapping.run(&[]).arg(&program).args(["refused", "1"]);
    one_sentence(run.run(), 126, &["setuid", "longhaul dial"]);
}

#[test]
fn what_is_dynamic_can_be_wrapped_and_it_is_said_how() {
    let wrapping = Wrapping::new();
    for program in ["sh", "ssh", "curl", "rsync", "python3"] {
        if missing::find_program(program).is_none() {
            continue;
        }
        let outcome = wrapping.run(&["--check", program]).run().expect_code(0);
        assert!(outcome.out().contains("can be wrapped"), "{outcome}");
    }
}

#[test]
fn what_is_no_program_is_named() {
    let wrapping = Wrapping::new();
    let text = wrapping.folder.path().join("text");
    fs::write(&text, "text").unwrap();
    let text = text.display().to_string();
    for (program, code, says) in [
        ("no-such-program", 127, "no program"),
        ("/no/such/program", 127, "No such file"),
        ("/etc", 126, "no file"),
        (&text, 126, "no program"),
    ] {
        one_sentence(wrapping.run(&[program]).run(), code, &[program, says]);
    }
}

#[test]
fn a_rule_that_makes_no_sense_runs_nothing() {
    let wrapping = Wrapping::new();
    for (flags, says) in [
        (&["--route", "nowhere"][..], "nowhere"),
        (&["--route", "*=127.0.0.1:0"], "port 0"),
        (&["--congestion", "none-such"], "none-such"),
        (&["--dscp", "99"], "--dscp"),
        (&["--no-tune", "--always"], "--no-tune"),
    ] {
        let outcome = wrapping
            .run(flags)
            .args(["echo", "ran"])
            .run()
            .expect_code(2);
        assert_eq!(outcome.out(), "");
        outcome.expect_err(&[says]);
    }
}

#[test]
fn the_exit_status_is_the_programs() {
    let wrapping = Wrapping::new();
    for flags in [&[][..], &["--report"]] {
        for (command, code) in [("exit 0", 0), ("exit 7", 7)] {
            let run = wrapping.run(flags).args(["sh", "-c", command]);
            run.run().expect_code(code);
        }
    }
    let run = wrapping.run(&["--report"]).args(["sh", "-c", "kill -9 $$"]);
    run.run().expect_code(137);
    // A signal to the waiting longhaul reaches the program.
    let run = wrapping.run(&["--report", "sh", "-c"]);
    let text = "trap 'exit 5' TERM; kill -TERM $PPID; while :; do sleep 0.1; done";
    run.arg(text).run().expect_code(5);
}

/// Bug: the report was lost without a word.
#[test]
fn a_report_that_cannot_be_written_is_named() {
    let wrapping = Wrapping::new();
    let run = wrapping.run(&["--report=/nonexistent/report"]).arg("true");
    run.run()
        .expect_code(125)
        .expect_err(&["--report: /nonexistent/report: no such file or directory"]);
}
