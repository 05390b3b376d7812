//! Authentication (RFC 4252, RFC 4256), without I/O: a client's, and a server's [`Login`].
//!
//! Of a client, keys, passwords and answers are with the owner: [`UserAuth::poll_event`] asks for
//! them one at a time, and what was not asked for is never offered.

mod choice;
mod event;
mod login;
mod message;
mod proof;
mod request;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::Bytes;
use wire::{NameList, Reader};
use zeroize::Zeroizing;

pub use event::{AuthConfig, AuthEvent, Identity, Method, Prompt};
pub use login::{Login, LoginEvent};
pub use message::AuthMessage;
pub use proof::{Claim, Proof};

use crate::error::{Error, PeerMisbehaved};
use crate::msg::{
    ServiceAccept, ServiceRequest, UserauthBanner, UserauthFailure, UserauthInfoRequest,
    UserauthPasswdChangereq, UserauthPkOk, UserauthSuccess,
};
use crate::text::{escape, escape_lines};

const SERVICE: &[u8] = b"ssh-userauth";
const PUBLICKEY: &[u8] = b"publickey";
/// Prompts in one INFO_REQUEST. sshd sends one or two; libpam's own bound is 32.
const MAX_PROMPTS: u32 = 32;
/// INFO_REQUESTs in one keyboard-interactive attempt.
const MAX_ROUNDS: u32 = 32;
/// Steps a server may ask for with partial success (AuthenticationMethods chains a few).
const MAX_STEPS: u32 = 8;
/// Banners shown; the rest is dropped.
const MAX_BANNERS: u32 = 16;
/// Names read from a list of methods; OpenSSH knows six.
const MAX_METHODS: usize = 32;

/// What the server's next message has to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AwaitedReply {
    /// Nothing was asked.
    Nothing,
    /// `none`.
    NoneReply,
    /// A query whether a key would do.
    PkOk { identity: usize, algorithm: usize },
    /// The owner has to sign.
    Signature,
    /// A signed request.
    KeyReply,
    /// The owner has to give a password.
    Password,
    /// A password.
    PasswordReply,
    /// keyboard-interactive: prompts or an end.
    Interactive,
    /// The owner has to answer so many prompts.
    Answers(usize),
    /// Success or final failure has come.
    Over,
}

/// The state machine. Inputs: [`UserAuth::handle`] and the answers to events. Outputs:
/// [`UserAuth::poll_message`] and [`UserAuth::poll_event`].
pub struct UserAuth {
    config: AuthConfig,
    awaits: AwaitedReply,
    service_accepted: bool,
    /// Methods the server takes; unknown before the first failure.
    allowed: Option<Vec<String>>,
    /// The identity to offer next, and the algorithm that was refused with it.
    next_key: (usize, Option<usize>),
    /// The request that is being signed.
    unsigned: Vec<u8>,
    passwords: u32,
    interactive: u32,
    rounds: u32,
    banners: u32,
    steps: u32,
    messages: VecDeque<AuthMessage>,
    events: VecDeque<AuthEvent>,
}

