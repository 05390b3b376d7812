//! The command that completes the hosts of a fan-out that lack files.

use super::*;

/// Bug: a host that had failed part way was in no command, and the line spoke of "the other hosts".
#[test]
fn a_host_that_failed_part_way_was_not_in_the_command_that_completes() {
    let Some(mut hosts) = Hosts::start(4) else {
        return;
    };
    let mut words = Vec::new();
    for name in ["one", "two"] {
        hosts.write(name, name.as_bytes());
        words.push(hosts.path(name).display().to_string());
    }
    words.extend((1..=4).map(|number| hosts.remote(number, "")));
    hosts.down(2, true);
    // Only one of the files fails at this host.
    let in_the_way = hosts.path("h3/two");
    fs::create_dir(&in_the_way).expect("our folder");
    let outcome = hosts.cp(&words).run().expect_code(1);
    let err = outcome.err();
    let mut lines = err.lines();
    let found = lines.find_map(|line| line.split_once("to complete the copy to h2 and h3: "));
    let (_, command) = found.unwrap_or_else(|| panic!("{outcome}"));
    for (number, named) in [(1, false), (2, true), (3, true), (4, false)] {
        let is_named = command.contains(&hosts.remote(number, ""));
        assert_eq!(is_named, named, "h{number}: {command}");
    }
    hosts.down(2, false);
    fs::remove_dir(in_the_way).expect("our folder");
    let (_, words) = command.split_once(" cp ").expect("a copy");
    let words: Vec<&str> = words.split(' ').collect();
    hosts.cp(&words).run().expect_code(0);
    for (number, name) in [(2, "one"), (2, "two"), (3, "one"), (3, "two")] {
        holds(&hosts.path(&format!("h{number}/{name}")), name.as_bytes());
    }
}
