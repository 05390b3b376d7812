//! Key exchange and rekey (RFC 4253 sections 7 to 9), strict KEX (OpenSSH PROTOCOL 1.10).

use std::time::Instant;

use bytes::Bytes;

use super::keys::KeySet;
use super::proposal::{
    AlgorithmProposal, EXT_INFO_C, NegotiatedAlgorithms, STRICT_C, STRICT_S, negotiate,
};
use super::{Identification, KexGuess, PeerOffers, Transport, TransportEvent};
use crate::EndpointRole;
use crate::cipher::OpeningKey;
use crate::error::{Error, Local, PeerIncompatible, PeerMisbehaved};
use crate::kex::{self, ClientKeyExchange, ExchangeHashInputs, KexMethod};
use crate::key::PublicKey;
use crate::msg::{KexEcdhInit, KexEcdhReply, KexInit, NewKeys};

/// State of a key exchange. Each state holds only what the next message needs.
pub(super) enum KeyExchangeState {
    /// No key exchange is in progress.
    Idle,
    /// Our KEXINIT was sent.
    InitSent(InitSent),
    /// Client: our public value was sent, and KEX_ECDH_REPLY is expected.
    AwaitReply(AwaitReply),
    /// Server: KEX_ECDH_INIT is expected.
    AwaitInit(AwaitInit),
    /// Client: the reply is verified, and the owner has to approve the host key.
    AwaitApproval(KeySet),
    /// Our NEWKEYS was sent; packets after the peer's NEWKEYS are opened with this key.
    AwaitNewKeys(OpeningKey),
}

/// Our KEXINIT is sent and the peer's is awaited. A client may have sent the first packet of a
/// guessed method behind it.
pub(super) struct InitSent {
    ours: Vec<u8>,
    guess: Option<StartedKeyExchange>,
}

/// Client side of a key exchange whose public value was sent.
struct StartedKeyExchange {
    method: &'static KexMethod,
    exchange: ClientKeyExchange,
    public: Vec<u8>,
}

/// Unused ephemeral key of a client, generated in advance.
pub(super) struct PregeneratedKexKey {
    exchange: ClientKeyExchange,
    public: Vec<u8>,
}

/// Prefix of the methods whose ephemeral key takes long to generate.
const SLOW: &str = "sntrup761x25519-sha512";

/// A client has sent its share of the key and waits for the server's. Both KEXINITs are kept for
/// the exchange hash.
pub(super) struct AwaitReply {
    chosen: NegotiatedAlgorithms,
    ours: Vec<u8>,
    theirs: Bytes,
    started: StartedKeyExchange,
}

/// State of a server that waits for the client's share of the key. Both KEXINITs are kept for the
/// exchange hash.
pub(super) struct AwaitInit {
    chosen: NegotiatedAlgorithms,
    ours: Vec<u8>,
    theirs: Bytes,
    /// True if the peer guessed wrong, so that its next packet must be ignored.
    skip: bool,
}

impl KeyExchangeState {
    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    pub(super) fn waits_for_approval(&self) -> bool {
        matches!(self, Self::AwaitApproval(_))
    }

    /// Returns true if the layers above may send, which they may again after our NEWKEYS.
    pub(super) fn app_may_send(&self) -> bool {
        matches!(self, Self::Idle | Self::AwaitNewKeys(_))
    }

    /// Returns true if the peer has sent its KEXINIT and may send only key exchange messages until
    /// its NEWKEYS (RFC 4253 section 7.1).
    pub(super) fn peer_bound(&self) -> bool {
        !matches!(self, Self::Idle | Self::InitSent(_))
    }
}

impl Transport {
    /// Sends KEXINIT, followed by a guessed KEX_ECDH_INIT in the first exchange if configured.
    pub(super) fn start_exchange(&mut self) -> Result<(), Error> {
        let first = self.session_id.is_none();
        let usual = self.theirs.as_ref().and_then(Identification::usual_kex);
        let guess = match self.guess() {
            _ if !first => false,
            KexGuess::Never => false,
            KexGuess::Remembered => true,
            KexGuess::ByVersion => {
                usual.is_some() && usual == self.config.proposal.kex.first().map(String::as_str)
            }
        };
        let mut cookie = std::mem::take(&mut self.cookie);
        if !first {
            (self.random)(&mut cookie);
        }
        let ours = self
            .config
            .proposal
            .encode(self.role, cookie, first, guess, self.renounces());
        self.send_message(&ours)?;
        let guess = match guess {
            true => {
                let name = self
                    .config
                    .proposal
                    .kex
                    .first()
                    .map(String::as_str)
                    .unwrap_or_default();
                let method = kex::method(name);
                let method = method.ok_or(Local::NoAlgorithm("key exchange"))?;
                Some(self.send_public(method)?)
            }
            false => None,
        };
        self.exchange = KeyExchangeState::InitSent(InitSent { ours, guess });
        Ok(())
    }

