//! Host keys of the server, as its client learns them: announced by the server, and accepted only
//! with a proof for this session (OpenSSH's PROTOCOL, section 2.5).

use bytes::Bytes;
use wire::FieldReader;

use super::proofs::{ANNOUNCE, PROVE};
use super::{Connection, ConnectionEvent};
use crate::EndpointRole;
use crate::error::Error;
use crate::key::{HOST_KEY_ALGORITHMS, KeyError, PublicKey, host_key_proof};
use crate::msg::{GlobalRequest, RequestSuccess};

/// The maximum number of keys in an announcement; a longer one is ignored.
const MOST_KEYS: usize = 32;

/// State of learning the server's host keys: whether they were announced, and the keys of which
/// proofs were requested.
#[derive(Debug, Default)]
pub(super) struct HostKeyLearning {
    announced: bool,
    asked: Vec<PublicKey>,
}

impl Connection {
    /// Takes the server's first announcement of its host keys; false for any other request.
    ///
    /// An announcement that is malformed, that repeats a key or that has more than [`MOST_KEYS`] is
    /// ignored, as are further ones.
    pub(super) fn note_announcement(&mut self, payload: &[u8]) -> Result<bool, Error> {
        let request = GlobalRequest::decode(payload)?;
        if self.role != EndpointRole::Client || request.name != ANNOUNCE {
            return Ok(false);
        }
        let again = std::mem::replace(&mut self.learning.announced, true);
        if let (false, Some(blobs)) = (again, announced_blobs(request.data.0)) {
            self.events
                .push_back(ConnectionEvent::HostKeysAnnounced(blobs));
        }
        // A reply, which OpenSSH's servers do not want, would be a success there.
        let reply = RequestSuccess {
            data: wire::RemainingBytes(&[]),
        };
        if request.want_reply {
            self.channels.answer_global(reply.to_bytes())?;
        }
        Ok(true)
    }

    /// Requests a proof that the server owns these keys, once per connection: the answer is
    /// [`ConnectionEvent::HostKeysProven`]. Call it after [`ConnectionEvent::HostKeysAnnounced`].
    pub fn ask_for_proofs(&mut self, keys: Vec<PublicKey>) {
        let ready = self.role == EndpointRole::Client && self.authenticated;
        if !ready || keys.is_empty() || !self.learning.asked.is_empty() {
            return;
        }
        let mut blobs = Vec::new();
        for key in &keys {
            wire::Field::write(&key.blob(), &mut blobs);
        }
        self.learning.asked = keys;
        self.channels.ask_for_proofs(PROVE, &blobs);
    }

    /// Checks the server's answer; `None` stands for a refusal.
    pub(super) fn check_proofs(&self, answer: Option<&Bytes>) -> ConnectionEvent {
        let proven = match answer.map(|answer| self.proven(answer)) {
            None => Err(KeyError::Unproven),
            Some(proven) => proven,
        };
        ConnectionEvent::HostKeysProven(proven)
    }

    /// Returns the requested keys whose proof is valid. A proof by RSA with SHA-1, as old servers
    /// make, leaves its key out; any other wrong proof is an error.
    fn proven(&self, answer: &[u8]) -> Result<Vec<PublicKey>, KeyError> {
        let malformed = |_| KeyError::Unproven;
        let session_id = self.transport.session_id().ok_or(KeyError::Unproven)?;
        let negotiated = self.transport.negotiated().map(|n| n.host_key.as_str());
        let success = RequestSuccess::decode(answer).map_err(malformed)?;
        let mut proofs = FieldReader::new(success.data.0);
        let mut proven = Vec::new();
        for key in &self.learning.asked {
            let proof = proofs.string()?;
            let name = FieldReader::new(proof).string()?;
            let mut algorithms = key.algorithms();
            // OpenSSH's servers sign with the negotiated algorithm if that is one of an RSA key.
            if let Some(only) = negotiated.filter(|name| algorithms.contains(name)) {
                algorithms = vec![only];
            }
            let known = HOST_KEY_ALGORITHMS
                .iter()
                .find(|a| a.name.as_bytes() == name);
            match known.filter(|row| algorithms.contains(&row.name)) {
                Some(row) => {
                    key.verify(row.name, &host_key_proof(session_id, key.blob()), proof)?;
                    proven.push(key.clone());
                }
                None if name == b"ssh-rsa" && key.key_type() == "ssh-rsa" => {}
                None => return Err(KeyError::Unproven),
            }
        }
        proofs.finish()?;
        Ok(proven)
    }
}

/// Returns the keys of an announcement; `None` if it is unusable.
fn announced_blobs(data: &[u8]) -> Option<Vec<Bytes>> {
    let mut blobs: Vec<Bytes> = Vec::new();
    let mut r = FieldReader::new(data);
    while r.left() > 0 {
        let blob = r.string().ok()?;
        if blobs.len() >= MOST_KEYS || blobs.iter().any(|there| there == blob) {
            return None;
        }
        blobs.push(Bytes::copy_from_slice(blob));
    }
    (!blobs.is_empty()).then_some(blobs)
}
