//! What a client says before its bytes, and how it is answered.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use pair::{Frame, Parser, TOKEN};

use super::dial::Goal;
use crate::address::{Host, Target};
use crate::entry::permit::{Verdict, verdict};
use crate::entry::proxy::Ends;
use crate::entry::{Parsed, http, named, proxy, socks};
use crate::pump::{Leg, Received};
use crate::server::Running;
use crate::settings::{Asks, ClientProtocols, RedirectKind};

/// What is read at once; more than it has room for is left to the kernel.
const PIECE: usize = 4096;

/// A client that says something before its bytes.
#[derive(Debug)]
pub(crate) struct Entering {
    at: At,
    /// What has come and is not understood yet.
    input: Vec<u8>,
    /// Until then it has to be whole.
    pub(crate) deadline: Instant,
    /// Where the client comes from, as its PROXY header has it.
    pub(crate) ends: Option<Ends>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Proxy,
    BeginTls,
    Tls,
    Hello,
    Greeting,
    Request,
    /// It was on its way elsewhere.
    Diverted,
    Inside,
}

/// How far a client is.
#[derive(Debug)]
pub(crate) enum Entered {
    /// More has to come.
    Waiting,
    /// It is in.
    Inside {
        /// Where it goes; where the relay says, if it has not said.
        goals: Option<VecDeque<Goal>>,
        /// Only to other machines.
        elsewhere: bool,
        /// What came behind.
        rest: Vec<u8>,
    },
    /// It is a leg of a pair.
    Leg {
        token: [u8; TOKEN],
        /// Of one that is there already.
        joins: bool,
        /// What came behind.
        begun: Parser,
    },
    /// It is not let in, and was told so if it asked.
    Refused(String),
}

impl Entering {
    pub(crate) fn new(running: &Running, now: Instant) -> Self {
        let mut entering = Self {
            at: At::Proxy,
            input: Vec::new(),
            deadline: now + running.relay.entry_timeout,
            ends: None,
        };
        if !running.relay.speaks.proxy {
            entering.at = At::BeginTls;
        }
        entering
    }

