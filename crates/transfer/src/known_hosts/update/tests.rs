use std::fs;
use std::os::unix::fs::symlink;

use ssh::key::PrivateKey;

use super::*;
use crate::known_hosts::record;

fn key() -> PublicKey {
    PrivateKey::generate_ed25519().unwrap().public().clone()
}

fn host() -> HostName {
    HostName::new("far", 22, None)
}

fn text(hosts: &str, key: &PublicKey) -> String {
    let named = String::from_utf8(line(&host(), key, false).unwrap()).unwrap();
    named.replacen("far", hosts, 1)
}

struct Scene {
    _folder: tempfile::TempDir,
    files: Vec<PathBuf>,
    own: PublicKey,
    new: PublicKey,
    gone: PublicKey,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = ["known", "known2"].map(|name| folder.path().join(name));
        Self {
            _folder: folder,
            files: files.into(),
            own: key(),
            new: key(),
            gone: key(),
        }
    }

    fn announced(&self) -> AnnouncedHostKeys {
        let blobs = [self.own.blob(), self.new.blob()];
        AnnouncedHostKeys::new(host(), &self.own, blobs)
    }

    fn compare(
        &self,
        known: impl AsRef<[u8]>,
    ) -> Result<HostKeyChanges, KnownHostsUnchangedReason> {
        fs::write(&self.files[0], known).unwrap();
        self.announced().compare(&self.files)
    }

    fn apply(&self, hashed: bool) -> Vec<u8> {
        let proven = [self.new.clone()];
        self.announced()
            .apply(&self.files, &proven, hashed)
            .unwrap();
        fs::read(&self.files[0]).unwrap()
    }
}

#[test]
fn a_proven_key_is_appended_and_every_other_byte_stays() {
    let scene = Scene::new();
    for end in ["", "\n"] {
        let own = text("far,10.0.0.1", &scene.own);
        let before = [
            b"# caf\xe9\n\nbroken line\n".as_slice(),
            own.trim_end().as_bytes(),
        ]
        .concat();
        let before = [&before, end.as_bytes()].concat();
        let changes = scene.compare(&before).unwrap();
        assert_eq!(changes.new, [scene.new.blob()]);
        assert_eq!(changes.obsolete, []);
        let break_ = if end.is_empty() { "\n" } else { "" };
        let added = text("far", &scene.new);
        let expected = [&before, break_.as_bytes(), added.as_bytes()].concat();
        assert_eq!(scene.apply(false), expected);
        assert_eq!(
            scene.announced().compare(&scene.files),
            Err(KnownHostsUnchangedReason::UpToDate)
        );
        assert_eq!(scene.apply(false), expected, "once");
    }
}

#[test]
fn a_key_that_is_announced_no_more_leaves_all_files_of_the_user_and_stays_in_a_copy() {
    let scene = Scene::new();
    let other = text("other", &key());
    let (own, gone) = (text("far", &scene.own), text("far", &scene.gone));
    let before = format!("{gone}#first\n{own}{other}{gone}\tlast without end");
    fs::write(&scene.files[0], &before).unwrap();
    fs::set_permissions(&scene.files[0], PermissionsExt::from_mode(0o640)).unwrap();
    fs::write(&scene.files[1], format!("{other}{gone}")).unwrap();
    let changes = scene.announced().compare(&scene.files).unwrap();
    assert_eq!(changes.obsolete.len(), 3);
    let after = format!(
        "#first\n{own}{other}\tlast without end\n{}",
        text("far", &scene.new)
    );
    assert_eq!(String::from_utf8(scene.apply(false)).unwrap(), after);
    assert_eq!(fs::read_to_string(&scene.files[1]).unwrap(), other);
    let old = scene.files[0].with_file_name("known.old");
    assert_eq!(fs::read_to_string(old).unwrap(), before);
    let mode = fs::metadata(&scene.files[0]).unwrap().mode();
    assert_eq!(mode & 0o777, 0o640);
    let left = fs::read_dir(scene.files[0].parent().unwrap()).unwrap();
    assert_eq!(left.count(), 4, "two files and their copies");
}

