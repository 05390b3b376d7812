//! Servers that refuse some SFTP requests or support less than OpenSSH's: longhaul copies there
//! what scp can, with the same result and exit code, and loses nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use longhaul_tests::{Client, Program, names_in, scratch};
use testkit::tree::{Compare, assert_same, differences, write_file};
use testkit::{Outcome, PeerBuilder, PeerServer, Seed};

const SERVER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/peers/restricted_sftp_server.py"
);

/// Server: OpenSSH's with a list of requests, or the one in tests/peers with rules.
struct Server {
    name: &'static str,
    openssh: bool,
    arguments: &'static str,
}

const fn openssh(name: &'static str, arguments: &'static str) -> Server {
    Server {
        name,
        openssh: true,
        arguments,
    }
}

const fn other(name: &'static str, arguments: &'static str) -> Server {
    Server {
        name,
        openssh: false,
        arguments,
    }
}

/// Copies made one after another; `D:` marks a path at the server.
const COPIES: [&[&str]; 12] = [
    &["new.dat", "D:new.dat"],
    &["empty.dat", "D:empty.dat"],
    &["new.dat", "D:old.dat"],
    &["script.dat", "D:secret.dat"],
    &["new.dat", "D:protected.dat"],
    &["-r", "tree", "D:tree"],
    &["-r", "tree/.", "D:tree"],
    &["-p", "script.dat", "D:kept.dat"],
    &["-pr", "tree", "D:kept"],
    &["large.dat", "D:large.dat"],
    &["large.dat", "D:old.dat"],
    &["D:large.dat", "fetched.dat"],
];

const LARGE: usize = 17_000_000;

/// Makes a folder with the empty ones `here` and `there`.
fn two_folders() -> tempfile::TempDir {
    let place = scratch();
    for folder in ["here", "there"] {
        fs::create_dir(place.path().join(folder)).expect("our folder");
    }
    place
}

fn begin(root: &Path) {
    for folder in ["here/tree/sub", "there"] {
        fs::create_dir_all(root.join(folder)).expect("our folder");
    }
    let large = Seed::new(1).bytes(LARGE);
    for (name, content, mode) in [
        ("here/new.dat", &b"content"[..], 0o644),
        ("here/script.dat", b"#!/bin/sh\n", 0o755),
        ("here/empty.dat", b"", 0o644),
        ("here/large.dat", &large, 0o640),
        ("here/tree/one.dat", b"1", 0o644),
        ("here/tree/sub/two.dat", &large[..300_000], 0o600),
        // Shorter than the new content: scp truncates longer files by FSETSTAT.
        ("there/old.dat", b"old", 0o640),
        ("there/secret.dat", b"hush", 0o600),
        ("there/protected.dat", b"ro", 0o444),
    ] {
        let path = root.join(name);
        write_file(&path, content);
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(path, mode).expect("our file");
    }
}

fn start(clients: &mut [Client], server: &Server) -> Option<PeerServer> {
    let program = match server.openssh {
        true => "internal-sftp -u 022".to_owned(),
        // Without site-packages it starts in half the time.
        false => format!("/usr/bin/env python3 -IS {SERVER}"),
    };
    let subsystem = format!("sftp {program} {}", server.arguments);
    let mut builder = PeerBuilder::openssh().option("Subsystem", subsystem.trim_end());
    for client in clients.iter() {
        builder = builder.authorize(&client.dir);
    }
    let peer = builder.start()?;
    for client in clients {
        client.dir.add_host("peer", &peer);
        // OpenSSH's default takes more processor time than most of these copies.
        client.dir.set("peer", "KexAlgorithms", "curve25519-sha256");
    }
    Some(peer)
}

fn copy(client: &Client, root: &Path, words: &[&str]) -> Outcome {
    let words = words.iter().map(|word| match word.strip_prefix("D:") {
        Some(name) => format!("peer:{}/there/{name}", root.display()),
        None => (*word).to_owned(),
    });
    let words: Vec<String> = words.collect();
    client.cp().args(words).in_folder(root.join("here")).run()
}

fn clients() -> [Client; 2] {
    let scp = Client {
        program: Program::Scp,
        ..Client::new()
    };
    [scp, Client::new()]
}

