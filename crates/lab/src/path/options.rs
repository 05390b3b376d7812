use std::fmt;
use std::ops::RangeInclusive;

use super::units::{InvalidValue, positive, rate, rates, share, size, time};
use super::{
    BitRate, LossModel, Middlebox, NAMED, NetworkPathSpec, QueueCapacity, RateLimit, ReorderModel,
    TcpBufferSettings, event,
};

/// Reason why the settings of an emulated network path are invalid: one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPathError(pub(super) String);

impl fmt::Display for NetworkPathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NetworkPathError {}

/// An option of a path, for the command line and its help.
#[derive(Clone, Copy)]
pub struct NetworkPathOption {
    /// Name without dashes.
    pub name: &'static str,
    /// Placeholder of the value in help; empty for a switch, which [`NetworkPathSpec::build`] takes with
    /// an empty value.
    pub value: &'static str,
    /// The option may be repeated, and each use adds to the last.
    pub several: bool,
    /// One line for help.
    pub help: &'static str,
    set: fn(&mut NetworkPathSpec, &str) -> Result<(), InvalidValue>,
}

impl fmt::Debug for NetworkPathOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PathOptionSpec").field(&self.name).finish()
    }
}

/// All options of a path but `path` itself.
pub const OPTIONS: &[NetworkPathOption] = &[
    NetworkPathOption {
        name: "rtt",
        value: "TIME",
        several: false,
        help: "Set the round-trip time of the empty path, half of it each way [0]",
        set: |path, text| set(&mut path.rtt, time(text)),
    },
    NetworkPathOption {
        name: "jitter",
        value: "TIME",
        several: false,
        help: "Vary the one-way delay by up to this, without reordering [0]",
        set: |path, text| set(&mut path.jitter, time(text)),
    },
    NetworkPathOption {
        name: "rate",
        value: "RATE[/RATE]",
        several: false,
        help: "Limit the rate in IP bits per second; 1Gbit/100Mbit: near to far/far to near \
             [10Gbit]",
        set: |path, text| set(&mut path.rate, rates(text)),
    },
    NetworkPathOption {
        name: "queue",
        value: "SIZE|TIME|fq-codel",
        several: false,
        help: "Set the queue: drop-tail of 2MB or 50ms, or fq-codel [one \
             bandwidth-delay product]",
        set: |path, text| set(&mut path.queue, queue(text)),
    },
    NetworkPathOption {
        name: "loss",
        value: "SHARE[/BURST]",
        several: false,
        help: "Lose packets: 0.1%, or 1%/4 in bursts with a mean length of 4 [0]",
        set: |path, text| set(&mut path.loss, loss(text)),
    },
    NetworkPathOption {
        name: "reorder",
        value: "SHARE[/TIME]",
        several: false,
        help: "Reorder packets: delay this share by 1 ms, or by the given time, as 0.1%/3ms [0]",
        set: |path, text| set(&mut path.reorder, reorder(text)),
    },
    NetworkPathOption {
        name: "duplicate",
        value: "SHARE",
        several: false,
        help: "Duplicate this share of packets, such as 0.1% [0]",
        set: |path, text| set(&mut path.duplicate, share(text)),
    },
    NetworkPathOption {
        name: "mtu",
        value: "BYTES",
        several: false,
        help: "Set the MTU, 576 to 65535; IPv6 needs at least 1280 [1500]",
        set: |path, text| set(&mut path.mtu, number(text, 576..=65_535)),
    },
    NetworkPathOption {
        name: "police",
        value: "SCOPE=RATE[/BURST]",
        several: true,
        help: "Drop what exceeds a rate: CS1=10Mbit, all=50Mbit/1MB, or flow=5Mbit for each connection",
        set: |path, text| limit(&mut path.police, text),
    },
    NetworkPathOption {
        name: "shape",
        value: "SCOPE=RATE[/BURST]",
        several: true,
        help: "Delay what exceeds a rate, behind the link: all=20Mbit/30MB, CS1=10Mbit, flow=5Mbit",
        set: |path, text| limit(&mut path.shape, text),
    },
    NetworkPathOption {
        name: "cross",
        value: "RATE[/RATE]",
        several: false,
        help: "Fill a part of the link with traffic of others; 0/9Mbit: the return path only [0]",
        set: |path, text| set(&mut path.cross, cross(text)),
    },
    NetworkPathOption {
        name: "black-hole",
        value: "BYTES",
        several: false,
        help: "Drop longer IP packets without an ICMP message, as a path MTU black hole",
        set: |path, text| set(&mut path.black_hole, number(text, 68..=65_535).map(Some)),
    },
    NetworkPathOption {
        name: "mss",
        value: "BYTES",
        several: false,
        help: "Lower the maximum segment size in TCP's handshake, as tunnels do",
        set: |path, text| {
            let size = number(text, 88..=65_495).map(Some);
            set(&mut path.handshake.largest_segment, size)
        },
    },
    NetworkPathOption {
        name: "strip",
        value: "LIST",
        several: true,
        help: "Remove TCP options from the handshake: wscale, sack, timestamps",
        set: |path, text| path.handshake.strip(text),
    },
    NetworkPathOption {
        name: "middlebox",
        value: "ACTION=LIMIT",
        several: false,
        help: "Break each TCP connection: reset=30s, reset=50MB, stall=30s or stall=50MB",
        set: |path, text| set(&mut path.middlebox, Middlebox::parse(text).map(Some)),
    },
    NetworkPathOption {
        name: "bleach",
        value: "",
        several: false,
        help: "Clear the DSCP of every packet, behind the policers",
        set: |path, _| set(&mut path.bleach, Ok(true)),
    },
    NetworkPathOption {
        name: "seed",
        value: "NUMBER",
        several: false,
        help: "Seed the random events: the same seed loses the same packets [1]",
        set: |path, text| set(&mut path.seed, number(text, 0..=u64::MAX)),
    },
    NetworkPathOption {
        name: "block",
        value: "PORTS",
        several: true,
        help: "Drop packets to these TCP and UDP ports, both ways, such as 80,8000-8010",
        set: block,
    },
    NetworkPathOption {
        name: "at",
        value: "EVENT",
        several: true,
        help: "Schedule an event: '5s blackout=3s' cuts the link, '5s reset' resets TCP \
             connections",
        set: |path, text| {
            path.events.push(event::parse(text)?);
            Ok(())
        },
    },
    NetworkPathOption {
        name: "tcp",
        value: "stock|stock-6.16|tuned",
        several: false,
        help: "Set TCP buffers: Linux's defaults, those since 6.16, or tuned [this machine's]",
        set: |path, text| set(&mut path.tcp, tcp(text)),
    },
    NetworkPathOption {
        name: "cc",
        value: "NAME",
        several: false,
        help: "Set the TCP congestion control, such as cubic or bbr [this machine's]",
        set: |path, text| set(&mut path.congestion_control, congestion_control(text)),
    },
];

