//! Runs each command line with scp and with the program under test on two copies of one tree: the
//! resulting trees are equal, and both succeed or both fail.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use longhaul_tests::{Client, Program, scratch};
use testkit::tree::{Compare, differences, write_file};
use testkit::{PeerBuilder, PeerServer, Run};

/// A command line. `S:` and `D:` before an operand mark the source's and the target's side: one is
/// local and the other remote, in both directions.
struct Case {
    flags: &'static [&'static str],
    operands: &'static [&'static str],
    umask: &'static str,
}

const fn case(flags: &'static [&'static str], operands: &'static [&'static str]) -> Case {
    Case {
        flags,
        operands,
        umask: "022",
    }
}

/// Creates the tree with which both begin.
fn begin(root: &Path) {
    let folder = |name: &str| fs::create_dir(root.join(name)).expect("our folder");
    let file = |name: &str, content: &[u8]| write_file(&root.join(name), content);
    let mode = |name: &str, mode: u32| {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).expect("our file");
    };
    for name in [
        "dir",
        "tree",
        "tree/sub",
        "tree/empty",
        "globs",
        "full",
        "full/tree",
    ] {
        folder(name);
    }
    file("a", b"content of a");
    file("b", b"content of b");
    file("script", b"#!/bin/sh\n");
    mode("script", 0o755);
    file("secret", b"hush");
    mode("secret", 0o600);
    file("sticky", b"setuid");
    mode("sticky", 0o4755);
    file(
        "existing",
        b"what was there before, and longer than what comes",
    );
    mode("existing", 0o640);
    file("tree/one", b"1");
    file("tree/sub/two", &[2; 70_000]);
    file("tree/sub/script", b"#!/bin/sh\n");
    mode("tree/sub/script", 0o711);
    mode("tree/sub", 0o750);
    symlink("one", root.join("tree/link")).expect("a symlink");
    file("full/tree/one", b"older");
    file("full/tree/kept", b"kept");
    for name in ["x1", "x2", "y1", "with space", "[odd]", "*"] {
        file(&format!("globs/{name}"), name.as_bytes());
    }
    file("with space", b"space");
    file("quote'\"$(x)`", b"quotes");
    write_file(&root.join(OsStr::from_bytes(b"latin1-\xe9")), b"not utf-8");
    write_file(&root.join("new\nline"), b"newline");
    file("-dash", b"dash");
    symlink("a", root.join("link-to-a")).expect("a symlink");
    symlink("existing", root.join("link-to-existing")).expect("a symlink");
    symlink("dir", root.join("link-to-dir")).expect("a symlink");
    symlink("nowhere", root.join("dangling")).expect("a symlink");
    symlink("full", root.join("link-to-full")).expect("a symlink");
    symlink("link-to-full", root.join("link-to-link")).expect("a symlink");
    symlink("itself", root.join("itself")).expect("a symlink");
    for name in [
        "a",
        "tree/one",
        "tree/sub/two",
        "tree/sub",
        "tree",
        "existing",
    ] {
        let time =
            std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_007);
        let times = fs::FileTimes::new().set_accessed(time).set_modified(time);
        fs::File::open(root.join(name))
            .expect("our file")
            .set_times(times)
            .expect("our file");
    }
}

fn words(root: &Path, case: &Case, up: bool) -> Vec<OsString> {
    let mut words: Vec<OsString> = case.flags.iter().map(OsString::from).collect();
    for operand in case.operands {
        let (remote, name) = match operand.split_at(2) {
            ("S:", name) => (!up, name),
            ("D:", name) => (up, name),
            _ => (false, *operand),
        };
        // A byte that is not UTF-8 cannot be in a table of &str.
        let name = name.replace("LATIN1", "latin1-\u{e9}");
        let bytes: Vec<u8> = if name.contains('\u{e9}') {
            name.chars()
                .map(|c| u8::try_from(u32::from(c)).expect("latin1"))
                .collect()
        } else {
            name.into_bytes()
        };
        let mut word = OsString::new();
        if remote {
            word.push("peer:");
            word.push(root);
            word.push("/");
        } else if bytes.starts_with(b"-") {
            word.push("./");
        }
        word.push(OsString::from_vec(bytes));
        words.push(word);
    }
    words
}

fn run(client: &Client, root: &Path, case: &Case, up: bool) -> testkit::Outcome {
    // A shell sets the umask, which a test cannot change for its own process alone.
    let script = format!("umask {}; exec \"$@\"", case.umask);
    let run = client.dir.run("sh").args(["-c", &script, "sh"]);
    let run: Run = match &client.program {
        Program::Longhaul(path) => run.arg(path).arg("cp"),
        Program::Scp => run.arg("scp"),
    };
    run.arg("-F")
        .arg(client.dir.config())
        .args(words(root, case, up))
        .in_folder(root)
        .run()
}

