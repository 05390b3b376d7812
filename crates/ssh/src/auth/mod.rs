//! Authentication (RFC 4252, RFC 4256), without I/O: the client side, and the server side as
//! [`ServerAuth`].
//!
//! On the client side, keys, passwords and answers stay with the owner: [`UserAuth::poll_event`]
//! asks for them one at a time, and only what it asked for is sent.

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
use wire::{FieldReader, NameList};
use zeroize::Zeroizing;

pub use event::{AuthConfig, AuthMethod, ClientAuthEvent, InteractivePrompt, OfferedIdentity};
pub use login::{ServerAuth, ServerAuthEvent};
pub use message::AuthMessage;
pub use proof::{KeyProof, ProofContext};

use crate::error::{Error, PeerMisbehaved};
use crate::msg::{
    ServiceAccept, ServiceRequest, UserauthBanner, UserauthFailure, UserauthInfoRequest,
    UserauthPasswdChangereq, UserauthPkOk, UserauthSuccess,
};
use crate::text::{escape, escape_lines};

const SERVICE: &[u8] = b"ssh-userauth";
const PUBLICKEY: &[u8] = b"publickey";
/// Maximum number of prompts in one INFO_REQUEST. sshd sends one or two; libpam's own limit is 32.
const MAX_PROMPTS: u32 = 32;
/// Maximum number of INFO_REQUESTs in one keyboard-interactive attempt.
const MAX_ROUNDS: u32 = 32;
/// Maximum number of partial successes (AuthenticationMethods chains a few).
const MAX_STEPS: u32 = 8;
/// Maximum number of banners shown; further ones are dropped.
const MAX_BANNERS: u32 = 16;
/// Maximum number of method names read from a list; OpenSSH has six.
const MAX_METHODS: usize = 32;

/// Reply that the client waits for, from the server or from the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AwaitedReply {
    /// No request was sent.
    Nothing,
    /// Reply to the `none` request.
    NoneReply,
    /// Reply to the query whether a key is accepted.
    PkOk { identity: usize, algorithm: usize },
    /// Signature from the owner.
    Signature,
    /// Reply to a signed request.
    KeyReply,
    /// Password from the owner.
    Password,
    /// Reply to a password.
    PasswordReply,
    /// Prompts or the result of keyboard-interactive.
    Interactive,
    /// Answers from the owner to this number of prompts.
    Answers(usize),
    /// Nothing: success or final failure was reported.
    Done,
}

/// State machine of a client's authentication. Inputs: [`UserAuth::handle`] and the answers to
/// events. Outputs: [`UserAuth::poll_message`] and [`UserAuth::poll_event`].
pub struct UserAuth {
    config: AuthConfig,
    awaits: AwaitedReply,
    service_accepted: bool,
    /// Methods that the server accepts; unknown before the first failure.
    allowed: Option<Vec<String>>,
    /// Index of the key to offer next, and of its algorithm that was refused last.
    next_key: (usize, Option<usize>),
    /// Request that waits for its signature.
    unsigned: Vec<u8>,
    passwords: u32,
    interactive: u32,
    rounds: u32,
    banners: u32,
    steps: u32,
    messages: VecDeque<AuthMessage>,
    events: VecDeque<ClientAuthEvent>,
}

impl UserAuth {
    /// Creates the state; nothing is sent before [`UserAuth::start`].
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

    /// Requests the ssh-userauth service and sends the first authentication request without waiting
    /// for the answer: a server that refuses the service ends the connection anyway (RFC 4253
    /// section 10).
    ///
    /// The first request offers a key if there is one: `none` would cost a round trip to learn that
    /// public keys are accepted, which they are nearly everywhere.
    pub fn start(&mut self) {
        self.send(Self::service_request());
        self.start_after_service();
    }

    /// Returns the service request, for a caller that sends it before
    /// [`UserAuth::start_after_service`].
    pub fn service_request() -> Vec<u8> {
        ServiceRequest { name: SERVICE }.to_bytes()
    }

    /// Starts like [`UserAuth::start`] when the service was already requested; its answer may still
    /// be outstanding.
    pub fn start_after_service(&mut self) {
        let key = self.config.methods.first() == Some(&AuthMethod::PublicKey) && self.offer_key();
        if !key {
            self.awaits = AwaitedReply::NoneReply;
            self.send(request::none(&self.config));
        }
    }

