//! Protocols that a client speaks before its payload, and the replies to it.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use pair::{FrameDecoder, StripeFrame, TOKEN};

use super::dial::DialTarget;
use crate::address::{HostSpec, TargetSpec};
use crate::entry::permit::{TargetVerdict, verdict};
use crate::entry::proxy::ProxyAddresses;
use crate::entry::{HandshakeParseResult, http, named, proxy, socks};
use crate::pump::{Leg, LegReadResult};
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

/// Next item that the client has to send. The order is PROXY header, TLS handshake, then the first
/// frame of a pair or the request of SOCKS or HTTP; stages that the relay does not use are skipped.
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
    Payload,
}

/// Result of [`ClientHandshake::turn`]: the client's bytes so far decide how its connection goes
/// on.
#[derive(Debug)]
pub(crate) enum HandshakeProgress {
    /// More bytes are needed.
    Waiting,
    /// The payload begins.
    Payload {
        /// Target named by the client; `None` uses the relay's targets.
        goals: Option<VecDeque<DialTarget>>,
        /// Addresses of this machine are refused.
        elsewhere: bool,
        /// Payload that was received with the request.
        rest: Vec<u8>,
    },
    /// The connection is a stripe of a pair.
    Stripe {
        token: [u8; TOKEN],
        /// The stripe joins an existing pair.
        joins: bool,
        /// Frames that were received already.
        begun: FrameDecoder,
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
    ) -> io::Result<HandshakeProgress> {
        loop {
            match self.step(near, running)? {
                HandshakeItemResult::Continue => {}
                HandshakeItemResult::NeedInput => {
                    if !self.read(near, scratch)? {
                        return Ok(HandshakeProgress::Waiting);
                    }
                }
                HandshakeItemResult::Done(entered) => return Ok(entered),
            }
        }
    }

    fn read(&mut self, near: &mut Leg, scratch: &mut [u8]) -> io::Result<bool> {
        let into = scratch.get_mut(..PIECE).unwrap_or_default();
        match near.receive(into)? {
            LegReadResult::Bytes(n) => {
                self.input
                    .extend_from_slice(into.get(..n).unwrap_or_default());
                Ok(true)
            }
            LegReadResult::Nothing => Ok(false),
            LegReadResult::End => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the client closed the connection before its header or request was complete",
            )),
        }
    }

    fn step(&mut self, near: &mut Leg, running: &RunningRelay) -> io::Result<HandshakeItemResult> {
        let speaks = &running.relay.speaks;
        match self.at {
            HandshakeStage::Proxy => match proxy::parse(&self.input) {
                HandshakeParseResult::Incomplete => return Ok(HandshakeItemResult::NeedInput),
                HandshakeParseResult::Invalid(why) => return Ok(refused(why)),
                HandshakeParseResult::Done(ends, len) => {
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
                false => return Ok(HandshakeItemResult::Done(HandshakeProgress::Waiting)),
            },
            HandshakeStage::Hello => {
                let mut begun = FrameDecoder::default();
                begun.push(&self.input);
                return match begun.poll() {
                    Ok(None) => Ok(HandshakeItemResult::NeedInput),
                    Ok(Some(StripeFrame::Hello { token, joins })) => {
                        Ok(HandshakeItemResult::Done(HandshakeProgress::Stripe {
                            token,
                            joins,
                            begun,
                        }))
                    }
                    Ok(Some(_)) | Err(_) => Ok(refused(
                        "the client does not speak the protocol of a peer relay: clients other \
                         than a longhaul relay need a LISTEN without pair",
                    )),
                };
            }
            HandshakeStage::Greeting => match socks::greeting(&self.input) {
                HandshakeParseResult::Incomplete => return Ok(HandshakeItemResult::NeedInput),
                HandshakeParseResult::Invalid(why) => return Ok(refused(why)),
                HandshakeParseResult::Done(false, _) => {
                    answer(near, socks::NO_METHOD)?;
                    return Ok(refused(
                        "the SOCKS client requires authentication, which is not supported: turn it \
                         off in the client",
                    ));
                }
                HandshakeParseResult::Done(true, len) => {
                    self.input.drain(..len);
                    answer(near, socks::WELCOME)?;
                    self.at = HandshakeStage::Request;
                }
            },
            HandshakeStage::Request => return self.request(near, running),
            HandshakeStage::Diverted => return Ok(diverted(near, running)),
            HandshakeStage::Payload => {
                return Ok(HandshakeItemResult::Done(HandshakeProgress::Payload {
                    goals: None,
                    elsewhere: false,
                    rest: std::mem::take(&mut self.input),
                }));
            }
        }
        Ok(HandshakeItemResult::Continue)
    }

    fn request(
        &mut self,
        near: &mut Leg,
        running: &RunningRelay,
    ) -> io::Result<HandshakeItemResult> {
        let asked = match running.relay.speaks.asks {
            None => return Ok(HandshakeItemResult::Continue),
            Some(ClientProtocol::Socks5) => match socks::request(&self.input) {
                HandshakeParseResult::Incomplete => return Ok(HandshakeItemResult::NeedInput),
                HandshakeParseResult::Invalid(why) => return Ok(refused(why)),
                HandshakeParseResult::Done(asked, len) => (asked.map_err(socks::reply), len),
            },
            Some(ClientProtocol::Http) => match http::request(&self.input) {
                HandshakeParseResult::Incomplete => return Ok(HandshakeItemResult::NeedInput),
                HandshakeParseResult::Invalid(why) => return Ok(refused(why)),
                HandshakeParseResult::Done(asked, len) => (asked.map_err(http::reply), len),
            },
        };
        let (asked, len) = asked;
        self.input.drain(..len);
        let target = match asked {
            Ok(target) => target,
            Err(reply) => {
                answer(near, &reply)?;
                return Ok(refused(match running.relay.speaks.asks {
                    Some(ClientProtocol::Http) => {
                        "the HTTP client sent a request other than CONNECT: use this proxy for \
                         CONNECT only (https)"
                    }
                    _ => {
                        "the SOCKS client requests a command other than CONNECT, which is not \
                         supported"
                    }
                }));
            }
        };
        let step = permitted(running, target, std::mem::take(&mut self.input));
        if let HandshakeItemResult::Done(HandshakeProgress::Refused(_)) = &step {
            answer(near, &not_allowed(running.relay.speaks.asks))?;
        }
        Ok(step)
    }
}