/// Makes each of COPIES with scp and with longhaul, and compares exit codes and what is left.
fn check(server: &Server) {
    let mut wrong = Vec::new();
    let mut clients = clients();
    let Some(_peer) = start(&mut clients, server) else {
        return;
    };
    let place = scratch();
    let roots = ["scp", "ours"].map(|name| place.path().join(name));
    for root in &roots {
        begin(root);
    }
    let mut leaves = false;
    for words in COPIES {
        let [theirs, ours] = [0, 1].map(|at| copy(&clients[at], &roots[at], words));
        let what = format!("{}: {}", server.name, words.join(" "));
        if theirs.code != ours.code || server.arguments.is_empty() && !ours.success() {
            wrong.push(format!("{what}: exit codes differ\n  {theirs}  {ours}"));
        }
        let mut found = differences(&roots[0], &roots[1], Compare::MODES);
        // Temporaries that cannot be removed are reported.
        if found
            .iter()
            .any(|line| line.contains(".longhaul: only on the right"))
        {
            found.retain(|line| !line.contains(".longhaul: only on the right"));
            leaves |= ours.err().contains("cannot remove the temporary file");
            if !leaves {
                wrong.push(format!("{what}: a temporary is left in secret\n  {ours}"));
            }
        }
        if !found.is_empty() {
            let found = found.join("\n    ");
            wrong.push(format!("{what}: left scp's\n    {found}\n  {ours}"));
            break;
        }
    }
    let count = wrong.len();
    assert!(wrong.is_empty(), "{count} differ:\n{}", wrong.join("\n"));
}

/// Defines a test for each server, so that they run side by side.
macro_rules! gets_what_scp_brings {
    ($($test:ident: $kind:ident($arguments:literal);)*) => {
        $(
            #[test]
            fn $test() {
                check(&$kind(stringify!($test), $arguments));
            }
        )*
    };
}

/// OpenSSH's server with requests forbidden.
mod openssh_gets_what_scp_brings {
    use super::{check, openssh};

    gets_what_scp_brings! {
        without_rename_of_any_kind: openssh("-P rename,posix-rename");
        without_posix_rename: openssh("-P posix-rename");
        without_plain_rename: openssh("-P rename");
        without_setstat: openssh("-P setstat,fsetstat,lsetstat");
        without_setstat_by_path: openssh("-P setstat");
        without_setstat_and_rename: openssh("-P setstat,fsetstat,rename,posix-rename");
        without_remove: openssh("-P remove");
        without_mkdir: openssh("-P mkdir");
        without_extensions: openssh("-P limits,expand-path,fsync,copy-data");
        read_only: openssh("-R");
        with_no_more_than_scp_needs: openssh(
            "-p open,close,read,write,lstat,stat,fstat,opendir,readdir,realpath,mkdir,setstat,fsetstat"
        );
    }
}

mod another_server_gets_what_scp_brings {
    use super::{check, other};

    gets_what_scp_brings! {
        that_refuses_nothing: other("");
        that_refuses_all_looks: other("STAT=3 LSTAT=3");
        an_object_store: other("in-order RENAME=8 SYMLINK=8 READLINK=8");
        a_managed_object_store: other("in-order SETSTAT=8 FSETSTAT=8 SYMLINK=8 READLINK=8");
        a_store_that_denies: other("in-order SETSTAT=3 FSETSTAT=3 RENAME=3");
        whose_rename_fails: other("RENAME=4");
        without_excl: other("no-excl");
        with_a_lock_on_open_files: other("lock");
        with_names_by_a_pattern: other("only=*.dat");
        with_names_by_a_pattern_and_failure: other("only=*.dat code=4");
        with_names_by_a_pattern_and_no_such_file: other("only=*.dat code=2");
        with_neither_remove_nor_rename: other("REMOVE=3 RENAME=8");
    }
}

/// A file that can be fetched only once is not lost. Before this, it was opened several times, and
/// the first CLOSE removed it: it was lost at both ends.
#[test]
fn a_file_that_may_be_fetched_once_is_not_lost() {
    let server = other("fetched once", "fetched-once");
    let mut clients = clients();
    let Some(_peer) = start(&mut clients, &server) else {
        return;
    };
    let place = scratch();
    begin(place.path());
    let there = place.path().join("there/large.dat");
    fs::rename(place.path().join("here/large.dat"), &there).expect("ours");
    let content = fs::read(&there).expect("ours");
    copy(&clients[1], place.path(), &["D:large.dat", "got.dat"]).expect_code(0);
    assert!(fs::read(place.path().join("here/got.dat")).expect("ours") == content);
}

