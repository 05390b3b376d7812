//! Routes through relays that are started over ssh: `ssh://HOST/TARGET` and `--via`.
//! docs/design/0018-splitting.md.

pub(super) mod half;
mod near;
mod talk;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use relay::control::StartedRelayConfig;
use relay::peer::{KnownPeers, PairRelaySettings, PeerKeyError, StripeCount, new_key};
use relay::{HostSpec, RelayEndpoint, TargetSpec};
use tracing::{info, warn};
use transfer::cancel::CancelToken;
use transfer::copy::HostId;
use transfer::operand::SshDestination;
use zeroize::Zeroizing;

use self::near::{FollowedRelay, ReconnectBackoff, RemoteRelay, StripeTunnel, patience, say_alive};
use crate::command_error::CommandError;
use crate::connect::Hosts;
use crate::flags::low::{CopyArgs, RelayArgs};
use crate::output::RunReporter;
use crate::output::console::Console;
use transfer::connect::RemoteLonghaulPolicy;

/// Interval of our keepalive messages, which also keep address translations from expiring.
const ALIVE: Duration = Duration::from_secs(30);
/// Maximum number of hosts on a route.
const MOST_HOSTS: usize = 8;

/// A route: the hosts in order of passing, and the target behind the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RelayRoute {
    hosts: Vec<SshDestination>,
    target: String,
    /// Words of the target: `proxy` or a version of it, or none.
    words: Vec<String>,
    ssh_config: Option<PathBuf>,
    ssh_options: Vec<String>,
    stripes: Option<usize>,
    most: Option<usize>,
    plain: bool,
    ports: Option<(u16, u16)>,
    verbose: u8,
}

/// The first leg of a route: its target and the pair's settings.
#[derive(Clone, Debug)]
pub(super) struct FirstHop {
    pub(super) target: TargetSpec,
    pub(super) facing: PairRelaySettings,
}

/// Running routes of this process, which reloaded relays continue to use.
static BEGUN: Mutex<Vec<StartedRoute>> = Mutex::new(Vec::new());
/// Called when a running route gets another first leg.
static CHANGED: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();
/// Key of this end, for the lifetime of the process.
static KEY: LazyLock<Result<Zeroizing<String>, PeerKeyError>> = LazyLock::new(new_key);

/// A running route and its first leg. A reloaded relay with an equal route uses it again instead of
/// starting another one.
struct StartedRoute {
    route: RelayRoute,
    way: FirstHop,
}

fn begun() -> MutexGuard<'static, Vec<StartedRoute>> {
    BEGUN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the function to call when a running route gets another first leg.
pub(super) fn when_changed(tell: impl Fn() + Send + Sync + 'static) {
    // A second call keeps the first function; one process serves once.
    let _ = CHANGED.set(Box::new(tell));
}

impl RelayRoute {
    /// Parses the route that the arguments ask for, if there is one.
    ///
    /// # Errors
    /// Invalid arguments.
    pub(super) fn of(args: &RelayArgs) -> Result<Option<Self>, CommandError> {
        let url = args
            .targets
            .iter()
            .find(|target| target.starts_with("ssh://"));
        if url.is_none() && args.pair.via.is_none() {
            return Ok(None);
        }
        let [target] = args.targets.as_slice() else {
            return Err(match args.targets.is_empty() {
                true => "--via needs exactly one TARGET".into(),
                false => "--via and ssh:// need exactly one TARGET".into(),
            });
        };
        let mut hosts = Vec::new();
        for host in args.pair.via.iter().flat_map(|via| via.split(',')) {
            hosts.push(SshDestination::parse(host).map_err(|e| format!("--via: {e}"))?);
        }
        let mut target = target.as_str();
        if let Some(rest) = target.strip_prefix("ssh://") {
            let wrong = "is not ssh://[USER@]HOST[:PORT]/TARGET, where TARGET is the address that HOST \
                 connects to";
            let (host, inner) = rest
                .split_once('/')
                .ok_or_else(|| format!("TARGET: '{target}' {wrong}"))?;
            hosts.push(SshDestination::parse(host).map_err(|e| format!("{target}: {e}"))?);
            target = inner;
        }
        if hosts.len() > MOST_HOSTS {
            return Err(format!("--via: more than {MOST_HOSTS} hosts given").into());
        }
        let parsed: TargetSpec = target
            .parse()
            .map_err(|e| format!("TARGET: '{target}' {e}"))?;
        super::no_words(target, &parsed.words, &["proxy", "proxy1", "proxy2"])?;
        Ok(Some(Self {
            hosts,
            target: parsed.place.to_string(),
            words: parsed.words,
            ssh_config: args.pair.ssh_config.clone(),
            ssh_options: args.pair.ssh_options.clone(),
            stripes: args.pair.stripes,
            most: args.pair.buffer,
            plain: args.pair.plain,
            ports: args.pair.ports,
            verbose: args.verbose,
        }))
    }

