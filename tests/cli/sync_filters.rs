//! Filters of `longhaul sync` and `longhaul cp`, compared with git's decisions about generated
//! rules and trees.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use longhaul_tests::Scene;
use testkit::{PeerBuilder, PeerKind, Seed};

const CASES: usize = 250;
const NAMES: [&str; 12] = [
    "a", "b", "ab", "a.o", "b.o", "x", "x y", "#h", "!n", "{a,b}", "[q]", "A",
];
const PATTERNS: [&str; 43] = [
    "a", "b", "ab", "*.o", "*", "a*", "?", "a/", "b/", "/a", "/a/", "a/b", "/a/b", "a/*", "**/a",
    "a/**", "a/**/b", "**", "[ab]", "[!a]", "[a-x]*", "\\#h", "#h", "\\!n", "x y", "x\\ y", "a  ",
    "x y\\ ", "{a,b}", "\\{a,b}", "\\[q\\]", "[q]", "", "/", "/*", "*/", "*/a", "**/", "a**b",
    "a//b", "./a", "[^b]", "x/**/",
];

fn pick<'a>(random: &mut Seed, of: &[&'a str]) -> &'a str {
    of[random.below(of.len() as u64) as usize]
}

/// Fills a directory with files, and directories down to `depth`, some of which have rules.
fn fill(dir: &Path, random: &mut Seed, depth: u32) {
    fs::create_dir_all(dir).expect("ours");
    if depth == 3 || random.below(4) == 0 {
        let mut rules = String::new();
        for _ in 0..=random.below(4) {
            if random.below(3) == 0 {
                rules.push('!');
            }
            rules.push_str(pick(random, &PATTERNS));
            rules.push_str(if random.below(9) == 0 { "\r\n" } else { "\n" });
        }
        testkit::tree::write_file(&dir.join(".gitignore"), rules.as_bytes());
    }
    for _ in 0..2 + random.below(4) {
        let path = dir.join(pick(random, &NAMES));
        match random.below(2) {
            _ if path.exists() => {}
            0 if depth > 0 => fill(&path, random, depth - 1),
            _ => testkit::tree::write_file(&path, b"x"),
        }
    }
}

/// Paths below `root`, relative to it.
fn paths(root: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).expect("ours").flatten() {
            let path = entry.path();
            let below = path.strip_prefix(root).expect("below").to_str();
            all.insert(below.expect("our names are text").to_owned());
            if path.is_dir() {
                open.push(path);
            }
        }
    }
    all
}

/// Returns the `paths` that git ignores.
fn ignored(scene: &Scene, root: &Path, paths: &BTreeSet<String>) -> BTreeSet<String> {
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command.env("GIT_CONFIG_GLOBAL", "/dev/null");
        command.env("GIT_CONFIG_SYSTEM", "/dev/null");
        command.env("GIT_DIR", scene.path("repository"));
        command.env("GIT_WORK_TREE", root).current_dir(root);
        command.args(words);
        command
    };
    let made = git(&["init", "-q"]).status().expect("git is there");
    assert!(made.success());
    let words = ["check-ignore", "--no-index", "--stdin", "-z"];
    let mut child = git(&words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("git is there");
    let mut input = child.stdin.take().expect("it is a pipe");
    let list: Vec<u8> = paths
        .iter()
        .flat_map(|path| [path.as_bytes(), b"\0"].concat())
        .collect();
    let writer = std::thread::spawn(move || input.write_all(&list));
    let output = child.wait_with_output().expect("git ends");
    writer.join().expect("it ends").expect("git reads all");
    let text = String::from_utf8(output.stdout).expect("our names are text");
    text.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn gitignore_files_exclude_what_git_ignores() {
    if testkit::missing::find_program("git").is_none() {
        return testkit::missing::skip("git", "apt-get install git");
    }
    let Some(scene) = Scene::with(PeerBuilder::new(PeerKind::OpenSsh)) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let mut random = Seed::new(41);
    let root = scene.path("a");
    for case in 0..CASES {
        fill(&root.join(format!("case{case:03}")), &mut random, 3);
    }
    let all = paths(&root);
    let ignored = ignored(&scene, &root, &all);
    assert!(ignored.len() > CASES, "the rules ignore hardly anything");
    let run = scene.client.dir.run(longhaul_tests::longhaul()).arg("sync");
    let run = run.arg("-F").arg(scene.client.dir.config());
    let run = run.args(["--gitignore"]).arg(&root).arg(scene.remote("b"));
    run.run().expect_code(0);
    let copied = paths(&scene.path("b"));
    let run = scene.client.cp().args(["-r", "--gitignore"]).arg(&root);
    run.arg(scene.remote("c")).run().expect_code(0);
    assert_eq!(
        paths(&scene.path("c")),
        copied,
        "cp selects what sync selects"
    );
    let mut differ = Vec::new();
    for path in &all {
        if copied.contains(path) == ignored.contains(path) {
            let mut rules = String::new();
            for dir in Path::new(path).ancestors().skip(1) {
                if let Ok(text) = fs::read_to_string(root.join(dir).join(".gitignore")) {
                    rules.push_str(&format!(" {}: {text:?}", dir.display()));
                }
            }
            let git = ignored.contains(path);
            differ.push(format!("{path}: git ignores it: {git};{rules}"));
        }
    }
    let few = differ.len().min(30);
    assert!(
        differ.is_empty(),
        "{} of {} differ:\n{}",
        differ.len(),
        all.len(),
        differ[..few].join("\n")
    );
}

/// `longhaul cp -r` to, from and between servers copies only what its filters select, and does not
/// even list an excluded directory.
#[test]
fn a_copy_leaves_out_what_its_filters_exclude() {
    for kind in [PeerKind::OpenSsh, PeerKind::Longhaul] {
        let Some(scene) = Scene::beyond_scp(kind) else {
            return;
        };
        let root = scene.path("src");
        for (name, size) in [
            ("main.c", 10),
            ("main.o", 10),
            ("keep.o", 10),
            ("big.bin", 5000),
            ("build/out/deep.c", 10),
            ("lib/build", 10),
            ("lib/x.o", 10),
            ("lib/y.c", 10),
        ] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("our folder");
            testkit::tree::write_file(&path, &vec![b'x'; size]);
        }
        let flags = [
            "-r",
            "--exclude",
            "*.o",
            "--include",
            "keep.o",
            "--exclude",
            "/build/",
            "--max-size",
            "1kB",
        ];
        let expected = ["keep.o", "lib", "lib/build", "lib/y.c", "main.c"];
        let expected: BTreeSet<String> = expected.map(str::to_owned).into();
        let remote = scene.remote("src");
        for (number, (from, to)) in [
            (root.clone().into_os_string(), scene.remote("up")),
            (remote.clone(), scene.path("down").into_os_string()),
            (remote.clone(), scene.remote("across")),
        ]
        .into_iter()
        .enumerate()
        {
            let run = scene.client.cp().args(flags).arg(from).arg(to);
            run.run().expect_code(0);
            let name = ["up", "down", "across"][number];
            assert_eq!(paths(&scene.path(name)), expected, "{name}");
        }

        // Sources that the user, or the shell, named.
        let all = ["main.c", "main.o", "keep.o", "build"].map(|name| root.join(name));
        fs::create_dir(scene.path("named")).expect("our folder");
        let run = scene.client.cp().args(flags).args(all);
        run.arg(scene.remote("named")).run().expect_code(0);
        let named: BTreeSet<String> = ["keep.o", "main.c"].map(str::to_owned).into();
        assert_eq!(paths(&scene.path("named")), named);

        // A list, of which one name is not there.
        let list = scene.path("list");
        testkit::tree::write_file(&list, b"lib\nmain.o\nnone\n");
        let run = scene.client.cp().arg("-r").arg("--files-from").arg(&list);
        let outcome = run.arg(&remote).arg(scene.path("listed")).run();
        outcome.expect_code(1).expect_err(&[
            "none: listed in --files-from, but not found in any source: correct the list",
        ]);
        let listed = ["lib", "lib/build", "lib/x.o", "lib/y.c", "main.o"];
        let listed: BTreeSet<String> = listed.map(str::to_owned).into();
        assert_eq!(paths(&scene.path("listed")), listed);

        let run = scene.client.cp().args(["-r", "--exclude", "["]).arg(&root);
        let outcome = run.arg(scene.remote("wrong")).run().expect_code(2);
        outcome.expect_err(&["the bracket [ has no closing ]"]);
    }
}