    pub(super) fn prepare_kex(&self) -> Result<Option<PregeneratedKexKey>, Error> {
        let mut offered = self.config.proposal.kex.iter();
        let Some(method) = offered
            .find(|n| n.starts_with(SLOW))
            .and_then(|n| kex::method(n))
        else {
            return Ok(None);
        };
        let (exchange, public) =
            ClientKeyExchange::start(method).map_err(|_| Error::from(Local::KeyExchange))?;
        Ok(Some(PregeneratedKexKey { exchange, public }))
    }

    fn send_public(&mut self, method: &'static KexMethod) -> Result<StartedKeyExchange, Error> {
        let prepared = self.prepared.take().and_then(|prepared| {
            let exchange = prepared.exchange.renamed(method)?;
            Some((exchange, prepared.public))
        });
        let (exchange, public) = match prepared {
            Some(prepared) => prepared,
            None => {
                ClientKeyExchange::start(method).map_err(|_| Error::from(Local::KeyExchange))?
            }
        };
        self.send_message(&KexEcdhInit { public: &public }.to_bytes())?;
        Ok(StartedKeyExchange {
            method,
            exchange,
            public,
        })
    }

    /// Processes messages 20 to 49.
    pub(super) fn handle_exchange(
        &mut self,
        now: Instant,
        number: u8,
        payload: Bytes,
    ) -> Result<(), Error> {
        let state = std::mem::replace(&mut self.exchange, KeyExchangeState::Idle);
        self.exchange = match (state, number) {
            (KeyExchangeState::Idle, KexInit::NUMBER) => {
                self.start_exchange()?;
                match std::mem::replace(&mut self.exchange, KeyExchangeState::Idle) {
                    KeyExchangeState::InitSent(state) => self.handle_kexinit(state, payload)?,
                    other => other,
                }
            }
            (KeyExchangeState::InitSent(state), KexInit::NUMBER) => {
                self.handle_kexinit(state, payload)?
            }
            (KeyExchangeState::AwaitReply(state), KexEcdhReply::NUMBER) => {
                self.handle_reply(state, &payload)?
            }
            (KeyExchangeState::AwaitInit(state), KexEcdhInit::NUMBER) => {
                self.handle_init(state, &payload)?
            }
            (KeyExchangeState::AwaitNewKeys(open), NewKeys::NUMBER) => {
                NewKeys::decode(&payload)?;
                self.handle_newkeys(now, open)?
            }
            (_, number) => return Err(PeerMisbehaved::Unexpected(number).into()),
        };
        Ok(())
    }

    fn handle_kexinit(
        &mut self,
        state: InitSent,
        payload: Bytes,
    ) -> Result<KeyExchangeState, Error> {
        let theirs = KexInit::decode(&payload)?;
        let ours = KexInit::decode(&state.ours)?;
        let client = self.role == EndpointRole::Client;
        if self.session_id.is_none() {
            self.strict = theirs
                .kex
                .contains(if client { STRICT_S } else { STRICT_C });
            self.peer_takes_ext_info = theirs.kex.contains(EXT_INFO_C);
            // Messages before KEXINIT were legal until the peer announced strict KEX (OpenSSH
            // PROTOCOL 1.10): then its KEXINIT must have been the first packet.
            if self.strict && self.inbound.since_keys().1 != 1 {
                return Err(PeerMisbehaved::StrictKex(KexInit::NUMBER).into());
            }
        }
        let chosen = if client {
            negotiate(self.role, &ours, &theirs, self.renounces())?
        } else {
            negotiate(self.role, &theirs, &ours, self.renounces())
                .map_err(|e| could_have_been(e, self.could_offer.as_ref(), &theirs))?
        };
        let favourite = |list: wire::NameList<'_>| list.first().unwrap_or_default().to_owned();
        self.events.push_back(TransportEvent::Negotiated {
            chosen: chosen.clone(),
            favourites: (favourite(theirs.kex), favourite(theirs.host_key)),
            offers: PeerOffers {
                ciphers: theirs.cipher_c2s.as_str().to_owned(),
                macs: theirs.mac_c2s.as_str().to_owned(),
                compression: theirs.compression_c2s.as_str().to_owned(),
            },
        });
        let skip = theirs.first_kex_packet_follows && !chosen.guess_right;
        if !client {
            return Ok(KeyExchangeState::AwaitInit(AwaitInit {
                chosen,
                ours: state.ours,
                theirs: payload,
                skip,
            }));
        }
        if skip {
            // No server guesses; a wrong guess would be a packet that only a server may send.
            return Err(PeerMisbehaved::Unexpected(KexEcdhReply::NUMBER).into());
        }
        let started = match state.guess {
            Some(started) if chosen.guess_right => started,
            _ => self.send_public(chosen.kex)?,
        };
        Ok(KeyExchangeState::AwaitReply(AwaitReply {
            chosen,
            ours: state.ours,
            theirs: payload,
            started,
        }))
    }

