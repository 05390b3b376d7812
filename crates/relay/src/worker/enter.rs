//! Protocols that a client speaks before its payload, and the replies to it.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use pair::{Frame, Parser, TOKEN};

use super::dial::DialTarget;
use crate::address::{Host, Target};
use crate::entry::permit::{TargetVerdict, verdict};
use crate::entry::proxy::ProxyAddresses;
use crate::entry::{HeaderParse, http, named, proxy, socks};
use crate::pump::{Leg, Received};
use crate::server::RunningRelay;
use crate::settings::{ClientProtocol, ClientProtocols, RedirectKind};

/// Maximum bytes read at once; the rest stays in the kernel.
const PIECE: usize = 4096;

/// State of a client before its payload.
#[derive(Debug)]
pub(crate) struct ClientHandshake {
    at: HandshakeStage,
    /// Received bytes that are not parsed yet.
    input: Vec<u8>,
    /// Time limit for everything before the payload.
    pub(crate) deadline: Instant,
    /// Addresses from the client's PROXY header.
    pub(crate) ends: Option<ProxyAddresses>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandshakeStage {
    Proxy,
    BeginTls,
    Tls,
    Hello,
    Greeting,
    Request,
    /// The connection was redirected to this relay and has its own destination.
    Diverted,
    Inside,
}

/// Progress of a client.
#[derive(Debug)]
pub(crate) enum ClientProgress {
    /// More bytes are needed.
    Waiting,
    /// The payload begins.
    Inside {
        /// Target named by the client; `None` uses the relay's targets.
        goals: Option<VecDeque<DialTarget>>,
        /// Addresses of this machine are refused.
        elsewhere: bool,
        /// Payload that was received with the request.
        rest: Vec<u8>,
    },
    /// The connection is a stripe of a pair.
    Leg {
        token: [u8; TOKEN],
        /// The stripe joins an existing pair.
        joins: bool,
        /// Frames that were received already.
        begun: Parser,
    },
    /// The client is refused; if it made a request, a reply was sent.
    Refused(String),
}

impl ClientHandshake {
    pub(crate) fn new(running: &RunningRelay, now: Instant) -> Self {
        let mut entering = Self {
            at: HandshakeStage::Proxy,
            input: Vec::new(),
            deadline: now + running.relay.entry_timeout,
            ends: None,
        };
        if !running.relay.speaks.proxy {
            entering.at = HandshakeStage::BeginTls;
        }
        entering
    }

    /// Proceeds as far as possible.
    pub(crate) fn turn(
        &mut self,
        near: &mut Leg,
        running: &RunningRelay,
        scratch: &mut [u8],
    ) -> io::Result<ClientProgress> {
        loop {
            match self.step(near, running)? {
                Step::On => {}
                Step::More => {
                    if !self.read(near, scratch)? {
                        return Ok(ClientProgress::Waiting);
                    }
                }
                Step::Done(entered) => return Ok(entered),
            }
        }
    }

    fn read(&mut self, near: &mut Leg, scratch: &mut [u8]) -> io::Result<bool> {
        let into = scratch.get_mut(..PIECE).unwrap_or_default();
        match near.receive(into)? {
            Received::Bytes(n) => {
                self.input
                    .extend_from_slice(into.get(..n).unwrap_or_default());
                Ok(true)
            }
            Received::Nothing => Ok(false),
            Received::End => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the client closed the connection before its header or request was complete",
            )),
        }
    }

    fn step(&mut self, near: &mut Leg, running: &RunningRelay) -> io::Result<Step> {
        let speaks = &running.relay.speaks;
        match self.at {
            HandshakeStage::Proxy => match proxy::parse(&self.input) {
                HeaderParse::More => return Ok(Step::More),
                HeaderParse::Wrong(why) => return Ok(refused(why)),
                HeaderParse::Done(ends, len) => {
                    self.ends = ends;
                    self.input.drain(..len);
                    self.at = HandshakeStage::BeginTls;
                }
            },
            HandshakeStage::BeginTls => {
                self.at = match &speaks.tls {
                    None => after_tls(speaks),
                    Some(server) => {
                        near.serve_tls(server, &std::mem::take(&mut self.input))?;
                        HandshakeStage::Tls
                    }
                };
            }
            HandshakeStage::Tls => match near.shake()? {
                true => self.at = after_tls(speaks),
                false => return Ok(Step::Done(ClientProgress::Waiting)),
            },
            HandshakeStage::Hello => {
                let mut begun = Parser::default();
                begun.push(&self.input);
                return match begun.poll() {
                    Ok(None) => Ok(Step::More),
                    Ok(Some(Frame::Hello { token, joins })) => {
                        Ok(Step::Done(ClientProgress::Leg {
                            token,
                            joins,
                            begun,
                        }))
                    }
                    Ok(Some(_)) | Err(_) => Ok(refused("the client is not a peer relay")),
                };
            }
            HandshakeStage::Greeting => match socks::greeting(&self.input) {
                HeaderParse::More => return Ok(Step::More),
                HeaderParse::Wrong(why) => return Ok(refused(why)),
                HeaderParse::Done(false, _) => {
                    answer(near, socks::NO_METHOD)?;
                    return Ok(refused(
                        "the SOCKS client requires authentication, which is not supported",
                    ));
                }
                HeaderParse::Done(true, len) => {
                    self.input.drain(..len);
                    answer(near, socks::WELCOME)?;
                    self.at = HandshakeStage::Request;
                }
            },
            HandshakeStage::Request => return self.request(near, running),
            HandshakeStage::Diverted => return Ok(diverted(near, running)),
            HandshakeStage::Inside => {
                return Ok(Step::Done(ClientProgress::Inside {
                    goals: None,
                    elsewhere: false,
                    rest: std::mem::take(&mut self.input),
                }));
            }
        }
        Ok(Step::On)
    }

    fn request(&mut self, near: &mut Leg, running: &RunningRelay) -> io::Result<Step> {
        let asked = match running.relay.speaks.asks {
            None => return Ok(Step::On),
            Some(ClientProtocol::Socks5) => match socks::request(&self.input) {
                HeaderParse::More => return Ok(Step::More),
                HeaderParse::Wrong(why) => return Ok(refused(why)),
                HeaderParse::Done(asked, len) => (asked.map_err(socks::reply), len),
            },
            Some(ClientProtocol::Http) => match http::request(&self.input) {
                HeaderParse::More => return Ok(Step::More),
                HeaderParse::Wrong(why) => return Ok(refused(why)),
                HeaderParse::Done(asked, len) => (asked.map_err(http::reply), len),
            },
        };
        let (asked, len) = asked;
        self.input.drain(..len);
        let target = match asked {
            Ok(target) => target,
            Err(reply) => {
                answer(near, &reply)?;
                return Ok(refused(
                    "the SOCKS client requests a command other than CONNECT, which is not \
                     supported",
                ));
            }
        };
        let step = permitted(running, target, std::mem::take(&mut self.input));
        if let Step::Done(ClientProgress::Refused(_)) = &step {
            answer(near, &not_allowed(running.relay.speaks.asks))?;
        }
        Ok(step)
    }
}