    /// The first leg, if the route is running.
    pub(super) fn way(&self) -> Option<FirstHop> {
        let begun = begun();
        let of = begun.iter().find(|begun| begun.route == *self);
        of.map(|begun| begun.way.clone())
    }

    /// Sets the route up, and restarts it from now on when it breaks.
    ///
    /// # Errors
    /// A host cannot be reached, or has no longhaul: one sentence.
    pub(super) fn begin(&self) -> Result<(), CommandError> {
        let carrier = StripeTunnel::start().map_err(|e| {
            format!(
                "this machine cannot open the local socket for --via: {e}; check its limits \
                 (ulimit -n and -u)"
            )
        })?;
        let chain = self.set_up(&carrier, false)?;
        begun().push(StartedRoute {
            route: self.clone(),
            way: chain.way.clone(),
        });
        let route = self.clone();
        let thread = thread::Builder::new().name("route".to_owned());
        let started = thread.spawn(move || route.keep(&carrier, chain));
        started.map_err(|e| {
            format!(
                "this machine cannot start the thread that watches the hosts: {e}; check its \
                 limits (ulimit -u)"
            )
        })?;
        Ok(())
    }

    fn keep(&self, carrier: &Arc<StripeTunnel>, mut chain: RelayChain) {
        let mut pause = ReconnectBackoff::new();
        loop {
            let why = chain.follow();
            warn!("{why}; starting the relays on the hosts again");
            carrier.lead_to(None);
            drop(chain);
            chain = loop {
                thread::sleep(pause.next());
                match self.set_up(carrier, true) {
                    Ok(chain) => break chain,
                    Err(why) => warn!("{why}"),
                }
            };
            if let Some(begun) = begun().iter_mut().find(|begun| begun.route == *self) {
                begun.way = chain.way.clone();
            }
            if let Some(tell) = CHANGED.get() {
                tell();
            }
        }
    }

    /// Starts the relays, and connects each to the next.
    fn set_up(&self, carrier: &Arc<StripeTunnel>, again: bool) -> Result<RelayChain, CommandError> {
        let key = KEY.as_ref()?;
        let own = PairRelaySettings::new(key.as_bytes(), KnownPeers::default())?;
        let own = own.fingerprint().to_owned();
        let mut halves = Vec::new();
        for nth in 0..self.hosts.len() {
            halves.push(self.start(nth, again)?);
        }
        let keys: Vec<String> = halves.iter().map(|half| half.key.clone()).collect();
        let mut next = (self.target.clone(), String::new());
        let mut first = (0, None);
        for nth in (0..halves.len()).rev() {
            let before = nth.checked_sub(1).and_then(|nth| keys.get(nth)).cloned();
            let Some(half) = halves.get_mut(nth) else {
                continue;
            };
            let begin = StartedRelayConfig {
                allow: [Some(own.clone()), before].into_iter().flatten().collect(),
                target: next.0.clone(),
                target_key: next.1.clone(),
                most: self.most.unwrap_or(64 << 20) as u64,
                stripes: self.stripes.unwrap_or_default() as u8,
                zstd: !self.plain,
                ports: self.ports,
            };
            let port = match half.begin(begin) {
                Ok(port) => port,
                // Skip this host: the route begins behind it, over the ssh connection that passes
                // it.
                Err(why) if nth + 1 < self.hosts.len() => {
                    warn!("{why}; data passes this host over the ssh connection");
                    first.0 = nth + 1;
                    break;
                }
                Err(why) => return Err(why),
            };
            first = (nth, port);
            let Some(port) = port else {
                if nth > 0 {
                    warn!(
                        "{}: reachable over ssh only; data to it goes over the ssh connection",
                        half.name
                    );
                }
                break;
            };
            let host = &half.command.host_name;
            let host = if host.contains(':') {
                format!("[{host}]")
            } else {
                host.clone()
            };
            next = (format!("{host}:{port}/pair"), half.key.clone());
        }
        self.lead(halves.split_off(first.0), first, carrier)
    }

