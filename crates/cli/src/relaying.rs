//! `longhaul relay`: forwards connections of other programs between two stripes.

pub(crate) mod config;
mod conflicts;
mod handover;
mod operating;
mod page;
mod paths;
mod peer;
mod prometheus;
mod route;
mod rules;
mod top;

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::time::Duration;

use relay::entry::permit::PermittedTargetRule;
use relay::{
    ClientProtocol, ClientProtocols, IpNetwork, ListenSpec, RedirectKind, RelayEndpoint,
    RelayLimits, RelaySettings, TargetSpec, Uplink,
};
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, open};
use rustix::termios::isatty;
use sys::{Keepalive, KeepaliveProbes, SocketTuning};
use tracing::level_filters::LevelFilter;
use tracing::warn;

use self::conflicts::ParsedRelaySettings;
use self::operating::MergedRelaySettings;
use self::route::RelayRoute;
use crate::command_error::CommandError;
use crate::exit::Exit;
use crate::flags::argument_error::ArgumentError;
use crate::flags::low::{RelayAction, RelayArgs};
use crate::flags::table::relay_time;
use crate::{config_file, congestion, failed, serving};

/// Buffer of each direction, in bytes. haproxy and DeleGate use a tenth of it; the bytes of one
/// splice(2) grow with it.
const BUFFER: usize = 256 << 10;
/// Unsent bytes that the kernel may hold for a leg of a pair: data in its queue cannot move to
/// another leg.
const UNSENT: u32 = 256 << 10;
const CONNECT: Duration = Duration::from_secs(10);
/// Half-open limit, long enough for a server that computes before it answers.
const HALF: Duration = Duration::from_secs(15 * 60);
const PROBES: KeepaliveProbes = KeepaliveProbes {
    idle: Duration::from_secs(60),
    interval: Duration::from_secs(10),
    count: 6,
};

/// Relays until a signal, or until the single connection of the standard streams ends.
///
/// # Errors
/// The command line is invalid, for this reason.
pub(crate) fn run(args: &RelayArgs) -> Result<Exit, CommandError> {
    let usage = |error: CommandError| error.with_exit(Exit::Usage);
    match &args.instead {
        Some(RelayAction::Check(file)) => {
            return Ok(config_file::checked(config::read(file, settle)));
        }
        Some(RelayAction::Top(address)) => return Ok(top::run(address)),
        Some(RelayAction::Rules(what)) => {
            let relay = settle(args).map_err(usage)?;
            return Ok(match rules::run(*what, &relay) {
                Ok(()) => Exit::Done,
                Err(why) => failed(&why),
            });
        }
        Some(RelayAction::Half) => return Ok(half(args)),
        None => {}
    }
    let told = match &args.config {
        Some(_) => MergedRelaySettings::of(args),
        // A mistake on the command line is a usage error.
        None => Ok(MergedRelaySettings::of(args).map_err(usage)?),
    };
    let streams = told.as_ref().is_ok_and(MergedRelaySettings::is_of_streams);
    log(args, streams);
    let told = told.and_then(|told| told.on_its_way(args));
    let done = told.and_then(|mut told| {
        for relay in &told.relays {
            for name in relay.uplinks.iter().filter_map(Uplink::missing_interface) {
                warn!(
                    "--interface: this machine has no interface {} now: connections through it \
                     fail until there is one (connections to this machine itself do not use it)",
                    wire::escape::name(name.as_bytes())
                );
            }
            for warning in relay::clamped(&relay.sockopts) {
                warn!("{warning}");
            }
            if relay.speaks.diverted == Some(RedirectKind::Redirect) && !sys::may_mark() {
                warn!(
                    "without CAP_NET_ADMIN the relay cannot mark its own connections: rules \
                     that redirect this machine's traffic will send them back to the relay, \
                     which refuses them"
                );
            }
        }
        match told.relays.pop() {
            Some(relay) if streams => self::streams(relay),
            last => {
                told.relays.extend(last);
                operating::listen(args, told)
            }
        }
    });
    Ok(match done {
        Ok(()) => Exit::Done,
        Err(why) => failed(&why),
    })
}

