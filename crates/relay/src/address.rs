//! Operands of `longhaul relay`: the address to listen on and the target to connect to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::str::FromStr;

use crate::entry::proxy::ProxyVersion;

/// Address to listen on, with its protocol options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenSpec {
    /// Socket, port or stream to accept connections from.
    pub place: RelayEndpoint,
    /// Options after the address, such as `tls` or `proxy`, in the order given.
    pub words: Vec<String>,
}

/// Address to connect to, with its protocol options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSpec {
    /// Socket, port or stream to connect to.
    pub place: RelayEndpoint,
    /// Options after the address, such as `tls` or `pair`, in the order given.
    pub words: Vec<String>,
}

/// Address of a listener or a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayEndpoint {
    /// Standard input and output: `-`.
    Streams,
    /// A UNIX socket: `unix:PATH`, or a path that begins with `/` or `./`.
    Unix(PathBuf),
    /// TCP port of a host: loopback only if no host is named, all local addresses if the host is
    /// empty or `*`.
    Tcp {
        /// Host name or IP address.
        host: HostSpec,
        /// Port number; 0 lets the kernel choose a port for a listener.
        port: u16,
    },
}

/// Host part of a listening or target operand, parsed and not resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostSpec {
    /// No host was named: 127.0.0.1 and `::1`.
    Loopback,
    /// All addresses of this machine.
    All,
    /// Host name, to be resolved.
    Name(String),
    /// Literal IP address.
    Address(IpAddr),
}

/// Reason why an operand cannot be parsed. The message completes a sentence that begins with the
/// operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressError {
    /// `unix:` without a path.
    NoPath,
    /// A colon without a port after it, where this port or a higher one is needed.
    NoPort(u16),
    /// Neither a port from this one on nor a host and a port.
    NotPort(u16),
    /// The text after the last colon is no port.
    InvalidPort {
        /// The text.
        port: String,
        /// The lowest valid port.
        lowest: u16,
    },
    /// An IPv6 address without brackets.
    NoBrackets,
    /// The host is neither a name nor an address.
    InvalidHost,
    /// A target with port 0.
    TargetPort,
    /// A target without a host.
    NoHost,
    /// Standard input and output as a target.
    TargetStreams,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPath => f.write_str("lacks the path of the UNIX socket"),
            Self::NoPort(lowest) => write!(f, "lacks a port ({lowest} to 65535)"),
            Self::NotPort(lowest) => {
                write!(f, "is neither a port ({lowest} to 65535) nor HOST:PORT")
            }
            Self::InvalidPort { port, lowest } => {
                let port = wire::escape::name(port.as_bytes());
                write!(
                    f,
                    "has no valid port: {port} is not a port ({lowest} to 65535)"
                )
            }
            Self::NoBrackets => {
                f.write_str("has an IPv6 address without brackets: write [ADDRESS]:PORT")
            }
            Self::InvalidHost => f.write_str("is not HOST:PORT, a port, unix:PATH or -"),
            Self::TargetPort => f.write_str("has port 0, which cannot be connected to"),
            Self::NoHost => f.write_str("lacks the host to connect to"),
            Self::TargetStreams => f.write_str(
                "stands for standard input and output, which can be LISTEN only: name another \
                 target",
            ),
        }
    }
}

impl std::error::Error for AddressError {}

impl TargetSpec {
    /// Returns the name or address that the target's TLS certificate must contain.
    pub(crate) fn tls_name(&self) -> String {
        match &self.place {
            RelayEndpoint::Tcp {
                host: HostSpec::Name(name),
                ..
            } => name.clone(),
            RelayEndpoint::Tcp {
                host: HostSpec::Address(ip),
                ..
            } => ip.to_string(),
            _ => "localhost".to_owned(),
        }
    }

    /// Reports if the target uses TLS.
    pub fn has_tls(&self) -> bool {
        self.words.iter().any(|word| word == "tls")
    }

    /// Reports if the target is the peer relay of a pair.
    pub fn is_pair(&self) -> bool {
        self.words.iter().any(|word| word == "pair")
    }

    /// Returns the version of the PROXY header to send to the target, if any.
    pub fn proxy(&self) -> Option<ProxyVersion> {
        self.words.iter().find_map(|word| match word.as_str() {
            "proxy" | "proxy2" => Some(ProxyVersion::V2),
            "proxy1" => Some(ProxyVersion::V1),
            _ => None,
        })
    }
}

impl HostSpec {
    /// Parses a host from an untrusted client: a valid host name or an IP address.
    pub fn of_client(text: &str) -> Option<Self> {
        match text.parse() {
            Ok(ip) => Some(Self::Address(ip)),
            Err(_) => (is_name(text) && !text.is_empty()).then(|| Self::Name(text.to_owned())),
        }
    }
}

impl TargetSpec {
    /// Returns the host name, or an empty string if the address has none.
    pub fn host_name(&self) -> &str {
        match &self.place {
            RelayEndpoint::Tcp {
                host: HostSpec::Name(name),
                ..
            } => name,
            _ => "",
        }
    }
}

impl RelayEndpoint {
    /// Returns the socket addresses that can be had without a DNS lookup, or `None` for a host
    /// name.
    pub fn addresses(&self) -> Option<Vec<SocketAddr>> {
        let Self::Tcp { host, port } = self else {
            return None;
        };
        let ips: Vec<IpAddr> = match host {
            HostSpec::Loopback => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            HostSpec::All => vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
            HostSpec::Address(ip) => vec![*ip],
            HostSpec::Name(_) => return None,
        };
        Some(
            ips.into_iter()
                .map(|ip| SocketAddr::new(ip, *port))
                .collect(),
        )
    }
}

