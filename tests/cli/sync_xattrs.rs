//! Extended attributes and access control lists in `longhaul sync`, compared with rsync.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use longhaul_tests::Scene;
use longhaul_tests::both_ends::events;
use sys::{XattrTarget, read_xattrs, replace_xattrs};
use testkit::{Outcome, PeerKind, Run, Seed, missing};

use crate::metadata::{acl, capability, is_missing, set_xattr};
use crate::sync::{assert_nothing_planned, entries, set_time, summary, sync, write_file};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// Directions of a sync with a longhaul.
const WAYS: [&str; 3] = ["up", "down", "between"];

/// A source and a target that differ in attributes alone.
struct Pair<'s> {
    scene: &'s Scene,
    way: &'static str,
    source: PathBuf,
    target: PathBuf,
}

impl<'s> Pair<'s> {
    /// Creates two equal trees of some files and directories with attributes.
    fn new(scene: &'s Scene, way: &'static str) -> Self {
        let [source, target] = ["a", "b"].map(|name| scene.path(&format!("{name}-{way}")));
        for root in [&source, &target] {
            for name in ["f", "g", "d/f", "d/g", "d/deep/f"] {
                write_file(&root.join(name), name.as_bytes());
            }
            for path in all(root) {
                set_xattr(&path, "user.a", b"1").expect("an attribute");
                set_xattr(&path, ACCESS, &acl()).expect("a list");
                set_time(&path, 1_200_000_000);
            }
            set_xattr(&root.join("d"), DEFAULT, &acl()).expect("a list");
        }
        Self {
            scene,
            way,
            source,
            target,
        }
    }

    fn sync(&self, flags: &[&str]) -> Outcome {
        let ends = [("down", &self.source), ("up", &self.target)];
        let [source, target] = ends.map(|(here, path)| match self.way {
            way if way == "between" || way == here => longhaul_tests::remote("peer", path),
            _ => path.as_os_str().to_owned(),
        });
        sync(self.scene, flags).arg(source).arg(target).run()
    }

    /// Paths that rsync would change, without what it says about them.
    #[track_caller]
    fn rsync(&self, flags: &str) -> Vec<String> {
        let end = |path: &Path| -> OsString { path.join("").into_os_string() };
        let run = Run::new("rsync").arg(flags).arg(end(&self.source));
        let outcome = run.arg(end(&self.target)).run().expect_code(0);
        let text = outcome.out();
        let lines = text.lines().map(|line| {
            let name = line.split_once(' ').expect("a path").1;
            match name {
                "./" => name.to_owned(),
                name => name.trim_start_matches("./").to_owned(),
            }
        });
        let mut names: Vec<String> = lines.collect();
        names.sort();
        names
    }

    /// Asserts that nothing differs, according to rsync and to a further sync.
    #[track_caller]
    fn assert_equal(&self, flags: &[&str]) {
        assert_eq!(self.rsync("-aniAX"), Vec::<String>::new(), "{}", self.way);
        let json = [flags, &["--json"]].concat();
        assert_nothing_planned(&self.sync(&json).expect_code(0), 0);
    }

    fn set(&self, name: &str, attribute: &str, value: &[u8]) {
        set_xattr(&self.source.join(name), attribute, value).expect("an attribute");
    }
}

fn all(root: &Path) -> Vec<PathBuf> {
    let mut all = entries(root);
    all.push(root.to_owned());
    all
}

/// ACL of [`acl`] with other permissions for user 12.
fn acl_with(bits: u8) -> Vec<u8> {
    let mut acl = acl();
    let second = 4 + 8;
    acl[second + 2] = bits;
    acl
}

fn remove(path: &Path, attribute: &str) {
    let of = XattrTarget::Path(path);
    replace_xattrs(of, &[], |name| name == attribute.as_bytes()).expect("an attribute");
}

fn get(path: &Path, attribute: &str) -> Option<Vec<u8>> {
    let found = read_xattrs(XattrTarget::Path(path), |name| name == attribute.as_bytes());
    Some(found.expect("attributes").pop()?.1)
}

/// Planned changes of a sync with `--json`: path and reasons.
fn planned(outcome: &Outcome) -> Vec<(String, String)> {
    let events = events(outcome);
    let planned = events.iter().filter(|event| event["event"] == "planned");
    let mut planned: Vec<(String, String)> = planned
        .map(|event| {
            (
                event["path"].as_str().unwrap_or_default().to_owned(),
                event["reasons"].to_string(),
            )
        })
        .collect();
    planned.sort();
    planned
}

