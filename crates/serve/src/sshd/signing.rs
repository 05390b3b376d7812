//! Signs with the host keys in the monitor, and only the data that the protocol needs.

use std::io;
use std::sync::Arc;

use ssh::key::{HostKeySigner, PrivateKey};

use super::ServerSettings;
use super::message::{HostKeyProofRequest, HostKeySignRequest, LONGEST_HASH};

/// Signs an exchange hash with one of the host keys.
pub(super) fn sign_with(
    settings: &ServerSettings,
    sign: &HostKeySignRequest<'_>,
) -> io::Result<(Arc<PrivateKey>, Vec<u8>)> {
    if !(32..=LONGEST_HASH).contains(&sign.hash.len()) {
        return Err(not_needed());
    }
    let (key, algorithm) = host_key(settings, sign.host_key, sign.algorithm)?;
    let signed = HostKeySigner::sign(&**key, algorithm, sign.hash);
    Ok((Arc::clone(key), signed.map_err(io::Error::other)?))
}

/// Signs a proof that this server has one of the host keys, for the session with this identifier.
pub(super) fn prove_with(
    settings: &ServerSettings,
    session_id: Option<&[u8]>,
    prove: &HostKeyProofRequest<'_>,
) -> io::Result<Vec<u8>> {
    let session_id = session_id.ok_or_else(not_needed)?;
    let (key, algorithm) = host_key(settings, prove.host_key, prove.algorithm)?;
    HostKeySigner::prove(&**key, algorithm, session_id).map_err(io::Error::other)
}

/// Finds the host key with this blob, and converts the algorithm name to text.
fn host_key<'s, 'a>(
    settings: &'s ServerSettings,
    blob: &[u8],
    algorithm: &'a [u8],
) -> io::Result<(&'s Arc<PrivateKey>, &'a str)> {
    let mut keys = settings.host_keys.iter();
    let key = keys.find(|key| key.public_blob() == blob);
    let algorithm = std::str::from_utf8(algorithm).ok();
    key.zip(algorithm).ok_or_else(not_needed)
}

fn not_needed() -> io::Error {
    io::Error::other("internal error: an unneeded signature was requested")
}