/// Runs the relay of a pair that was started over ssh. The starter shows its log.
fn half(args: &RelayArgs) -> Exit {
    log(args, true);
    match route::half::run() {
        Ok(()) => Exit::Done,
        Err(why) => failed(&why),
    }
}

/// Converts the arguments of one relay, and checks them.
fn settle(args: &RelayArgs) -> Result<RelaySettings, CommandError> {
    let entrance: ListenSpec = args
        .entrance
        .parse()
        .map_err(|e| format!("LISTEN: '{}' {e}", args.entrance))?;
    let mut speaks = speaks(args, &entrance)?;
    let route = RelayRoute::of(args)?;
    let way = route.as_ref().and_then(RelayRoute::way);
    let targets = match &route {
        None => targets(args, &speaks)?,
        // Before its route is set up, the relay has no target.
        Some(_) => way.iter().map(|way| way.target.clone()).collect(),
    };
    let permits: Vec<PermittedTargetRule> = parsed("--to", &args.permits)?;
    let allow: Vec<IpNetwork> = parsed("--allow", &args.allow)?;
    let pairs = speaks.pair || targets.iter().any(TargetSpec::is_pair);
    conflicts::check(&ParsedRelaySettings {
        args,
        place: &entrance.place,
        speaks: &speaks,
        is_routed: route.is_some(),
        has_pair: pairs,
        permits: &permits,
    })?;
    let facing = match way {
        Some(way) => Some(way.facing),
        None => pairs.then(|| peer::settle(&args.pair)).transpose()?,
    };
    if let Some(facing) = facing.as_ref().filter(|_| speaks.pair) {
        speaks.tls = Some(facing.entrance());
    }
    let tls_client = match targets.iter().any(TargetSpec::has_tls) {
        true => Some(args.tls.client()?),
        false => None,
    };
    let tuning = tuning(args)?;
    Ok(RelaySettings {
        entrance,
        targets,
        allow,
        uplinks: Uplink::all(&args.bind, &args.interface)
            .map_err(|why| format!("--bind, --interface: {why}"))?,
        tuning: if pairs { for_pairs(tuning) } else { tuning },
        sockopts: args.sockopts.clone(),
        buffer: args.buffer.unwrap_or(BUFFER),
        connect_timeout: args.connect_timeout.unwrap_or(CONNECT),
        health: args.health,
        idle_timeout: args.idle_timeout,
        half_timeout: args.half_timeout.unwrap_or(HALF),
        fastopen: args.fastopen,
        keep_address: args.keep_address,
        speaks,
        permits,
        tls_client,
        facing,
        entry_timeout: args.entry_timeout.unwrap_or(CONNECT),
        limits: limits(args),
    })
}

/// Parses the values of a flag that may be repeated.
fn parsed<T: FromStr<Err: Display>>(flag: &str, texts: &[String]) -> Result<Vec<T>, CommandError> {
    let parse = |text: &String| {
        text.parse().map_err(|why: T::Err| {
            let text = wire::escape::name(text.as_bytes());
            format!("{flag}: '{text}' {why}").into()
        })
    };
    texts.iter().map(parse).collect()
}

fn limits(args: &RelayArgs) -> RelayLimits {
    let connections = args
        .max_connections
        .unwrap_or_else(|| RelayLimits::default().connections);
    RelayLimits {
        connections,
        per_source: args.max_per_source.unwrap_or(connections),
        source_block: args.source_block.unwrap_or_default(),
        rate: args.rate.map(|rate| rate.bytes()),
        rate_all: args.rate_all.map(|rate| rate.bytes()),
    }
}

