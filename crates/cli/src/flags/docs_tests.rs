use super::*;

#[test]
fn committed_documents_are_up_to_date() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for (name, bytes) in documents() {
        let committed = fs::read(docs.join(&name)).unwrap_or_default();
        assert!(
            committed == bytes,
            "docs/{name} is out of date: run `longhaul man --write docs`"
        );
    }
}

#[test]
fn man_page_has_every_flag_and_every_exit_code() {
    let page = String::from_utf8(man(Some("cp")).unwrap())
        .unwrap()
        .replace('\\', "");
    for flag in rows() {
        assert!(
            page.contains(&flag.spelled()),
            "{} is missing",
            flag.spelled()
        );
        if let Some(long) = flag.long {
            assert!(page.contains(&format!("--{long}")), "--{long} is missing");
        }
    }
    for exit in exit::ALL {
        assert!(
            page.contains(&capital(exit.meaning())),
            "{exit:?} is missing"
        );
    }
    assert!(man(Some("nosuch")).is_none());
}

#[test]
fn the_labs_page_has_its_flags_paths_and_exit_codes() {
    let page = String::from_utf8(man(Some("lab")).unwrap())
        .unwrap()
        .replace('\\', "");
    for flag in lab_rows() {
        assert!(
            page.contains(&flag.spelled()),
            "{} is missing",
            flag.spelled()
        );
    }
    for path in lab::path::NAMED {
        assert!(page.contains(path.name), "{} is missing", path.name);
    }
    for (code, meaning) in exit::LAB {
        assert!(page.contains(&capital(meaning)), "{code} is missing");
    }
}

#[test]
fn completions_know_the_flags() {
    use clap_complete::Shell;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let script = String::from_utf8(completions(shell)).unwrap();
        for word in ["longhaul", "fsync", "recursive", "dscp"] {
            assert!(script.contains(word), "{word} is missing for {shell}");
        }
    }
}

#[test]
fn reference_has_every_exit_code_and_changelog_the_version_to_come() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let reference = fs::read_to_string(root.join("docs/reference/exit-codes.md")).unwrap();
    for exit in exit::ALL {
        assert!(
            reference.contains(&format!("\n| {} | ", exit.code())),
            "{exit:?} is missing"
        );
    }
    let changelog = fs::read_to_string(root.join("CHANGELOG.md")).unwrap();
    assert!(changelog.contains("## Unreleased") || changelog.contains(env!("CARGO_PKG_VERSION")));
}
