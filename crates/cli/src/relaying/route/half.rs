//! `longhaul relay half`: the relay of a pair, started over an ssh login. It runs until its
//! standard input ends.

use std::env;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use relay::control::{RelayControlDecoder, RelayControlMessage, StartedRelayConfig};
use relay::peer::{KnownPeers, PairRelaySettings, StripeCount};
use relay::{
    ClientProtocols, HostSpec, InheritedSockets, ListenSpec, RelayEndpoint, RelayServer,
    RelaySettings, TargetSpec,
};
use serve::sshd::hide_memory;

use super::super::settle;
use super::talk::{ControlChannelMux, ControlChannelReader, ControlReadError, ends};
use crate::command_error::CommandError;
use crate::flags::low::RelayArgs;

/// Time limit for the starter's first message.
const BEGIN: Duration = Duration::from_secs(60);
/// Time without a message after which the starter counts as gone. An sshd that does not probe its
/// client keeps child processes for hours.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Time limit for the next half to answer, with TCP and TLS.
const MEET: Duration = Duration::from_secs(10);

/// Relays until standard input ends. The process should exit then.
///
/// # Errors
/// The reason for the failure, which the starter has received too.
pub(in super::super) fn run() -> Result<(), CommandError> {
    let wrong = |e: io::Error| format!("cannot start the relay: {e}");
    // The key exists in memory only.
    hide_memory().map_err(wrong)?;
    let (mut ear, voice) =
        ends(io::stdin(), io::stdout(), RelayControlDecoder::of_starter()).map_err(wrong)?;
    let key = relay::peer::new_key()?;
    let facing = PairRelaySettings::new(key.as_bytes(), KnownPeers::default())?;
    voice.mark().map_err(wrong)?;
    let here = RelayControlMessage::Hello {
        software: env!("CARGO_PKG_VERSION").to_owned(),
        key: facing.fingerprint().to_owned(),
    };
    voice.say(&here).map_err(wrong)?;
    let begin = match ear.hear(BEGIN) {
        Ok(RelayControlMessage::Configure(begin)) => begin,
        Err(ControlReadError::Closed) => return Ok(()),
        _ => {
            return Err(
                "longhaul relay half is an internal command: use longhaul relay --via, which \
                 starts it over ssh"
                    .into(),
            );
        }
    };
    match start(&begin, key.as_bytes()) {
        Ok(half) => {
            let port = if half.reachable { half.at.port() } else { 0 };
            voice
                .say(&RelayControlMessage::Listening(port))
                .map_err(wrong)?;
            follow(&mut ear, &voice, half.at);
            Ok(())
        }
        Err(why) => {
            // The starter may have gone.
            let _ = voice.say(&RelayControlMessage::Failed(why.to_string()));
            Err(why)
        }
    }
}

/// A relay that accepts stripes.
struct StripeAcceptingRelay {
    _relays: RelayServer,
    at: SocketAddr,
    /// Other machines can connect to it.
    reachable: bool,
}

