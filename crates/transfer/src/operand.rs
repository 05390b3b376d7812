//! Parses the operands of a copy in scp's grammar (scp.c `colon`, misc.c `parse_user_host_path` and
//! `parse_uri`).

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use schedule::RemotePath;

use crate::escape;

mod braces;

pub use braces::MOST_HOSTS;

/// A source or a target of a copy: a local path, or a path on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyOperand {
    /// A path on this machine.
    Local(PathBuf),
    /// A path on a host.
    Remote(RemoteOperand),
}

/// `[user@]host:path` or a URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOperand {
    /// User, host and port.
    pub destination: SshDestination,
    /// The path as written, percent-decoded in a URI; `.` if empty. A relative path starts at the
    /// home directory. A path that starts with `~` needs expand-path@openssh.com; on a server
    /// without it, `~/` is taken as relative and `~user` is an error.
    pub path: RemotePath,
}

/// Host to connect to, with optional user and port: `[user@]host[:port]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SshDestination {
    /// The user, if given.
    pub user: Option<String>,
    /// The name or address, without brackets.
    pub host: String,
    /// The port, if given.
    pub port: Option<u16>,
}

/// The reason why an operand cannot be used; the text names the operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandError {
    operand: Vec<u8>,
    why: OperandErrorKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OperandErrorKind {
    Empty,
    NoHost,
    Host,
    User,
    NoUser,
    Port,
    Percent,
    Brackets,
    Nul,
    /// An address of another protocol.
    Scheme,
    /// rsync's `host::module`.
    Module,
    /// Braces where one host is named.
    Braces,
    /// A brace without its counterpart.
    BraceOpen,
    /// Braces that hold neither a range nor a list.
    BraceBody,
    /// Braces that name too many hosts.
    ManyHosts,
}

impl CopyOperand {
    /// Parses one operand.
    ///
    /// A colon makes it remote, unless a `/` precedes the colon (`./a:b`, `/a:b`) or the colon is
    /// the first character; colons in brackets belong to an address. Users and hosts with shell
    /// metacharacters or a leading dash are refused, as in ssh.c (`valid_hostname`, `valid_ruser`).
    pub fn parse(operand: &OsStr) -> Result<Self, OperandError> {
        let bytes = operand.as_bytes();
        let fail = |why| OperandError {
            operand: bytes.to_vec(),
            why,
        };
        if bytes.is_empty() {
            return Err(fail(OperandErrorKind::Empty));
        }
        if bytes.contains(&0) {
            return Err(fail(OperandErrorKind::Nul));
        }
        let schemes = [b"scp://".as_slice(), b"sftp://"];
        if let Some(rest) = schemes.iter().find_map(|s| bytes.strip_prefix(*s)) {
            return uri(rest).map(Self::Remote).map_err(fail);
        }
        let Some(colon) = colon(bytes) else {
            return Ok(Self::Local(PathBuf::from(operand)));
        };
        let (whole, path) = bytes.split_at(colon);
        if path.starts_with(b"://") && OTHER_SCHEMES.contains(&whole) {
            return Err(fail(OperandErrorKind::Scheme));
        }
        if path.starts_with(b"::") && path.get(2).is_some_and(u8::is_ascii_alphanumeric) {
            return Err(fail(OperandErrorKind::Module));
        }
        let (user, host) = match whole.iter().rposition(|b| *b == b'@') {
            // scp takes an empty name as none, and a mistyped $USER logs in as somebody else.
            Some(0) => return Err(fail(OperandErrorKind::NoUser)),
            Some(at) => (Some(&whole[..at]), &whole[at + 1..]),
            None => (None, whole),
        };
        let destination = SshDestination::checked(user, host, None).map_err(fail)?;
        Ok(Self::Remote(RemoteOperand {
            destination,
            path: or_home(path[1..].to_vec()),
        }))
    }
}

/// Schemes of addresses that a user may take for one that is supported.
const OTHER_SCHEMES: &[&[u8]] = &[b"rsync", b"ssh", b"http", b"https", b"ftp", b"ftps", b"s3"];

/// Returns the position of the colon between host and path (scp.c `colon`).
fn colon(bytes: &[u8]) -> Option<usize> {
    if bytes.first() == Some(&b':') {
        return None;
    }
    let mut brackets = bytes.first() == Some(&b'[');
    for (at, byte) in bytes.iter().enumerate() {
        let next = bytes.get(at + 1);
        match byte {
            b'@' if next == Some(&b'[') => brackets = true,
            b']' if next == Some(&b':') && brackets => return Some(at + 1),
            b':' if !brackets => return Some(at),
            b'/' => return None,
            _ => {}
        }
    }
    None
}