/// Server, and two clients with the same files: one runs scp, the other the program under test.
struct Pair {
    scp: Client,
    ours: Client,
    peer: PeerServer,
}

impl Pair {
    fn start() -> Option<Self> {
        let mut scp = Client {
            program: Program::Scp,
            ..Client::new()
        };
        let mut ours = Client::new();
        let builder = PeerBuilder::openssh()
            .authorize(&scp.dir)
            .authorize(&ours.dir);
        let peer = builder.start()?;
        for client in [&mut scp, &mut ours] {
            client.dir.add_host("peer", &peer);
        }
        Some(Self { scp, ours, peer })
    }

    fn check(&self, cases: &[Case], ways: &[bool]) {
        let mut wrong = Vec::new();
        for case in cases {
            for up in ways {
                self.check_one(case, *up, &mut wrong);
            }
        }
        assert!(
            wrong.is_empty(),
            "{} differ from scp:\n{}",
            wrong.len(),
            wrong.join("\n")
        );
    }

    fn check_one(&self, case: &Case, up: bool, wrong: &mut Vec<String>) {
        let place = scratch();
        let roots = ["scp", "our"].map(|name| place.path().join(name));
        let [theirs, mine] =
            [(&self.scp, &roots[0]), (&self.ours, &roots[1])].map(|(client, root)| {
                fs::create_dir(root).expect("our folder");
                begin(root);
                run(client, root, case, up)
            });
        let way = if up { "up" } else { "down" };
        let shown = format!(
            "{way}: {} {}",
            case.flags.join(" "),
            case.operands.join(" ")
        );
        if theirs.success() != mine.success() {
            wrong.push(format!("{shown}: exit codes differ\n  {theirs}  {mine}"));
        }
        let compare = if case.flags.iter().any(|flag| flag.contains('p')) {
            Compare::PRESERVED
        } else {
            Compare::MODES
        };
        let mut lines = differences(&roots[0], &roots[1], compare);
        // Ignored are the times of the roots, and a bug of scp 9.2: it sets a downloaded folder's
        // time before it fills the folder. Another test checks that longhaul gets this right.
        lines.retain(|line| !(line.starts_with("(root): mtime") || (!up && folder_time(line))));
        lines.retain(|line| !by_our_rule(case, up, line));
        // One of them ran a little later than the other.
        lines.retain(|line| !both_just_now(line));
        if !lines.is_empty() {
            let lines = lines.join("\n    ");
            wrong.push(format!(
                "{shown}: left scp's, right ours\n    {lines}\n  {mine}"
            ));
        }
        if !mine.success() && mine.stderr.is_empty() {
            wrong.push(format!("{shown}: fails without a word"));
        }
    }
}

/// Reports intended differences from scp; in everything else longhaul follows scp.
fn by_our_rule(case: &Case, up: bool, line: &str) -> bool {
    match case.operands {
        // For several files scp creates a directory that only its owner may enter: it gives it mode
        // 0744 at the server (scp.c `source_sftp` uses the `Attrib` of a file). longhaul creates it
        // as mkdir does.
        ["S:a", "S:b", "D:new"] => up && line == "/new: mode 744 on the left, 755 on the right",
        // scp stops at the first missing source; longhaul continues.
        ["S:a", "S:missing", "S:b", "D:dir"] => line == "/dir/b: only on the right",
        _ => false,
    }
}

/// Reports if both times were made by this test; those of the trees are older.
fn both_just_now(line: &str) -> bool {
    let Some((_, times)) = line.split_once(": mtime ") else {
        return false;
    };
    let times: Vec<i64> = times
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    times.len() == 2 && times.iter().all(|time| *time > 1_500_000_000)
}

fn folder_time(line: &str) -> bool {
    [
        "/new: mtime",
        "/new/sub: mtime",
        "/dir/tree: mtime",
        "/full/tree: mtime",
        "/dir/tree/sub: mtime",
    ]
    .iter()
    .any(|start| line.starts_with(start))
}

const BOTH: &[bool] = &[true, false];