fn each_way(test: impl Fn(&Pair<'_>)) {
    if is_missing() {
        return;
    }
    let Some(scene) = Scene::beyond_scp(PeerKind::Longhaul) else {
        return;
    };
    for way in WAYS {
        test(&Pair::new(&scene, way));
    }
}

/// Regression: sync compared size, time, mode and owners only, so that the target kept a revoked
/// access control list.
#[test]
fn a_revoked_acl_and_a_changed_attribute_were_called_unchanged() {
    each_way(|pair| {
        for flags in [&["-AX"][..], &["-AXc"]] {
            let mode = pair.source.metadata().expect("our folder").permissions();
            let revoked = if flags == ["-AX"] { 0 } else { 6 };
            pair.set("f", "user.a", &[revoked]);
            pair.set("d/f", ACCESS, &acl_with(revoked));
            pair.set("d", DEFAULT, &acl_with(revoked));
            pair.set("", "user.a", &[revoked]);
            pair.set("d/deep", "user.new", &[revoked]);
            set_xattr(&pair.target.join("d/g"), "user.extra", b"1").expect("an attribute");
            remove(&pair.source.join("g"), "user.a");
            set_xattr(&pair.target.join("g"), "user.a", b"1").expect("an attribute");
            assert_eq!(
                pair.source.metadata().expect("our folder").permissions(),
                mode
            );
            let expected = ["./", "d/", "d/deep/", "d/f", "d/g", "f", "g"];
            assert_eq!(pair.rsync("-aniAX"), expected, "{}", pair.way);

            let dry = pair.sync(&[flags, &["-n", "-i"]].concat()).expect_code(0);
            for line in [
                "~ f (extended attributes)",
                "~ d/f (access control list)",
                "~ d/ (access control list)",
                "~ d/g (extended attributes)",
            ] {
                assert!(dry.out().contains(line), "{line}: {dry}");
            }
            assert_eq!(
                pair.rsync("-aniAX"),
                expected,
                "the dry run has changed something"
            );

            let outcome = pair.sync(&[flags, &["--json"]].concat()).expect_code(0);
            assert_eq!(outcome.err(), "", "{outcome}");
            let planned = planned(&outcome);
            let paths: Vec<&str> = planned.iter().map(|(path, _)| path.as_str()).collect();
            assert_eq!(
                paths,
                ["./", "d/", "d/deep/", "d/f", "d/g", "f", "g"],
                "{outcome}"
            );
            assert_eq!(planned[5].1, r#"["extended attributes"]"#);
            let summary = summary(&outcome);
            assert_eq!(summary["files"], 0, "{outcome}");
            pair.assert_equal(flags);
        }
    });
}

/// Only the kinds that the flags name are compared and set.
#[test]
fn attributes_that_no_flag_asks_for_stay() {
    each_way(|pair| {
        pair.set("f", "user.a", b"new");
        pair.set("f", ACCESS, &acl_with(0));
        assert_nothing_planned(&pair.sync(&["--json"]).expect_code(0), 0);
        let target = pair.target.join("f");
        pair.sync(&["-A"]).expect_code(0);
        assert_eq!(get(&target, ACCESS), Some(acl_with(0)));
        assert_eq!(get(&target, "user.a"), Some(b"1".to_vec()));
        set_xattr(&target, ACCESS, &acl()).expect("a list");
        pair.sync(&["-X"]).expect_code(0);
        assert_eq!(get(&target, ACCESS), Some(acl()));
        assert_eq!(get(&target, "user.a"), Some(b"new".to_vec()));
    });
}

/// chmod(2) changes the mask of an access control list, which is set after it.
#[test]
fn a_changed_mode_leaves_exactly_the_acl_of_the_source() {
    each_way(|pair| {
        let chmod = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        };
        chmod(&pair.source.join("f"), 0o640);
        chmod(&pair.source.join("d"), 0o750);
        chmod(&pair.target.join("d/f"), 0o400);
        remove(&pair.source.join("g"), ACCESS);
        chmod(&pair.source.join("g"), 0o604);
        remove(&pair.target.join("d/g"), ACCESS);
        chmod(&pair.target.join("d/g"), 0o777);
        remove(&pair.target.join("d/deep"), ACCESS);
        let outcome = pair.sync(&["-AX", "--json"]).expect_code(0);
        assert_eq!(outcome.err(), "", "{outcome}");
        pair.assert_equal(&["-AX"]);
    });
}

/// A file that is renamed at the target gets the attributes that it has at the source.
#[test]
fn a_moved_file_kept_its_old_attributes() {
    each_way(|pair| {
        fs::rename(pair.source.join("d/g"), pair.source.join("moved")).expect("our file");
        pair.set("moved", "user.a", b"new");
        let outcome = pair.sync(&["-AX", "--delete", "-v"]).expect_code(0);
        assert!(outcome.out().contains("> d/g -> moved"), "{outcome}");
        assert_eq!(pair.rsync("-aniAX"), Vec::<String>::new());
    });
}

/// Bug: a file that was renamed at the target lost its capability, without a word.
#[test]
fn a_moved_file_lost_its_capability() {
    if !missing::is_root() {
        return missing::not_here("only root sets capabilities");
    }
    each_way(|pair| {
        let flags = ["-AX", "--delete", "--preserve-setuid"];
        pair.set("d/g", "security.capability", &capability());
        pair.sync(&flags).expect_code(0);
        fs::rename(pair.source.join("d/g"), pair.source.join("moved")).expect("our file");
        pair.sync(&flags).expect_code(0);
        let got = get(&pair.target.join("moved"), "security.capability");
        assert_eq!(got, Some(capability()), "{}", pair.way);
        pair.assert_equal(&flags);
    });
}

/// A hard link to an earlier copy would share its attributes.
#[test]
fn a_file_with_other_attributes_was_linked_to_the_earlier_copy() {
    each_way(|pair| {
        pair.set("f", "user.a", b"new");
        let earlier = pair.scene.path(&format!("earlier-{}", pair.way));
        fs::rename(&pair.target, &earlier).expect("our folder");
        let flag = format!("--link-dest={}", earlier.display());
        pair.sync(&["-AX", &flag]).expect_code(0);
        let names = |name: &str| {
            use std::os::unix::fs::MetadataExt as _;
            pair.target.join(name).metadata().expect("a copy").nlink()
        };
        assert_eq!((names("f"), names("g")), (1, 2), "{}", pair.way);
        assert_eq!(get(&earlier.join("f"), "user.a"), Some(b"1".to_vec()));
        pair.assert_equal(&["-AX"]);
    });
}

/// Another user may have put a file of that size and time at the target to get its capability.
#[test]
fn a_file_that_gets_a_capability_is_copied() {
    if !missing::is_root() {
        return missing::not_here("only root sets capabilities");
    }
    each_way(|pair| {
        pair.set("f", "security.capability", &capability());
        fs::write(pair.target.join("f"), b"F").expect("our file");
        set_time(&pair.target.join("f"), 1_200_000_000);
        pair.sync(&["-AX", "--preserve-setuid"]).expect_code(0);
        assert_eq!(fs::read(pair.target.join("f")).expect("a copy"), b"f");
        pair.assert_equal(&["-AX", "--preserve-setuid"]);
        // chown(2) removes capabilities.
        std::os::unix::fs::chown(pair.target.join("f"), Some(12), Some(12)).expect("an owner");
        set_xattr(&pair.target.join("f"), "security.capability", &capability()).expect("it");
        pair.sync(&["-AX", "--preserve-setuid"]).expect_code(0);
        pair.assert_equal(&["-AX", "--preserve-setuid"]);
        if pair.way != "up" {
            // Without the flag, those of a server are neither compared nor set.
            remove(&pair.target.join("f"), "security.capability");
            let outcome = pair.sync(&["-AX", "--json"]).expect_code(0);
            assert_nothing_planned(&outcome, 0);
        }
    });
}

/// A server without longhaul cannot tell attributes, and each further sync finds nothing to do.
#[test]
fn a_stock_server_is_not_asked_for_attributes() {
    if is_missing() {
        return;
    }
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    for way in WAYS {
        let pair = Pair::new(&scene, way);
        pair.set("f", "user.a", b"new");
        let outcome = pair
            .sync(&["-AX", "--json", "--far-end=stock"])
            .expect_code(0);
        assert_nothing_planned(&outcome, 0);
        assert_eq!(outcome.err(), "", "{outcome}");
    }
}

/// More files than one batch, and an attribute of one of them has changed.
#[test]
fn each_of_many_files_is_compared() {
    each_way(|pair| {
        let mut seed = Seed::new(5);
        for number in 0..20_000 {
            for root in [&pair.source, &pair.target] {
                let path = root.join(format!("many/{}/{number}", number % 20));
                write_file(&path, b"");
                set_time(&path, 1_200_000_000);
            }
        }
        for number in [seed.below(16_000), 16_000 + seed.below(4000)] {
            pair.set(&format!("many/{}/{number}", number % 20), "user.a", b"new");
        }
        let expected = pair.rsync("-rtniAX");
        let outcome = pair.sync(&["-AX", "--json"]).expect_code(0);
        assert_eq!(
            planned(&outcome)
                .into_iter()
                .filter(|(_, why)| why.contains("extended"))
                .count(),
            2,
            "{expected:?} {outcome}"
        );
        pair.assert_equal(&["-AX"]);
    });
}

/// Random changes of attributes end in what rsync makes of them.
#[test]
fn random_attributes_are_those_of_rsync() {
    each_way(|pair| {
        let mut seed = Seed::new(11);
        for round in 0..6 {
            for root in [&pair.source, &pair.target] {
                for path in all(root) {
                    let mut change = |name: &str, values: &[&[u8]]| match seed.below(4) {
                        0 => remove(&path, name),
                        1 => {
                            let value = values[seed.below(values.len() as u64) as usize];
                            set_xattr(&path, name, value).expect("an attribute");
                        }
                        _ => {}
                    };
                    change("user.a", &[b"1", b"2", &[9; 700]]);
                    change("user.b", &[b"", b"1"]);
                    change(ACCESS, &[&acl(), &acl_with(0), &acl_with(6)]);
                    if path.is_dir() {
                        change(DEFAULT, &[&acl(), &acl_with(5)]);
                    }
                }
            }
            let expected = pair.rsync("-aniAX");
            let outcome = pair.sync(&["-AX", "--json"]).expect_code(0);
            let paths: Vec<String> = planned(&outcome)
                .into_iter()
                .map(|(path, _)| path)
                .collect();
            assert_eq!(paths, expected, "round {round} {}: {outcome}", pair.way);
            pair.assert_equal(&["-AX"]);
        }
    });
}
