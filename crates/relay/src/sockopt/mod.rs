//! `--sockopt` in DeleGate's syntax: `[no]name[:value][:connMap]`, several joined by `+`. Mostly
//! used is `buffsize:size[kiosc]`. Unknown names, and options that would make a relay unsafe, are
//! rejected rather than ignored.

mod connection_selector;

use std::fmt;
use std::fs;
use std::net::IpAddr;

use sys::SocketBufferSizes;

pub use connection_selector::ConnectionSelector;

/// All `--sockopt` settings of a relay, merged in the order of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptionSettings {
    /// Buffer sizes in the order given; a later one overrides an earlier one.
    sizes: Vec<SocketBufferSetting>,
    /// Set by `keepalive` and `nokeepalive`.
    pub keepalive: Option<bool>,
    /// Set by `share`: other processes may listen at the same port (SO_REUSEPORT).
    pub share: bool,
}

/// One buffer size: `size[kiosc][:connMap]`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SocketBufferSetting {
    bytes: usize,
    receive: bool,
    send: bool,
    server: bool,
    client: bool,
    map: ConnectionSelector,
}

/// Socket buffer sizes that `--sockopt` sets for one connection's two legs; sizes that are not set
/// stay the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegSocketBufferSizes {
    /// Buffers of the leg to the client.
    pub client: SocketBufferSizes,
    /// Buffers of the leg to the server.
    pub server: SocketBufferSizes,
}

/// Maximum buffer size in bytes: the kernel doubles it in an int.
const LARGEST: usize = (i32::MAX / 2) as usize;

/// Reason why a setting is rejected. The message follows the value of `--sockopt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketOptionError {
    /// This option has a value and takes none.
    TakesNoValue(String),
    /// A buffer size is missing.
    NoSize,
    /// The option would make a broken connection look like a complete one.
    HidesLoss(&'static str),
    /// `noconnctrl`.
    NoConnctrl,
    /// `noreuse`.
    NoReuse,
    /// Two plus signs follow each other, or the value is empty.
    Empty,
    /// An option of this name is unknown.
    Unknown(String),
    /// This text is no size.
    InvalidSize(String),
    /// This size has unknown letters, or a letter twice.
    InvalidLetter(String),
    /// This number of bytes, or kilobytes, is too small or too large.
    OutOfRange(String),
    /// A connMap has too many parts.
    MapParts,
    /// This pattern of a connMap is neither a host name nor a network.
    MapPattern(String),
}

impl fmt::Display for SocketOptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |text: &str| wire::escape::name(text.as_bytes()).to_string();
        match self {
            Self::TakesNoValue(name) => {
                write!(f, "has a value for {}, which takes none", shown(name))
            }
            Self::NoSize => f.write_str("lacks the size: buffsize:SIZE[kiosc]"),
            Self::HidesLoss(name) => write!(
                f,
                "has {name}, which is not supported: a broken connection would look like a \
                 complete one; leave it out"
            ),
            Self::NoConnctrl => {
                f.write_str("has noconnctrl, which is not supported: use a long --connect-timeout")
            }
            Self::NoReuse => f.write_str(
                "has noreuse, which is not supported: the relay could not be restarted for \
                 minutes; remove it",
            ),
            Self::Empty => f.write_str("has an empty option"),
            Self::Unknown(name) => write!(
                f,
                "has an unknown option '{}'; known are buffsize, keepalive, share, reuse, shut \
                 and connctrl",
                shown(name)
            ),
            Self::InvalidSize(size) => write!(f, "has '{}', which is not a size", shown(size)),
            Self::InvalidLetter(size) => write!(
                f,
                "has '{}': only k (kilo), i (receive), o (send), s (server) and c (client) \
                 may follow the number, each once",
                shown(size)
            ),
            Self::OutOfRange(digits) => {
                write!(f, "has {digits}: a buffer must be between 1 byte and 1 GiB")
            }
            Self::MapParts => f.write_str(
                "has a map with more parts than PROTOCOL:DESTINATION:SOURCE (put IPv6 addresses \
                 in brackets)",
            ),
            Self::MapPattern(text) => write!(
                f,
                "has '{}' in its map, which is neither a host name nor a network",
                shown(text)
            ),
        }
    }
}

impl std::error::Error for SocketOptionError {}

impl SocketOptionSettings {
    /// Adds the settings of one `--sockopt` argument.
    ///
    /// # Errors
    /// A setting is unknown or rejected.
    pub fn add(&mut self, text: &str) -> Result<(), SocketOptionError> {
        for part in text.split('+') {
            self.add_part(part)?;
        }
        Ok(())
    }

    fn add_part(&mut self, part: &str) -> Result<(), SocketOptionError> {
        if part.starts_with(|c: char| c.is_ascii_digit()) {
            self.sizes.push(SocketBufferSetting::parse(part)?);
            return Ok(());
        }
        let (name, value) = match part.split_once(':') {
            Some((name, value)) => (name, Some(value)),
            None => (part, None),
        };
        // DeleGate's manual has both spellings.
        let is_size = matches!(name, "buffsize" | "bufsize");
        if let (false, Some(_)) = (is_size, value) {
            return Err(SocketOptionError::TakesNoValue(name.to_owned()));
        }
        match name {
            "buffsize" | "bufsize" => {
                let value = value.ok_or(SocketOptionError::NoSize)?;
                self.sizes.push(SocketBufferSetting::parse(value)?);
                Ok(())
            }
            "keepalive" | "nokeepalive" => {
                self.keepalive = Some(name == "keepalive");
                Ok(())
            }
            "share" | "noshare" => {
                self.share = name == "share";
                Ok(())
            }
            // The relay's default behavior.
            "reuse" | "shut" | "connctrl" => Ok(()),
            "noshut" => Err(SocketOptionError::HidesLoss("noshut")),
            "linger" => Err(SocketOptionError::HidesLoss("linger")),
            "nolinger" => Err(SocketOptionError::HidesLoss("nolinger")),
            "noconnctrl" => Err(SocketOptionError::NoConnctrl),
            "noreuse" => Err(SocketOptionError::NoReuse),
            "" => Err(SocketOptionError::Empty),
            _ => Err(SocketOptionError::Unknown(name.to_owned())),
        }
    }

