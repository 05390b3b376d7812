//! A server's half of authentication (RFC 4252), without I/O: public keys and nothing else.
//!
//! Who may log in with which key is the owner's to say: [`Login::poll_event`] asks, and nothing
//! more of the peer is read until [`Login::decide`] has answered.

use std::collections::VecDeque;

use bytes::Bytes;
use wire::{Field, NameList, Reader};

use super::request::{CONNECTION, HOSTBOUND};
use super::{AuthMessage, Claim, Proof};
use super::{PUBLICKEY, SERVICE};
use crate::error::{Error, PeerMisbehaved};
use crate::key::PublicKey;
use crate::msg::{
    ServiceAccept, ServiceRequest, UserauthFailure, UserauthPkOk, UserauthRequest, UserauthSuccess,
};
use crate::text::escape;

/// Refusals before the connection ends: MaxAuthTries of sshd.
const MAX_TRIES: u32 = 6;
/// The longest name of an account; Linux knows none over 256 (useradd).
const MAX_USER: usize = 256;

/// What a login asks or tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginEvent {
    /// May this account be entered with this key? Answer with [`Login::decide`].
    Key {
        /// The account as it was sent: unchecked.
        user: Vec<u8>,
        /// The key, which the client has not proved to own yet.
        key: PublicKey,
        /// What is to prove that it does, for whoever checks that as well; without it, the client
        /// asks whether the key would do.
        proof: Option<Proof>,
    },
    /// Somebody proved to own the key, which was allowed: the connection layer is open.
    Success {
        /// The account.
        user: Vec<u8>,
        /// The key.
        key: PublicKey,
    },
    /// A request was refused.
    Refused {
        /// The account, escaped.
        user: String,
        /// The method, escaped.
        method: String,
    },
}

/// A key that the owner has to decide about.
struct Offer {
    key: PublicKey,
    algorithm: String,
    /// Without it, it is the question whether the key would do.
    proof: Option<Proof>,
}

/// The state machine. Inputs: [`Login::handle`] and [`Login::decide`]. Outputs:
/// [`Login::poll_message`] and [`Login::poll_event`].
pub struct Login {
    session_id: Bytes,
    host_key: Bytes,
    accepted: bool,
    /// Who wants to log in: the same in all requests.
    user: Option<Vec<u8>>,
    /// `none`, with which clients ask for the methods, costs nothing once.
    asked_methods: bool,
    refused: u32,
    offer: Option<Offer>,
    messages: VecDeque<AuthMessage>,
    events: VecDeque<LoginEvent>,
}