fn start(begin: &StartedRelayConfig, key: &[u8]) -> Result<StripeAcceptingRelay, CommandError> {
    let mut known = KnownPeers::default();
    for key in begin.allow.iter().chain([&begin.target_key]) {
        known.add(key)?;
    }
    let mut facing = PairRelaySettings::new(key, known)?;
    facing.most = usize::try_from(begin.most)
        .unwrap_or(usize::MAX)
        .max(64 << 10);
    facing.zstd = begin.zstd;
    if begin.stripes > 0 {
        facing.stripes = StripeCount::Fixed(begin.stripes.into());
    }
    let target: TargetSpec = begin
        .target
        .parse()
        .map_err(|e| format!("TARGET: '{}' {e}", begin.target))?;
    if target.is_pair() {
        meet(&facing, &target)?;
    }
    let reached = reached_at();
    let places = reached.into_iter().map(|ip| (ip, true));
    let places = places.chain([(IpAddr::from([127, 0, 0, 1]), false)]);
    let mut why = String::new();
    let ports = |reachable| match begin.ports.filter(|_| reachable) {
        Some((first, last)) => first..=last,
        None => 0..=0,
    };
    let places = places.flat_map(|(ip, reachable)| {
        let ports = ports(reachable);
        ports.map(move |port| (SocketAddr::new(ip, port), reachable))
    });
    for (at, reachable) in places {
        match RelayServer::start(
            vec![relay_at(at, &facing, &target)?],
            thread::available_parallelism().map_or(1, usize::from),
            InheritedSockets::ByStarter(Vec::new()),
        ) {
            Ok(relays) => {
                let at = relays.listening().first().and_then(|at| at.parse().ok());
                return Ok(StripeAcceptingRelay {
                    at: at.ok_or("internal error: the relay does not listen on TCP")?,
                    _relays: relays,
                    reachable,
                });
            }
            Err(e) => why = e.to_string(),
        }
    }
    Err(why.into())
}

fn relay_at(
    at: SocketAddr,
    facing: &PairRelaySettings,
    target: &TargetSpec,
) -> Result<RelaySettings, CommandError> {
    let usual = settle(&RelayArgs {
        entrance: "0".to_owned(),
        targets: vec!["1".to_owned()],
        ..RelayArgs::default()
    })?;
    Ok(RelaySettings {
        entrance: ListenSpec {
            place: RelayEndpoint::Tcp {
                host: HostSpec::Address(at.ip()),
                port: at.port(),
            },
            words: vec!["pair".to_owned()],
        },
        targets: vec![target.clone()],
        speaks: ClientProtocols {
            pair: true,
            tls: Some(facing.entrance()),
            ..ClientProtocols::default()
        },
        tuning: super::super::for_pairs(usual.tuning.clone()),
        facing: Some(facing.clone()),
        ..usual
    })
}

/// Checks that the next half can be reached from here.
fn meet(facing: &PairRelaySettings, target: &TargetSpec) -> Result<(), CommandError> {
    let addresses = match &target.place {
        RelayEndpoint::Tcp {
            host: HostSpec::Name(name),
            port,
        } => {
            let found = (name.as_str(), *port).to_socket_addrs();
            found.map_err(|e| format!("{name}: {e}"))?.collect()
        }
        place => place.addresses().unwrap_or_default(),
    };
    let mut why =
        format!("no address was found for {target} on that host: check DNS and /etc/hosts there");
    for at in addresses {
        match facing.meet(at, MEET) {
            Ok(()) => return Ok(()),
            Err(e) => why = format!("{at}: {e}"),
        }
    }
    Err(why.into())
}

/// The address at which sshd was reached: the third word of SSH_CONNECTION (ssh(1)).
fn reached_at() -> Option<IpAddr> {
    let connection = env::var("SSH_CONNECTION").ok()?;
    connection.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// Answers keepalives and accepts stripes carried over ssh, until the starter is gone.
fn follow(ear: &mut ControlChannelReader, voice: &Arc<ControlChannelMux>, at: SocketAddr) {
    while let Ok(said) = ear.hear(FORGOTTEN) {
        match said {
            RelayControlMessage::Keepalive => {
                if voice.say(&RelayControlMessage::Keepalive).is_err() {
                    return;
                }
            }
            RelayControlMessage::OpenStripe(leg) => {
                let carried = TcpStream::connect(at).and_then(|stream| voice.carry(leg, stream));
                if carried.is_err() && voice.say(&RelayControlMessage::StripeClosed(leg)).is_err() {
                    return;
                }
            }
            RelayControlMessage::StripeData(leg, bytes) => voice.pass_on(leg, &bytes),
            RelayControlMessage::StripeClosed(leg) => {
                voice.drop_leg(leg);
            }
            _ => return,
        }
    }
}