    /// Goes as far as it can.
    pub(crate) fn turn(
        &mut self,
        near: &mut Leg,
        running: &Running,
        scratch: &mut [u8],
    ) -> io::Result<Entered> {
        loop {
            match self.step(near, running)? {
                Step::On => {}
                Step::More => {
                    if !self.read(near, scratch)? {
                        return Ok(Entered::Waiting);
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
                "it ended before it had said where it comes from or goes to",
            )),
        }
    }

    fn step(&mut self, near: &mut Leg, running: &Running) -> io::Result<Step> {
        let speaks = &running.relay.speaks;
        match self.at {
            At::Proxy => match proxy::parse(&self.input) {
                Parsed::More => return Ok(Step::More),
                Parsed::Wrong(why) => return Ok(refused(why)),
                Parsed::Done(ends, len) => {
                    self.ends = ends;
                    self.input.drain(..len);
                    self.at = At::BeginTls;
                }
            },
            At::BeginTls => {
                self.at = match &speaks.tls {
                    None => after_tls(speaks),
                    Some(server) => {
                        near.serve_tls(server, &std::mem::take(&mut self.input))?;
                        At::Tls
                    }
                };
            }
            At::Tls => match near.shake()? {
                true => self.at = after_tls(speaks),
                false => return Ok(Step::Done(Entered::Waiting)),
            },
            At::Hello => {
                let mut begun = Parser::default();
                begun.push(&self.input);
                return match begun.poll() {
                    Ok(None) => Ok(Step::More),
                    Ok(Some(Frame::Hello { token, joins })) => Ok(Step::Done(Entered::Leg {
                        token,
                        joins,
                        begun,
                    })),
                    Ok(Some(_)) | Err(_) => Ok(refused("it is no half of a pair")),
                };
            }
            At::Greeting => match socks::greeting(&self.input) {
                Parsed::More => return Ok(Step::More),
                Parsed::Wrong(why) => return Ok(refused(why)),
                Parsed::Done(false, _) => {
                    answer(near, socks::NO_METHOD)?;
                    return Ok(refused("it wants to authenticate, which is not done here"));
                }
                Parsed::Done(true, len) => {
                    self.input.drain(..len);
                    answer(near, socks::WELCOME)?;
                    self.at = At::Request;
                }
            },
            At::Request => return self.request(near, running),
            At::Diverted => return Ok(diverted(near, running)),
            At::Inside => {
                return Ok(Step::Done(Entered::Inside {
                    goals: None,
                    elsewhere: false,
                    rest: std::mem::take(&mut self.input),
                }));
            }
        }
        Ok(Step::On)
    }

    fn request(&mut self, near: &mut Leg, running: &Running) -> io::Result<Step> {
        let asked = match running.relay.speaks.asks {
            None => return Ok(Step::On),
            Some(Asks::Socks5) => match socks::request(&self.input) {
                Parsed::More => return Ok(Step::More),
                Parsed::Wrong(why) => return Ok(refused(why)),
                Parsed::Done(asked, len) => (asked.map_err(socks::reply), len),
            },
            Some(Asks::Http) => match http::request(&self.input) {
                Parsed::More => return Ok(Step::More),
                Parsed::Wrong(why) => return Ok(refused(why)),
                Parsed::Done(asked, len) => (asked.map_err(http::reply), len),
            },
        };
        let (asked, len) = asked;
        self.input.drain(..len);
        let target = match asked {
            Ok(target) => target,
            Err(reply) => {
                answer(near, &reply)?;
                return Ok(refused("it asks for what is not done here"));
            }
        };
        let step = permitted(running, target, std::mem::take(&mut self.input));
        if let Step::Done(Entered::Refused(_)) = &step {
            answer(near, &not_allowed(running.relay.speaks.asks))?;
        }
        Ok(step)
    }
}

/// To where a client wants, if it may.
fn permitted(running: &Running, target: Target, rest: Vec<u8>) -> Step {
    let verdict = verdict(&running.relay.permits, &target);
    if verdict == Verdict::No {
        return refused(&format!("--to has no such target as {target}"));
    }
    Step::Done(Entered::Inside {
        goals: Some([goal(target)].into()),
        elsewhere: verdict == Verdict::Elsewhere,
        rest,
    })
}

/// To where a client was on its way that a rule has led here.
fn diverted(near: &Leg, running: &Running) -> Step {
    let to = match (running.relay.speaks.diverted, near.tcp()) {
        (Some(RedirectKind::Redirect), Some(tcp)) => sys::original_destination(tcp).ok(),
        (Some(RedirectKind::Tproxy), Some(_)) => near.local(),
        _ => None,
    };
    let Some(to) = to else {
        return refused("no rule has led it here: where it wanted to go is not known");
    };
    let (ip, port) = (to.ip().to_canonical(), to.port());
    let from = near.tcp().and_then(|tcp| {
        let name = rustix::net::getpeername(tcp).ok()??;
        SocketAddr::try_from(name).ok()
    });
    let to = SocketAddr::new(ip, port);
    if running.would_be_a_loop(to) {
        return refused("it came to this relay itself, and not on its way elsewhere");
    }
    if from.is_some_and(|from| running.outgoing.has(from, to)) {
        return refused("it would be a loop: a rule leads what this relay sends back to it");
    }
    permitted(running, named(Host::Address(ip), port), Vec::new())
}

enum Step {
    On,
    More,
    Done(Entered),
}

fn refused(why: &str) -> Step {
    Step::Done(Entered::Refused(format!("refused: {why}")))
}

fn goal(target: Target) -> Goal {
    Goal {
        target: Arc::new(target),
        nth: None,
    }
}

fn after_tls(speaks: &ClientProtocols) -> At {
    match speaks.asks {
        None if speaks.diverted.is_some() => At::Diverted,
        None if speaks.pair => At::Hello,
        None => At::Inside,
        Some(Asks::Socks5) => At::Greeting,
        Some(Asks::Http) => At::Request,
    }
}

/// A client that has said so little has room for so little.
pub(crate) fn answer(near: &mut Leg, reply: &[u8]) -> io::Result<()> {
    match near.send(reply, false)? == reply.len() {
        true => Ok(()),
        false => Err(io::Error::other("it does not take answers")),
    }
}

/// What a client that has asked is told when it is connected.
pub(crate) fn connected(asks: Option<Asks>) -> Vec<u8> {
    match asks {
        None => Vec::new(),
        Some(Asks::Socks5) => socks::reply(socks::Reply::Succeeded),
        Some(Asks::Http) => http::reply(http::Status::Established),
    }
}

/// What it is told when nobody answers.
pub(crate) fn unreachable(asks: Option<Asks>) -> Vec<u8> {
    match asks {
        None => Vec::new(),
        Some(Asks::Socks5) => socks::reply(socks::Reply::Unreachable),
        Some(Asks::Http) => http::reply(http::Status::BadGateway),
    }
}

/// What it is told when it may not go there.
pub(crate) fn not_allowed(asks: Option<Asks>) -> Vec<u8> {
    match asks {
        None => Vec::new(),
        Some(Asks::Socks5) => socks::reply(socks::Reply::NotAllowed),
        Some(Asks::Http) => http::reply(http::Status::Forbidden),
    }
}
