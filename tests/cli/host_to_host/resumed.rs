//! Large files between two hosts through this machine whose copy is interrupted.

use std::time::SystemTime;

use rustix::process::Signal;
use testkit::Running;
use testkit::delay_proxy::Way;

use super::*;

const SIZE: usize = 24_000_000;
/// Bytes that have arrived when a copy is interrupted, at least.
const ARRIVED: u64 = 12_000_000;
/// Bytes of them that may be sent again: those that no record covers yet.
const AGAIN: u64 = 6_000_000;
const SLOWLY: [&str; 3] = ["--through-here", "--limit", "8MB/s"];

impl Pair {
    /// Bytes in the target's folder.
    fn has_arrived(&self) -> u64 {
        self.has_arrived_in("to")
    }

    fn has_arrived_in(&self, folder: &str) -> u64 {
        let files = fs::read_dir(self.path(folder)).into_iter().flatten();
        let files = files.flatten();
        let sizes = files.filter_map(|file| file.metadata().ok().map(|meta| meta.len()));
        sizes.sum()
    }

    /// Copies a file through this machine, and sends `signal` once half of it has arrived.
    fn is_stopped(&self, content: &[u8], signal: Signal) -> Outcome {
        write_file(&self.path("from/file"), content);
        let _ = fs::remove_file(self.path("to/file"));
        let running = self.cp(&SLOWLY, "from/file", "to/file").spawn();
        assert!(running.until(|| self.has_arrived() >= ARRIVED));
        send(&running, signal);
        running.wait()
    }

    /// Copies the file, asserts that it is whole, and returns the bytes that were taken over.
    #[track_caller]
    fn goes_on(&self, content: &[u8]) -> u64 {
        let flags = ["--through-here", "--json"];
        let run = self.cp(&flags, "from/file", "to/file").run();
        let outcome = run.expect_code(0);
        let copied = fs::read(self.path("to/file")).expect("a copy");
        assert!(copied == content, "{outcome}");
        assert_eq!(names_in(&self.path("to")), ["file"], "{outcome}");
        let summary = event(&outcome, "summary");
        let of = |name: &str| summary[name].as_u64().unwrap_or_default();
        assert_eq!(of("bytes") + of("taken_over"), SIZE as u64, "{summary}");
        of("taken_over")
    }

    /// Puts each host behind a proxy, and returns the proxies of source and target.
    fn behind_proxies(&mut self) -> [DelayProxy; 2] {
        [("a", &self.a), ("b", &self.b)].map(|(name, host)| {
            let proxy = DelayProxy::to(host.peer.addr()).start();
            let dir = &mut self.client.dir;
            dir.add_host_at(name, &host.peer, proxy.port());
            proxy
        })
    }
}

fn send(running: &Running, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(running.pid().cast_signed());
    let pid = pid.expect("a process number");
    rustix::process::kill_process(pid, signal).expect("our process");
}

/// Bug: the hint said how to resume, and the same command began the file at zero.
#[test]
fn a_stopped_copy_through_here_sent_its_file_again_from_the_start() {
    let Some(pair) = Pair::start() else { return };
    for (seed, signal) in [(3, Signal::INT), (4, Signal::KILL)] {
        let content = Seed::new(seed).bytes(SIZE);
        let outcome = pair.is_stopped(&content, signal);
        if signal == Signal::INT {
            let outcome = outcome.expect_code(130);
            outcome.expect_err(&["to resume:"]);
        }
        let taken = pair.goes_on(&content);
        assert!(taken >= ARRIVED - AGAIN, "{signal:?}: {taken}");
    }
}

#[test]
fn a_source_that_changed_is_sent_anew_through_here() {
    let Some(pair) = Pair::start() else { return };
    pair.is_stopped(&Seed::new(5).bytes(SIZE), Signal::INT);
    let content = Seed::new(6).bytes(SIZE);
    let source = pair.path("from/file");
    write_file(&source, &content);
    let file = fs::File::options().write(true).open(source);
    let later = SystemTime::now() + Duration::from_secs(5);
    file.and_then(|file| file.set_modified(later))
        .expect("our file");
    assert_eq!(pair.goes_on(&content), 0);
}

/// Bug: a temporary to which somebody had added bytes kept them, under the final name.
#[test]
fn a_temporary_that_lost_or_got_bytes_is_sent_anew_through_here() {
    let Some(pair) = Pair::start() else { return };
    for (seed, len) in [(7, 1_000_000), (10, SIZE as u64 + 1)] {
        let content = Seed::new(seed).bytes(SIZE);
        pair.is_stopped(&content, Signal::INT);
        let names = names_in(&pair.path("to"));
        let temporary = pair.path("to").join(names.first().expect("a temporary"));
        let file = fs::File::options().write(true).open(temporary);
        file.and_then(|file| file.set_len(len)).expect("our file");
        assert_eq!(pair.goes_on(&content), 0, "{len} bytes");
    }
}

