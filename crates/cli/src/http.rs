//! Serves metrics and pages over HTTP. A few lines suffice instead of a library: clients are on
//! this machine, one request of bounded length is read per connection, and only its path and its
//! Host header are used.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::Socket;
use sys::ListenAddressKind;

/// Longest request in bytes; browsers send cookies of other servers of this machine along.
const LONGEST: usize = 16 << 10;
/// Time limit of a request with its answer.
const TIME: Duration = Duration::from_secs(2);
/// Pause after accept(2) has failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of connections at once. Browsers open some ahead and leave them idle for a while.
const AT_ONCE: usize = 16;

/// Address at which metrics and the status page are served; TCP is limited to loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HttpEndpoint {
    /// A loopback port.
    Loopback(SocketAddr),
    /// A UNIX socket, which is created and replaces a stale one.
    Path(PathBuf),
}

impl HttpEndpoint {
    /// Parses the text of a flag or an option.
    pub(crate) fn of(text: &str) -> Self {
        match text.parse() {
            Ok(address) => Self::Loopback(address),
            Err(_) => Self::Path(text.into()),
        }
    }

    /// Returns why nothing can be served here, and what to do.
    pub(crate) fn listen_words(&self, error: &io::Error) -> String {
        let kind = match self {
            Self::Loopback(_) => ListenAddressKind::Port,
            Self::Path(_) => ListenAddressKind::Path,
        };
        sys::listen_words(kind, error)
    }
}

/// Media type and body of an answer. The other headers are the same for all answers and are added
/// when it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpResponse {
    /// Media type.
    pub(crate) kind: &'static str,
    pub(crate) body: String,
}

impl HttpResponse {
    /// Metrics in Prometheus' text format.
    pub(crate) fn figures(body: String) -> Self {
        let kind = "text/plain; version=0.0.4";
        Self { kind, body }
    }
}

/// A running HTTP server. It serves until it is stopped or the process ends.
#[derive(Debug)]
pub(crate) struct HttpServer {
    listener: Arc<Socket>,
    thread: JoinHandle<()>,
}

impl HttpServer {
    /// The bound address; port 0 is resolved to the actual port.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()?.as_socket()
    }

    /// Stops the server. The address is free when this returns.
    pub(crate) fn stop(self) {
        // Wakes the thread in accept(2).
        let _ = self.listener.shutdown(Shutdown::Both);
        // A panic of the thread was reported already.
        let _ = self.thread.join();
    }
}

/// Answers requests with what `answer` returns for their path, on threads of its own.
///
/// # Errors
/// The address cannot be listened at, or is not local.
pub(crate) fn tell(
    at: &HttpEndpoint,
    answer: impl Fn(&str) -> Option<HttpResponse> + Send + Sync + 'static,
) -> io::Result<HttpServer> {
    let listener: Socket = match at {
        HttpEndpoint::Loopback(address) if !address.ip().is_loopback() => {
            return Err(io::Error::other(format!(
                "{address} is not a loopback address: use 127.0.0.1, [::1] or a UNIX socket, \
                 because every client can read the figures"
            )));
        }
        HttpEndpoint::Loopback(address) => TcpListener::bind(address)?.into(),
        HttpEndpoint::Path(path) => sys::listen_unix(path, AT_ONCE as i32)?,
    };
    let by_name = matches!(at, HttpEndpoint::Loopback(_));
    let (listener, answer) = (Arc::new(listener), Arc::new(answer));
    let accepting = Arc::clone(&listener);
    let thread = thread::Builder::new()
        .name("http".to_owned())
        .spawn(move || {
            let there = Arc::new(());
            loop {
                let stream = match accepting.accept() {
                    Ok((stream, _)) => stream,
                    Err(e) if e.kind() == io::ErrorKind::InvalidInput => return,
                    // Do not spin on a broken socket.
                    Err(_) => {
                        thread::sleep(PAUSE);
                        continue;
                    }
                };
                if Arc::strong_count(&there) > AT_ONCE {
                    continue;
                }
                let (answer, place) = (Arc::clone(&answer), Arc::clone(&there));
                let thread = thread::Builder::new().name("http".to_owned());
                let _ = thread.spawn(move || {
                    let _place = place;
                    // A failed scrape is reported by the scraper.
                    let _ = serve(stream, by_name, &*answer);
                });
            }
        })?;
    Ok(HttpServer { listener, thread })
}

fn serve(
    mut stream: Socket,
    by_name: bool,
    answer: &impl Fn(&str) -> Option<HttpResponse>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(TIME))?;
    stream.set_write_timeout(Some(TIME))?;
    respond(&mut stream, by_name, answer)
}

