//! Connections that a rule of `longhaul wrap` redirects.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use longhaul_tests::longhaul;
use longhaul_tests::wrapped::{Echo, Wrapping, probe};
use testkit::port::free;
use testkit::{Run, missing};

use crate::filtered::{asyncio, node};

/// `longhaul relay` to a port of this machine, which ends when dropped.
struct Relay(Child, u16);

impl Relay {
    fn to(port: u16) -> Self {
        Self::start(&["127.0.0.1:0", &format!("127.0.0.1:{port}")])
    }

    fn start(words: &[&str]) -> Self {
        let mut command = Command::new(longhaul());
        command.args(["relay", "-q"]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("longhaul starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let port = line
            .trim()
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok());
        Self(child, port.unwrap_or_else(|| panic!("{line}")))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Nothing listens at the port that the program names: without the rule it would be refused.
#[test]
fn a_connection_goes_to_the_relay_of_its_rule() {
    let wrapping = Wrapping::new();
    let Some(probe) = probe(wrapping.folder.path(), &[]) else {
        return;
    };
    let echo = Echo::start();
    let (relay, free) = (Relay::to(echo.port), free());
    let (report, _) = wrapping.report();
    let file = wrapping.folder.path().join("file");
    std::fs::write(&file, "a file of words").unwrap();
    for mode in ["nonblocking", "ways", "forks"] {
        let route = format!("127.0.0.0/8:{free}=localhost:{}", relay.1);
        let run = wrapping.run(&["--route", &route, &report]).arg(&probe);
        let run = run.args([mode, &free.to_string()]).arg(&file);
        run.run().expect_code(0);
    }
    assert!(echo.connections() > 100);
    let lines = wrapping.reported();
    let via = format!("127.0.0.1:{}", relay.1);
    let peer = format!("127.0.0.1:{free}");
    let routed = |line: &serde_json::Value| line["via"] == *via && line["peer"] == *peer;
    assert!(lines.iter().all(routed), "{:?}", lines[0]);
}

#[test]
fn where_no_relay_listens_the_connection_is_made_without_it() {
    let wrapping = Wrapping::new();
    let Some(probe) = probe(wrapping.folder.path(), &[]) else {
        return;
    };
    let (echo, free) = (Echo::start(), free());
    let file = wrapping.folder.path().join("file");
    std::fs::write(&file, "a file of words").unwrap();
    let route = format!("*=127.0.0.1:{free}");
    for mode in ["nonblocking", "ways", "wrong"] {
        let run = wrapping.run(&["--route", &route]).arg(&probe);
        let run = run.args([mode, &echo.port.to_string()]).arg(&file);
        run.run().expect_code(0);
    }
    // If nothing listens at all, the result is that without a rule.
    let plain = Run::new(&probe).args(["refused", &free.to_string()]).run();
    let run = wrapping.run(&["--route", &route]).arg(&probe);
    let wrapped = run.args(["refused", &free.to_string()]).run();
    assert_eq!(wrapped.expect_code(0).out(), plain.out());
}

#[test]
fn curl_and_python_go_by_a_relay() {
    let wrapping = Wrapping::new();
    let echo = Echo::start();
    let (relay, free) = (Relay::to(echo.port), free());
    let route = format!("127.0.0.1:{free}=127.0.0.1:{}", relay.1);
    let (report, _) = wrapping.report();
    if missing::find_program("curl").is_some() {
        let url = format!("telnet://127.0.0.1:{free}");
        let run = wrapping.run(&["--route", &route, &report]);
        let run = run.args(["curl", "-s", "-m", "2", &url]).stdin("hello\n");
        // curl waits for more data until its time limit.
        assert_eq!(run.run().out(), "hello\n");
    }
    if missing::find_program("python3").is_some() {
        let text = format!(
            "import asyncio\n\
             async def main():\n    \
                 reader, writer = await asyncio.open_connection('127.0.0.1', {free})\n    \
                 writer.write(b'x' * 5000000); writer.write_eof()\n    \
                 print(len(await reader.read()))\n\
             asyncio.run(main())"
        );
        let run = wrapping.run(&["--route", &route, &report]);
        let outcome = run.args(["python3", "-c", &text]).run().expect_code(0);
        assert_eq!(outcome.out(), "5000000\n");
    }
    let lines = wrapping.reported();
    assert!(
        !lines.is_empty() && lines.iter().all(|line| !line["via"].is_null()),
        "{lines:?}"
    );
}

#[test]
fn a_socket_that_waits_goes_by_a_socks_proxy() {
    let wrapping = Wrapping::new();
    let Some(probe) = probe(wrapping.folder.path(), &[]) else {
        return;
    };
    let echo = Echo::start();
    let permitted = format!("127.0.0.1:{}", echo.port);
    let proxy = Relay::start(&["127.0.0.1:0/socks5", "--to", &permitted]);
    let route = format!("127.0.0.1=socks5://127.0.0.1:{}", proxy.1);
    let (report, _) = wrapping.report();
    let file = wrapping.folder.path().join("file");
    std::fs::write(&file, "a file of words").unwrap();
    let run = |mode: &str, port: u16| {
        let run = wrapping.run(&["--route", &route, &report]).arg(&probe);
        let run = run.args([mode, &port.to_string()]).arg(&file);
        (run.run().expect_code(0).out(), wrapping.reported())
    };
    let (_, lines) = run("ways", echo.port);
    assert_eq!(lines[0]["via"], format!("127.0.0.1:{}", proxy.1));
    // A non-blocking connection is handled by the helper process.
    for mode in ["nonblocking", "epolled"] {
        let (_, lines) = run(mode, echo.port);
        assert_eq!(lines[0]["via"], format!("127.0.0.1:{}", proxy.1));
        assert_eq!(lines[0]["carried"]["by"], "socks", "{lines:?}");
        assert_eq!(lines[0]["tcp"]["sent"], 5, "{lines:?}");
    }
    // If the proxy refuses, the connection is tried without it, and refused as it would have been.
    assert_eq!(run("refused", free()).0, "-1 111\n");
    let other = Echo::start();
    let (_, lines) = run("ways", other.port);
    assert!(lines[0]["via"].is_null(), "{lines:?}");
    let (_, lines) = run("nonblocking", other.port);
    assert!(lines[0]["via"].is_null(), "{lines:?}");
    assert_eq!(lines[0]["carried"]["by"], "direct");
}

/// Without the helper process, as if only the library is loaded, the connection is made directly.
#[test]
fn a_socket_that_does_not_wait_needs_somebody_for_a_socks_proxy() {
    let wrapping = Wrapping::new();
    let Some(probe) = probe(wrapping.folder.path(), &[]) else {
        return;
    };
    let echo = Echo::start();
    let library = wrapping.run(&["--library"]).run().expect_code(0).out();
    let route = format!("route=*=socks5://127.0.0.1:{}", free());
    for rules in [route.clone(), route + ",carrier=nobody-1@9"] {
        let run = Run::new(&probe).args(["nonblocking", &echo.port.to_string()]);
        let run = run.env("LD_PRELOAD", library.trim());
        let outcome = run.env("LONGHAUL_WRAP", rules).run().expect_code(0);
        assert_eq!(
            (outcome.out().as_str(), outcome.err().as_str()),
            ("ok\n", "")
        );
    }
}

#[test]
fn curl_python_and_node_go_by_a_socks_proxy() {
    let wrapping = Wrapping::new();
    let echo = Echo::start();
    let permitted = format!("127.0.0.1:{}", echo.port);
    let proxy = Relay::start(&["127.0.0.1:0/socks5", "--to", &permitted]);
    let route = format!("*=socks5://127.0.0.1:{}", proxy.1);
    let (report, _) = wrapping.report();
    let wrapped = |words: &[&str]| {
        let run = wrapping.run(&["--route", &route, &report]).args(words);
        run.timeout(std::time::Duration::from_secs(120))
    };
    let led = || {
        let lines = wrapping.reported();
        let led = |line: &serde_json::Value| line["carried"]["by"] == "socks";
        assert!(!lines.is_empty() && lines.iter().all(led), "{lines:?}");
    };
    if missing::find_program("curl").is_some() {
        let url = format!("telnet://127.0.0.1:{}", echo.port);
        let run = wrapped(&["curl", "-s", "-m", "2", &url]).stdin("hello\n");
        assert_eq!(run.run().out(), "hello\n");
        led();
    }
    for (program, flag, text) in [
        ("python3", "-c", asyncio(echo.port)),
        ("node", "-e", node(echo.port)),
    ] {
        if missing::find_program(program).is_some() {
            let outcome = wrapped(&[program, flag, &text]).run().expect_code(0);
            assert_eq!(outcome.out(), "5000000\n", "{program}");
            led();
        }
    }
}