/// Bug: `cp -a --files-from LIST SRC/. host:DIR` gave an existing DIR the mode and time of SRC. rsync
/// does so only if the list names the source itself, as `.` or by the `./` that `find .` writes.
#[test]
fn a_list_of_names_changed_the_target_directory_above_them() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    };
    let src = scene.path("src");
    fs::create_dir_all(src.join("dir")).expect("our folder");
    testkit::tree::write_file(&src.join("dir/file"), b"x");
    testkit::tree::write_file(&src.join("top"), b"x");
    let state = |path: &Path| {
        let found = fs::metadata(path).expect("it is there");
        let time = (found.mtime() == 1_000_000_000).then_some("of the source");
        (found.mode() & 0o7777, time)
    };
    set_mode(&src.join("dir"), 0o711);
    set_mode(&src, 0o751);
    for (list, is_listed) in [("top\ndir/file\n", false), ("./top\n./dir/file\n", true)] {
        testkit::tree::write_file(&scene.path("list"), list.as_bytes());
        let targets = ["up", "down", "rsync"].map(|name| scene.path(name));
        for target in &targets {
            let _ = fs::remove_dir_all(target);
            fs::create_dir_all(target.join("dir")).expect("ours");
            set_mode(target, 0o700);
        }
        let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for folder in [src.join("dir"), src.clone()] {
            let folder = fs::File::open(folder).expect("ours");
            folder.set_modified(time).expect("ours");
        }
        let copy = |from: &OsStr, to: &OsStr| {
            let run = scene.client.cp().arg("-a").arg("--files-from");
            let run = run.arg(scene.path("list")).arg(from).arg(to);
            run.run().expect_code(0);
        };
        copy(scene.path("src/.").as_os_str(), &scene.remote("up"));
        copy(&scene.remote("src/."), scene.path("down").as_os_str());
        for target in &targets[..2] {
            let expected = match is_listed {
                true => (0o751, Some("of the source")),
                false => (0o700, None),
            };
            assert_eq!(state(target), expected, "{} {list:?}", target.display());
            let below = state(&target.join("dir"));
            assert_eq!(below, (0o711, Some("of the source")), "{list:?}");
        }
        let mut rsync = Command::new("rsync");
        let rsync = rsync.args(["-a", "--files-from"]).arg(scene.path("list"));
        if let Ok(status) = rsync.arg(&src).arg(&targets[2]).status() {
            assert!(status.success());
            assert_eq!(state(&targets[2]), state(&targets[0]), "{list:?}");
        }
    }
}
