use super::*;

fn args(words: &str) -> CopyArgs {
    let line = format!("longhaul cp {words}");
    let words = line.split(' ').map(OsString::from);
    match crate::flags::low::parse(words, clap::ColorChoice::Never) {
        Ok(crate::flags::low::ParsedCommandLine::Copy(args)) => *args,
        other => panic!("{line}: {other:?}"),
    }
}

fn high(words: &str) -> Result<ResolvedCopyArgs, String> {
    resolve(args(words), &Environment::default()).map_err(|UsageError(what)| what)
}

/// Sources and targets as `host:path`, or the error.
fn copies(words: &str) -> String {
    let high = match high(words) {
        Ok(high) => high,
        Err(what) => return what,
    };
    let shown = |place: &CopyLocation, hosts: &[SshDestination]| match place {
        CopyLocation::Local(path) => path.display().to_string(),
        CopyLocation::Remote { host, path } => {
            format!("{}:{}", hosts[host.0], String::from_utf8_lossy(path))
        }
    };
    let Some(several) = &high.several else {
        return "one copy".to_owned();
    };
    let all = parts(several, &high.request, &high.hosts).unwrap();
    let each = all.iter().map(|(host, part)| {
        let own = [high.hosts[host.0].clone()];
        let sources: Vec<String> = part.sources.iter().map(|s| shown(s, &own)).collect();
        format!("{} > {}", sources.join(" "), shown(&part.target, &own))
    });
    each.collect::<Vec<_>>().join(" | ")
}

#[test]
fn each_host_of_braces_is_a_copy_of_its_own() {
    assert_eq!(
        copies("u@h{1..2}:/log/* h1:/x dir/"),
        "u@h1:/log/* > dir/ | u@h2:/log/* > dir/ | h1:/x > dir/"
    );
    assert_eq!(
        copies("--by-host h{1..2}:/log/* h1:/x dir/"),
        "h1:/log/* h1:/x > dir/h1 | h2:/log/* > dir/h2"
    );
    assert_eq!(
        copies("--by-host u@h:/a h:/a dir"),
        "u@h:/a > dir/u@h | h:/a > dir/h"
    );
    assert_eq!(copies("--by-host h:/a dir"), "h:/a > dir/h");
    // One copy merges, as before.
    assert_eq!(copies("-r h1:d/. h2:d/. dir"), "one copy");
    assert_eq!(copies("h1:a b dir"), "one copy");
    assert_eq!(copies("h1:a h2:b h3:"), "one copy");
}

#[test]
fn remote_directories_behind_local_sources_are_targets() {
    assert_eq!(
        copies("big h1: u@h2:dir/ h3:"),
        "big > h1:. | big > u@h2:dir/ | big > h3:."
    );
    assert_eq!(
        copies("a b h{1,2}:/tmp/x"),
        "a b > h1:/tmp/x | a b > h2:/tmp/x"
    );
    assert_eq!(
        copies("-r --fan-out d h1:/data h2:/data"),
        "d > h1:/data | d > h2:/data"
    );
    assert_eq!(copies("-r d h{1,2}:/data"), "d > h1:/data | d > h2:/data");
    // scp's meaning: the first host is a source.
    assert_eq!(copies("big h1:/data h2:"), "one copy");
    assert_eq!(copies("h1: h2:"), "one copy");
    assert_eq!(copies("big h1: b h2:"), "one copy");
    assert_eq!(copies("big h1: dir/"), "one copy");
    assert_eq!(copies("big h1:"), "one copy");
    assert_eq!(copies("big h1:x h2:y h3:z"), "one copy");
    assert_eq!(copies("-r h1:/srv d h2:/srv"), "one copy");
    assert_eq!(copies("-r d h1:/a h2:/b"), "one copy");
    assert_eq!(copies("-r d/. h1:d/. h2:to"), "one copy");
    assert_eq!(copies("-a d h1:/a/ h2:/b/"), "one copy");
    assert_eq!(copies("h1:x h2:x h3:x"), "one copy");
}

/// Regression: `cp h{1..2}:/log/* dir` failed without quotes if the directory did not exist.
#[test]
fn braces_that_the_shell_has_expanded_create_the_directory_too() {
    let creates = |words: &str| match high(words).unwrap().several {
        Some(MultiHostCopy::Gather { create, .. }) => create,
        other => panic!("{words}: {other:?}"),
    };
    assert!(creates("h{1..2}:/x dir"));
    assert!(creates("h1:/x h2:/x dir"));
    assert!(creates("h1:/x h2:/x h1:/y h2:/y dir"));
    assert!(!creates("h1:/x h2:/y dir"));
    assert!(!creates("h1:/x h2:/x h2:/y dir"));
}

/// A directory that the command makes may be a symlink of somebody else by the time of a later copy.
#[test]
fn each_copy_knows_if_the_directory_was_missing_when_the_command_began() {
    let dir = tempfile::tempdir().unwrap();
    let wanted = |flags: &str, target: &str| {
        let target = dir.path().join(target);
        let high = high(&format!("{flags}h{{1..2}}:/x {}", target.display())).unwrap();
        let several = high.several.as_ref().unwrap();
        let parts = parts(several, &high.request, &high.hosts).unwrap();
        parts
            .iter()
            .map(|(_, part)| part.options.target_directory)
            .collect::<Vec<_>>()
    };
    for (flags, target, is_new, parent_is_new) in [
        ("", "new", true, false),
        ("", ".", false, false),
        ("", "new/sub", true, true),
        ("--by-host ", "new", true, true),
        ("--by-host ", ".", true, false),
    ] {
        let expected = TargetDirectory::Shared {
            is_new,
            parent_is_new,
        };
        assert_eq!(wanted(flags, target), [expected; 2], "{flags} {target}");
    }
}