/// Bug: the file was begun again, at both hosts.
#[test]
fn a_copy_through_here_began_its_file_again_after_a_lost_connection() {
    let Some(mut pair) = Pair::start() else {
        return;
    };
    let [a, b] = pair.behind_proxies();
    for (seed, lost) in [(8, &a), (9, &b)] {
        let content = Seed::new(seed).bytes(SIZE);
        write_file(&pair.path("from/file"), &content);
        let _ = fs::remove_file(pair.path("to/file"));
        let before = [a.carried(Way::Down), b.carried(Way::Up)];
        let running = pair.cp(&SLOWLY, "from/file", "to/file").spawn();
        assert!(running.until(|| pair.has_arrived() >= ARRIVED));
        lost.cut_now();
        let outcome = running.wait().expect_code(0);
        let copied = fs::read(pair.path("to/file")).expect("a copy");
        assert!(copied == content, "{outcome}");
        assert_eq!(names_in(&pair.path("to")), ["file"], "{outcome}");
        outcome.expect_err(&["reconnecting"]);
        let carried = [
            a.carried(Way::Down) - before[0],
            b.carried(Way::Up) - before[1],
        ];
        let most = SIZE as u64 + AGAIN;
        assert!(carried.iter().all(|bytes| *bytes < most), "{carried:?}");
    }
}

/// The summary of an interrupted copy counts no byte a second time that an earlier attempt or an
/// earlier run has sent.
#[test]
fn an_interrupted_copy_through_here_claims_what_has_arrived() {
    let Some(mut pair) = Pair::start() else {
        return;
    };
    let [a, b] = pair.behind_proxies();
    let stop = |pair: &Pair, lost: Option<&DelayProxy>| {
        let before = pair.has_arrived();
        let flags = [&SLOWLY[..], &["--json"]].concat();
        let running = pair.cp(&flags, "from/file", "to/file").spawn();
        if let Some(lost) = lost {
            assert!(running.until(|| pair.has_arrived() >= before + 6_000_000));
            lost.cut_now();
        }
        assert!(running.until(|| pair.has_arrived() >= before + 10_000_000));
        send(&running, Signal::INT);
        let outcome = running.wait().expect_code(130);
        let summary = event(&outcome, "summary");
        let claimed = summary["unfinished"].as_u64().unwrap_or_default();
        // Bytes whose answers an interrupted run has not seen are sent again.
        let from = match lost {
            Some(_) => before,
            None => event(&outcome, "resumed")["partial_bytes"]
                .as_u64()
                .unwrap_or(before),
        };
        let arrived = pair.has_arrived() - from;
        assert!(
            claimed <= arrived + 1_000_000,
            "{claimed} of {arrived}: {summary}"
        );
        assert!(
            claimed + AGAIN >= arrived,
            "{claimed} of {arrived}: {summary}"
        );
    };
    for (seed, lost) in [(11, &a), (12, &b)] {
        write_file(&pair.path("from/file"), &Seed::new(seed).bytes(2 * SIZE));
        // The second run resumes the first.
        stop(&pair, Some(lost));
        stop(&pair, None);
        for name in names_in(&pair.path("to")) {
            fs::remove_file(pair.path("to").join(name)).expect("our file");
        }
    }
}

/// Bug: the copy stood still for ever. The upload of the continued file took the only channel to the
/// target. Its download was queued behind that of the other large file, which had filled the memory
/// between the hosts: its upload was queued behind the first one.
#[test]
fn a_resumed_copy_through_here_stood_still_beside_another_large_file() {
    let Some(pair) = Pair::start() else { return };
    pair.a.remove();
    pair.b.remove();
    let write =
        |name: String, content: &[u8]| write_file(&pair.path("from/tree").join(name), content);
    fs::create_dir(pair.path("from/tree")).expect("our folder");
    write("part".to_owned(), &Seed::new(13).bytes(SIZE));
    let flags = [&SLOWLY[..], &["-r"]].concat();
    let running = pair.cp(&flags, "from/tree", "to/tree").spawn();
    assert!(running.until(|| pair.has_arrived_in("to/tree") >= ARRIVED));
    send(&running, Signal::INT);
    running.wait().expect_code(130);
    write("other".to_owned(), &Seed::new(14).bytes(90_000_000));
    for n in 0..100 {
        write(n.to_string(), n.to_string().as_bytes());
    }
    let run = pair.cp(&["--through-here", "-r"], "from/tree", "to/tree");
    let outcome = run.timeout(Duration::from_secs(60)).run().expect_code(0);
    outcome.expect_err(&["resuming the earlier copy"]);
    let (from, to) = (pair.path("from/tree"), pair.path("to/tree"));
    assert_same(&from, &to, Compare::CONTENT);
}
