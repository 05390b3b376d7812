//! The source of a copy between two hosts: checks what the receiving host may read, and connects to
//! it if it cannot connect here.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sftp::pattern::{self, PathComponent};
use ssh::direct_control::TOKEN;

/// Time limit for one address.
const CONNECT: Duration = Duration::from_secs(4);
/// Time limit for all addresses.
const CONNECT_ALL: Duration = Duration::from_secs(8);

/// Files that the receiving host may read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServedSources {
    /// Absolute directory that the receiver sees as `/`.
    pub(super) root: PathBuf,
    /// Paths beneath it.
    pub(super) paths: Vec<Vec<u8>>,
}

/// Reason why the sources of a copy between two hosts cannot be served on their own.
#[derive(Debug)]
pub enum SourceError {
    /// The directory of the sources cannot be opened.
    Root(PathBuf, io::Error),
    /// A symlink of the sources leads out of what is copied.
    LeadsOut(PathBuf),
    /// Options of this machine limit what it serves.
    Limited,
    /// The checksums of a growing file do not fit its source.
    Growing,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |path: &Path| wire::escape::name(path.as_os_str().as_bytes()).to_string();
        match self {
            Self::Root(path, e) => write!(f, "{}: {e}", shown(path)),
            Self::LeadsOut(path) => write!(
                f,
                "the symlink {} leads out of the copied files",
                shown(path)
            ),
            Self::Limited => f.write_str(
                "longhaul on this host is limited by --root or --write-only and cannot be the \
                 source of a copy between hosts",
            ),
            Self::Growing => f.write_str(
                "the client sent invalid checksums of the growing file: run the same version of \
                 longhaul at both ends",
            ),
        }
    }
}

impl std::error::Error for SourceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Root(_, e) => Some(e),
            Self::LeadsOut(_) | Self::Limited | Self::Growing => None,
        }
    }
}