#[test]
fn lines_that_say_more_than_host_and_key_keep_the_files_as_they_are() {
    let scene = Scene::new();
    let own = text("far", &scene.own);
    let [new, gone] = [&scene.new, &scene.gone];
    for (line, why) in [
        (
            format!("@revoked {}", text("far", gone)),
            KnownHostsUnchangedReason::ComplexLine,
        ),
        (
            format!("@cert-authority {}", text("far", gone)),
            KnownHostsUnchangedReason::ComplexLine,
        ),
        (
            "@revoked far ssh-ed25519 AAAA caf\u{e9}\n".into(),
            KnownHostsUnchangedReason::ComplexLine,
        ),
        (text("f*", gone), KnownHostsUnchangedReason::ComplexLine),
        (text("fa?", new), KnownHostsUnchangedReason::ComplexLine),
        (
            text("far,a,b", gone),
            KnownHostsUnchangedReason::ComplexLine,
        ),
        // The other host would lose its key, and accept-new would take any.
        (text("far,b", gone), KnownHostsUnchangedReason::ComplexLine),
        (text("far,!b", gone), KnownHostsUnchangedReason::ComplexLine),
        (
            text("other", new),
            KnownHostsUnchangedReason::KeyOfOtherHost,
        ),
        (
            text("other", &scene.own),
            KnownHostsUnchangedReason::KeyOfOtherHost,
        ),
        (
            text("far", gone) + &text("other", gone),
            KnownHostsUnchangedReason::KeyOfOtherHost,
        ),
    ] {
        let before = format!("{own}{line}");
        assert_eq!(scene.compare(&before), Err(why), "{line}");
        assert_eq!(scene.apply(false), before.as_bytes());
    }
    assert_eq!(
        scene.compare(text("far", gone)),
        Err(KnownHostsUnchangedReason::OwnKeyUnlisted)
    );
    assert_eq!(
        scene.compare(text("[far]:2222", &scene.own)),
        Err(KnownHostsUnchangedReason::OwnKeyUnlisted)
    );
    fs::write(&scene.files[0], own).unwrap();
    let unannounced = AnnouncedHostKeys::new(host(), &scene.own, [new.blob()]);
    assert_eq!(
        unannounced.compare(&scene.files),
        Err(KnownHostsUnchangedReason::OwnKeyUnannounced)
    );
}

#[test]
fn a_key_that_was_announced_and_not_proven_is_not_added() {
    let scene = Scene::new();
    let own = text("far", &scene.own);
    scene.compare(&own).unwrap();
    scene.announced().apply(&scene.files, &[], false).unwrap();
    assert_eq!(fs::read_to_string(&scene.files[0]).unwrap(), own);
    let strange = [key()];
    scene
        .announced()
        .apply(&scene.files, &strange, false)
        .unwrap();
    assert_eq!(fs::read_to_string(&scene.files[0]).unwrap(), own);
}

#[test]
fn names_are_hashed_where_the_user_hashes_them() {
    let scene = Scene::new();
    record(&scene.files[0], &host(), &scene.own, true).unwrap();
    record(&scene.files[0], &host(), &scene.gone, true).unwrap();
    let changes = scene.announced().compare(&scene.files).unwrap();
    assert_eq!((changes.new.len(), changes.obsolete.len()), (1, 1));
    let after = String::from_utf8(scene.apply(true)).unwrap();
    assert_eq!(after.lines().count(), 2, "{after}");
    assert!(after.lines().all(|line| line.starts_with("|1|")), "{after}");
    assert_eq!(
        scene.announced().compare(&scene.files),
        Err(KnownHostsUnchangedReason::UpToDate)
    );
}

#[test]
fn a_symlink_stays_and_the_file_that_it_leads_to_changes() {
    let scene = Scene::new();
    let file = scene.files[0].with_file_name("dotfile");
    let (own, gone) = (text("far", &scene.own), text("far", &scene.gone));
    fs::write(&file, format!("{own}{gone}")).unwrap();
    symlink("dotfile", &scene.files[0]).unwrap();
    let after = format!("{own}{}", text("far", &scene.new));
    assert_eq!(String::from_utf8(scene.apply(false)).unwrap(), after);
    assert!(fs::symlink_metadata(&scene.files[0]).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), after);
}

#[test]
fn no_file_is_created_and_a_device_is_left_alone() {
    let mut scene = Scene::new();
    fs::write(&scene.files[1], text("far", &scene.own)).unwrap();
    let proven = [scene.new.clone()];
    scene
        .announced()
        .apply(&scene.files, &proven, false)
        .unwrap();
    assert!(!scene.files[0].exists());
    scene.files[0] = "/dev/null".into();
    scene
        .announced()
        .apply(&scene.files, &proven, false)
        .unwrap();
}

#[test]
fn a_line_that_is_added_meanwhile_is_not_lost_by_a_replacement() {
    let scene = Scene::new();
    let (own, gone) = (text("far", &scene.own), text("far", &scene.gone));
    fs::write(&scene.files[0], format!("{own}{gone}")).unwrap();
    let (held, _) = open_locked(&scene.files[0], false).unwrap();
    let file = scene.files[0].clone();
    let other = HostName::new("other", 22, None);
    let adds = std::thread::spawn(move || record(&file, &other, &key(), false));
    // The other process waits for the lock or has not come so far, and then finds another file.
    let after = format!("{own}{}", text("far", &scene.new));
    replace(&scene.files[0], &held, after.as_bytes()).unwrap();
    drop(held);
    adds.join().unwrap().unwrap();
    let lines = fs::read_to_string(&scene.files[0]).unwrap();
    assert!(
        lines.starts_with(&after) && lines.lines().count() == 3,
        "{lines}"
    );
}