impl UserAuth {
    /// Nothing is sent before [`UserAuth::start`].
    pub fn new(config: AuthConfig) -> Self {
        Self {
            config,
            awaits: AwaitedReply::Nothing,
            service_accepted: false,
            allowed: None,
            next_key: (0, None),
            unsigned: Vec::new(),
            passwords: 0,
            interactive: 0,
            rounds: 0,
            banners: 0,
            steps: 0,
            messages: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Asks for the service and, without waiting for it, makes the first request: RFC 4253
    /// section 10 lets the peer refuse the service, which then ends the connection either way.
    ///
    /// A key goes first if there is one: `none` would cost a round trip to learn that keys are
    /// taken, which they are nearly everywhere.
    pub fn start(&mut self) {
        self.send(Self::service_request());
        self.start_after_service();
    }

    /// What asks for the service, for who does that ahead of [`UserAuth::start_after_service`].
    pub fn service_request() -> Vec<u8> {
        ServiceRequest { name: SERVICE }.to_bytes()
    }

    /// As [`UserAuth::start`], where the service was asked for; its answer may be still to come.
    pub fn start_after_service(&mut self) {
        let key = self.config.methods.first() == Some(&Method::PublicKey) && self.offer_key();
        if !key {
            self.awaits = AwaitedReply::NoneReply;
            self.send(request::none(&self.config));
        }
    }

    /// Handles messages 6 and 50 to 79.
    pub fn handle(&mut self, payload: &Bytes) -> Result<(), Error> {
        let number = payload.first().copied().unwrap_or_default();
        match number {
            ServiceAccept::NUMBER => {
                let right = ServiceAccept::decode(payload)?.name == SERVICE;
                if !right || std::mem::replace(&mut self.service_accepted, true) {
                    return Err(PeerMisbehaved::Unexpected(number).into());
                }
                return Ok(());
            }
            _ if !self.service_accepted => {
                return Err(PeerMisbehaved::Unexpected(number).into());
            }
            UserauthBanner::NUMBER => return self.handle_banner(payload),
            _ => {}
        }
        match (number, self.awaits) {
            (
                UserauthSuccess::NUMBER,
                AwaitedReply::NoneReply
                | AwaitedReply::KeyReply
                | AwaitedReply::PasswordReply
                | AwaitedReply::Interactive,
            ) => {
                UserauthSuccess::decode(payload)?;
                self.awaits = AwaitedReply::Over;
                self.events.push_back(AuthEvent::Success);
                Ok(())
            }
            (
                UserauthFailure::NUMBER,
                AwaitedReply::NoneReply
                | AwaitedReply::PkOk { .. }
                | AwaitedReply::KeyReply
                | AwaitedReply::PasswordReply
                | AwaitedReply::Interactive,
            ) => self.handle_failure(payload),
            (
                60,
                AwaitedReply::PkOk {
                    identity,
                    algorithm,
                },
            ) => self.handle_pk_ok(payload, identity, algorithm),
            (60, AwaitedReply::Interactive) => self.handle_info_request(payload),
            // RFC 4252 section 8: the password has expired, and a new one is wanted.
            (60, AwaitedReply::PasswordReply) => {
                UserauthPasswdChangereq::decode(payload)?;
                self.fail("the password has expired: log in with ssh once to change it")
            }
            // Success that nothing was asked for is CVE-2018-10933 seen from the other side.
            _ => Err(PeerMisbehaved::Unexpected(number).into()),
        }
    }

    fn handle_banner(&mut self, payload: &[u8]) -> Result<(), Error> {
        let m = UserauthBanner::decode(payload)?;
        self.banners += 1;
        if self.banners <= MAX_BANNERS {
            self.events
                .push_back(AuthEvent::Banner(escape_lines(m.text)));
        }
        Ok(())
    }

    fn handle_failure(&mut self, payload: &[u8]) -> Result<(), Error> {
        let m = UserauthFailure::decode(payload)?;
        if m.partial_success {
            let method = match self.awaits {
                AwaitedReply::KeyReply => Method::PublicKey,
                AwaitedReply::PasswordReply => Method::Password,
                AwaitedReply::Interactive => Method::KeyboardInteractive,
                _ => return Err(PeerMisbehaved::Unexpected(UserauthFailure::NUMBER).into()),
            };
            // A key that has done its part is not offered for the next one.
            if method == Method::PublicKey {
                self.next_key = (self.next_key.0 + 1, None);
            }
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err(PeerMisbehaved::TooMany("authentication steps").into());
            }
        } else if matches!(self.awaits, AwaitedReply::Interactive) && self.rounds == 0 {
            // Refused without a prompt: the server has nothing to ask.
            self.interactive = self.config.max_prompts;
        }
        self.allowed = Some(names(m.methods));
        self.next_step();
        Ok(())
    }

    fn handle_pk_ok(
        &mut self,
        payload: &[u8],
        identity: usize,
        algorithm: usize,
    ) -> Result<(), Error> {
        let m = UserauthPkOk::decode(payload)?;
        let same = self.config.identities.get(identity).is_some_and(|ours| {
            // Some servers name the key's type where the algorithm of the request belongs.
            let key_type = Reader::new(&ours.blob).string().unwrap_or_default();
            let offered = ours.algorithms.get(algorithm).map(String::as_bytes);
            ours.blob == m.blob && (offered == Some(m.algorithm) || key_type == m.algorithm)
        });
        if !same {
            return Err(PeerMisbehaved::WrongKeyOk.into());
        }
        // If it is refused after this, then not for its algorithm.
        let all = self
            .config
            .identities
            .get(identity)
            .map(|i| i.algorithms.len());
        self.next_key = (identity, all);
        self.ask_signature(identity, algorithm);
        Ok(())
    }

    fn handle_info_request(&mut self, payload: &[u8]) -> Result<(), Error> {
        let m = UserauthInfoRequest::decode(payload)?;
        self.rounds += 1;
        if m.count > MAX_PROMPTS || self.rounds > MAX_ROUNDS {
            return Err(PeerMisbehaved::TooMany("prompts").into());
        }
        let mut r = Reader::new(m.prompts.0);
        let mut prompts = Vec::new();
        for _ in 0..m.count {
            let text = escape(r.string()?);
            let echo = r.u8()? != 0;
            prompts.push(Prompt { text, echo });
        }
        r.finish()?;
        if prompts.is_empty() && m.name.is_empty() && m.instruction.is_empty() {
            self.messages.push_back(request::answers(&[]));
            return Ok(());
        }
        self.awaits = AwaitedReply::Answers(prompts.len());
        self.events.push_back(AuthEvent::Prompts {
            name: escape(m.name),
            instruction: escape_lines(m.instruction),
            prompts,
        });
        Ok(())
    }

    /// The answer to [`AuthEvent::Sign`]: the signature blob, or `None` if this key cannot sign.
    pub fn sign(&mut self, signature: Option<&[u8]>) {
        if self.awaits != AwaitedReply::Signature {
            return;
        }
        let unsigned = std::mem::take(&mut self.unsigned);
        match signature {
            Some(signature) => {
                self.awaits = AwaitedReply::KeyReply;
                self.send(request::with_signature(unsigned, signature));
            }
            None => {
                self.next_key = (self.next_key.0 + 1, None);
                self.next_step();
            }
        }
    }

    /// The answer to [`AuthEvent::Password`]; `None` gives the method up.
    pub fn password(&mut self, password: Option<&Zeroizing<String>>) {
        if self.awaits != AwaitedReply::Password {
            return;
        }
        match password {
            Some(password) => {
                self.awaits = AwaitedReply::PasswordReply;
                let message = request::password(&self.config, password);
                self.messages.push_back(message);
            }
            None => {
                self.passwords = self.config.max_prompts;
                self.next_step();
            }
        }
    }

    /// The answers to [`AuthEvent::Prompts`], one for each; `None`, or another number of them,
    /// gives the method up.
    pub fn answers(&mut self, answers: Option<&[Zeroizing<String>]>) {
        let AwaitedReply::Answers(asked) = self.awaits else {
            return;
        };
        match answers.filter(|answers| answers.len() == asked) {
            Some(answers) => {
                self.awaits = AwaitedReply::Interactive;
                self.messages.push_back(request::answers(answers));
            }
            None => {
                self.interactive = self.config.max_prompts;
                self.next_step();
            }
        }
    }

    /// The server's EXT_INFO came, or came again, after the start; OpenSSH 9.6 and later sends a
    /// second one once it knows the account.
    pub fn set_extensions(&mut self, hostbound: bool, signature_algorithms: Option<Vec<String>>) {
        self.config.hostbound = hostbound;
        self.config.signature_algorithms = signature_algorithms;
    }

    fn fail(&mut self, why: &str) -> Result<(), Error> {
        self.awaits = AwaitedReply::Over;
        let server = self.allowed.clone().unwrap_or_default();
        self.events.push_back(AuthEvent::Failed {
            server,
            why: Some(why.to_owned()),
        });
        Ok(())
    }

    fn send(&mut self, message: Vec<u8>) {
        self.messages.push_back(AuthMessage::open(message));
    }

    /// The next message to send.
    pub fn poll_message(&mut self) -> Option<AuthMessage> {
        self.messages.pop_front()
    }

    /// What the owner has to know or to answer.
    pub fn poll_event(&mut self) -> Option<AuthEvent> {
        self.events.pop_front()
    }
}

fn names(list: NameList<'_>) -> Vec<String> {
    let names = list.iter().filter(|name| name.len() <= 64);
    names.take(MAX_METHODS).map(str::to_owned).collect()
}