/// Parses the part after `scp://` (misc.c `parse_uri`): the path is relative to the home directory,
/// so that an absolute path needs two slashes.
fn uri(rest: &[u8]) -> Result<RemoteOperand, OperandErrorKind> {
    let (authority, path) = match rest.iter().position(|b| *b == b'/') {
        Some(slash) => (&rest[..slash], &rest[slash + 1..]),
        None => (rest, &[][..]),
    };
    let (user, host) = match authority.iter().rposition(|b| *b == b'@') {
        Some(at) => (Some(&authority[..at]), &authority[at + 1..]),
        None => (None, authority),
    };
    // `user;fingerprint=...` of draft-ietf-secsh-scp-sftp-ssh-uri: OpenSSH ignores the fingerprint
    // too.
    let user = user.map(|u| u.split(|b| *b == b';').next().unwrap_or_default());
    let user = user.map(percent_decode).transpose()?;
    if user.as_ref().is_some_and(Vec::is_empty) {
        return Err(OperandErrorKind::NoUser);
    }
    let (host, port) = host_and_port(host)?;
    let destination = SshDestination::checked(user.as_deref(), host, port)?;
    let path = percent_decode(path)?;
    Ok(RemoteOperand {
        destination,
        path: or_home(path),
    })
}

fn or_home(path: Vec<u8>) -> RemotePath {
    if path.is_empty() {
        RemotePath(b".".to_vec())
    } else {
        RemotePath(path)
    }
}

impl SshDestination {
    /// Parses `[user@]host[:port]` or `ssh://[user@]host[:port]`, the form of `-J` and ProxyJump.
    pub fn parse(text: &str) -> Result<Self, OperandError> {
        let bytes = text.as_bytes();
        let fail = |why| OperandError {
            operand: bytes.to_vec(),
            why,
        };
        if bytes.is_empty() {
            return Err(fail(OperandErrorKind::Empty));
        }
        if let Some(rest) = bytes.strip_prefix(b"ssh://".as_slice()) {
            let rest = rest.strip_suffix(b"/").unwrap_or(rest);
            return uri(rest).map(|r| r.destination).map_err(fail);
        }
        let (user, host) = match bytes.iter().rposition(|b| *b == b'@') {
            Some(at) => (Some(&bytes[..at]), &bytes[at + 1..]),
            None => (None, bytes),
        };
        if user.is_some_and(<[u8]>::is_empty) {
            return Err(fail(OperandErrorKind::NoUser));
        }
        let (host, port) = host_and_port(host).map_err(fail)?;
        Self::checked(user, host, port).map_err(fail)
    }

    /// Parses a list of hosts, separated by commas: the values of `-J`, ProxyJump and `--via`.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, OperandError> {
        let hosts = text.split(',');
        hosts.map(|host| Self::parse(host.trim())).collect()
    }

    fn checked(
        user: Option<&[u8]>,
        host: &[u8],
        port: Option<u16>,
    ) -> Result<Self, OperandErrorKind> {
        let host = match host {
            [b'[', inner @ .., b']'] => inner,
            other => other,
        };
        if host.contains(&b'[') || host.contains(&b']') {
            return Err(OperandErrorKind::Brackets);
        }
        if host.is_empty() {
            return Err(OperandErrorKind::NoHost);
        }
        let braces = |text: &[u8]| text.iter().any(|b| matches!(b, b'{' | b'}'));
        if braces(host) || user.is_some_and(braces) {
            return Err(OperandErrorKind::Braces);
        }
        let host = std::str::from_utf8(host).map_err(|_| OperandErrorKind::Host)?;
        if !valid_host(host) {
            return Err(OperandErrorKind::Host);
        }
        let user = match user.map(std::str::from_utf8) {
            Some(Ok(user)) if valid_user(user) => Some(user.to_owned()),
            Some(_) => return Err(OperandErrorKind::User),
            None => None,
        };
        Ok(Self {
            user,
            host: host.to_owned(),
            port,
        })
    }
}

/// Parses `host`, `host:port`, `[address]` or `[address]:port`; a bare address with several colons
/// has no port.
fn host_and_port(text: &[u8]) -> Result<(&[u8], Option<u16>), OperandErrorKind> {
    let colons = text.iter().filter(|b| **b == b':').count();
    let (host, port) = if text.first() == Some(&b'[') {
        let end = text
            .iter()
            .position(|b| *b == b']')
            .ok_or(OperandErrorKind::Brackets)?;
        let (host, rest) = text.split_at(end + 1);
        match rest {
            [] => (host, None),
            [b':', port @ ..] => (host, Some(port)),
            _ => return Err(OperandErrorKind::Brackets),
        }
    } else if colons == 1 {
        let at = text.iter().position(|b| *b == b':').unwrap_or_default();
        (&text[..at], Some(&text[at + 1..]))
    } else {
        (text, None)
    };
    let Some(port) = port.filter(|p| !p.is_empty()) else {
        return Ok((host, None));
    };
    let digits = port.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(port).ok().and_then(|p| p.parse().ok());
    match number {
        Some(number @ 1..) if digits => Ok((host, Some(number))),
        _ => Err(OperandErrorKind::Port),
    }
}