    /// Processes messages 6 and 50 to 79.
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
                self.awaits = AwaitedReply::Done;
                self.events.push_back(ClientAuthEvent::Success);
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
            // RFC 4252 section 8: the password has expired and must be changed.
            (60, AwaitedReply::PasswordReply) => {
                UserauthPasswdChangereq::decode(payload)?;
                self.fail("the password has expired: change it by logging in with ssh")
            }
            // Unsolicited success is CVE-2018-10933 seen from the client.
            _ => Err(PeerMisbehaved::Unexpected(number).into()),
        }
    }

    fn handle_banner(&mut self, payload: &[u8]) -> Result<(), Error> {
        let m = UserauthBanner::decode(payload)?;
        self.banners += 1;
        if self.banners <= MAX_BANNERS {
            self.events
                .push_back(ClientAuthEvent::Banner(escape_lines(m.text)));
        }
        Ok(())
    }

    fn handle_failure(&mut self, payload: &[u8]) -> Result<(), Error> {
        let m = UserauthFailure::decode(payload)?;
        if m.partial_success {
            let method = match self.awaits {
                AwaitedReply::KeyReply => AuthMethod::PublicKey,
                AwaitedReply::PasswordReply => AuthMethod::Password,
                AwaitedReply::Interactive => AuthMethod::KeyboardInteractive,
                _ => return Err(PeerMisbehaved::Unexpected(UserauthFailure::NUMBER).into()),
            };
            // A key that achieved partial success is not offered again.
            if method == AuthMethod::PublicKey {
                self.next_key = (self.next_key.0 + 1, None);
            }
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err(PeerMisbehaved::TooMany("authentication steps").into());
            }
        } else if matches!(self.awaits, AwaitedReply::Interactive) && self.rounds == 0 {
            // Refused without a prompt: further attempts would be refused too.
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
            // Some servers return the key type instead of the request's algorithm.
            let key_type = FieldReader::new(&ours.blob).string().unwrap_or_default();
            let offered = ours.algorithms.get(algorithm).map(String::as_bytes);
            ours.blob == m.blob && (offered == Some(m.algorithm) || key_type == m.algorithm)
        });
        if !same {
            return Err(PeerMisbehaved::WrongKeyOk.into());
        }
        // A refusal after PK_OK is not due to the algorithm.
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
        let mut r = FieldReader::new(m.prompts.0);
        let mut prompts = Vec::new();
        for _ in 0..m.count {
            let text = escape(r.string()?);
            let echo = r.u8()? != 0;
            prompts.push(InteractivePrompt { text, echo });
        }
        r.finish()?;
        if prompts.is_empty() && m.name.is_empty() && m.instruction.is_empty() {
            self.messages.push_back(request::answers(&[]));
            return Ok(());
        }
        self.awaits = AwaitedReply::Answers(prompts.len());
        self.events.push_back(ClientAuthEvent::Prompts {
            name: escape(m.name),
            instruction: escape_lines(m.instruction),
            prompts,
        });
        Ok(())
    }

    /// Answers [`ClientAuthEvent::Sign`] with the signature blob, or `None` if this key cannot sign.
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

    /// Answers [`ClientAuthEvent::Password`]; `None` gives up the method.
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

    /// Answers [`ClientAuthEvent::Prompts`], one answer for each prompt; `None` or a wrong number gives
    /// up the method.
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

    /// Applies an EXT_INFO that arrived after the start; OpenSSH 9.6 and later sends a second one
    /// once it knows the account.
    pub fn set_extensions(&mut self, hostbound: bool, signature_algorithms: Option<Vec<String>>) {
        self.config.hostbound = hostbound;
        self.config.signature_algorithms = signature_algorithms;
    }

    /// Returns the number of partial successes so far (RFC 4252 section 5.1).
    pub fn steps(&self) -> u32 {
        self.steps
    }

    fn fail(&mut self, why: &str) -> Result<(), Error> {
        self.awaits = AwaitedReply::Done;
        let server = self.allowed.clone().unwrap_or_default();
        self.events.push_back(ClientAuthEvent::Failed {
            server,
            why: Some(why.to_owned()),
        });
        Ok(())
    }

    fn send(&mut self, message: Vec<u8>) {
        self.messages.push_back(AuthMessage::open(message));
    }

    /// Returns the next message to send.
    pub fn poll_message(&mut self) -> Option<AuthMessage> {
        self.messages.pop_front()
    }

    /// Returns the next event for the owner.
    pub fn poll_event(&mut self) -> Option<ClientAuthEvent> {
        self.events.pop_front()
    }
}

fn names(list: NameList<'_>) -> Vec<String> {
    let names = list.iter().filter(|name| name.len() <= 64);
    names.take(MAX_METHODS).map(str::to_owned).collect()
}
