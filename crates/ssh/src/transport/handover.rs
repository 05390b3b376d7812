//! Handover of a server's connection from the process that authenticates a client to the one that
//! serves it: keys and stream positions in serialized form.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use wire::{Field, FieldReader, WireError, message};
use zeroize::Zeroizing;

use super::proposal::{DirectionAlgorithms, NegotiatedAlgorithms};
use super::{RandomFill, Transport, TransportConfig, version};
use crate::EndpointRole;
use crate::cipher::{self, KeyMaterial, OpeningKey, PacketPosition, SealingKey};
use crate::error::{Error, Local};
use crate::kex;

/// Serialized [`Transport`] with its keys, zeroed when dropped.
pub type TransportHandover = Zeroizing<Vec<u8>>;

/// Capacity in bytes that exceeds every serialized transport.
const ROOM: usize = 8 << 10;

/// Key material of both directions that is in use.
#[derive(Default)]
pub(super) struct CurrentKeys {
    pub(super) sealing: KeyMaterial,
    pub(super) opening: KeyMaterial,
}

message! {
    /// Transport as it is handed over: identification, session identifier, algorithms, and keys of
    /// both directions.
    struct TransportState<'a> = 1 {
        peer: &'a [u8],
        session_id: &'a [u8],
        host_key: &'a [u8],
        strict: bool,
        kex: &'a [u8],
        host_key_algorithm: &'a [u8],
        milliseconds_since_keys: u64,
        outgoing: DirectionState<'a>,
        incoming: DirectionState<'a>,
    }
}

/// State of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DirectionState<'a> {
    cipher: &'a [u8],
    mac: &'a [u8],
    compress: bool,
    keys: SecretBytes<'a>,
    at: PacketPosition,
    since_keys: u64,
}

/// Key material that `Debug` does not print.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SecretBytes<'a> {
    iv: &'a [u8],
    key: &'a [u8],
    mac_key: &'a [u8],
}

impl std::fmt::Debug for SecretBytes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretBytes")
    }
}

impl<'a> Field<'a> for DirectionState<'a> {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            cipher: r.string()?,
            mac: r.string()?,
            compress: bool::read(r)?,
            keys: SecretBytes {
                iv: r.string()?,
                key: r.string()?,
                mac_key: r.string()?,
            },
            at: PacketPosition {
                sequence: r.u32()?,
                packets: r.u64()?,
                bytes: r.u64()?,
            },
            since_keys: r.u64()?,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        let SecretBytes { iv, key, mac_key } = self.keys;
        self.cipher.write(out);
        self.mac.write(out);
        self.compress.write(out);
        for bytes in [iv, key, mac_key] {
            bytes.write(out);
        }
        self.at.sequence.write(out);
        self.at.packets.write(out);
        self.at.bytes.write(out);
        self.since_keys.write(out);
    }
}

impl<'a> DirectionState<'a> {
    fn new(
        d: DirectionAlgorithms,
        keys: &'a KeyMaterial,
        at: PacketPosition,
        since_keys: u64,
    ) -> Self {
        let KeyMaterial { iv, key, mac_key } = keys;
        Self {
            cipher: d.cipher.name.as_bytes(),
            mac: d.mac.map_or(b"", |mac| mac.name.as_bytes()),
            compress: d.compress,
            keys: SecretBytes { iv, key, mac_key },
            at,
            since_keys,
        }
    }

    fn direction(&self) -> Option<DirectionAlgorithms> {
        let name = |bytes| std::str::from_utf8(bytes).ok();
        let mac = match self.mac {
            b"" => None,
            mac => Some(cipher::mac(name(mac)?)?),
        };
        Some(DirectionAlgorithms {
            cipher: cipher::cipher(name(self.cipher)?)?,
            mac,
            compress: self.compress,
        })
    }

    fn keys(&self) -> KeyMaterial {
        let SecretBytes { iv, key, mac_key } = self.keys;
        KeyMaterial {
            iv: iv.to_vec(),
            key: key.to_vec(),
            mac_key: mac_key.to_vec(),
        }
    }
}