    /// Reports if no buffer size is set.
    pub fn no_sizes(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Returns the buffer sizes that apply to all connections, which the listener is given.
    pub fn for_all(&self) -> LegSocketBufferSizes {
        self.chosen(|map| map.is_for_all())
    }

    /// Returns the buffer sizes of a connection from `source` to `host` with address `to`.
    pub fn for_connection(
        &self,
        host: &str,
        to: Option<IpAddr>,
        source: Option<IpAddr>,
    ) -> LegSocketBufferSizes {
        self.chosen(|map| map.fits(host, to, source))
    }

    /// Returns the largest sizes set for any connection, to receive and to send, in bytes.
    pub fn largest(&self) -> (Option<usize>, Option<usize>) {
        let of = |wanted: fn(&SocketBufferSetting) -> bool| {
            let sizes = self.sizes.iter().filter(|size| wanted(size));
            sizes.map(|size| size.bytes).max()
        };
        (of(|size| size.receive), of(|size| size.send))
    }

    fn chosen(&self, fits: impl Fn(&ConnectionSelector) -> bool) -> LegSocketBufferSizes {
        let mut legs = LegSocketBufferSizes::default();
        for size in self.sizes.iter().filter(|size| fits(&size.map)) {
            for (leg, wanted) in [
                (&mut legs.client, size.client),
                (&mut legs.server, size.server),
            ] {
                if wanted && size.receive {
                    leg.receive = Some(size.bytes);
                }
                if wanted && size.send {
                    leg.send = Some(size.bytes);
                }
            }
        }
        legs
    }
}

impl SocketBufferSetting {
    fn parse(text: &str) -> Result<Self, SocketOptionError> {
        let (size, map) = match text.split_once(':') {
            Some((size, map)) => (size, ConnectionSelector::parse(map)?),
            None => (text, ConnectionSelector::default()),
        };
        let end = size.find(|c: char| !c.is_ascii_digit());
        let (digits, letters) = size.split_at(end.unwrap_or(size.len()));
        let mut bytes: usize = digits
            .parse()
            .map_err(|_| SocketOptionError::InvalidSize(size.to_owned()))?;
        let has = |letter| letters.contains(letter);
        for letter in letters.chars() {
            let times = letters.matches(letter).count();
            if !"kiosc".contains(letter) || times > 1 {
                return Err(SocketOptionError::InvalidLetter(size.to_owned()));
            }
        }
        if has('k') {
            bytes = bytes.saturating_mul(1024);
        }
        if bytes == 0 || bytes > LARGEST {
            return Err(SocketOptionError::OutOfRange(digits.to_owned()));
        }
        // Without letters for a direction or a leg, the size applies to both.
        let both = |this, other| has(this) || !has(other);
        Ok(Self {
            bytes,
            receive: both('i', 'o'),
            send: both('o', 'i'),
            server: both('s', 'c'),
            client: both('c', 's'),
            map,
        })
    }
}

/// Returns warnings about sizes that the kernel would reduce; empty if there are none.
pub fn clamped(sockopts: &SocketOptionSettings) -> Vec<String> {
    let core = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?;
        text.trim().parse::<usize>().ok()
    };
    // The third number is the maximum of autotuning.
    let tuned = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        text.split_whitespace().nth(2)?.parse::<usize>().ok()
    };
    let (receive, send) = sockopts.largest();
    let mut warnings = Vec::new();
    for (asked, max, auto, verb) in [
        (receive, "rmem_max", "tcp_rmem", "receive"),
        (send, "wmem_max", "tcp_wmem", "send"),
    ] {
        let (Some(asked), Some(limit)) = (asked, core(max)) else {
            continue;
        };
        warnings.extend(warning(asked, limit, tuned(auto), max, verb));
    }
    warnings
}

/// Returns the warning for one direction. The kernel allocates twice the requested size, at most
/// twice `limit`, and disables autotuning.
fn warning(
    asked: usize,
    limit: usize,
    auto: Option<usize>,
    max: &str,
    verb: &str,
) -> Option<String> {
    let given = asked.min(limit);
    let worse = auto.filter(|auto| given.saturating_mul(2) < *auto);
    let worse = worse.map(|auto| {
        format!(
            "; without the option the kernel would adjust the buffer up to {} KiB: remove \
             the option",
            auto / 2 / 1024
        )
    });
    if asked > limit {
        return Some(format!(
            "the {verb} buffer of {} KiB is reduced to {} KiB by net.core.{max}{}",
            asked / 1024,
            limit / 1024,
            worse.unwrap_or_else(|| ": raise that sysctl".to_owned()),
        ));
    }
    let worse = worse?;
    Some(format!(
        "the {verb} buffer is fixed at {} KiB{worse}",
        asked / 1024
    ))
}

#[cfg(test)]
mod tests;