/// Returns the target that a client has named, if a rule permits it.
fn permitted(running: &RunningRelay, target: Target, rest: Vec<u8>) -> Step {
    let verdict = verdict(&running.relay.permits, &target);
    if verdict == TargetVerdict::No {
        return refused(&format!("{target} is not in --to"));
    }
    Step::Done(ClientProgress::Inside {
        goals: Some([goal(target)].into()),
        elsewhere: verdict == TargetVerdict::Elsewhere,
        rest,
    })
}

/// Returns the original destination of a diverted connection, if a rule permits it.
fn diverted(near: &Leg, running: &RunningRelay) -> Step {
    let to = match (running.relay.speaks.diverted, near.tcp()) {
        (Some(RedirectKind::Redirect), Some(tcp)) => sys::original_destination(tcp).ok(),
        (Some(RedirectKind::Tproxy), Some(_)) => near.local(),
        _ => None,
    };
    let Some(to) = to else {
        return refused(
            "the connection was not redirected by a rule, so its destination is unknown (see \
             longhaul relay rules)",
        );
    };
    let (ip, port) = (to.ip().to_canonical(), to.port());
    let from = near.tcp().and_then(|tcp| {
        let name = rustix::net::getpeername(tcp).ok()??;
        SocketAddr::try_from(name).ok()
    });
    let to = SocketAddr::new(ip, port);
    if running.would_be_a_loop(to) {
        return refused("the connection was made to this relay itself, not redirected to it");
    }
    if from.is_some_and(|from| running.outgoing.has(from, to)) {
        return refused(
            "a rule redirects this relay's own connections back to it, which would be a loop",
        );
    }
    permitted(running, named(Host::Address(ip), port), Vec::new())
}

enum Step {
    On,
    More,
    Done(ClientProgress),
}

fn refused(why: &str) -> Step {
    Step::Done(ClientProgress::Refused(format!("refused: {why}")))
}

fn goal(target: Target) -> DialTarget {
    DialTarget {
        target: Arc::new(target),
        nth: None,
    }
}

fn after_tls(speaks: &ClientProtocols) -> HandshakeStage {
    match speaks.asks {
        None if speaks.diverted.is_some() => HandshakeStage::Diverted,
        None if speaks.pair => HandshakeStage::Hello,
        None => HandshakeStage::Inside,
        Some(ClientProtocol::Socks5) => HandshakeStage::Greeting,
        Some(ClientProtocol::Http) => HandshakeStage::Request,
    }
}

/// Sends a reply at once. The send buffer of a client that has sent only a request is empty; if it
/// does not take the reply, that is an error.
pub(crate) fn answer(near: &mut Leg, reply: &[u8]) -> io::Result<()> {
    match near.send(reply, false)? == reply.len() {
        true => Ok(()),
        false => Err(io::Error::other("the client does not read the reply")),
    }
}

/// Returns the reply to a client's request when the target is connected.
pub(crate) fn connected(asks: Option<ClientProtocol>) -> Vec<u8> {
    match asks {
        None => Vec::new(),
        Some(ClientProtocol::Socks5) => socks::reply(socks::SocksReply::Succeeded),
        Some(ClientProtocol::Http) => http::reply(http::Status::Established),
    }
}

/// Returns the reply to a client's request when the target cannot be reached.
pub(crate) fn unreachable(asks: Option<ClientProtocol>) -> Vec<u8> {
    match asks {
        None => Vec::new(),
        Some(ClientProtocol::Socks5) => socks::reply(socks::SocksReply::Unreachable),
        Some(ClientProtocol::Http) => http::reply(http::Status::BadGateway),
    }
}

/// Returns the reply to a client's request when no rule permits the target.
pub(crate) fn not_allowed(asks: Option<ClientProtocol>) -> Vec<u8> {
    match asks {
        None => Vec::new(),
        Some(ClientProtocol::Socks5) => socks::reply(socks::SocksReply::NotAllowed),
        Some(ClientProtocol::Http) => http::reply(http::Status::Forbidden),
    }
}