impl Transport {
    /// Keeps the key material from now on, for [`Transport::hand_over`].
    pub fn keep_keys(&mut self) {
        self.kept = Some(CurrentKeys::default());
    }

    /// Serializes a server's transport right after authentication has succeeded, with nothing left
    /// to send. `None` at any other time, and without [`Transport::keep_keys`].
    pub fn hand_over(&self, now: Instant) -> Option<TransportHandover> {
        let still = self.exchange.is_idle() && self.ready.is_empty() && self.authenticated;
        let kept = self.kept.as_ref().filter(|_| still)?;
        let negotiated = self.negotiated.as_ref()?;
        let (out, inn) = self.directions(negotiated);
        let age = now.saturating_duration_since(self.keys_since?);
        let state = TransportState {
            peer: self.theirs.as_ref()?.as_str().as_bytes(),
            session_id: self.session_id.as_ref()?,
            host_key: self.host_key.as_ref()?,
            strict: self.strict,
            kex: negotiated.kex.name.as_bytes(),
            host_key_algorithm: negotiated.host_key.as_bytes(),
            milliseconds_since_keys: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            outgoing: DirectionState::new(
                out,
                &kept.sealing,
                self.outbound.position(),
                self.outbound.since_keys().0,
            ),
            incoming: DirectionState::new(
                inn,
                &kept.opening,
                self.inbound.position(),
                self.inbound.since_keys().0,
            ),
        };
        // Full capacity at once: a growing vector leaves copies behind that are not zeroed.
        let mut bytes = Zeroizing::new(Vec::with_capacity(ROOM));
        state.encode(&mut bytes);
        Some(bytes)
    }

    /// Continues a server's transport from [`Transport::hand_over`]: authenticated, with the
    /// compression that starts at that point.
    ///
    /// # Errors
    /// The bytes are not the output of [`Transport::hand_over`].
    pub fn taken_over(
        config: TransportConfig,
        random: RandomFill,
        now: Instant,
        bytes: &[u8],
    ) -> Result<Self, Error> {
        let wrong = || Error::from(Local::Handover);
        let state = TransportState::decode(bytes).map_err(|_| wrong())?;
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| wrong());
        let mut line = BytesMut::from(state.peer);
        line.extend_from_slice(b"\n");
        let theirs = version::take_ident(&mut line, &mut version::Preamble::default(), false)?;
        let (outgoing, incoming) = (state.outgoing, state.incoming);
        let (out, inn) = outgoing
            .direction()
            .zip(incoming.direction())
            .ok_or_else(wrong)?;
        let seal = SealingKey::new(out.cipher, out.mac, &outgoing.keys()).map_err(Local::Seal)?;
        let open = OpeningKey::new(inn.cipher, inn.mac, &incoming.keys()).map_err(Local::Seal)?;

        let mut transport = Self::new(EndpointRole::Server, config, random)?;
        // `new` has queued the messages of a new connection.
        transport.ready.clear();
        transport.exchange = super::KeyExchangeState::Idle;
        transport.theirs = theirs;
        transport.session_id = Some(Bytes::copy_from_slice(state.session_id));
        transport.host_key = Some(Bytes::copy_from_slice(state.host_key));
        transport.strict = state.strict;
        let age = Duration::from_millis(state.milliseconds_since_keys);
        transport.keys_since = Some(now.checked_sub(age).unwrap_or(now));
        transport
            .outbound
            .go_on(seal, outgoing.at, outgoing.since_keys);
        transport
            .inbound
            .go_on(open, incoming.at, incoming.since_keys);
        transport.rekey_limit = transport.limit_of(out, inn);
        transport.negotiated = Some(NegotiatedAlgorithms {
            kex: kex::method(text(state.kex)?).ok_or_else(wrong)?,
            host_key: text(state.host_key_algorithm)?.to_owned(),
            c2s: inn,
            s2c: out,
            guess_right: false,
        });
        transport.set_authenticated();
        Ok(transport)
    }
}