/// Returns the target that a client has named, if a rule permits it.
fn permitted(running: &RunningRelay, target: TargetSpec, rest: Vec<u8>) -> HandshakeItemResult {
    let verdict = verdict(&running.relay.permits, &target);
    if verdict == TargetVerdict::Denied {
        return refused(&format!(
            "{target} is not permitted by --to: add it there to permit it"
        ));
    }
    HandshakeItemResult::Done(HandshakeProgress::Payload {
        goals: Some([goal(target)].into()),
        elsewhere: verdict == TargetVerdict::AllowedUnlessLocal,
        rest,
    })
}

/// Returns the original destination of a diverted connection, if a rule permits it.
fn diverted(near: &Leg, running: &RunningRelay) -> HandshakeItemResult {
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
        return refused(
            "the connection was made to this relay itself, not redirected to it: connect to the \
             real destination",
        );
    }
    if from.is_some_and(|from| running.outgoing.has(from, to)) {
        return refused(
            "a rule redirects this relay's own connections back to it, which would be a loop: use \
             the rules of longhaul relay rules print",
        );
    }
    permitted(running, named(HostSpec::Address(ip), port), Vec::new())
}

/// Result of parsing one item of the handshake.
enum HandshakeItemResult {
    Continue,
    NeedInput,
    Done(HandshakeProgress),
}

fn refused(why: &str) -> HandshakeItemResult {
    HandshakeItemResult::Done(HandshakeProgress::Refused(format!("refused: {why}")))
}

fn goal(target: TargetSpec) -> DialTarget {
    DialTarget {
        target: Arc::new(target),
        nth: None,
    }
}

fn after_tls(speaks: &ClientProtocols) -> HandshakeStage {
    match speaks.asks {
        None if speaks.diverted.is_some() => HandshakeStage::Diverted,
        None if speaks.pair => HandshakeStage::Hello,
        None => HandshakeStage::Payload,
        Some(ClientProtocol::Socks5) => HandshakeStage::Greeting,
        Some(ClientProtocol::Http) => HandshakeStage::Request,
    }
}

/// Sends a reply at once. The send buffer of a client that has sent only a request is empty; if it
/// does not take the reply, that is an error.
pub(crate) fn answer(near: &mut Leg, reply: &[u8]) -> io::Result<()> {
    match near.send(reply, false)? == reply.len() {
        true => Ok(()),
        false => Err(io::Error::other(
            "the relay's first bytes were not taken: the receive buffer there is full",
        )),
    }
}

/// Returns the reply to a client's request when the target is connected.
pub(crate) fn connected(asks: Option<ClientProtocol>) -> Vec<u8> {
    match asks {
        None => Vec::new(),
        Some(ClientProtocol::Socks5) => socks::reply(socks::SocksReply::Succeeded),
        Some(ClientProtocol::Http) => http::reply(http::HttpConnectStatus::Established),
    }
}

/// Returns the reply to a client's request when the target cannot be reached.
pub(crate) fn unreachable(asks: Option<ClientProtocol>) -> Vec<u8> {
    match asks {
        None => Vec::new(),
        Some(ClientProtocol::Socks5) => socks::reply(socks::SocksReply::Unreachable),
        Some(ClientProtocol::Http) => http::reply(http::HttpConnectStatus::BadGateway),
    }
}

/// Returns the reply to a client's request when no rule permits the target.
pub(crate) fn not_allowed(asks: Option<ClientProtocol>) -> Vec<u8> {
    match asks {
        None => Vec::new(),
        Some(ClientProtocol::Socks5) => socks::reply(socks::SocksReply::NotAllowed),
        Some(ClientProtocol::Http) => http::reply(http::HttpConnectStatus::Forbidden),
    }
}
