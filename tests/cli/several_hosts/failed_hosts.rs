//! Hosts of a fan-out that fail, and the others, which get the files past them.

use super::*;

#[test]
fn a_host_that_is_killed_is_routed_around_and_completed_later() {
    let Some((mut hosts, content)) = Hosts::with_longhaul(4) else {
        return;
    };
    let running = hosts.fan_out(&["--limit", "10MB/s"]).spawn();
    assert!(running.shows("\"bytes_done\":1"), "{}", running.wait());
    testkit::wait::until(
        Duration::from_secs(30),
        || {
            names_in(&hosts.path("h4"))
                .iter()
                .any(|name| name.to_string_lossy().starts_with('.'))
        },
        || "the last host has nothing".to_owned(),
    );
    hosts.down(2, true);
    hosts.disconnect(2);
    let outcome = running.wait().expect_code(1);
    let all = summary(&outcome);
    for number in [1, 3, 4] {
        hosts.has_big(number, &content);
    }
    assert_eq!(origins(&all)[2], "h1", "{all}");
    assert_eq!(all["hosts"][1]["outcome"], "no_connection", "{all}");
    hosts.down(2, false);
    let outcome = hosts.fan_out(&[]).run().expect_code(0);
    assert_eq!(
        origins(&summary(&outcome)),
        ["", "h1", "h2", "h3"],
        "{outcome}"
    );
    hosts.has_big(2, &content);
}

/// The file went from here to each host, once more to the one that was down, and the reason was
/// "interrupted".
#[test]
fn a_host_that_is_down_from_the_beginning_is_routed_around() {
    let Some((mut hosts, content)) = Hosts::with_longhaul(4) else {
        return;
    };
    hosts.down(2, true);
    let outcome = hosts.fan_out(&[]).run().expect_code(1);
    let all = summary(&outcome);
    for number in [1, 3, 4] {
        hosts.has_big(number, &content);
    }
    assert_eq!(origins(&all), ["", "", "h1", "h3"], "{all}");
    assert_eq!(all["way"]["kind"], "chain", "{all}");
    assert_eq!(all["hosts"][1]["outcome"], "no_connection", "{all}");
    outcome.expect_err(&["h2: ", "refused"]);
}
