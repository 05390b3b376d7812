//! Figures on request, as HTTP. It is a few lines by hand rather than a server of somebody's: what
//! asks is on this machine, one request is read, of a bounded length, and of it one word counts.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use socket2::Socket;

/// The longest request.
const LONGEST: usize = 4 << 10;
/// A whole request and its answer.
const TIME: Duration = Duration::from_secs(2);
/// Between tries to accept, where that fails.
const PAUSE: Duration = Duration::from_millis(100);

/// Where figures are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A port of this machine alone.
    Loopback(SocketAddr),
    /// A UNIX socket, which is made, in place of one that nobody listens at.
    Path(PathBuf),
}

/// Tells `figures` to whoever asks, on a thread of its own, until the process ends.
///
/// # Errors
/// The address cannot be listened at, or is not of this machine alone.
pub fn tell_metrics(
    at: &MetricsAddress,
    figures: impl Fn() -> String + Send + 'static,
) -> io::Result<()> {
    let listener: Socket = match at {
        MetricsAddress::Loopback(address) if !address.ip().is_loopback() => {
            return Err(io::Error::other("figures are for this machine alone"));
        }
        MetricsAddress::Loopback(address) => TcpListener::bind(address)?.into(),
        MetricsAddress::Path(path) => {
            let is_socket = |m: std::fs::Metadata| m.file_type().is_socket();
            let stale = std::fs::symlink_metadata(path).is_ok_and(is_socket)
                && std::os::unix::net::UnixStream::connect(path).is_err();
            if stale {
                std::fs::remove_file(path)?;
            }
            UnixListener::bind(path)?.into()
        }
    };
    let thread = thread::Builder::new().name("metrics".to_owned());
    thread.spawn(move || {
        loop {
            let asked = listener.accept().and_then(|(mut stream, _)| {
                stream.set_read_timeout(Some(TIME))?;
                stream.set_write_timeout(Some(TIME))?;
                answer(&mut stream, &figures)
            });
            // A scrape that fails is the scraper's to tell; a socket that is broken shall not keep
            // a core busy.
            if asked.is_err() {
                thread::sleep(PAUSE);
            }
        }
    })?;
    Ok(())
}

fn answer(stream: &mut (impl Read + Write), figures: &impl Fn() -> String) -> io::Result<()> {
    let (status, body) = match request(stream)? {
        Some(path) if path == b"/metrics" => ("200 OK", figures()),
        Some(_) => ("404 Not Found", "/metrics is all there is\n".to_owned()),
        None => ("400 Bad Request", "GET /metrics\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// The path of a GET; `None` for anything else.
fn request(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
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
    let line = head.split(|b| *b == b'\r').next().unwrap_or_default();
    let mut words = line.split(|b| *b == b' ');
    let get = words.next() == Some(b"GET");
    let path = words.next().filter(|_| get).map(<[u8]>::to_vec);
    let http = words
        .next()
        .is_some_and(|word| word.starts_with(b"HTTP/1."));
    Ok(path.filter(|_| http))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Asked<'a>(&'a [u8], Vec<u8>);

    impl Read for Asked<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.0.read(to)
        }
    }

    impl Write for Asked<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
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
            (b"", "400"),
            (&endless, "400"),
        ] {
            let mut asked = Asked(said, Vec::new());
            answer(&mut asked, &|| "figure 1\n".to_owned()).unwrap();
            let told = String::from_utf8(asked.1).unwrap();
            assert!(told.starts_with(&format!("HTTP/1.1 {status} ")), "{told}");
            assert_eq!(told.ends_with("\r\n\r\nfigure 1\n"), status == "200");
        }
    }
}
