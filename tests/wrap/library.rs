//! The preloaded library itself: its requirements, its place, and how it is found.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use longhaul_tests::longhaul;
use longhaul_tests::wrapped::{Echo, Wrapping, probe};
use testkit::{Run, missing};

fn path(wrapping: &Wrapping) -> String {
    let outcome = wrapping.run(&["--library"]).run().expect_code(0);
    outcome.out().trim().to_owned()
}

/// The library names no other library and no symbol version: any glibc has the functions that it
/// calls, and musl too.
#[test]
fn it_asks_for_no_library_and_no_version() {
    let wrapping = Wrapping::new();
    if missing::find_program("objdump").is_none() {
        missing::skip("objdump", "install binutils");
        return;
    }
    let library = path(&wrapping);
    let headers = Run::new("objdump")
        .args(["-p", &library])
        .run()
        .expect_code(0)
        .out();
    assert!(
        !headers.contains("NEEDED") && !headers.contains("Version"),
        "{headers}"
    );
    let symbols = Run::new("objdump")
        .args(["-T", &library])
        .run()
        .expect_code(0)
        .out();
    assert!(!symbols.contains("GLIBC"), "{symbols}");
    let asked = symbols.lines().filter(|line| line.contains("*UND*"));
    let asked: Vec<_> = asked
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    // All of these are in glibc 2.17 (which got clock_gettime); the three around `dlsym` are weak
    // references.
    let known = [
        "__errno_location",
        "__libc_dlopen_mode",
        "__libc_dlsym",
        "abort",
        "bcmp",
        "clock_gettime",
        "dlsym",
        "fcntl",
        "getenv",
        "geteuid",
        "getpid",
        "memcmp",
        "memcpy",
        "memmove",
        "memset",
        "open",
        "readlink",
        "socket",
        "socketpair",
        "strlen",
    ];
    let unknown: Vec<_> = asked.iter().filter(|name| !known.contains(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let given = symbols.lines().filter(|line| line.contains(".text"));
    assert!(given.count() > 20, "{symbols}");
}

#[test]
fn it_can_be_preloaded_without_this_program() {
    let wrapping = Wrapping::new();
    let Some(probe) = probe(wrapping.folder.path(), &[]) else {
        return;
    };
    let echo = Echo::start();
    let library = path(&wrapping);
    let run = |rules: &str| {
        let run = Run::new(&probe).args(["mark", &echo.port.to_string()]);
        run.env("LD_PRELOAD", &library)
            .env("LONGHAUL_WRAP", rules)
            .run()
            .expect_code(0)
    };
    assert_eq!(run("always").out(), "0 0\n");
    assert_eq!(run("").out(), "32 72\n");
    let wrong = run("always,alwys");
    assert_eq!(wrong.out(), "32 72\n");
    assert_eq!(
        wrong.err(),
        "longhaul wrap: LONGHAUL_WRAP: 'alwys' is not a rule: the program runs unchanged\n"
    );
    assert_eq!(run(&"x".repeat(5000)).out(), "32 72\n");
}

#[test]
fn what_is_preloaded_already_stays() {
    let wrapping = Wrapping::new();
    let script = "echo $LD_PRELOAD";
    let plain = wrapping
        .run(&["sh", "-c", script])
        .run()
        .expect_code(0)
        .out();
    let library = path(&wrapping);
    assert_eq!(plain.trim(), library);
    let run = wrapping
        .run(&["sh", "-c", script])
        .env("LD_PRELOAD", "libm.so.6");
    assert_eq!(
        run.run().expect_code(0).out().trim(),
        format!("libm.so.6:{library}")
    );
    let run = wrapping
        .run(&["sh", "-c", script])
        .env("LD_PRELOAD", &library);
    assert_eq!(run.run().expect_code(0).out().trim(), library);
}

#[test]
fn a_damaged_copy_is_made_anew_and_others_may_not_write_there() {
    let wrapping = Wrapping::new();
    let library = path(&wrapping);
    let good = fs::read(&library).unwrap();
    fs::write(&library, b"damaged").unwrap();
    assert_eq!(path(&wrapping), library);
    assert!(fs::read(&library).unwrap() == good);
    let folder = std::path::Path::new(&library).parent().unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    let outcome = wrapping.run(&["true"]).run().expect_code(125);
    outcome.expect_err(&["is writable by"]);
}

#[test]
fn a_library_that_is_not_there_runs_nothing() {
    let wrapping = Wrapping::new();
    let run = wrapping.run(&["echo", "ran"]);
    let outcome = run
        .env("LONGHAUL_WRAP_LIB", "/no/such.so")
        .run()
        .expect_code(125);
    assert_eq!(outcome.out(), "");
    outcome.expect_err(&["LONGHAUL_WRAP_LIB", "/no/such.so", "No such file"]);
    if missing::can_unshare_mounts() {
        // Without HOME, the password file names the home folder.
        let script = missing::NO_PASSWORD_FILE;
        let run = Run::new("unshare").args(["--mount", "--propagation", "private"]);
        let run = run.args(["sh", "-c", script, "sh"]).arg(longhaul());
        let outcome = run
            .args(["wrap", "echo", "ran"])
            .env_remove("HOME")
            .env_remove("XDG_CACHE_HOME")
            .run()
            .expect_code(125);
        outcome.expect_err(&["no directory for the library", "HOME"]);
    }
    let spaced = wrapping.folder.path().join("a b");
    let run = wrapping.run(&["echo", "ran"]).env("XDG_CACHE_HOME", spaced);
    run.run()
        .expect_code(125)
        .expect_err(&["a colon or a space"]);
}