/// The socket options of both legs.
fn tuning(args: &RelayArgs) -> Result<SocketTuning, CommandError> {
    let probes = match &args.keepalive {
        None => Some(PROBES),
        Some(text) => probes(text).map_err(|why| {
            let text = wire::escape::name(text.as_bytes());
            format!("--keepalive: '{text}' {why}")
        })?,
    };
    if let Some(name) = &args.congestion {
        congestion::permitted(name)?;
    }
    Ok(SocketTuning {
        dscp: args.dscp.value(),
        keepalive: match (args.sockopts.keepalive, probes) {
            (Some(false), _) | (None, None) => Keepalive::Off,
            (_, Some(probes)) => Keepalive::Probes(probes),
            (Some(true), None) => Keepalive::KernelTimes,
        },
        congestion: args.congestion.clone(),
        notsent_lowat: args.notsent_lowat,
        pacing: args.rate.map(|rate| rate.bytes()),
        mptcp: args.mptcp,
        ..SocketTuning::default()
    })
}

/// The socket options of a pair.
fn for_pairs(tuning: SocketTuning) -> SocketTuning {
    SocketTuning {
        notsent_lowat: tuning.notsent_lowat.or(Some(UNSENT)),
        ..tuning
    }
}

/// The targets, unless clients name them.
fn targets(args: &RelayArgs, speaks: &ClientProtocols) -> Result<Vec<TargetSpec>, CommandError> {
    let target = |text: &String| {
        let target: TargetSpec = text.parse().map_err(|e| format!("TARGET: '{text}' {e}"))?;
        let words = ["tls", "proxy", "proxy1", "proxy2", "pair"];
        no_words(text, &target.words, &words)?;
        is_pair_possible(text, &target.place, &target.words)?;
        Ok::<_, CommandError>(target)
    };
    let targets = args.targets.iter().map(target);
    let targets = targets.collect::<Result<Vec<_>, _>>()?;
    let is_for_rules = matches!(args.instead, Some(RelayAction::Rules(_)));
    match (targets.is_empty(), speaks.names_target()) {
        (true, false) if is_for_rules => Ok(targets),
        (true, false) => Err("no TARGET given: name one, such as host:22".into()),
        (false, true) => Err(format!(
            "{}: clients choose their target here, within --to: leave TARGET out",
            args.entrance
        )
        .into()),
        _ => Ok(targets),
    }
}

/// The protocols that clients speak before their data.
fn speaks(args: &RelayArgs, entrance: &ListenSpec) -> Result<ClientProtocols, CommandError> {
    no_words(
        &args.entrance,
        &entrance.words,
        &[
            "proxy", "tls", "socks5", "http", "pair", "redirect", "tproxy",
        ],
    )?;
    is_pair_possible(&args.entrance, &entrance.place, &entrance.words)?;
    let has = |word: &str| entrance.words.iter().any(|own| own == word);
    let asks = match (has("socks5"), has("http")) {
        (true, true) => {
            return Err(format!("{}: socks5 and http cannot be combined", args.entrance).into());
        }
        (true, false) => Some(ClientProtocol::Socks5),
        (false, true) => Some(ClientProtocol::Http),
        (false, false) => None,
    };
    let diverted = match (has("redirect"), has("tproxy")) {
        (false, false) => None,
        (true, _) => Some(RedirectKind::Redirect),
        (false, true) => Some(RedirectKind::Tproxy),
    };
    if diverted.is_some() {
        let tcp = matches!(entrance.place, RelayEndpoint::Tcp { .. });
        if !tcp || entrance.words.len() > 1 {
            return Err(format!(
                "{}: redirect and tproxy need a TCP port and cannot be combined with other \
                 protocols",
                args.entrance
            )
            .into());
        }
    }
    if entrance.place == RelayEndpoint::Streams && !entrance.words.is_empty() {
        return Err(format!(
            "{}: standard input and output (-) take no protocol",
            args.entrance
        )
        .into());
    }
    Ok(ClientProtocols {
        proxy: has("proxy"),
        tls: has("tls").then(|| args.tls.server()).transpose()?,
        pair: has("pair"),
        asks,
        diverted,
    })
}