impl Login {
    /// For the connection whose first exchange hash is `session_id`, and whose host key has the
    /// blob `host_key`.
    pub(crate) fn new(session_id: Bytes, host_key: Bytes) -> Self {
        Self {
            session_id,
            host_key,
            accepted: false,
            user: None,
            asked_methods: false,
            refused: 0,
            offer: None,
            messages: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Handles messages 5 and 50 to 79, while [`Login::waits`] is false.
    pub(crate) fn handle(&mut self, payload: &Bytes) -> Result<(), Error> {
        let number = payload.first().copied().unwrap_or_default();
        match number {
            ServiceRequest::NUMBER if !self.accepted => {
                let name = ServiceRequest::decode(payload)?.name;
                if name != SERVICE {
                    return Err(PeerMisbehaved::Unexpected(number).into());
                }
                self.accepted = true;
                self.send(ServiceAccept { name }.to_bytes());
                Ok(())
            }
            UserauthRequest::NUMBER if self.accepted => self.handle_request(payload),
            // CVE-2018-10933 and its kin: what a server has to say proves nothing from a client.
            number => Err(PeerMisbehaved::Unexpected(number).into()),
        }
    }

    fn handle_request(&mut self, payload: &Bytes) -> Result<(), Error> {
        let m = UserauthRequest::decode(payload)?;
        if m.service != CONNECTION || m.user.len() > MAX_USER {
            return Err(PeerMisbehaved::Unexpected(UserauthRequest::NUMBER).into());
        }
        // RFC 4252 section 5 would begin anew, and sshd ends the connection (auth2.c): whoever
        // tries one account after the other shall not do it for the price of one connection.
        let user = self.user.get_or_insert_with(|| m.user.to_vec());
        if user != m.user {
            return Err(PeerMisbehaved::OtherUser.into());
        }
        let hostbound = m.method == HOSTBOUND;
        if hostbound || m.method == PUBLICKEY {
            self.offer = self.read_offer(m.data.0, hostbound)?;
            if let Some(offer) = &self.offer {
                self.events.push_back(LoginEvent::Key {
                    user: m.user.to_vec(),
                    key: offer.key.clone(),
                    proof: offer.proof.clone(),
                });
                return Ok(());
            }
        }
        if m.method == b"none" && !std::mem::replace(&mut self.asked_methods, true) {
            return self.fail();
        }
        self.refuse(m.method)
    }

    /// RFC 4252 section 7, or its host-bound form (OpenSSH PROTOCOL section 3.1). `None` for a
    /// key that cannot be used here.
    fn read_offer(&self, data: &[u8], hostbound: bool) -> Result<Option<Offer>, Error> {
        let mut r = Reader::new(data);
        let signed = bool::read(&mut r)?;
        let (algorithm, blob) = (r.string()?, r.string()?);
        let bound = !hostbound || r.string()? == &*self.host_key;
        let signature = match signed {
            true => Some(r.string()?),
            false => None,
        };
        r.finish()?;
        let Ok(key) = PublicKey::from_blob(blob) else {
            return Ok(None);
        };
        let algorithm = key
            .algorithms()
            .into_iter()
            .find(|a| a.as_bytes() == algorithm);
        let algorithm = algorithm.map(str::to_owned);
        let Some(algorithm) = algorithm.filter(|_| bound && key.is_usable()) else {
            return Ok(None);
        };
        let proof = signature.map(|signature| Proof {
            algorithm: algorithm.clone(),
            host_bound: hostbound,
            signature: signature.to_vec(),
        });
        Ok(Some(Offer {
            key,
            algorithm,
            proof,
        }))
    }

    /// Whether [`LoginEvent::Key`] waits for an answer.
    pub fn waits(&self) -> bool {
        self.offer.is_some()
    }

    /// The answer to [`LoginEvent::Key`].
    ///
    /// # Errors
    /// The client has tried too often.
    pub fn decide(&mut self, allowed: bool) -> Result<(), Error> {
        let Some(offer) = self.offer.take() else {
            return Ok(());
        };
        let Some(proof) = offer.proof.filter(|_| allowed) else {
            if allowed {
                let ok = UserauthPkOk {
                    algorithm: offer.algorithm.as_bytes(),
                    blob: offer.key.blob(),
                };
                self.send(ok.to_bytes());
                return Ok(());
            }
            return self.refuse(PUBLICKEY);
        };
        let user = self.user.clone().unwrap_or_default();
        let key = offer.key;
        let claim = Claim {
            session_id: &self.session_id,
            host_key: &self.host_key,
            user: &user,
            key: &key,
        };
        match proof.check(claim) {
            Ok(_) => {
                self.send(UserauthSuccess {}.to_bytes());
                self.events.push_back(LoginEvent::Success { user, key });
                Ok(())
            }
            Err(_) => self.refuse(PUBLICKEY),
        }
    }

    fn refuse(&mut self, method: &[u8]) -> Result<(), Error> {
        self.refused += 1;
        self.events.push_back(LoginEvent::Refused {
            user: escape(self.user.as_deref().unwrap_or_default()),
            method: escape(method),
        });
        if self.refused >= MAX_TRIES {
            return Err(PeerMisbehaved::TooManyTries.into());
        }
        self.fail()
    }

    fn fail(&mut self) -> Result<(), Error> {
        let failure = UserauthFailure {
            methods: NameList::new("publickey")?,
            partial_success: false,
        };
        self.send(failure.to_bytes());
        Ok(())
    }

    fn send(&mut self, message: Vec<u8>) {
        self.messages.push_back(AuthMessage::open(message));
    }

    /// The next message to send.
    pub(crate) fn poll_message(&mut self) -> Option<AuthMessage> {
        self.messages.pop_front()
    }

    /// What the owner has to know or to answer.
    pub(crate) fn poll_event(&mut self) -> Option<LoginEvent> {
        self.events.pop_front()
    }
}

#[cfg(test)]
#[path = "login_tests.rs"]
mod tests;