impl NetworkPathSpec {
    /// Builds a path from a predefined one, if named, and options as (name without dashes, value),
    /// applied in order.
    pub fn build<'a>(
        name: Option<&str>,
        options: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, NetworkPathError> {
        let mut path = Self::default();
        if let Some(name) = name {
            let Some(named) = NAMED.iter().find(|path| path.name == name) else {
                let known: Vec<_> = NAMED.iter().map(|path| path.name).collect();
                let known = known.join(", ");
                return Err(NetworkPathError(format!(
                    "no path named {name:?}; known are {known}"
                )));
            };
            for (option, value) in named.options {
                path.set(option, value)?;
            }
        }
        for (option, value) in options {
            path.set(option, value)?;
        }
        super::check::check(&path)?;
        Ok(path)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), NetworkPathError> {
        let Some(option) = OPTIONS.iter().find(|option| option.name == name) else {
            return Err(NetworkPathError(format!("unknown path option --{name}")));
        };
        (option.set)(self, value.trim())
            .map_err(|why| NetworkPathError(format!("--{name}: {value:?} {why}")))
    }
}

fn set<T>(field: &mut T, value: Result<T, InvalidValue>) -> Result<(), InvalidValue> {
    *field = value?;
    Ok(())
}

fn queue(text: &str) -> Result<QueueCapacity, InvalidValue> {
    if text == "fq-codel" {
        return Ok(QueueCapacity::FqCodel);
    }
    time(text)
        .map(QueueCapacity::Time)
        .or_else(|_| size(text).map(QueueCapacity::Bytes))
        .map_err(|_| {
            "is neither a size such as 2MB, nor a time such as 50ms, nor fq-codel".to_owned()
        })
}