fn percent_decode(text: &[u8]) -> Result<Vec<u8>, OperandErrorKind> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        let mut digit = || {
            let digit = bytes.next().and_then(|b| char::from(*b).to_digit(16));
            digit
                .and_then(|d| u8::try_from(d).ok())
                .ok_or(OperandErrorKind::Percent)
        };
        let byte = digit()? << 4 | digit()?;
        // An encoded NUL would truncate the path at the far end.
        if byte == 0 {
            return Err(OperandErrorKind::Percent);
        }
        out.push(byte);
    }
    Ok(out)
}

/// True for a host name without shell metacharacters or a leading dash, as in ssh.c
/// `valid_hostname`.
pub fn valid_host(host: &str) -> bool {
    !host.is_empty()
        && !host.starts_with('-')
        && !host.chars().any(|c| {
            c.is_control()
                || c.is_whitespace()
                || wire::escape::steers_terminal(c)
                || "'`\"$\\;&<>|(){},".contains(c)
        })
}

/// True for a user name that ssh.c `valid_ruser` accepts.
pub fn valid_user(user: &str) -> bool {
    let dash_after_space = user
        .as_bytes()
        .windows(2)
        .any(|w| w[0].is_ascii_whitespace() && w[1] == b'-');
    !user.is_empty()
        && !user.starts_with('-')
        && !user.ends_with('\\')
        && !dash_after_space
        && !user
            .chars()
            .any(|c| wire::escape::steers_terminal(c) || "'`\";&<>|(){}".contains(c))
}

impl RemoteOperand {
    /// True if the server must expand the path: it starts with `~`.
    pub fn needs_expanding(&self) -> bool {
        self.path.0.first() == Some(&b'~')
    }
}

/// Prints the destination as in an operand, escaped; the output parses to an equal value if nothing
/// was escaped.
impl fmt::Display for SshDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{}@", escape::name(user.as_bytes()))?;
        }
        let host = escape::name(self.host.as_bytes());
        match self.port {
            Some(port) if self.host.contains(':') => write!(f, "[{host}]:{port}"),
            Some(port) => write!(f, "{host}:{port}"),
            None if self.host.contains(':') => write!(f, "[{host}]"),
            None => host.fmt(f),
        }
    }
}

/// Prints the operand for messages, escaped.
impl fmt::Display for CopyOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => escape::path(path).fmt(f),
            Self::Remote(remote) => {
                write!(f, "{}:{}", remote.destination, escape::name(&remote.path.0))
            }
        }
    }
}

impl fmt::Display for OperandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operand = escape::name(&self.operand);
        match self.why {
            OperandErrorKind::Empty => f.write_str("an operand is empty"),
            OperandErrorKind::NoHost => write!(f, "{operand}: the host name is missing"),
            OperandErrorKind::Host => write!(
                f,
                "{operand}: not a valid host name; write ./NAME for a local file with a colon"
            ),
            OperandErrorKind::User => write!(
                f,
                "{operand}: the user name starts with '-' or contains shell metacharacters; set User \
                 in ssh_config for such a name"
            ),
            OperandErrorKind::NoUser => write!(f, "{operand}: no user name before the '@'"),
            OperandErrorKind::Port => {
                write!(f, "{operand}: the port is not a number from 1 to 65535")
            }
            OperandErrorKind::Percent => write!(
                f,
                "{operand}: '%' must be followed by two hexadecimal digits other than 00; write \
                 %25 for a percent sign"
            ),
            OperandErrorKind::Brackets => write!(
                f,
                "{operand}: malformed brackets: write an IPv6 address as [2001:db8::1]:path"
            ),
            OperandErrorKind::Scheme => write!(
                f,
                "{operand}: not an address that can be copied to or from: write [user@]host:path, \
                 or scp://[user@]host[:port]/path"
            ),
            OperandErrorKind::Module => write!(
                f,
                "{operand}: modules of an rsync daemon are not supported: write host:path, or \
                 host:./:NAME for a name that begins with a colon"
            ),
            OperandErrorKind::Braces => write!(
                f,
                "{operand}: one host is named here, and braces stand for several hosts in the \
                 operands of longhaul cp only: write the names out"
            ),
            OperandErrorKind::BraceOpen => write!(
                f,
                "{operand}: a brace is not closed, or is inside another: write host{{1..9}}:path or \
                 {{a,b}}:path"
            ),
            OperandErrorKind::BraceBody => write!(
                f,
                "{operand}: braces hold neither a range nor a list: write host{{1..9}}:path, \
                 host{{01..12}}:path or {{a,b}}:path"
            ),
            OperandErrorKind::ManyHosts => write!(
                f,
                "{operand}: the braces name more than {MOST_HOSTS} hosts: use several commands"
            ),
            OperandErrorKind::Nul => write!(f, "{operand}: a path cannot contain a NUL byte"),
        }
    }
}

impl std::error::Error for OperandError {}

#[cfg(test)]
mod tests;
