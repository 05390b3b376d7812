//! New keys: derived at the end of a key exchange, used from NEWKEYS on (RFC 4253 sections 7.2 and
//! 7.3).

use std::time::Instant;

use bytes::Bytes;
use wire::PacketBuf;

use super::exchange::KeyExchangeState;
use super::handover::CurrentKeys;
use super::proposal::NegotiatedAlgorithms;
use super::{DirectionAlgorithms, Transport, TransportEvent};
use crate::EndpointRole;
use crate::cipher::{OpeningKey, SealingKey};
use crate::error::{Error, Local, PeerMisbehaved};
use crate::kex::{self, SharedSecret};
use crate::key::HOST_KEY_ALGORITHMS;
use crate::msg::{ExtInfo, NewKeys};

/// Sealing and opening key from one key exchange, one for each direction.
pub(super) struct KeySet {
    pub(super) seal: SealingKey,
    pub(super) open: OpeningKey,
}

impl Transport {
    pub(super) fn derive(
        &mut self,
        chosen: &NegotiatedAlgorithms,
        secret: &SharedSecret,
        hash: &[u8],
    ) -> Result<KeySet, Error> {
        let session_id = self
            .session_id
            .clone()
            .unwrap_or_else(|| Bytes::copy_from_slice(hash));
        let (out, inn) = self.directions(chosen);
        let (to_peer, to_us) = match self.role {
            EndpointRole::Client => (kex::KeyDirection::ToServer, kex::KeyDirection::ToClient),
            EndpointRole::Server => (kex::KeyDirection::ToClient, kex::KeyDirection::ToServer),
        };
        let keys = |to, d: DirectionAlgorithms| {
            kex::derive_keys(chosen.kex, secret, hash, &session_id, to, d.cipher, d.mac)
        };
        let (sealing, opening) = (keys(to_peer, out), keys(to_us, inn));
        let seal = SealingKey::new(out.cipher, out.mac, &sealing).map_err(Local::Seal)?;
        let open = OpeningKey::new(inn.cipher, inn.mac, &opening).map_err(Local::Seal)?;
        if let Some(kept) = &mut self.kept {
            *kept = CurrentKeys { sealing, opening };
        }
        // The owner gets the session identifier only after it has approved the host key, but the
        // next derivation needs it; until then it is used only with the keys made here.
        self.session_id = Some(session_id);
        self.rekey_limit = self.limit_of(out, inn);
        self.negotiated = Some(chosen.clone());
        Ok(KeySet { seal, open })
    }

    /// Returns the bytes after which to rekey with these ciphers.
    pub(super) fn limit_of(&self, out: DirectionAlgorithms, inn: DirectionAlgorithms) -> u64 {
        let ciphers = out.cipher.rekey_after.min(inn.cipher.rekey_after);
        ciphers.min(self.config.rekey_bytes.unwrap_or(u64::MAX))
    }

    /// Sends NEWKEYS and switches to the new outgoing key.
    pub(super) fn take_keys(&mut self, keys: KeySet) -> Result<KeyExchangeState, Error> {
        let first = self.keys_since.is_none();
        let job = self.outbound.job(
            PacketBuf::from_payload(&NewKeys {}.to_bytes()),
            &mut *self.random,
        )?;
        self.ready.push_back(super::TransportOutput::Packet(job));
        self.outbound.rekey(keys.seal, self.strict);
        if !first {
            // RFC 4253 section 6.2: compression restarts after each key exchange.
            self.outbound.stop_compression();
            if self.authenticated
                && self
                    .negotiated
                    .as_ref()
                    .is_some_and(|n| self.directions(n).0.compress)
            {
                self.outbound.start_compression();
            }
        } else if self.role == EndpointRole::Server && self.peer_takes_ext_info {
            self.send_ext_info()?;
        }
        Ok(KeyExchangeState::AwaitNewKeys(keys.open))
    }

    /// Sends a server's EXT_INFO right after its first NEWKEYS (RFC 8308 section 2.4).
    fn send_ext_info(&mut self) -> Result<(), Error> {
        let plain = HOST_KEY_ALGORITHMS.iter().filter(|a| !a.is_certificate());
        let signatures: Vec<_> = plain.map(|a| a.name).collect();
        let mut pairs = Vec::new();
        for (name, value) in [
            ("server-sig-algs", signatures.join(",").as_str()),
            ("publickey-hostbound@openssh.com", "0"),
            ("ping@openssh.com", "0"),
        ] {
            wire::Field::write(&name.as_bytes(), &mut pairs);
            wire::Field::write(&value.as_bytes(), &mut pairs);
        }
        self.send_message(
            &ExtInfo {
                count: 3,
                pairs: wire::RemainingBytes(&pairs),
            }
            .to_bytes(),
        )
    }

    pub(super) fn handle_newkeys(
        &mut self,
        now: Instant,
        open: OpeningKey,
    ) -> Result<KeyExchangeState, Error> {
        if self.inbound.is_ahead() {
            // No honest peer does this, see `next_payload`.
            return Err(PeerMisbehaved::Unexpected(NewKeys::NUMBER).into());
        }
        self.inbound.rekey(open, self.strict);
        let first = self.keys_since.replace(now).is_none();
        if !first {
            self.inbound.stop_compression();
            if self.authenticated
                && self
                    .negotiated
                    .as_ref()
                    .is_some_and(|n| self.directions(n).1.compress)
            {
                self.inbound.start_compression();
            }
        }
        self.events.push_back(TransportEvent::Keys { first });
        Ok(KeyExchangeState::Idle)
    }
}