/// Checks that a pair's operand is TCP without other protocols: the relays connect by TCP and have
/// their own TLS.
fn is_pair_possible(
    operand: &str,
    place: &RelayEndpoint,
    words: &[String],
) -> Result<(), CommandError> {
    let has = |word: &str| words.iter().any(|own| own == word);
    let other = ["tls", "socks5", "http"].into_iter().find(|word| has(word));
    match (has("pair"), place, other) {
        (false, ..) | (true, RelayEndpoint::Tcp { .. }, None) => Ok(()),
        (true, _, Some(other)) => {
            Err(format!("{operand}: pair cannot be combined with {other}").into())
        }
        (true, _, None) => Err(format!("{operand}: a pair needs a TCP address").into()),
    }
}

fn no_words(operand: &str, words: &[String], known: &[&str]) -> Result<(), CommandError> {
    match words.iter().find(|word| !known.contains(&word.as_str())) {
        None => Ok(()),
        Some(word) => Err(format!(
            "{operand}: unknown protocol '{}': use one of {}",
            wire::escape::name(word.as_bytes()),
            known.join(", ")
        )
        .into()),
    }
}

/// Parses `IDLE[/INTERVAL/COUNT]`, or `off`.
fn probes(text: &str) -> Result<Option<KeepaliveProbes>, ArgumentError> {
    if text == "off" {
        return Ok(None);
    }
    let parts: Vec<&str> = text.split('/').collect();
    let (idle, interval, count) = match parts.as_slice() {
        [idle] => (relay_time(idle)?, PROBES.interval, PROBES.count),
        [idle, interval, count] => {
            let count = count.parse().ok().filter(|count| (1..=127).contains(count));
            let count = count.ok_or("has a number of probes outside 1 to 127")?;
            (relay_time(idle)?, relay_time(interval)?, count)
        }
        _ => return Err("is not IDLE, IDLE/INTERVAL/COUNT or off".into()),
    };
    let whole = |time: Duration| (1..=32_767).contains(&time.as_secs());
    match whole(idle) && whole(interval) {
        true => Ok(Some(KeepaliveProbes {
            idle,
            interval,
            count,
        })),
        false => Err("has a time outside 1 s to 32767 s".into()),
    }
}

fn streams(relay: RelaySettings) -> Result<(), CommandError> {
    let ends = stream_ends().map_err(|e| format!("cannot use standard input and output: {e}"));
    let (input, output) = ends?;
    Ok(relay::streams(relay, input, output)?)
}

/// Standard input and output in non-blocking mode.
fn stream_ends() -> io::Result<(OwnedFd, OwnedFd)> {
    let input = patient(io::stdin().as_fd(), OFlags::RDONLY)?;
    let output = patient(io::stdout().as_fd(), OFlags::WRONLY)?;
    // Our copies would keep the streams open after the end was passed on.
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&nothing)?;
    nix::unistd::dup2_stdout(&nothing)?;
    Ok((input, output))
}

/// A non-blocking descriptor that leaves the mode unchanged for other holders of the stream: pipes
/// and terminals are reopened. Files never block.
fn patient(stream: BorrowedFd<'_>, mode: OFlags) -> io::Result<OwnedFd> {
    let kind = FileType::from_raw_mode(fstat(stream)?.st_mode);
    if kind == FileType::Fifo || isatty(stream) {
        let path = format!("/proc/self/fd/{}", stream.as_raw_fd());
        let flags = mode | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        if let Ok(own) = open(path, flags, Mode::empty()) {
            return Ok(own);
        }
    }
    if matches!(kind, FileType::Fifo | FileType::Socket) {
        fcntl_setfl(stream, fcntl_getfl(stream)? | OFlags::NONBLOCK)?;
    }
    stream.try_clone_to_owned()
}

/// Sets the log level. The connection of the standard streams reports through its exit code, so
/// only warnings are logged.
fn log(args: &RelayArgs, streams: bool) {
    let quiet = args.quiet || streams;
    let level = match (args.verbose, quiet) {
        (0, true) => LevelFilter::WARN,
        (0, false) => LevelFilter::INFO,
        (1, _) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    serving::log_at(level);
}
