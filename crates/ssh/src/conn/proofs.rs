//! Host keys of a server: announced to authenticated clients and proven on request (OpenSSH's
//! PROTOCOL, section 2.5), so that a client that maintains known_hosts has a new key before the old
//! one is retired (UpdateHostKeys).

use wire::{Field, FieldReader, RemainingBytes};

use super::Connection;
use crate::EndpointRole;
use crate::error::Error;
use crate::msg::{GlobalRequest, RequestFailure, RequestSuccess};
use crate::transport::Identification;

pub(super) const ANNOUNCE: &[u8] = b"hostkeys-00@openssh.com";
pub(super) const PROVE: &[u8] = b"hostkeys-prove-00@openssh.com";
/// Maximum number of proof requests per connection. A client sends one; each RSA signature costs a
/// millisecond here and the client next to nothing.
const MOST: u32 = 2;

/// Progress of a server with its host keys: the announcement, which is sent once, and the number of
/// requests for proofs, which is limited.
#[derive(Debug, Default)]
pub(super) struct HostKeyAnnouncementState {
    announced: bool,
    asked: u32,
}

impl Connection {
    /// Announces all host keys to the client, once, after authentication, if the client can use
    /// that ([`Identification::is_told_host_keys`]).
    pub fn announce_host_keys(&mut self) {
        let due = self.role == EndpointRole::Server && self.authenticated && !self.proofs.announced;
        if !due || !self.peer().is_some_and(Identification::is_told_host_keys) {
            return;
        }
        self.proofs.announced = true;
        let mut blobs = Vec::new();
        for key in self.transport.host_keys() {
            key.public().blob().write(&mut blobs);
        }
        let announce = GlobalRequest {
            name: ANNOUNCE,
            want_reply: false,
            data: RemainingBytes(&blobs),
        };
        self.channels.tell(&announce);
    }

    /// Returns the reply to a request for proofs; `None` for another request.
    pub(super) fn answer_about_keys(&mut self, payload: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let request = GlobalRequest::decode(payload)?;
        if self.role != EndpointRole::Server || request.name != PROVE || !request.want_reply {
            return Ok(None);
        }
        let proofs = self.host_key_proofs(request.data.0);
        Ok(Some(match &proofs {
            Some(proofs) => RequestSuccess {
                data: RemainingBytes(proofs),
            }
            .to_bytes(),
            None => RequestFailure {}.to_bytes(),
        }))
    }

    /// Returns a signature for each of the keys in `asked`, in order. `None` if one is unknown or
    /// repeated, if the keys were not announced, or after too many requests.
    fn host_key_proofs(&mut self, asked: &[u8]) -> Option<Vec<u8>> {
        if !self.proofs.announced || self.proofs.asked >= MOST {
            return None;
        }
        self.proofs.asked += 1;
        let session_id = self.transport.session_id()?;
        let negotiated = &self.transport.negotiated()?.host_key;
        let mut keys: Vec<_> = self.transport.host_keys().iter().collect();
        let mut proofs = Vec::new();
        let mut asked = FieldReader::new(asked);
        while asked.left() > 0 {
            let blob = asked.string().ok()?;
            let at = keys.iter().position(|key| key.public().blob() == blob)?;
            let key = keys.swap_remove(at);
            // For an RSA key OpenSSH expects the negotiated signature algorithm, if that is an RSA
            // one.
            let algorithms = key.public().algorithms();
            let same = algorithms.iter().find(|name| *name == negotiated);
            let algorithm = same.or_else(|| algorithms.first())?;
            let proof = key.prove(algorithm, session_id).ok()?;
            proof.as_slice().write(&mut proofs);
        }
        Some(proofs)
    }
}