/// Splits `PLACE/word/word`, or `unix:PATH,word,word`.
///
/// The TCP port is `lowest` or higher.
fn split(text: &str, lowest: u16) -> Result<(RelayEndpoint, Vec<String>), AddressError> {
    let path = text
        .strip_prefix("unix:")
        .or_else(|| (text.starts_with('/') || text.starts_with("./")).then_some(text));
    let (place, words) = match path {
        Some(path) => {
            let (path, words) = path.split_once(',').unwrap_or((path, ""));
            if path.is_empty() {
                return Err(AddressError::NoPath);
            }
            (RelayEndpoint::Unix(PathBuf::from(path)), words)
        }
        None => {
            let (place, words) = text.split_once(['/', ',']).unwrap_or((text, ""));
            (tcp_or_streams(place, lowest)?, words)
        }
    };
    let words = words.split(['/', ',']).filter(|word| !word.is_empty());
    Ok((place, words.map(str::to_owned).collect()))
}

fn tcp_or_streams(text: &str, lowest: u16) -> Result<RelayEndpoint, AddressError> {
    if text == "-" {
        return Ok(RelayEndpoint::Streams);
    }
    let (host, port) = match text.rsplit_once(':') {
        None => (None, text),
        Some((host, port)) => (Some(host), port),
    };
    let port = port.parse().map_err(|_| match port {
        "" => AddressError::NoPort(lowest),
        _ => match host {
            None => AddressError::NotPort(lowest),
            Some(_) => AddressError::InvalidPort {
                port: port.to_owned(),
                lowest,
            },
        },
    })?;
    let host = match host {
        None => HostSpec::Loopback,
        Some("" | "*") => HostSpec::All,
        Some(host) => {
            let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
            match bracketed.unwrap_or(host).parse() {
                Ok(IpAddr::V6(_)) if bracketed.is_none() => {
                    return Err(AddressError::NoBrackets);
                }
                Ok(ip) => HostSpec::Address(ip),
                Err(_) if bracketed.is_some() || !is_name(host) => {
                    return Err(AddressError::InvalidHost);
                }
                Err(_) => HostSpec::Name(host.to_owned()),
            }
        }
    };
    Ok(RelayEndpoint::Tcp { host, port })
}

/// Reports if all characters may occur in a host name: RFC 1123, plus the underscores and dots that
/// resolvers accept; at most 253 bytes.
fn is_name(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.len() <= 253 && !text.starts_with('-') && text.chars().all(letter)
}

impl FromStr for ListenSpec {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (place, words) = split(text, 0)?;
        Ok(Self { place, words })
    }
}

impl FromStr for TargetSpec {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (place, words) = split(text, 1)?;
        match &place {
            RelayEndpoint::Tcp { port: 0, .. } => Err(AddressError::TargetPort),
            RelayEndpoint::Tcp {
                host: HostSpec::All,
                ..
            } => Err(AddressError::NoHost),
            RelayEndpoint::Streams => Err(AddressError::TargetStreams),
            _ => Ok(Self { place, words }),
        }
    }
}

impl fmt::Display for RelayEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Streams => f.write_str("-"),
            Self::Unix(path) => {
                let path = wire::escape::name(path.as_os_str().as_bytes());
                write!(f, "unix:{path}")
            }
            Self::Tcp { host, port } => match host {
                HostSpec::Loopback => write!(f, "localhost:{port}"),
                HostSpec::All => write!(f, "*:{port}"),
                HostSpec::Name(name) => write!(f, "{name}:{port}"),
                HostSpec::Address(ip) => write!(f, "{}", SocketAddr::new(*ip, *port)),
            },
        }
    }
}

impl fmt::Display for TargetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_as_people_type_them() {
        let entrance = |text: &str| text.parse::<ListenSpec>().unwrap();
        let loopback = |port| RelayEndpoint::Tcp {
            host: HostSpec::Loopback,
            port,
        };
        assert_eq!(entrance("9022").place, loopback(9022));
        assert_eq!(entrance("12346/tls").words, ["tls"]);
        assert_eq!(entrance("0/proxy/tls").words, ["proxy", "tls"]);
        for text in [":22", "*:22"] {
            let all = RelayEndpoint::Tcp {
                host: HostSpec::All,
                port: 22,
            };
            assert_eq!(entrance(text).place, all, "{text}");
        }
        assert_eq!(entrance("-").place, RelayEndpoint::Streams);
        assert_eq!(
            entrance("/run/a.sock").place,
            RelayEndpoint::Unix("/run/a.sock".into())
        );
        let unix = entrance("unix:a/b.sock,tls");
        assert_eq!(
            (unix.place, unix.words),
            (RelayEndpoint::Unix("a/b.sock".into()), vec!["tls".into()])
        );
        let target = |text: &str| text.parse::<TargetSpec>().map(|t| t.to_string());
        assert_eq!(target("jp1:22").unwrap(), "jp1:22");
        assert_eq!(target("[2001:db8::1]:22").unwrap(), "[2001:db8::1]:22");
        assert_eq!(target("2222").unwrap(), "localhost:2222");
        assert_eq!(target("localhost:12346/tls").unwrap(), "localhost:12346");
    }

    #[test]
    fn operands_that_cannot_be() {
        for text in [
            "", "a", "a:b", "a:70000", "::1:22", "[::1:22", "[a]:22", "a b:22", "-x:1", "unix:",
            "a:-1",
        ] {
            assert!(text.parse::<ListenSpec>().is_err(), "{text}");
        }
        for text in ["-", ":22", "h:0"] {
            assert!(text.parse::<TargetSpec>().is_err(), "{text}");
        }
    }
}