    /// Finds a way to the first half: direct, or inside the ssh connection.
    fn lead(
        &self,
        halves: Vec<RemoteRelay>,
        (nth, port): (usize, Option<u16>),
        carrier: &Arc<StripeTunnel>,
    ) -> Result<RelayChain, CommandError> {
        let key = KEY.as_ref()?;
        let half = halves
            .first()
            .ok_or("internal error: no relay was started on a host")?;
        let mut known = KnownPeers::default();
        known.add(&half.key)?;
        let mut facing = PairRelaySettings::new(key.as_bytes(), known)?;
        if let Some(most) = self.most {
            facing.most = most;
        }
        facing.zstd = !self.plain;
        if let Some(stripes) = self.stripes {
            facing.stripes = StripeCount::Fixed(stripes);
        }
        let name = half.name.clone();
        let address = half.command.address.filter(|_| nth == 0);
        let direct = match (address, port) {
            (Some(mut at), Some(port)) => {
                at.set_port(port);
                let met = facing.meet(at, patience(half.command.rtt));
                met.map(|()| at)
                    .map_err(|why| format!("port {port}: {why}"))
            }
            (_, None) if nth == 0 => Err(match self.ports {
                None => {
                    "longhaul there cannot listen at the address by which its sshd was reached, \
                     perhaps because of address translation"
                        .to_owned()
                }
                Some((a, b)) => format!(
                    "none of the ports {a} to {b} (--port-range) is free there: widen the range"
                ),
            }),
            _ if nth > 0 => Err("it is reached through the hosts before it in --via".to_owned()),
            _ => Err(
                "its address is unknown, because ssh_config has ProxyJump or ProxyCommand for it"
                    .to_owned(),
            ),
        };
        let at = match direct {
            Ok(at) => {
                info!(
                    "{name}: longhaul {} is the peer relay, at {at}",
                    half.software
                );
                at
            }
            Err(why) => {
                warn!("{name}: data goes over the ssh connection: {why}");
                // Further stripes would share the one ssh connection.
                facing.stripes = StripeCount::Fixed(1);
                carrier.lead_to(Some(Arc::clone(&half.voice)));
                carrier.at
            }
        };
        let (tell, gone) = mpsc::channel();
        let followed = halves.into_iter().map(|half| half.follow(tell.clone()));
        let followed = followed.collect::<Result<_, _>>();
        Ok(RelayChain {
            halves: followed.map_err(|e| format!("{name}: {e}"))?,
            gone,
            way: FirstHop {
                target: self.target_at(at),
                facing,
            },
        })
    }

    fn target_at(&self, at: SocketAddr) -> TargetSpec {
        TargetSpec {
            place: RelayEndpoint::Tcp {
                host: HostSpec::Address(at.ip()),
                port: at.port(),
            },
            words: [&["pair".to_owned()], self.words.as_slice()].concat(),
        }
    }

    /// Starts the relay at host `nth`, which is reached through the hosts before it.
    fn start(&self, nth: usize, again: bool) -> Result<RemoteRelay, CommandError> {
        let (before, from) = self.hosts.split_at(nth);
        let host = from.first().ok_or("internal error: no host given")?;
        let jump: Vec<String> = before.iter().map(SshDestination::to_string).collect();
        let flags = CopyArgs {
            config: self.ssh_config.clone(),
            options: self.ssh_options.clone(),
            jump: (!jump.is_empty()).then(|| jump.join(",")),
            // At a restart no user is present to answer prompts.
            batch: again,
            far: RemoteLonghaulPolicy::Stock,
            verbose: self.verbose,
            ..CopyArgs::default()
        };
        let output = RunReporter::new(
            Arc::new(Console::new(false)),
            None,
            false,
            CancelToken::default(),
        );
        let hosts = Hosts::new(vec![host.clone()], flags, Arc::new(output));
        let command = hosts.start_half(HostId(0))?;
        RemoteRelay::meet(&host.to_string(), self.ssh_config.as_deref(), command)
    }
}

/// Connected relays.
struct RelayChain {
    halves: Vec<FollowedRelay>,
    gone: Receiver<String>,
    way: FirstHop,
}

impl RelayChain {
    /// Waits until one of the relays is gone, and returns the reason.
    fn follow(&self) -> String {
        loop {
            match self.gone.recv_timeout(ALIVE) {
                Ok(why) => return why,
                Err(RecvTimeoutError::Timeout) => say_alive(&self.halves),
                Err(RecvTimeoutError::Disconnected) => {
                    return "the relays that were started on the hosts have ended".to_owned();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
