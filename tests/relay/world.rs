//! Running relay, and its clients and servers.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use longhaul_tests::longhaul;
use rustix::process::{Pid, Signal, kill_process};
use testkit::{Seed, wait};

/// Time limit for everything that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Running relay, which ends when dropped.
pub(crate) struct Relay {
    child: Child,
    /// Addresses at which it listens, from its output.
    pub(crate) listening: Vec<String>,
    log: Arc<Log>,
}

/// Lines that a relay has written to its standard error.
#[derive(Default)]
struct Log {
    text: Mutex<String>,
    grew: Condvar,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, String> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: &str) {
        let mut text = self.lock();
        text.push_str(line);
        text.push('\n');
        self.grew.notify_all();
    }
}

impl Relay {
    /// Starts `longhaul relay WORDS`, and waits until it listens.
    pub(crate) fn start(words: &[&str]) -> Self {
        Self::start_with(words, &[])
    }

    /// Starts the relay with environment variables.
    pub(crate) fn start_with(words: &[&str], variables: &[(&str, &Path)]) -> Self {
        Self::run(Command::new(longhaul()), words, variables)
    }

    /// Starts the relay in a namespace, by a command that runs what follows it.
    pub(crate) fn start_in(mut enters: Command, words: &[&str]) -> Self {
        enters.arg(longhaul());
        Self::run(enters, words, &[])
    }

    fn run(mut command: Command, words: &[&str], variables: &[(&str, &Path)]) -> Self {
        command.arg("relay").args(words);
        let mut child = command
            // Only keys that a test names are used.
            .env("XDG_CONFIG_HOME", "/nonexistent")
            .env("XDG_STATE_HOME", "/nonexistent")
            // No path memory is stored, not even by root.
            .env("XDG_CACHE_HOME", "/dev/null")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("longhaul starts");
        let log = Arc::<Log>::default();
        let (stderr, kept) = (child.stderr.take().expect("piped"), Arc::clone(&log));
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                kept.add(&line);
            }
        });
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut listening = Vec::new();
        // A relay with a configuration file prints each listener's address, and that of its status
        // page.
        let mut expected = match words.iter().position(|word| *word == "--config") {
            Some(at) => lines_of(&std::fs::read_to_string(words[at + 1]).unwrap()),
            None => 1,
        };
        expected += usize::from(words.contains(&"--status"));
        while listening.len() < expected {
            let mut line = String::new();
            let n = stdout.read_line(&mut line).unwrap();
            assert!(n > 0, "the relay ended: {}", log.lock());
            let at = line.trim().trim_start_matches("listening on ").to_owned();
            // A port alone means a listener for each address family.
            let port = at.rsplit_once(':').map_or("", |(_, port)| port);
            if words.iter().any(|word| *word == port || *word == "0") && listening.is_empty() {
                expected += 1;
            }
            listening.push(at);
        }
        // The output is read to its end, so that the relay never blocks on it.
        thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
        Self {
            child,
            listening,
            log,
        }
    }

    /// Starts a relay from a port that the kernel chooses to this listener.
    pub(crate) fn to(flags: &[&str], listener: &TcpListener) -> Self {
        let to = listener.local_addr().unwrap().to_string();
        let words: Vec<&str> = flags.iter().copied().chain(["127.0.0.1:0", &to]).collect();
        Self::start(&words)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listening[0].parse().expect("an address")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("it is there");
    }

    pub(crate) fn connect(&self) -> TcpStream {
        bounded(TcpStream::connect(self.address()).expect("the relay listens"))
    }

    /// Returns both ends of a connection through the relay.
    pub(crate) fn pair(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = self.connect();
        (client, accept(listener))
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().clone()
    }

    /// Waits until the log contains this text, and returns the log.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> String {
        let lacks = |log: &mut String| !log.contains(text);
        let waited = self
            .log
            .grew
            .wait_timeout_while(self.log.lock(), SOON, lacks);
        let (log, result) = waited.unwrap();
        let log = log.clone();
        assert!(!result.timed_out(), "the log lacks {text:?}:\n{log}");
        log
    }

    /// Waits for the relay to end, and returns its exit code.
    #[track_caller]
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let Some(status) = wait::exit(&mut self.child, SOON) else {
            panic!("it goes on:\n{}", self.log());
        };
        status.code()
    }

    pub(crate) fn is_there(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the relay said:\n{}", self.log());
        }
    }
}

/// Returns the number of lines that a relay with this configuration prints at its start, with one
/// address for each listener.
fn lines_of(file: &str) -> usize {
    file.matches("\nlisten =").count() + usize::from(file.contains("status ="))
}

/// Returns a listener for the test's own server.
pub(crate) fn server() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

/// Accepts the next connection.
#[track_caller]
pub(crate) fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    loop {
        assert!(wait::readable(listener, SOON), "nobody comes");
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return bounded(stream);
            }
            // Another thread was faster, or the client has left.
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(e) => panic!("accept: {e}"),
        }
    }
}

/// Copies a stream to its end, at most `rate` bytes per second, as a slow path does.
pub(crate) fn copy_paced(from: &mut impl Read, into: &mut impl Write, rate: usize) {
    let mut part = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut part) {
        if into.write_all(&part[..n]).is_err() {
            break;
        }
        thread::sleep(Duration::from_secs_f64(n as f64 / rate as f64));
    }
}

/// Writes to a reader that does not read until nothing was taken for `quiet`. Returns the number of
/// bytes that were taken.
pub(crate) fn fill(mut client: &TcpStream, quiet: Duration) -> usize {
    client.set_nonblocking(true).unwrap();
    let mut taken = 0;
    while wait::writable(client, quiet) {
        taken += client.write(&[0; 65_536]).unwrap_or(0);
        assert!(taken < 100 << 20, "there is no end to it");
    }
    taken
}

/// Sets time limits for reads and writes.
pub(crate) fn bounded(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

/// Asserts that the connection is reset, after any data.
#[track_caller]
pub(crate) fn expect_reset(stream: &mut TcpStream) {
    let read = stream.read_to_end(&mut Vec::new());
    let error = read.expect_err("an end of file where a reset was due");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
}

/// Asserts that the connection is reset while or after `bytes` are written. The kernel reports a
/// reset once: a write that comes too late takes the report, and a read then finds the end.
#[track_caller]
pub(crate) fn expect_reset_at(stream: &mut TcpStream, bytes: &[u8]) {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    match stream.write_all(bytes) {
        Ok(()) => expect_reset(stream),
        Err(e) => assert!(matches!(e.kind(), BrokenPipe | ConnectionReset), "{e}"),
    }
}

/// Asserts that exactly these bytes arrive, and then the end.
#[track_caller]
pub(crate) fn expect_all(stream: &mut TcpStream, expected: &[u8]) {
    let mut found = Vec::new();
    stream.read_to_end(&mut found).expect("an end");
    assert!(
        found == expected,
        "{} bytes rather than {}",
        found.len(),
        expected.len()
    );
}

/// Sends this many bytes each way at once, and then ends both streams.
pub(crate) fn both_ways(client: &mut TcpStream, server: &mut TcpStream, bytes: usize) {
    let (there, back) = (Seed::new(1).bytes(bytes), Seed::new(2).bytes(bytes));
    thread::scope(|scope| {
        for (stream, sent) in [(&*client, &there), (&*server, &back)] {
            let mut stream = stream.try_clone().unwrap();
            scope.spawn(move || {
                stream.write_all(sent).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            });
        }
        scope.spawn(|| expect_all(server, &there));
        expect_all(client, &back);
    });
}
