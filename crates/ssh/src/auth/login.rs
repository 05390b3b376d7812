//! Server side of authentication (RFC 4252), without I/O: public keys only.
//!
//! The owner decides which key may log in to which account: [`ServerAuth::poll_event`] asks, and no
//! further message of the client is processed until [`ServerAuth::decide`] has answered.

use std::collections::VecDeque;

use bytes::Bytes;
use wire::{Field, FieldReader, NameList};

use super::request::{CONNECTION, HOSTBOUND};
use super::{AuthMessage, KeyProof, ProofContext};
use super::{PUBLICKEY, SERVICE};
use crate::error::{Error, PeerMisbehaved};
use crate::key::PublicKey;
use crate::msg::{
    ServiceAccept, ServiceRequest, UserauthFailure, UserauthPkOk, UserauthRequest, UserauthSuccess,
};
use crate::text::escape;

/// Refused requests after which the connection ends: MaxAuthTries of sshd.
const MAX_TRIES: u32 = 6;
/// Maximum length of an account name in bytes; Linux permits none over 256 (useradd).
const MAX_USER: usize = 256;

/// Event of a [`ServerAuth`] for its owner, from [`ServerAuth::poll_event`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAuthEvent {
    /// Request to decide whether this key may log in to this account, answered with
    /// [`ServerAuth::decide`].
    Key {
        /// Account name as received, unchecked.
        user: Vec<u8>,
        /// Offered key; the client has not yet proved that it owns it.
        key: PublicKey,
        /// Proof of ownership, for an owner that checks it too; `None` for the client's query
        /// whether the key would be accepted.
        proof: Option<KeyProof>,
    },
    /// The client proved that it owns an accepted key; the connection protocol is open.
    Success {
        /// Account name.
        user: Vec<u8>,
        /// Key that logged in.
        key: PublicKey,
    },
    /// A request was refused.
    Refused {
        /// Account name, escaped.
        user: String,
        /// Method name, escaped.
        method: String,
    },
}

/// Offered key that waits for the owner's decision.
struct KeyOffer {
    key: PublicKey,
    algorithm: String,
    /// Proof of ownership; `None` for the query whether the key would be accepted.
    proof: Option<KeyProof>,
}

/// State machine of a server's authentication. Inputs: [`ServerAuth::handle`] and
/// [`ServerAuth::decide`]. Outputs: [`ServerAuth::poll_message`] and [`ServerAuth::poll_event`].
pub struct ServerAuth {
    session_id: Bytes,
    host_key: Bytes,
    accepted: bool,
    /// Account name of the first request, which all further requests must repeat.
    user: Option<Vec<u8>>,
    /// True after the first `none`, by which clients ask for the methods and which does not count
    /// as refused.
    asked_methods: bool,
    refused: u32,
    offer: Option<KeyOffer>,
    messages: VecDeque<AuthMessage>,
    events: VecDeque<ServerAuthEvent>,
}

impl ServerAuth {
    /// Creates the state for a connection with the session identifier `session_id` (the first
    /// exchange hash) and the host key blob `host_key`.
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

    /// Processes messages 5 and 50 to 79, while [`ServerAuth::waits`] is false.
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
            // CVE-2018-10933 and its relatives: a client cannot log in with messages that only a
            // server sends.
            number => Err(PeerMisbehaved::Unexpected(number).into()),
        }
    }

    fn handle_request(&mut self, payload: &Bytes) -> Result<(), Error> {
        let m = UserauthRequest::decode(payload)?;
        if m.service != CONNECTION || m.user.len() > MAX_USER {
            return Err(PeerMisbehaved::Unexpected(UserauthRequest::NUMBER).into());
        }
        // RFC 4252 section 5 would restart authentication for another user; sshd ends the
        // connection (auth2.c), so that guessing accounts costs one connection each.
        let user = self.user.get_or_insert_with(|| m.user.to_vec());
        if user != m.user {
            return Err(PeerMisbehaved::OtherUser.into());
        }
        let hostbound = m.method == HOSTBOUND;
        if hostbound || m.method == PUBLICKEY {
            self.offer = self.read_offer(m.data.0, hostbound)?;
            if let Some(offer) = &self.offer {
                self.events.push_back(ServerAuthEvent::Key {
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

    /// Reads a publickey request (RFC 4252 section 7) or its host-bound form (OpenSSH PROTOCOL
    /// section 3.1). `None` for a key that cannot be used here.
    fn read_offer(&self, data: &[u8], hostbound: bool) -> Result<Option<KeyOffer>, Error> {
        let mut r = FieldReader::new(data);
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
        let proof = signature.map(|signature| KeyProof {
            algorithm: algorithm.clone(),
            host_bound: hostbound,
            signature: signature.to_vec(),
        });
        Ok(Some(KeyOffer {
            key,
            algorithm,
            proof,
        }))
    }

    /// Returns true while [`ServerAuthEvent::Key`] waits for an answer.
    pub fn waits(&self) -> bool {
        self.offer.is_some()
    }

    /// Answers [`ServerAuthEvent::Key`].
    ///
    /// # Errors
    /// The client has reached the limit of refused requests.
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
        let claim = ProofContext {
            session_id: &self.session_id,
            host_key: &self.host_key,
            user: &user,
            key: &key,
        };
        match proof.check(claim) {
            Ok(_) => {
                self.send(UserauthSuccess {}.to_bytes());
                self.events
                    .push_back(ServerAuthEvent::Success { user, key });
                Ok(())
            }
            Err(_) => self.refuse(PUBLICKEY),
        }
    }

    fn refuse(&mut self, method: &[u8]) -> Result<(), Error> {
        self.refused += 1;
        self.events.push_back(ServerAuthEvent::Refused {
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

    /// Returns the next message to send.
    pub(crate) fn poll_message(&mut self) -> Option<AuthMessage> {
        self.messages.pop_front()
    }

    /// Returns the next event for the owner.
    pub(crate) fn poll_event(&mut self) -> Option<ServerAuthEvent> {
        self.events.pop_front()
    }
}

#[cfg(test)]
#[path = "login_tests.rs"]
mod tests;