/// Reason why the source's host cannot connect to the target host, for the last address.
#[derive(Debug)]
pub(super) enum DialError {
    /// The target host named no address.
    NoAddress,
    /// The address belongs to this host.
    OwnAddress(SocketAddr),
    /// The connection was not made, or broke at once.
    Connect(SocketAddr, io::Error),
    /// The connection cannot be passed to the thread that serves it.
    HandOver(io::Error),
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress => f.write_str("the target host named no address to connect to"),
            Self::OwnAddress(address) => write!(
                f,
                "the target's address {address} belongs to the source's own host"
            ),
            Self::Connect(address, e) => {
                write!(f, "cannot connect to {address}: {}", reason(e))
            }
            Self::HandOver(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for DialError {}

/// Returns the sources, once it is certain that reading them needs nothing outside of the root.
/// Patterns stand for the entries that match now.
///
/// # Errors
/// The root does not exist, or a symlink of the sources leads out of it.
pub(super) fn check(
    root: &[u8],
    names: &[Vec<u8>],
    follow: bool,
) -> Result<ServedSources, SourceError> {
    let given = match root {
        b"" => Path::new("."),
        root => Path::new(OsStr::from_bytes(root)),
    };
    let root = fs::canonicalize(given).map_err(|e| SourceError::Root(given.to_owned(), e))?;
    let leaves = |path: &Path| Err(SourceError::LeadsOut(path.to_owned()));
    let mut pending: Vec<PathBuf> = Vec::new();
    for name in names {
        let end = name.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
        let (parent, last) = name.split_at(end);
        let parent = OsStr::from_bytes(parent.strip_prefix(b"/").unwrap_or(parent));
        let parent = root.join(parent);
        let last = match pattern::parse(last).as_deref() {
            Some([PathComponent::Pattern(pattern)]) => {
                if !inside(&parent, &root) {
                    return leaves(&parent);
                }
                let matches = |path: &PathBuf| {
                    let name = path.file_name().map(OsStr::as_bytes);
                    name.is_some_and(|name| pattern.matches(name))
                };
                pending.extend(entries(&parent).into_iter().filter(matches));
                last.to_vec()
            }
            _ => pattern::unescape(last),
        };
        pending.push(parent.join(OsStr::from_bytes(&last)));
    }
    let below = |path: &PathBuf| {
        let below = path.strip_prefix(&root).ok()?;
        Some(below.as_os_str().as_bytes().to_vec())
    };
    let paths = pending.iter().filter_map(below).collect();
    let mut seen = BTreeSet::new();
    let mut top = pending.len();
    while let Some(path) = pending.pop() {
        let first = pending.len() < top;
        top = top.min(pending.len());
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        if meta.is_symlink() {
            if (first || follow) && !inside(&path, &root) {
                return leaves(&path);
            }
        } else if meta.is_dir() && follow && seen.insert(path.clone()) {
            pending.extend(entries(&path));
        }
    }
    Ok(ServedSources { root, paths })
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(directory).into_iter().flatten().flatten();
    all.map(|entry| entry.path()).collect()
}

/// True if `path` resolves beneath `root` to the same file there as for a client that sees `root`
/// as `/`. A dangling symlink leads nowhere, in both cases.
fn inside(path: &Path, root: &Path) -> bool {
    if fs::read_link(path).is_ok_and(|to| to.is_absolute()) {
        return false;
    }
    fs::canonicalize(path).is_ok_and(|to| to.starts_with(root)) || fs::metadata(path).is_err()
}

/// Connects to the first of the addresses that answers, and sends the token. Unless the hosts may
/// both be this machine (`local`), its own addresses are refused: a hostile receiver must not reach
/// services that trust it.
///
/// # Errors
/// The reason for the last address.
pub(super) fn dial(
    addresses: &[SocketAddr],
    token: &[u8; TOKEN],
    local: bool,
) -> Result<(TcpStream, SocketAddr), DialError> {
    let until = Instant::now() + CONNECT_ALL;
    let mut why = DialError::NoAddress;
    for address in addresses {
        if !local && sys::is_own(address.ip()) {
            why = DialError::OwnAddress(*address);
            continue;
        }
        let left = until.saturating_duration_since(Instant::now()).min(CONNECT);
        if left.is_zero() {
            break;
        }
        let connected = TcpStream::connect_timeout(address, left);
        let sent = connected.and_then(|mut stream| {
            stream.set_nodelay(true)?;
            stream.write_all(token)?;
            Ok(stream)
        });
        match sent {
            Ok(stream) => return Ok((stream, *address)),
            Err(e) => why = DialError::Connect(*address, e),
        }
    }
    Err(why)
}

/// True if both hosts may be this machine: sshd was reached at a loopback address, as
/// SSH_CONNECTION says: the client's address and port, and the server's.
pub(super) fn came_over_loopback() -> bool {
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let server = connection.split(' ').nth(2).and_then(|ip| ip.parse().ok());
    server.is_some_and(|ip: std::net::IpAddr| ip.to_canonical().is_loopback())
}

fn reason(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::TimedOut => "no answer; a firewall may drop the packets".to_owned(),
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn checked(root: &Path, name: &str, follow: bool) -> Result<ServedSources, SourceError> {
        check(root.as_os_str().as_bytes(), &[name.into()], follow)
    }

    #[test]
    fn a_symlink_that_leads_out_of_the_root_is_told_before_anything_is_served() {
        let outside = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("tree/deep")).unwrap();
        fs::write(at("tree/file"), b"x").unwrap();
        symlink("../file", at("tree/deep/within")).unwrap();
        symlink("nowhere", at("tree/deep/dangling")).unwrap();
        assert!(checked(root.path(), "/tree", true).is_ok());
        symlink(outside.path(), at("tree/deep/out")).unwrap();
        let why = checked(root.path(), "/tree", true).unwrap_err();
        assert!(matches!(why, SourceError::LeadsOut(_)), "{why}");
        let why = why.to_string();
        assert!(why.contains("tree/deep/out leads out"), "{why}");
        // Symlinks that are copied as such are never followed.
        assert!(checked(root.path(), "/tree", false).is_ok());
        // A named source is followed in any case.
        symlink(outside.path(), at("named")).unwrap();
        assert!(checked(root.path(), "/named", false).is_err());
        assert!(checked(root.path(), "/n*", false).is_err());
        assert!(checked(&at("missing"), "/x", false).is_err());
    }

    /// Regression: the receiver of `a:data` could read the whole home directory, keys included.
    #[test]
    fn only_the_sources_are_served() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a.log", "b.log", ".hidden.log", "key", "x*"] {
            fs::write(root.path().join(name), b"x").unwrap();
        }
        let paths = |name: &str| {
            let mut paths = checked(root.path(), name, true).unwrap().paths;
            paths.sort();
            paths
                .into_iter()
                .map(|p| String::from_utf8(p).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(paths("/key"), ["key"]);
        assert_eq!(paths("/*.log"), ["*.log", "a.log", "b.log"]);
        assert_eq!(paths("/x\\*"), ["x*"]);
        assert_eq!(paths("/."), [""]);
    }

    #[test]
    fn a_dialed_connection_begins_with_the_token() {
        use std::io::Read as _;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let closed_at = closed.local_addr().unwrap();
        drop(closed);
        let (_stream, to) = dial(&[closed_at, at], &[9; TOKEN], true).unwrap();
        assert_eq!(to, at);
        let mut token = [0; TOKEN];
        listener.accept().unwrap().0.read_exact(&mut token).unwrap();
        assert_eq!(token, [9; TOKEN]);
        let why = dial(&[closed_at], &[9; TOKEN], true).unwrap_err();
        let why = why.to_string();
        assert!(why.contains("connection refused"), "{why}");
        let why = dial(&[at], &[9; TOKEN], false).unwrap_err();
        assert!(
            matches!(why, DialError::OwnAddress(own) if own == at),
            "{why}"
        );
        let why = why.to_string();
        assert!(why.contains("source's own host"), "{why}");
    }
}