fn loss(text: &str) -> Result<LossModel, InvalidValue> {
    let (part, burst) = match text.split_once('/') {
        None => (text, None),
        Some((part, burst)) => {
            let packets = positive(burst)
                .filter(|packets| (1.0..=1e6).contains(packets))
                .ok_or("has no burst length of 1 or more packets after the slash, such as 1%/4")?;
            (part, Some(packets))
        }
    };
    Ok(LossModel {
        share: share(part)?,
        burst,
    })
}

fn reorder(text: &str) -> Result<ReorderModel, InvalidValue> {
    let (part, held) = match text.split_once('/') {
        None => (text, ReorderModel::NONE.held),
        Some((part, held)) => (part, time(held)?),
    };
    Ok(ReorderModel {
        share: share(part)?,
        held,
    })
}

/// Parses a rate limit, which replaces an earlier one of its scope.
fn limit(limits: &mut Vec<RateLimit>, text: &str) -> Result<(), InvalidValue> {
    let limit = RateLimit::parse(text)?;
    limits.retain(|earlier| earlier.scope != limit.scope);
    limits.push(limit);
    Ok(())
}

/// Parses the traffic of others: one rate for both directions, or two; 0 is none.
fn cross(text: &str) -> Result<[Option<BitRate>; 2], InvalidValue> {
    let one = |text: &str| match text {
        "0" => Ok(None),
        text => rate(text).map(Some),
    };
    match text.split_once('/') {
        Some((there, back)) if back != "s" => Ok([one(there)?, one(back)?]),
        _ => Ok([one(text)?; 2]),
    }
}

fn block(path: &mut NetworkPathSpec, text: &str) -> Result<(), InvalidValue> {
    let port = |text: &str| text.trim().parse().ok().filter(|port| *port > 0);
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = port(first).zip(port(last)).filter(|(a, b)| a <= b);
        let Some((first, last)) = range else {
            return Err("is not a list of ports such as 80,8000-8010".to_owned());
        };
        path.block.push(first..=last);
    }
    Ok(())
}

fn tcp(text: &str) -> Result<Option<TcpBufferSettings>, InvalidValue> {
    TcpBufferSettings::NAMES
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, buffers)| Some(*buffers))
        .ok_or_else(|| "is neither stock, stock-6.16 nor tuned".to_owned())
}

fn congestion_control(text: &str) -> Result<Option<String>, InvalidValue> {
    // TCP_CA_NAME_MAX is 16 with the closing zero. The name is written to a file and never part of
    // a path.
    let named = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    match (1..16).contains(&text.len()) && text.bytes().all(named) {
        true => Ok(Some(text.to_owned())),
        false => Err("is not the name of a congestion control such as cubic or bbr".to_owned()),
    }
}

fn number<T>(text: &str, range: RangeInclusive<T>) -> Result<T, InvalidValue>
where
    T: std::str::FromStr + PartialOrd + fmt::Display,
{
    text.parse()
        .ok()
        .filter(|number| range.contains(number))
        .ok_or_else(|| format!("is not a number from {} to {}", range.start(), range.end()))
}