#[test]
fn files() {
    let Some(pair) = Pair::start() else { return };
    pair.check(
        &[
            case(&[], &["S:a", "D:new"]),
            case(&[], &["S:a", "D:dir"]),
            case(&[], &["S:a", "D:dir/"]),
            case(&[], &["S:a", "D:dir/new"]),
            case(&[], &["S:a", "D:existing"]),
            case(&[], &["S:script", "D:existing"]),
            case(&[], &["S:script", "D:new"]),
            case(&[], &["S:secret", "D:new"]),
            case(&[], &["S:sticky", "D:new"]),
            case(&[], &["S:a", "D:nowhere-dir/new"]),
            case(&[], &["S:a", "D:nowhere-dir/"]),
            case(&[], &["S:missing", "D:new"]),
            case(&[], &["S:a", "S:b", "D:dir"]),
            case(&[], &["S:a", "S:b", "D:existing"]),
            case(&["-p"], &["S:a", "D:new"]),
            case(&["-p"], &["S:script", "D:existing"]),
            case(&["-p"], &["S:sticky", "D:new"]),
            case(&["-p"], &["S:secret", "D:existing"]),
            Case {
                umask: "077",
                ..case(&[], &["S:script", "D:new"])
            },
            Case {
                umask: "027",
                ..case(&["-p"], &["S:script", "D:new"])
            },
        ],
        BOTH,
    );
}

/// scp stops at the first missing source of an upload; longhaul continues.
#[test]
fn a_missing_source_does_not_stop_the_rest() {
    let Some(pair) = Pair::start() else { return };
    for up in BOTH {
        let place = scratch();
        begin(place.path());
        let case = case(&[], &["S:a", "S:missing", "S:b", "D:dir"]);
        let outcome = run(&pair.ours, place.path(), &case, *up).expect_code(1);
        let outcome = outcome.expect_err(&["missing"]);
        assert!(place.path().join("dir/a").exists(), "{outcome}");
        if !pair.ours.is_scp() {
            assert!(place.path().join("dir/b").exists(), "{outcome}");
        }
    }
}

#[test]
fn folders() {
    let Some(pair) = Pair::start() else { return };
    pair.check(
        &[
            case(&["-r"], &["S:tree", "D:new"]),
            case(&["-r"], &["S:tree", "D:dir"]),
            case(&["-r"], &["S:tree", "D:dir/"]),
            case(&["-r"], &["S:tree/", "D:dir"]),
            case(&["-r"], &["S:tree/", "D:new"]),
            case(&["-r"], &["S:tree/.", "D:dir"]),
            case(&["-r"], &["S:tree", "D:full"]),
            case(&["-r"], &["S:tree", "D:existing"]),
            case(&["-r"], &["S:tree", "S:a", "D:dir"]),
            case(&["-r"], &["S:a", "D:new"]),
            case(&["-r", "-p"], &["S:tree", "D:new"]),
            case(&["-rp"], &["S:tree", "D:dir"]),
            case(&[], &["S:tree", "D:dir"]),
            case(&[], &["S:tree", "S:a", "D:dir"]),
            case(&["-r"], &["S:tree/empty", "D:new"]),
            Case {
                umask: "077",
                ..case(&["-r"], &["S:tree", "D:new"])
            },
        ],
        BOTH,
    );
}

#[test]
fn links() {
    let Some(pair) = Pair::start() else { return };
    pair.check(
        &[
            case(&[], &["S:link-to-a", "D:new"]),
            case(&[], &["S:dangling", "D:new"]),
            case(&[], &["S:a", "D:link-to-existing"]),
            case(&[], &["S:a", "D:link-to-dir"]),
            case(&[], &["S:a", "D:dangling"]),
            case(&["-r"], &["S:tree", "D:link-to-dir"]),
            case(&["-p"], &["S:link-to-a", "D:dir"]),
            // The target is a symlink.
            case(&["-r"], &["S:tree", "D:link-to-dir/"]),
            case(&["-r"], &["S:tree", "D:link-to-dir/."]),
            case(&["-r"], &["S:tree", "D:link-to-full"]),
            case(&["-r"], &["S:tree", "D:link-to-link"]),
            case(&["-r"], &["S:tree/.", "D:link-to-link"]),
            case(&["-r"], &["S:tree", "S:dir", "D:link-to-full"]),
            case(&["-r"], &["S:tree", "D:link-to-existing"]),
            case(&["-r"], &["S:tree", "D:itself"]),
            case(&[], &["S:a", "D:itself"]),
            // A directory above the target is one.
            case(&[], &["S:a", "D:link-to-link/new"]),
            case(&[], &["S:a", "D:link-to-link/tree/one"]),
            case(&["-r"], &["S:tree", "D:link-to-link/new"]),
            case(&["-r"], &["S:tree", "D:link-to-link/tree"]),
            case(&["-r"], &["S:tree/.", "D:link-to-link/tree"]),
            case(&["-r"], &["S:tree", "D:link-to-existing/new"]),
            case(&["-r"], &["S:tree", "D:dangling/new"]),
            case(&["-r"], &["S:tree", "D:itself/new"]),
        ],
        BOTH,
    );
}