fn respond(
    stream: &mut (impl Read + Write),
    by_name: bool,
    answer: &impl Fn(&str) -> Option<HttpResponse>,
) -> io::Result<()> {
    let text = |body: &str| HttpResponse {
        kind: "text/plain",
        body: body.to_owned(),
    };
    let (status, answer) = match request(stream)? {
        None => ("400 Bad Request", text("only GET is supported\n")),
        Some(request) if by_name && !is_own_name(request.host.as_deref()) => {
            // Reject foreign host names: by DNS rebinding another site's scripts could read the
            // pages of this machine.
            let why = "use 127.0.0.1, [::1] or localhost as the host name\n";
            ("421 Misdirected Request", text(why))
        }
        Some(request) => match answer(&request.path) {
            Some(answer) => ("200 OK", answer),
            None => ("404 Not Found", text("no such page\n")),
        },
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         Referrer-Policy: no-referrer\r\nContent-Security-Policy: default-src 'none'; \
         script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; form-action 'none'; \
         base-uri 'none'; frame-ancestors 'none'\r\n\r\n",
        answer.kind,
        answer.body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(answer.body.as_bytes())
}

/// Returns true if a Host header names this machine, with any port.
fn is_own_name(host: Option<&str>) -> bool {
    let Some(host) = host else {
        return false;
    };
    let port = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, digits)) if port(digits) => name,
        _ => host,
    };
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let ip: Option<IpAddr> = bare.unwrap_or(name).parse().ok();
    ip.map_or_else(
        || name.eq_ignore_ascii_case("localhost"),
        |ip| ip.is_loopback(),
    )
}

/// A parsed request.
#[derive(Debug, PartialEq, Eq)]
struct HttpRequest {
    path: String,
    host: Option<String>,
}

/// Reads a GET request; `None` for anything else.
fn request(stream: &mut impl Read) -> io::Result<Option<HttpRequest>> {
    let until = Instant::now() + TIME;
    let mut head = Vec::new();
    let mut part = [0; 512];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let n = stream.read(&mut part)?;
        head.extend_from_slice(part.get(..n).unwrap_or_default());
        if n == 0 || head.len() > LONGEST || Instant::now() > until {
            return Ok(None);
        }
    }
    Ok(String::from_utf8(head).ok().and_then(|head| parsed(&head)))
}

fn parsed(head: &str) -> Option<HttpRequest> {
    let mut lines = head.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let path = words
        .next()
        .filter(|word| *word == "GET")
        .and_then(|_| words.next())?;
    let _http = words.next().filter(|word| word.starts_with("HTTP/1."))?;
    let mut hosts = lines.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim())
    });
    let host = hosts.next().map(str::to_owned);
    // RFC 9112 section 3.2: reject several Host headers.
    hosts.next().is_none().then(|| HttpRequest {
        path: path.to_owned(),
        host,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connection in memory: the request to read, and the response written.
    struct HttpConnection<'a>(&'a [u8], Vec<u8>);

    impl Read for HttpConnection<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.0.read(to)
        }
    }

    impl Write for HttpConnection<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn told(said: &[u8], by_name: bool) -> String {
        let mut asked = HttpConnection(said, Vec::new());
        let figures = |path: &str| {
            (path == "/metrics").then(|| HttpResponse::figures("figure 1\n".to_owned()))
        };
        respond(&mut asked, by_name, &figures).unwrap();
        String::from_utf8(asked.1).unwrap()
    }

    #[test]
    fn what_is_asked_is_told_and_nothing_else() {
        let endless = [b'x'; 2 * LONGEST];
        for (said, status) in [
            (&b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"[..], "200"),
            (b"GET / HTTP/1.1\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "400"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"GET", "400"),
            (b"GET /\xff HTTP/1.1\r\n\r\n", "400"),
            (b"", "400"),
            (&endless, "400"),
        ] {
            let told = told(said, false);
            assert!(told.starts_with(&format!("HTTP/1.1 {status} ")), "{told}");
            assert_eq!(told.ends_with("\r\n\r\nfigure 1\n"), status == "200");
        }
    }

    #[test]
    fn only_names_of_this_machine_are_answered_to() {
        for (host, own) in [
            ("127.0.0.1:9090", true),
            ("127.0.0.1", true),
            ("[::1]:9090", true),
            ("localhost:1", true),
            ("LocalHost", true),
            ("attacker.example:9090", false),
            ("localhost.attacker.example", false),
            ("192.0.2.1:9090", false),
            ("127.0.0.1.attacker.example", false),
            ("localhost:9090:1", false),
            ("", false),
        ] {
            let said = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let told = told(said.as_bytes(), true);
            assert_eq!(told.starts_with("HTTP/1.1 200 "), own, "{host}: {told}");
            assert!(own || told.starts_with("HTTP/1.1 421 "), "{host}: {told}");
        }
        assert!(told(b"GET /metrics HTTP/1.0\r\n\r\n", true).starts_with("HTTP/1.1 421"));
        let twice = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: x\r\n\r\n";
        assert!(told(twice, true).starts_with("HTTP/1.1 400"));
    }
}