/// Bug: files were written in place on a server that admits names by a pattern, and a reader could
/// see half of one. `--temp-dir` names a folder whose names it does not check.
#[test]
fn a_folder_for_temporaries_spares_files_that_are_written_in_place() {
    for arguments in [
        "only=*.dat except=temporaries",
        "only=*.dat except=temporaries in-order",
        "only=*.dat except=temporaries no-excl",
    ] {
        let server = other("names by a pattern", arguments);
        let mut clients = clients();
        let Some(_peer) = start(&mut clients, &server) else {
            return;
        };
        let place = scratch();
        begin(place.path());
        let temporaries = place.path().join("temporaries");
        fs::create_dir(&temporaries).expect("our folder");
        // What an earlier copy has learned of the server does not count then.
        copy(&clients[1], place.path(), &["new.dat", "D:first.dat"]).expect_code(0);
        let dir = format!("--temp-dir={}", temporaries.display());
        for words in [
            &["new.dat", "D:first.dat"][..],
            &["large.dat", "D:large.dat"],
            &["-r", "tree", "D:tree"],
        ] {
            let words = [&[dir.as_str()], words].concat();
            let outcome = copy(&clients[1], place.path(), &words).expect_code(0);
            let said = outcome.err();
            assert!(
                said.contains("written and renamed"),
                "{arguments}: {outcome}"
            );
            assert!(!said.contains("final name"), "{arguments}: {outcome}");
        }
        let at = |name: &str| place.path().join(name);
        assert_same(&at("here/tree"), &at("there/tree"), Compare::CONTENT);
        assert_same(
            &at("here/large.dat"),
            &at("there/large.dat"),
            Compare::CONTENT,
        );
        assert_eq!(fs::read_dir(&temporaries).expect("ours").count(), 0);
    }
}

/// A server without RENAME is detected once: later files and later copies are neither sent twice
/// nor warned about one by one.
#[test]
fn a_server_that_renames_nothing_is_remembered() {
    let server = other("no RENAME", "RENAME=8");
    let mut clients = clients();
    let Some(_peer) = start(&mut clients, &server) else {
        return;
    };
    let place = scratch();
    begin(place.path());
    for run in 0..2 {
        let outcome = copy(&clients[1], place.path(), &["-r", "tree", "D:tree"]);
        let said = outcome
            .expect_code(0)
            .expect_err(&["writing directly to the final names", "--inplace"]);
        let warnings = said.err().matches("final name").count();
        assert_eq!(warnings, 1, "{said}");
        let remembered = said.err().contains("an earlier copy");
        assert_eq!(remembered, run == 1, "{said}");
    }
    let outcome = copy(
        &clients[1],
        place.path(),
        &["--inplace", "new.dat", "D:x.dat"],
    );
    assert!(!outcome.expect_code(0).err().contains("warning"));
}

/// Bug: a server that refuses RENAME in each directory was reported three times: for the first
/// directory, for the second one and for the whole server.
#[test]
fn a_server_that_renames_nothing_was_reported_for_each_directory() {
    let server = other("RENAME is refused", "RENAME=3");
    let mut clients = clients();
    let Some(_peer) = start(&mut clients, &server) else {
        return;
    };
    let place = scratch();
    begin(place.path());
    for directory in 0..5 {
        for file in 0..3 {
            let path = place.path().join(format!("here/tree/{directory}/{file}"));
            fs::create_dir_all(path.parent().expect("a folder")).expect("our folder");
            write_file(&path, b"content");
        }
    }
    let outcome = copy(&clients[1], place.path(), &["-r", "tree", "D:tree"]).expect_code(0);
    let said = outcome.err();
    assert_eq!(said.matches("final name").count(), 1, "{outcome}");
    assert!(said.contains("does not rename files in"), "{outcome}");
}

