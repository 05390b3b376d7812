//! Filtered connections: a socketpair replaces the socket, and the helper process beside the
//! program carries the bytes.

use std::time::Duration;

use longhaul_tests::wrapped::{Echo, Wrapping, probe};
use testkit::{Run, missing};

/// Programs get the answers of the real connection for socket calls, both blocking ones and those
/// that use epoll before connecting.
#[test]
fn programs_see_the_connection_and_not_the_pair() {
    let wrapping = Wrapping::new();
    let Some(probe) = probe(wrapping.folder.path(), &[]) else {
        return;
    };
    let echo = Echo::start();
    let file = wrapping.folder.path().join("file");
    std::fs::write(&file, "a file of words").unwrap();
    let (report, _) = wrapping.report();
    for mode in [
        "asked",
        "epolled",
        "endings",
        "nonblocking",
        "ways",
        "waits",
        "threads",
        "forks",
        "vforks",
        "exhausted",
        "reused",
        "signals",
        "mark",
    ] {
        let run = |run: Run| {
            let run = run.args([mode, &echo.port.to_string()]).arg(&file);
            run.timeout(Duration::from_secs(120)).run().expect_code(0)
        };
        let plain = run(Run::new(&probe));
        for flags in [&["--filter", "*"][..], &["--filter", "*", &report]] {
            let outcome = run(wrapping.run(flags).arg(&probe));
            assert_eq!(outcome.out(), plain.out(), "{mode} {flags:?}");
            assert_eq!(outcome.err(), "", "{mode} {flags:?}");
        }
        let lines = wrapping.reported();
        let filtered = lines
            .iter()
            .filter(|line| line["carried"]["by"] == "filter");
        assert!(filtered.count() > 0, "{mode}: {lines:?}");
    }
}

/// Options are set on the network socket, not on the socketpair.
#[test]
fn a_filtered_connection_is_tuned_all_the_same() {
    let wrapping = Wrapping::new();
    let Some(probe) = probe(wrapping.folder.path(), &[]) else {
        return;
    };
    let echo = Echo::start();
    let (report, _) = wrapping.report();
    let run = wrapping.run(&["--always", "--filter", "127.0.0.0/8", &report]);
    let run = run.arg(&probe).args(["mark", &echo.port.to_string()]);
    // The program reads back what it has set; the report tells what packets get.
    assert_eq!(run.run().expect_code(0).out(), "32 72\n");
    let lines = wrapping.reported();
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(line["changed"][0], "dscp", "{line}");
    assert_eq!((&line["dscp"], &line["kept_off"]), (&18.into(), &1.into()));
    assert_eq!(line["tcp"]["sent"], 2, "{line}");
    assert_eq!(line["peer"], format!("127.0.0.1:{}", echo.port));
    // Connections that the rule does not match are not filtered.
    let run = wrapping.run(&["--filter", "192.0.2.0/24", &report]);
    let run = run.arg(&probe).args(["mark", &echo.port.to_string()]);
    run.run().expect_code(0);
    assert!(wrapping.reported()[0]["carried"].is_null());
}

#[test]
fn the_report_says_who_waited_for_whom() {
    let wrapping = Wrapping::new();
    let Some(probe) = probe(wrapping.folder.path(), &[]) else {
        return;
    };
    let echo = Echo::start();
    let run = wrapping.run(&["--filter", "*", "--report"]).arg(&probe);
    let outcome = run
        .args(["waits", &echo.port.to_string()])
        .run()
        .expect_code(0);
    outcome.expect_err(&[
        "filtered: waited",
        "for the program to write data",
        "for the network to accept data",
        "for data from the network",
        "for the program to read data",
    ]);
}

/// Without the helper process, programs connect directly.
#[test]
fn without_the_process_beside_it_a_program_is_not_filtered() {
    let wrapping = Wrapping::new();
    let Some(probe) = probe(wrapping.folder.path(), &[]) else {
        return;
    };
    let echo = Echo::start();
    let library = wrapping.run(&["--library"]).run().expect_code(0).out();
    let run = Run::new(&probe).args(["asked", &echo.port.to_string()]);
    let run = run.env("LD_PRELOAD", library.trim());
    let run = run.env("LONGHAUL_WRAP", "filter=*,carrier=nobody-1@9");
    let outcome = run.run().expect_code(0);
    assert_eq!(
        (outcome.out().as_str(), outcome.err().as_str()),
        ("ok\n", "")
    );
}

/// The environment alone starts no process that carries the bytes: the message names the command
/// that does, and the program runs.
#[test]
fn a_filter_in_the_environment_alone_names_the_command_that_runs_it() {
    let wrapping = Wrapping::new();
    let Some(probe) = probe(wrapping.folder.path(), &[]) else {
        return;
    };
    let echo = Echo::start();
    let library = wrapping.run(&["--library"]).run().expect_code(0).out();
    let run = Run::new(&probe).args(["asked", &echo.port.to_string()]);
    let run = run.env("LD_PRELOAD", library.trim());
    let outcome = run.env("LONGHAUL_WRAP", "filter=*").run().expect_code(0);
    assert_eq!(outcome.out(), "ok\n");
    outcome.expect_err(&["run 'longhaul wrap --filter=DEST PROGRAM' instead"]);
}

#[test]
fn curl_python_and_node_are_filtered() {
    let wrapping = Wrapping::new();
    let echo = Echo::start();
    let (report, _) = wrapping.report();
    let run = |words: &[&str]| {
        let run = wrapping.run(&["--filter", "*", &report]).args(words);
        run.timeout(Duration::from_secs(120)).run()
    };
    let filtered = || {
        let lines = wrapping.reported();
        let all = lines.iter().all(|line| line["carried"]["by"] == "filter");
        assert!(all && !lines.is_empty(), "{lines:?}");
    };
    if missing::find_program("curl").is_some() {
        let url = format!("telnet://127.0.0.1:{}", echo.port);
        let wrapped = wrapping.run(&["--filter", "*", &report]);
        let wrapped = wrapped
            .args(["curl", "-s", "-m", "2", &url])
            .stdin("hello\n");
        assert_eq!(wrapped.run().out(), "hello\n");
        filtered();
    }
    if missing::find_program("python3").is_some() {
        let text = asyncio(echo.port);
        assert_eq!(
            run(&["python3", "-c", &text]).expect_code(0).out(),
            "5000000\n"
        );
        filtered();
    }
    if missing::find_program("node").is_some() {
        let text = node(echo.port);
        assert_eq!(
            run(&["node", "-e", &text]).expect_code(0).out(),
            "5000000\n"
        );
        filtered();
    }
}

/// Returns a Python program that sends five million bytes and counts those that come back.
pub(crate) fn asyncio(port: u16) -> String {
    format!(
        "import asyncio\n\
         async def main():\n    \
             reader, writer = await asyncio.open_connection('127.0.0.1', {port})\n    \
             writer.write(b'x' * 5000000); writer.write_eof()\n    \
             print(len(await reader.read()))\n\
         asyncio.run(main())"
    )
}

/// Returns a Node.js program that sends five million bytes and counts those that come back.
pub(crate) fn node(port: u16) -> String {
    format!(
        "const s = require('net').connect({port}, '127.0.0.1'); let n = 0;\n\
         s.on('data', d => n += d.length).on('end', () => console.log(n));\n\
         s.end(Buffer.alloc(5000000));"
    )
}