#[test]
fn what_has_two_meanings_is_refused() {
    for (words, why) in [
        ("-r d h1: h2:", "add --fan-out"),
        ("-a d h1:/data/ h2:/data/", "add --fan-out"),
        (
            "-r tree h1:/srv h2:/srv",
            "h1:/srv would be read as a source",
        ),
        (
            "-r tree h1:/srv/ h2:/srv",
            "h1:/srv/ would be read as a source",
        ),
        ("-r tree h1:~/ h2:/srv", "h1:~/ would be read as a source"),
        (
            "file h1: h2:/srv/in",
            "h1: would be read as a source, because only the last one is the destination, as in scp: to copy to all of the hosts, add --fan-out",
        ),
        ("file h1:/a h2:b/ h3:/c", "h2:b/ would be read as a source"),
        ("file h1:/in h2:/in", "h1:/in would be read as a source"),
        ("file h1:/in h2:/in h3:/in", "add --fan-out"),
        ("h0:/a h1:/b h2:/b", "h1:/b would be read as a source"),
        ("-r h0:/a h1: h2:", "h1: would be read as a source"),
        ("--fan-out h1:a h2: h3:", "sources on this machine first"),
        ("--fan-out big h1: b h2:", "sources on this machine first"),
        ("--fan-out a b", "sources on this machine first"),
        ("h0:a h{1,2}:", "sources on this machine"),
        ("big h1: h2: h1:", "h1: the host is named twice"),
        (
            "big -P 22 h1:a/ scp://h1:22/b/",
            "h1:22: the host is named twice",
        ),
        ("h{1,1}:/x dir", "the braces name h1:/x twice"),
        ("--by-host a dir", "--by-host: needs sources on hosts"),
        ("--by-host h:a h2:", "--by-host: needs sources on hosts"),
        ("--by-host ..:a dir", "cannot be the name of a directory"),
        ("--manifest m h{1,2}:/x dir", "--manifest"),
        ("h{1..:/x dir", "a brace is not closed"),
    ] {
        let error = high(words).err().unwrap_or_default();
        assert!(error.contains(why), "{words}: {error}");
    }
}

/// Bug: the start event of --json listed hosts of a fan-out as sources.
#[test]
fn targets_among_the_sources_are_not_shown_as_sources() {
    for words in ["a b h1: h2:", "--fan-out a b h1:x h2:x", "a b h{1,2}:"] {
        let sources = high(words).unwrap().sources;
        let sources: Vec<_> = sources.iter().map(ToString::to_string).collect();
        assert_eq!(sources, ["a", "b"], "{words}");
    }
}

/// Bug: a file of 1 MB with one line of a long path and braces took 1 GB of memory, since each host
/// got the path, and its error was a line of 1 MB.
#[test]
fn a_line_of_a_file_of_hosts_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    for (len, refused) in [(8_000, false), (9_000, true), (1_000_000, true)] {
        std::fs::write(&file, format!("# one\nh{{1..20}}:{}\n", "x".repeat(len))).unwrap();
        let copies = copies(&format!("--hosts {} big .", file.display()));
        assert_eq!(copies.contains("line 2: longer than"), refused, "{len}");
        assert!(!refused || copies.len() < 500, "{len}: {}", copies.len());
    }
}

#[test]
fn a_file_of_hosts_has_comments_paths_and_line_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    let with = |text: &str, words: &str| {
        std::fs::write(&file, text).unwrap();
        copies(&format!("--hosts {} {words}", file.display()))
    };
    assert_eq!(
        with(
            "# racks\n\nh1\n  u@h2:/srv/ # full\r\nh{3,4}:\nscp://h5:22\n[::1]:/x",
            "big dir/"
        ),
        "big > h1:dir/ | big > u@h2:/srv/ | big > h3:dir/ | big > h4:dir/ | big > h5:22:dir/ | big \
         > [::1]:/x"
    );
    assert_eq!(with("h1", "a b ."), "a b > h1:.");
    assert_eq!(
        with("h{1..2}:/srv\n", "big dir/"),
        "big > h1:/srv | big > h2:/srv"
    );
    for (text, words, why) in [
        ("h1\nh2\nh1:x\n", "big .", "h1: the host is named twice"),
        ("h1\n/etc/x\n", "big .", "line 2: "),
        (
            "h1 /srv\n",
            "big .",
            "line 1: h1 /srv: not a host: write one host",
        ),
        (
            "h1,h2\n",
            "big .",
            "h1,h2: not a host: write one host a line",
        ),
        ("ssh://h1\n", "big .", "ssh://h1: not a host: write one"),
        ("h1:22\n", "big .", "write scp://h1:22 for a port"),
        ("h{1..2\n", "big .", "a brace is not closed"),
        ("# none\n", "big .", "names no host"),
        ("h1\n", "big h2:", "write it without a host"),
        ("h1\n", "h0:big .", "sources on this machine"),
    ] {
        let error = with(text, words);
        assert!(error.contains(why), "{text}: {error}");
    }
}
