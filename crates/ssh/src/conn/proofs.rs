//! All host keys of a server, told to whoever has logged in and proven to whoever asks (OpenSSH's PROTOCOL, section
//! 2.5). So a client that keeps what it knows of hosts has a new key before the old one goes (UpdateHostKeys).

use wire::{Field, Reader, Rest};

use super::Connection;
use crate::Role;
use crate::error::Error;
use crate::msg::{GlobalRequest, RequestFailure, RequestSuccess};
use crate::transport::Ident;

const ANNOUNCE: &[u8] = b"hostkeys-00@openssh.com";
const PROVE: &[u8] = b"hostkeys-prove-00@openssh.com";
/// Requests that a connection has an answer to. A client has one; each signature costs this end a millisecond with
/// an RSA key, and who asks next to nothing.
const MOST: u32 = 2;

/// How far it is.
#[derive(Debug, Default)]
pub(super) struct Proofs {
    announced: bool,
    asked: u32,
}

impl Connection {
    /// Has a server tell its client all of its host keys, once, behind authentication, where that is of use
    /// ([`Ident::is_told_host_keys`]).
    pub fn announce_host_keys(&mut self) {
        let due = self.role == Role::Server && self.authenticated && !self.proofs.announced;
        if !due || !self.peer().is_some_and(Ident::is_told_host_keys) {
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
            data: Rest(&blobs),
        };
        self.channels.tell(&announce);
    }

    /// The answer to a client that asks for proofs; none to another request.
    pub(super) fn answer_about_keys(&mut self, payload: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let request = GlobalRequest::decode(payload)?;
        if request.name != PROVE || !request.want_reply {
            return Ok(None);
        }
        let proofs = self.host_key_proofs(request.data.0);
        Ok(Some(match &proofs {
            Some(proofs) => RequestSuccess { data: Rest(proofs) }.to_bytes(),
            None => RequestFailure {}.to_bytes(),
        }))
    }

    /// A signature for each of the keys in `asked`, in their order; none where one is not a host key of this server
    /// or is there twice, or where they were not announced or asked for too often.
    fn host_key_proofs(&mut self, asked: &[u8]) -> Option<Vec<u8>> {
        if !self.proofs.announced || self.proofs.asked >= MOST {
            return None;
        }
        self.proofs.asked += 1;
        let session_id = self.transport.session_id()?;
        let negotiated = &self.transport.negotiated()?.host_key;
        let mut keys: Vec<_> = self.transport.host_keys().iter().collect();
        let mut proofs = Vec::new();
        let mut asked = Reader::new(asked);
        while asked.left() > 0 {
            let blob = asked.string().ok()?;
            let at = keys.iter().position(|key| key.public().blob() == blob)?;
            let key = keys.swap_remove(at);
            // Of an RSA key OpenSSH wants the one that was negotiated, where it was one of those.
            let algorithms = key.public().algorithms();
            let same = algorithms.iter().find(|name| *name == negotiated);
            let algorithm = same.or_else(|| algorithms.first())?;
            let proof = key.prove(algorithm, session_id).ok()?;
            proof.as_slice().write(&mut proofs);
        }
        Some(proofs)
    }
}