/// Bug: "permissions and times of 29 files" of 20, since FSETSTAT and then SETSTAT of a file were
/// refused, and each counted.
#[test]
fn files_whose_metadata_is_refused_twice_were_counted_twice() {
    let server = other("no attributes", "SETSTAT=3 FSETSTAT=3");
    let mut clients = clients();
    let Some(_peer) = start(&mut clients, &server) else {
        return;
    };
    let place = two_folders();
    let names: Vec<String> = (0..20).map(|n| format!("file{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        let len = n * 20_000;
        write_file(
            &place.path().join("here").join(name),
            &Seed::new(1).bytes(len),
        );
    }
    for flag in ["-p", "-a"] {
        let mut words = vec![flag];
        words.extend(names.iter().map(String::as_str));
        words.push("D:");
        let outcome = copy(&clients[1], place.path(), &words).expect_code(0);
        let said = outcome.err();
        let counted = "permissions and times of this and 19 more files or directories";
        assert!(said.contains(counted), "{flag}: {outcome}");
    }
}

/// Bug: times and permissions that OpenSSH refused for open files were reported as lost, though it
/// sets them by lsetstat@openssh.com. The permissions were even right, since they came with OPEN.
#[test]
fn times_that_were_refused_for_open_files_were_not_set_by_path() {
    let server = openssh("no SETSTAT", "-P setstat,fsetstat");
    let mut clients = clients();
    let Some(_peer) = start(&mut clients, &server) else {
        return;
    };
    let place = two_folders();
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for (name, len) in [("small", 9), ("large", 3_000_000)] {
        let path = place.path().join("here").join(name);
        write_file(&path, &Seed::new(1).bytes(len));
        let file = fs::File::open(path).expect("ours");
        file.set_modified(at).expect("ours");
    }
    let outcome = copy(&clients[1], place.path(), &["-p", "small", "large", "D:"]);
    let outcome = outcome.expect_code(0);
    assert!(!outcome.err().contains("not kept"), "{outcome}");
    for name in ["small", "large"] {
        let copied = fs::metadata(place.path().join("there").join(name)).expect("copied");
        assert_eq!(copied.modified().expect("a time"), at, "{name}: {outcome}");
    }
}

/// Bug: a sync that found only times different did nothing on a server that sets none, and said
/// nothing.
#[test]
fn a_sync_to_a_server_that_sets_no_times_says_so() {
    let server = openssh("no SETSTAT", "-P setstat,fsetstat,lsetstat");
    let mut clients = clients();
    let Some(_peer) = start(&mut clients, &server) else {
        return;
    };
    let place = scratch();
    begin(place.path());
    let target = format!("peer:{}", place.path().join("there/tree").display());
    let sync = |flags: &[&str]| {
        let run = clients[1].dir.run(longhaul_tests::longhaul()).arg("sync");
        let run = run.arg("-F").arg(clients[1].dir.config()).args(flags);
        let run = run.arg(place.path().join("here/tree")).arg(&target);
        run.run().expect_code(0)
    };
    let again = "the next sync copies these files again";
    let first = sync(&[]);
    assert!(first.err().contains(again), "{first}");
    for file in ["here/tree/one.dat", "here/tree/sub/two.dat"] {
        let file = fs::File::open(place.path().join(file)).expect("ours");
        file.set_modified(std::time::UNIX_EPOCH).expect("ours");
    }
    let sizes = sync(&["--size-only"]).expect_err(&["not kept: ", "times of this and "]);
    assert!(!sizes.err().contains(again), "{sizes}");
    let times = sync(&[]).expect_err(&["not kept: ", "times of this and ", again]);
    assert!(times.err().contains("2 files"), "{times}");
}

/// Bug: each error was taken for a target that does not exist. A sync copied everything again, and
/// a tree landed in a directory instead of below it.
#[test]
fn a_target_that_the_server_cannot_look_at_is_left_alone() {
    for (arguments, said) in [
        ("STAT=3", "Give the account search permission (x)"),
        ("STAT=4", "gave no reason"),
    ] {
        let server = other("no STAT", arguments);
        let mut clients = clients();
        let Some(_peer) = start(&mut clients, &server) else {
            return;
        };
        let place = scratch();
        begin(place.path());
        let there = place.path().join("there/tree");
        fs::create_dir(&there).expect("our folder");
        let target = format!("peer:{}", there.display());
        let run = clients[1].dir.run(longhaul_tests::longhaul()).arg("sync");
        let run = run.arg("-F").arg(clients[1].dir.config());
        let synced = run.arg(place.path().join("here/tree")).arg(&target).run();
        assert!(!synced.success(), "{arguments}: {synced}");
        let err = synced.err();
        assert!(
            err.contains("there/tree: ") && err.contains(said),
            "{synced}"
        );
        assert_eq!(names_in(&there), [""; 0], "{arguments}");
        // LSTAT says that it is a directory.
        let copied = copy(&clients[1], place.path(), &["-r", "tree", "D:tree"]);
        copied.expect_code(0);
        assert_eq!(names_in(&there), ["tree"], "{arguments}");
    }
}