    fn handle_reply(
        &mut self,
        state: AwaitReply,
        payload: &[u8],
    ) -> Result<KeyExchangeState, Error> {
        let m = KexEcdhReply::decode(payload)?;
        let AwaitReply {
            chosen,
            ours,
            theirs,
            started,
        } = state;
        let secret = started
            .exchange
            .finish(m.public)
            .map_err(|e| Error::from(PeerMisbehaved::KeyExchange(e)))?;
        let hash = kex::exchange_hash(
            started.method,
            ExchangeHashInputs {
                v_c: self.ours.as_str().as_bytes(),
                v_s: self
                    .theirs
                    .as_ref()
                    .map(|i| i.as_str().as_bytes())
                    .unwrap_or_default(),
                i_c: &ours,
                i_s: &theirs,
                k_s: m.host_key,
                init: &started.public,
                reply: m.public,
            },
            &secret,
        );
        let key = PublicKey::from_blob(m.host_key)
            .map_err(|e| Error::from(PeerMisbehaved::HostKey(e)))?;
        key.verify(&chosen.host_key, &hash, m.signature)
            .map_err(|e| Error::from(PeerMisbehaved::HostKey(e)))?;
        let again = self.host_key.is_some();
        if again && self.host_key.as_deref() != Some(m.host_key) {
            return Err(PeerMisbehaved::HostKeyChanged.into());
        }
        let keys = self.derive(&chosen, &secret, &hash)?;
        if again {
            return self.take_keys(keys);
        }
        self.host_key = Some(Bytes::copy_from_slice(m.host_key));
        self.host_signature = Some(Bytes::copy_from_slice(m.signature));
        self.events
            .push_back(TransportEvent::HostKey(Bytes::copy_from_slice(m.host_key)));
        Ok(KeyExchangeState::AwaitApproval(keys))
    }

    /// Reports that the owner trusts the host key: sends NEWKEYS and switches to the new sealing
    /// key.
    pub fn accept_host_key(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.exchange, KeyExchangeState::Idle) {
            KeyExchangeState::AwaitApproval(keys) => {
                self.exchange = self.take_keys(keys)?;
                Ok(())
            }
            other => {
                self.exchange = other;
                Ok(())
            }
        }
    }

    fn handle_init(
        &mut self,
        mut state: AwaitInit,
        payload: &[u8],
    ) -> Result<KeyExchangeState, Error> {
        if std::mem::take(&mut state.skip) {
            return Ok(KeyExchangeState::AwaitInit(state));
        }
        let m = KexEcdhInit::decode(payload)?;
        let AwaitInit {
            chosen,
            ours,
            theirs,
            ..
        } = state;
        let (public, secret) = kex::respond(chosen.kex, m.public)
            .map_err(|e| Error::from(PeerMisbehaved::KeyExchange(e)))?;
        let signer = self
            .config
            .host_keys
            .iter()
            .find(|k| k.public().algorithms().contains(&chosen.host_key.as_str()))
            .cloned()
            .ok_or(Local::NoAlgorithm("host key"))?;
        let k_s = signer.public().blob();
        let hash = kex::exchange_hash(
            chosen.kex,
            ExchangeHashInputs {
                v_c: self
                    .theirs
                    .as_ref()
                    .map(|i| i.as_str().as_bytes())
                    .unwrap_or_default(),
                v_s: self.ours.as_str().as_bytes(),
                i_c: &theirs,
                i_s: &ours,
                k_s,
                init: m.public,
                reply: &public,
            },
            &secret,
        );
        let signature = signer
            .sign(&chosen.host_key, &hash)
            .map_err(|_| Error::from(Local::KeyExchange))?;
        let reply = KexEcdhReply {
            host_key: k_s,
            public: &public,
            signature: &signature,
        };
        self.send_message(&reply.to_bytes())?;
        self.host_key = Some(Bytes::from(k_s.to_vec()));
        let keys = self.derive(&chosen, &secret, &hash)?;
        self.take_keys(keys)
    }
}

/// Sets `could_be` in a negotiation error if everything that this server could offer would suit the
/// client.
fn could_have_been(mut e: Error, all: Option<&AlgorithmProposal>, client: &KexInit<'_>) -> Error {
    if let Error::PeerIncompatible(PeerIncompatible::NoCommon { could_be, .. }) = &mut e {
        *could_be = all.is_some_and(|all| all.suits(client));
    }
    e
}
