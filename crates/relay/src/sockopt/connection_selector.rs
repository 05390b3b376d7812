//! DeleGate's connMap, `[Proto][:[dstHost][:srcHost]]`: selects the connections that a socket
//! option applies to.

use std::net::IpAddr;

use super::SocketOptionError;
use crate::network::IpNetwork;

/// Selects the connections that a socket option applies to; an empty map selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionSelector {
    proto: PatternList,
    dst: PatternList,
    src: PatternList,
}

/// Comma-separated patterns; a pattern with a leading `!` excludes its matches. An empty list
/// matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PatternList(Vec<ConnMapPattern>);

/// One item of a connMap's host list: connections that it matches are included, or excluded if it
/// began with `!`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConnMapPattern {
    out: bool,
    matches: ConnMapFilter,
}

/// Hosts that one pattern matches; names are compared in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ConnMapFilter {
    All,
    /// Exact host name.
    Name(String),
    /// Suffix of host names: `.example.com`, `*.example.com`.
    Subdomains(String),
    Network(IpNetwork),
}

/// Protocol names that DeleGate and its users write for a plain relay.
const PROTOCOLS: &[&str] = &["tcprelay", "tcp", "ssh"];

impl ConnectionSelector {
    /// Parses a connMap.
    ///
    /// # Errors
    /// The map has more than three parts, or an invalid pattern.
    pub(super) fn parse(text: &str) -> Result<Self, SocketOptionError> {
        let mut parts = split(text).into_iter();
        let mut next = || PatternList::parse(parts.next().unwrap_or_default());
        let map = Self {
            proto: next()?,
            dst: next()?,
            src: next()?,
        };
        if parts.next().is_some() {
            return Err(SocketOptionError::MapParts);
        }
        Ok(map)
    }

    /// Reports if the map selects every connection.
    pub(super) fn is_for_all(&self) -> bool {
        [&self.dst, &self.src].iter().all(|list| list.is_for_all()) && self.is_for_us()
    }

    /// Reports if the map selects a connection from `source` to `host` with address `to`.
    pub(super) fn fits(&self, host: &str, to: Option<IpAddr>, source: Option<IpAddr>) -> bool {
        self.is_for_us() && self.dst.has(host, to) && self.src.has("", source)
    }

    fn is_for_us(&self) -> bool {
        PROTOCOLS
            .iter()
            .any(|protocol| self.proto.has(protocol, None))
    }
}

/// Splits at colons, except within brackets.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ':' && depth == 0
    })
    .collect()
}

impl PatternList {
    fn parse(text: &str) -> Result<Self, SocketOptionError> {
        let text = text.trim_start_matches('{').trim_end_matches('}');
        let items = text.split(',').filter(|item| !item.is_empty());
        items
            .map(ConnMapPattern::parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    fn is_for_all(&self) -> bool {
        self.0
            .iter()
            .all(|item| !item.out && item.matches == ConnMapFilter::All)
    }

    fn has(&self, name: &str, ip: Option<IpAddr>) -> bool {
        // A list that begins with an exclusion starts with everything.
        let begin = self.0.first().is_none_or(|item| item.out);
        let fits = |item: &&ConnMapPattern| item.matches.fit(name, ip);
        self.0.iter().filter(fits).fold(begin, |_, item| !item.out)
    }
}

impl ConnMapPattern {
    fn parse(text: &str) -> Result<Self, SocketOptionError> {
        let (out, text) = match text.strip_prefix('!') {
            Some(text) => (true, text),
            None => (false, text),
        };
        let name = text.trim_matches(['[', ']']).to_ascii_lowercase();
        let under = name.strip_prefix('*').unwrap_or(&name);
        let matches = if name == "*" {
            ConnMapFilter::All
        } else if let Ok(network) = name.parse() {
            ConnMapFilter::Network(network)
        } else if under.len() > 1 && under.starts_with('.') {
            ConnMapFilter::Subdomains(under.to_owned())
        } else {
            ConnMapFilter::Name(name)
        };
        match &matches {
            ConnMapFilter::Name(name) | ConnMapFilter::Subdomains(name) if !is_name(name) => {
                Err(SocketOptionError::MapPattern(text.to_owned()))
            }
            _ => Ok(Self { out, matches }),
        }
    }
}

fn is_name(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.chars().all(letter)
}

impl ConnMapFilter {
    fn fit(&self, name: &str, ip: Option<IpAddr>) -> bool {
        match self {
            Self::All => true,
            Self::Name(own) => name.eq_ignore_ascii_case(own),
            Self::Subdomains(end) => name.to_ascii_lowercase().ends_with(end.as_str()),
            Self::Network(network) => ip.is_some_and(|ip| network.contains(ip)),
        }
    }
}
