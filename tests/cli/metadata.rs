//! Metadata that is preserved besides names and contents, compared with rsync.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use longhaul_tests::Scene;
use longhaul_tests::both_ends::{BothEnds, far_end};
use rustix::fs::{AtFlags, CWD, Gid, Timespec, Timestamps, Uid, chownat, utimensat};
use sys::{XattrTarget, read_xattrs, replace_xattrs};
use testkit::{Outcome, PeerKind, Run, Seed, missing};

const LIMIT: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;

/// Returns the ACL `u::rwx,u:12:r--,g::r--,m::rwx,o::---` in version 2 of posix_acl_xattr.h.
pub(crate) fn acl() -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, NOBODY),
        (0x02, 4, 12),
        (0x04, 4, NOBODY),
        (0x10, 7, NOBODY),
        (0x20, 0, NOBODY),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, bits, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(bits.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Returns version 2 file capabilities: cap_net_bind_service, permitted and effective.
pub(crate) fn capability() -> Vec<u8> {
    let words = [0x0200_0001_u32, 1 << 10, 0, 0, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn set_xattr(path: &Path, name: &str, value: &[u8]) -> std::io::Result<()> {
    let list = [(name.as_bytes().to_vec(), value.to_vec())];
    replace_xattrs(XattrTarget::Path(path), &list, |there| {
        there == name.as_bytes()
    })
}

fn set_times(path: &Path, seed: &mut Seed) {
    let mut at = || Timespec {
        tv_sec: 1_000_000_000 + seed.below(600_000_000) as i64,
        tv_nsec: seed.below(1_000_000_000) as i64,
    };
    let times = Timestamps {
        last_access: at(),
        last_modification: at(),
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("times");
}

/// Creates a file of `size` with 64 KiB of data at each offset in `data`.
fn make_sparse(path: &Path, size: u64, data: &[u64], seed: &mut Seed) {
    let file = File::create(path).expect("a file");
    file.set_len(size).expect("a length");
    for at in data {
        let bytes = seed.bytes(64 << 10);
        file.write_all_at(&bytes, *at).expect("data");
    }
}

/// Creates a tree with owners, modes, nanoseconds, extended attributes, access control lists, hard
/// links and holes. Without root it omits what only root can create.
fn make_tree(root: &Path, number: u64) {
    let mut seed = Seed::new(number);
    let mut paths = Vec::new();
    for dir in ["", "a", "a/deep", "a/deep/er", "b", "b/shut"] {
        fs::create_dir_all(root.join(dir)).expect("a folder");
        for file in 0..12 {
            let path = root.join(dir).join(format!("f{file}"));
            let len = [0, 1, 5000, 40_000, 200_000, 700_000][seed.below(6) as usize];
            fs::write(&path, seed.bytes(len)).expect("a file");
            paths.push(path);
        }
    }
    let odd = root.join(OsStr::from_bytes(b"odd \xff\n name"));
    fs::write(&odd, "x").expect("a file");
    paths.push(odd);
    for (name, size, data) in [
        ("hole", 3 * MIB, vec![]),
        ("begins", 5 * MIB, vec![4 * MIB]),
        ("ends", 40 * MIB, vec![0]),
        (
            "many",
            64 * MIB,
            (0..16).map(|n| n * 4 * MIB + 8192).collect(),
        ),
        ("small", 90_000, vec![]),
    ] {
        let path = root.join("a").join(name);
        make_sparse(&path, size, &data, &mut seed);
        paths.push(path);
    }
    let modes = [
        0o644, 0o600, 0o444, 0o755, 0o4755, 0o2750, 0o6711, 0o1644, 0o000,
    ];
    for (at, path) in paths.iter().enumerate() {
        if missing::is_root() {
            let (user, group) = [(0, 0), (1, 2), (12_345, 54_321), (65_534, 8)][at % 4];
            let owner = (Uid::from_raw(user), Gid::from_raw(group));
            chownat(CWD, path, Some(owner.0), Some(owner.1), AtFlags::empty()).expect("chown");
        }
        if at % 3 == 0 {
            set_xattr(path, "user.empty", b"").expect("an attribute");
            set_xattr(path, "user.bytes", &seed.bytes(700)).expect("an attribute");
        }
        if at % 5 == 0 {
            set_xattr(path, "system.posix_acl_access", &acl()).expect("a list");
        }
        if at % 7 == 0 && missing::is_root() {
            set_xattr(path, "trusted.ours", b"yes").expect("an attribute");
            set_xattr(path, "security.capability", &capability()).expect("a capability");
        }
        let mode = match missing::is_root() {
            true => modes[at % modes.len()],
            // The user cannot copy files that the user cannot read.
            false => modes[at % modes.len()] | 0o400,
        };
        if at % 5 != 0 {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        }
    }
    for (link, of) in [
        ("b/l1", "a/f1"),
        ("z", "a/f1"),
        ("b/shut/l2", "a/many"),
        ("a/l3", "f0"),
    ] {
        fs::hard_link(root.join(of), root.join(link)).expect("a link");
    }
    symlink("f1", root.join("a/link")).expect("a symlink");
    symlink("nowhere", root.join("b/link")).expect("a symlink");
    paths.extend([root.join("a/link"), root.join("b/link")]);
    if missing::is_root() {
        let owner = (Uid::from_raw(7), Gid::from_raw(9));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        chownat(
            CWD,
            root.join("b/link"),
            Some(owner.0),
            Some(owner.1),
            flags,
        )
        .expect("chown");
    }
    for path in &paths {
        set_times(path, &mut seed);
    }
    set_xattr(&root.join("a"), "user.of-a-folder", b"1").expect("an attribute");
    set_xattr(&root.join("a/deep"), "system.posix_acl_access", &acl()).expect("a list");
    set_xattr(&root.join("a/deep"), "system.posix_acl_default", &acl()).expect("a list");
    for (dir, mode) in [
        ("b/shut", 0o500),
        ("b", 0o2775),
        ("a/deep/er", 0o1777),
        ("a", 0o711),
    ] {
        fs::set_permissions(root.join(dir), fs::Permissions::from_mode(mode)).expect("a mode");
    }
    // Deepest first: creating an entry changes the times of its folder.
    for dir in ["a/deep/er", "a/deep", "a", "b/shut", "b", ""] {
        set_times(&root.join(dir), &mut seed);
    }
}

/// Asserts that rsync would change nothing in `copy` to make it like `of`.
#[track_caller]
fn assert_rsync_is_content(of: &Path, copy: &Path) {
    assert_same(of, copy, PAGES);
}

/// Blocks of 512 bytes that the copy of a sparse file may take in addition: each data range may
/// fill a page at either end.
const PAGES: u64 = 512;

#[track_caller]
fn assert_same(of: &Path, copy: &Path, more: u64) {
    let from = [of.as_os_str().as_bytes(), b"/"].concat();
    let to = [copy.as_os_str().as_bytes(), b"/"].concat();
    let run = Run::new("rsync").args(["-aHAXSni", "--delete", "--numeric-ids", "--checksum"]);
    let run = run
        .arg(OsStr::from_bytes(&from))
        .arg(OsStr::from_bytes(&to));
    let outcome = run.timeout(LIMIT).run().expect_code(0);
    assert_eq!(outcome.out(), "", "{outcome}");
    compare_finely(of, copy, more);
}

/// Compares what rsync checks only for a reason: nanoseconds, and disk usage.
#[track_caller]
fn compare_finely(of: &Path, copy: &Path, more: u64) {
    let (a, b) = (fs::symlink_metadata(of), fs::symlink_metadata(copy));
    let (a, b) = (a.expect("the source"), b.expect("the copy"));
    let modified = |meta: &fs::Metadata| (meta.mtime(), meta.mtime_nsec());
    assert_eq!(modified(&a), modified(&b), "{}", of.display());
    if a.is_file() && a.len() >= 128 << 10 {
        assert!(
            b.blocks() <= a.blocks() + more,
            "{} has lost its holes",
            of.display()
        );
    }
    if a.is_dir() {
        for entry in fs::read_dir(of).expect("the source") {
            let name = entry.expect("an entry").file_name();
            compare_finely(&of.join(&name), &copy.join(&name), more);
        }
    }
}

/// Reports the skip if programs for these tests are missing.
pub(crate) fn is_missing() -> bool {
    if missing::find_program("rsync").is_none() {
        missing::skip("rsync", "install the package rsync");
        return true;
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    if set_xattr(file.path(), "user.try", b"x").is_err()
        || set_xattr(file.path(), "system.posix_acl_access", &acl()).is_err()
    {
        missing::not_here("the file system has no extended attributes or access control lists");
        return true;
    }
    false
}

const ALL: [&str; 6] = [
    "-a",
    "--preserve-setuid",
    "--hard-links",
    "--xattrs",
    "--acls",
    "--sparse",
];

#[track_caller]
fn assert_nothing_lost(outcome: &Outcome) {
    assert_eq!(far_end(outcome)["depth"], "exec", "{outcome}");
    assert_eq!(outcome.err(), "", "{outcome}");
}

#[test]
fn a_tree_is_what_it_was_after_a_round_trip() {
    if is_missing() {
        return;
    }
    let Some(ends) = BothEnds::start() else {
        return;
    };
    ends.install();
    let [from, to, back] = ["from", "to", "back"].map(|name| ends.scene.path(name));
    make_tree(&from, 7);
    let flags = [&ALL[..], &["--far-end=exec"]].concat();
    let up = ends.cp(&flags).arg(&from).arg(ends.scene.remote("to"));
    assert_nothing_lost(&up.timeout(LIMIT).run().expect_code(0));
    assert_rsync_is_content(&from, &to);
    let down = ends.cp(&flags).arg(ends.scene.remote("to")).arg(&back);
    assert_nothing_lost(&down.timeout(LIMIT).run().expect_code(0));
    assert_rsync_is_content(&from, &back);
    let here = ends.scene.path("here");
    let run = ends.scene.client.cp().args(ALL).arg(&from).arg(&here);
    run.timeout(LIMIT).run().expect_code(0);
    assert_rsync_is_content(&from, &here);
}

/// The result is equal in parts over several lanes, verified, in place and compressed.
#[test]
fn it_is_the_same_however_it_is_copied() {
    if is_missing() {
        return;
    }
    let Some(ends) = BothEnds::start() else {
        return;
    };
    ends.install();
    let from = ends.scene.path("from");
    make_tree(&from, 8);
    for (at, how) in [
        vec!["--connections=2", "--channels=2"],
        vec!["--verify", "--fsync"],
        vec!["--inplace"],
        vec!["-C"],
    ]
    .iter()
    .enumerate()
    {
        // Checksums are made of whole reads, so that only holes of that size are reported.
        let more = if how.contains(&"--verify") {
            20_000
        } else {
            PAGES
        };
        let flags = [&ALL[..], &["--far-end=exec"], how].concat();
        let (to, back) = (format!("to{at}"), format!("back{at}"));
        let up = ends.cp(&flags).arg(&from).arg(ends.scene.remote(&to));
        assert_nothing_lost(&up.timeout(LIMIT).run().expect_code(0));
        assert_same(&from, &ends.scene.path(&to), more);
        let down = ends
            .cp(&flags)
            .arg(ends.scene.remote(&to))
            .arg(ends.scene.path(&back));
        assert_nothing_lost(&down.timeout(LIMIT).run().expect_code(0));
        assert_same(&from, &ends.scene.path(&back), more);
    }
}

#[test]
fn a_file_of_holes_takes_neither_time_nor_room() {
    let Some(ends) = BothEnds::start() else {
        return;
    };
    ends.install();
    let from = ends.scene.path("from");
    make_sparse(
        &from,
        1 << 30,
        &[0, 300 * MIB, 1023 * MIB],
        &mut Seed::new(3),
    );
    let flags = ["--sparse", "--far-end=exec"];
    let up = ends.cp(&flags).arg(&from).arg(ends.scene.remote("to"));
    assert_nothing_lost(&up.timeout(LIMIT).run().expect_code(0));
    let back = ends.scene.path("back");
    let down = ends.cp(&flags).arg(ends.scene.remote("to")).arg(&back);
    assert_nothing_lost(&down.timeout(LIMIT).run().expect_code(0));
    for copy in [ends.scene.path("to"), back] {
        let meta = fs::metadata(&copy).expect("the copy");
        assert_eq!(meta.len(), 1 << 30);
        assert!(meta.blocks() * 512 < 4 * MIB, "{} blocks", meta.blocks());
        for at in [0, 300 * MIB, 1023 * MIB] {
            let read = |path: &Path| {
                let mut bytes = vec![0; 64 << 10];
                let file = File::open(path).expect("a file");
                file.read_exact_at(&mut bytes, at).expect("data");
                bytes
            };
            assert!(read(&from) == read(&copy), "{at}");
        }
    }
}

#[test]
fn a_stock_server_keeps_what_it_can_and_the_rest_is_said() {
    if is_missing() {
        return;
    }
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let [from, back] = ["from", "back"].map(|name| scene.path(name));
    make_tree(&from, 9);
    let flags = [&ALL[..], &["--far-end=stock", "--numeric-ids"]].concat();
    let up = scene
        .client
        .cp()
        .args(&flags)
        .arg(&from)
        .arg(scene.remote("to"));
    let up = up.timeout(LIMIT).run().expect_code(0);
    let said = up.err();
    assert!(said.contains("not kept: "), "{up}");
    assert!(
        said.contains("extended attributes of ") && said.contains("access control lists of "),
        "{up}"
    );
    assert!(!said.contains("hard links"), "{up}");
    let one_file = |a: &Path, b: &Path| {
        let ino = |path: &Path| fs::metadata(path).expect("a file").ino();
        ino(a) == ino(b)
    };
    let to = scene.path("to");
    assert!(one_file(&to.join("a/f1"), &to.join("z")), "{up}");
    assert!(fs::metadata(to.join("a/many")).expect("it").blocks() * 512 < 4 * MIB);
    let down = scene
        .client
        .cp()
        .args(&flags)
        .arg(scene.remote("to"))
        .arg(&back);
    let down = down.timeout(LIMIT).run().expect_code(0);
    assert!(
        down.err()
            .contains("extended attributes, access control lists, hard links"),
        "{down}"
    );
    assert!(fs::metadata(back.join("a/many")).expect("it").blocks() * 512 < 4 * MIB);
    for name in ["f0", "a/f3", "b/shut/f7"] {
        let of = |root: &Path| {
            let meta = fs::metadata(root.join(name)).expect("a file");
            (meta.uid(), meta.gid(), meta.mode(), meta.mtime())
        };
        assert_eq!(of(&from), of(&to), "{name}");
        assert_eq!(of(&from), of(&back), "{name}");
    }
}

/// Attributes of an earlier version of a file are removed, and nothing else.
#[test]
fn attributes_that_the_source_has_not_are_removed() {
    if is_missing() {
        return;
    }
    let Some(ends) = BothEnds::start() else {
        return;
    };
    ends.install();
    let [from, to] = ["from", "to"].map(|name| ends.scene.path(name));
    for dir in [&from, &to] {
        fs::create_dir(dir).expect("a folder");
        fs::write(dir.join("f"), "x").expect("a file");
    }
    set_xattr(&from.join("f"), "user.new", b"1").expect("an attribute");
    set_xattr(&to, "user.old", b"1").expect("an attribute");
    set_xattr(&to, "system.posix_acl_default", &acl()).expect("a list");
    let flags = ["-a", "--xattrs", "--far-end=exec"];
    let up = ends
        .cp(&flags)
        .arg(from.join("."))
        .arg(ends.scene.remote("to"));
    assert_nothing_lost(&up.timeout(LIMIT).run().expect_code(0));
    let names = |path: &Path| {
        let all = read_xattrs(XattrTarget::Path(path), |_| true).expect("attributes");
        let name = |(name, _)| String::from_utf8(name).expect("a name");
        all.into_iter().map(name).collect::<Vec<String>>()
    };
    assert_eq!(names(&to), ["system.posix_acl_default"]);
    assert!(names(&to.join("f")).contains(&"user.new".to_owned()));
}

/// Regression test: `-a` of a home directory with a socket ended with 1, and `-r` went on doing so
/// after `-a` and a sync did not.
#[test]
fn a_fifo_in_a_tree_changed_the_exit_code_of_some_copies() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    fs::create_dir(scene.path("tree")).expect("our folder");
    fs::write(scene.path("tree/file"), b"x").expect("our file");
    let fifo = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(CWD, scene.path("tree/fifo"), fifo, mode, 0).expect("a FIFO");
    let here = |name: &str| scene.path(name).into_os_string();
    let there = |name: &str| scene.remote(name);
    for flag in ["-a", "-r"] {
        for (way, from, to) in [
            ("up", here("tree"), there(&format!("up{flag}"))),
            ("down", there("tree"), here(&format!("down{flag}"))),
            ("between", there("tree"), there(&format!("between{flag}"))),
            ("local", here("tree"), here(&format!("local{flag}"))),
        ] {
            let outcome = scene.client.cp().arg(flag).arg(from).arg(to).run();
            let outcome = outcome.expect_code(0);
            outcome.expect_err(&["warning", "tree/fifo: not copied: it is a socket"]);
            assert!(scene.path(&format!("{way}{flag}/file")).exists(), "{way}");
        }
    }
    // A source that the user named has failed.
    for from in [here("tree/fifo"), there("tree/fifo")] {
        let outcome = scene.client.cp().arg(from).arg(here("copy")).run();
        outcome.expect_code(1).expect_err(&["not a regular file"]);
    }
}
