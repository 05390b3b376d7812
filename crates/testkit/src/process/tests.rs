use super::*;

#[test]
fn captures_output_code_and_time() {
    let outcome = Run::new("sh")
        .args(["-c", "echo out; echo err >&2; exit 3"])
        .run();
    assert_eq!(
        (outcome.out().as_str(), outcome.err().as_str()),
        ("out\n", "err\n")
    );
    assert_eq!(outcome.code, Some(3));
    assert!(!outcome.timed_out);
}

#[test]
fn ends_the_whole_group_when_time_is_over() {
    let begun = Instant::now();
    let outcome = Run::new("sh")
        .args(["-c", "sleep 30 & sleep 30"])
        .timeout(Duration::from_millis(200))
        .run();
    assert!(outcome.timed_out);
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "the pipe was closed with the group"
    );
}

#[test]
fn talks_to_a_program_in_a_terminal() {
    let mut running = Run::new("sh")
        .args(["-c", "printf 'name? '; read n; echo \"hello $n\"; tty"])
        .in_terminal()
        .spawn();
    assert!(running.shows("name? "));
    running.type_in("world\n");
    assert!(running.shows("hello world"));
    let outcome = running.wait();
    assert!(
        outcome.success() && outcome.out().contains("/dev/"),
        "{outcome}"
    );
}

#[test]
fn counts_processor_time() {
    let outcome = Run::new("sh")
        .args(["-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"])
        .run();
    assert!(
        outcome.cpu >= Duration::from_millis(20),
        "{:?}",
        outcome.cpu
    );
}