/// scp makes the directory to which a symlink leads when it uploads, and fails when it downloads.
/// longhaul says what is in the way.
#[test]
fn a_directory_is_not_made_through_a_symlink_that_leads_nowhere() {
    let Some(pair) = Pair::start() else { return };
    if pair.ours.is_scp() {
        return;
    }
    for up in BOTH {
        let place = scratch();
        begin(place.path());
        let case = case(&["-r"], &["S:tree", "D:dangling"]);
        let outcome = run(&pair.ours, place.path(), &case, *up).expect_code(1);
        outcome.expect_err(&[
            "dangling: cannot create the directory: the symlink there leads nowhere",
        ]);
        assert!(!place.path().join("nowhere").exists());
    }
}

#[test]
fn names() {
    let Some(pair) = Pair::start() else { return };
    pair.check(
        &[
            case(&[], &["S:with space", "D:dir"]),
            case(&[], &["S:with space", "D:new name"]),
            case(&[], &["S:quote'\"$(x)`", "D:dir"]),
            case(&[], &["S:LATIN1", "D:dir"]),
            case(&[], &["S:a", "D:dir/new\nline"]),
            case(&[], &["S:new\nline", "D:dir"]),
            case(&[], &["S:-dash", "D:dir"]),
            case(&[], &["S:a", "D:dir/../dir/./new"]),
            case(&["--"], &["S:a", "D:new"]),
        ],
        BOTH,
    );
}

#[test]
fn remote_globs() {
    let Some(pair) = Pair::start() else { return };
    pair.check(
        &[
            case(&[], &["S:globs/x*", "D:dir"]),
            case(&[], &["S:globs/x?", "D:dir"]),
            case(&[], &["S:globs/[xy]1", "D:dir"]),
            case(&[], &["S:globs/*", "D:dir"]),
            case(&[], &["S:glob?/x1", "D:dir"]),
            case(&[], &["S:globs/nothing*", "D:dir"]),
            case(&[], &["S:globs/x*", "D:new"]),
            case(&[], &["S:globs/y*", "D:new"]),
            case(&["-r"], &["S:tr*", "D:dir"]),
            case(&["-r"], &["S:tree/*", "D:dir"]),
            case(&[], &["S:globs/x*", "S:globs/y*", "D:dir"]),
        ],
        &[false],
    );
}

/// Paths relative to the server's start folder, and URIs.
#[test]
fn relative_remote_paths_and_uris() {
    let Some(pair) = Pair::start() else { return };
    let home = pair.peer.home();
    let uri = format!("scp://{}@127.0.0.1:{}", pair.peer.user(), pair.peer.port());
    let mut wrong = Vec::new();
    for target in [
        "peer:".to_owned(),
        "peer:new".to_owned(),
        "peer:./new".to_owned(),
        "peer:dir".to_owned(),
        "peer:dir/".to_owned(),
        "peer:~".to_owned(),
        "peer:~/new".to_owned(),
        format!("{}@peer:new", pair.peer.user()),
        "scp://peer/new".to_owned(),
        "scp://peer/dir".to_owned(),
        format!("{uri}/new"),
        format!("{uri}/with%20space"),
        format!("{uri}/{}/absolute", home.display()),
        "peer:nowhere/".to_owned(),
    ] {
        let results = [&pair.scp, &pair.ours].map(|client| {
            empty(home);
            fs::create_dir(home.join("dir")).expect("our folder");
            let files = scratch();
            let file = files.path().join("file");
            write_file(&file, b"content");
            let outcome = client.cp().arg(&file).arg(&target).run();
            let names = testkit::tree::Snapshot::of(home, false).names();
            // And back again from the resulting place.
            let back = files.path().join("back");
            let returned = outcome.success() && {
                let source = target.trim_end_matches('/');
                client.cp().arg(source).arg(&back).run().success()
            };
            (outcome.success(), names, returned)
        });
        if results[0] != results[1] {
            wrong.push(format!(
                "{target}: scp {:?}, ours {:?}",
                results[0], results[1]
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn empty(folder: &Path) {
    for entry in fs::read_dir(folder).expect("our folder") {
        let path = entry.expect("an entry").path();
        let gone = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        gone.expect("our file");
    }
}

#[test]
fn sftp_uris_are_taken_too() {
    let Some(pair) = Pair::start() else { return };
    if pair.ours.is_scp() {
        return;
    }
    let files = scratch();
    let file = files.path().join("file");
    write_file(&file, b"content");
    let port = pair.peer.port();
    let uri = format!("sftp://{}@127.0.0.1:{port}/new", pair.peer.user());
    pair.ours.cp().arg(&file).arg(&uri).run().expect_code(0);
    assert_eq!(
        fs::read(pair.peer.home().join("new")).expect("it is there"),
        b"content"
    );
}
