//! Planted journals. A tree contained a file `.longhaul-HASH.journal` for a copy that the user
//! would make later. That copy took it for its own journal, and removed files that it named,
//! wherever they were.

use std::fs;
use std::path::Path;

use longhaul_tests::{Program, Scene, names_in};
use schedule::journal::{JournalEncoder, JournalRecord, SourceFileStamp};
use testkit::PeerKind;
use testkit::tree::write_file;

/// Returns the journal's name in version 2: SHA-256 of flags, source and target.
fn name_of_version_2(source: &str, target: &Path) -> String {
    let mut identity = b"100".to_vec();
    for place in [source, target.to_str().expect("ours")] {
        identity.push(0);
        identity.extend_from_slice(place.as_bytes());
    }
    let sum = testkit::process::Run::new("sh")
        .args(["-c", "printf %b \"$0\" | sha256sum"])
        .arg(
            String::from_utf8(identity)
                .expect("ours")
                .replace('\0', "\\0"),
        )
        .run()
        .expect_code(0);
    format!(".longhaul-{}.journal", &sum.out()[..20])
}

/// Returns a journal of version 2 that removes `victim`.
fn journal_of_version_2(source: &str, target: &Path, victim: &Path) -> Vec<u8> {
    let (mut bytes, mut writer) = (Vec::new(), JournalEncoder::default());
    JournalEncoder::header(&mut bytes);
    if let Some(version) = bytes.last_mut() {
        *version = 2;
    }
    let identity = format!("100\0{source}\0{}", target.display()).into_bytes();
    let path = victim.to_str().expect("ours").into();
    for record in [
        JournalRecord::Copy { identity },
        JournalRecord::Begun {
            id: 0,
            target: b"/nonexistent/x".to_vec(),
            source: SourceFileStamp::default(),
            tag: 0,
        },
        JournalRecord::Temp { id: 0, path },
    ] {
        writer.write(&record, &mut bytes);
    }
    bytes
}

#[test]
fn a_planted_journal_is_refused_and_touches_nothing() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.program == Program::Scp {
        return;
    }
    let work = scene.path("work");
    for folder in [&work, &scene.path("proj/conf")] {
        fs::create_dir_all(folder).expect("our folder");
    }
    let precious = scene.path("precious");
    write_file(&precious, b"precious");
    write_file(&scene.path("proj/README"), b"hi");
    write_file(&scene.path("proj/conf/a.conf"), b"a");
    let later = scene.remote("proj/conf").into_string().expect("ours");
    let target = work.join("proj/conf");
    let planted = name_of_version_2(&later, &target);
    let journal = journal_of_version_2(&later, &target, &precious);
    write_file(&scene.path("proj").join(&planted), &journal);

    let cp = || scene.client.cp().arg("-r");
    let first = cp().arg(scene.remote("proj")).arg(&work).run();
    let said = first.expect_code(1).err();
    assert!(
        said.contains(&planted) && said.contains("not copied"),
        "{said}"
    );
    assert_eq!(names_in(&work.join("proj")), ["README", "conf"]);

    // An older longhaul had copied it.
    let beside = work.join("proj").join(&planted);
    write_file(&beside, &journal);
    fs::remove_dir_all(&target).expect("copied");
    let second = cp().arg(&later).arg(&target).run().expect_code(0);
    let said = second.err();
    assert!(!said.contains("resuming"), "{said}");
    assert_eq!(said.matches("ignoring this journal").count(), 1, "{said}");
    assert_eq!(fs::read(&precious).expect("still there"), b"precious");
    assert_eq!(fs::read(&beside).expect("not ours to remove"), journal);
    assert_eq!(fs::read(target.join("a.conf")).expect("copied"), b"a");
}

#[test]
fn a_pattern_does_not_fetch_one_either() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.program == Program::Scp {
        return;
    }
    let to = scene.path("to");
    for folder in [&to, &scene.path("from")] {
        fs::create_dir(folder).expect("our folder");
    }
    write_file(&scene.path("from/.longhaul-0123456789.journal"), b"planted");
    write_file(&scene.path("from/.lonesome"), b"a file");
    let from = scene.remote("from/.lon*");
    let outcome = scene.client.cp().arg(from).arg(&to).run().expect_code(1);
    assert!(outcome.err().contains("not copied"), "{outcome}");
    assert_eq!(names_in(&to), [".lonesome"]);
}
