//! Encoding of the requests of each method.

use wire::{Field, RemainingBytes};
use zeroize::Zeroizing;

use super::{AuthConfig, AuthMessage, OfferedIdentity, PUBLICKEY};
use crate::msg::{UserauthInfoResponse, UserauthRequest};

pub(super) const CONNECTION: &[u8] = b"ssh-connection";
pub(super) const HOSTBOUND: &[u8] = b"publickey-hostbound-v00@openssh.com";

fn request(config: &AuthConfig, method: &[u8], data: &[u8]) -> Vec<u8> {
    UserauthRequest {
        user: config.user.as_bytes(),
        service: CONNECTION,
        method,
        data: RemainingBytes(data),
    }
    .to_bytes()
}

/// Encodes `none`, by which a client learns the accepted methods (RFC 4252 section 5.2).
pub(super) fn none(config: &AuthConfig) -> Vec<u8> {
    request(config, b"none", &[])
}

/// Encodes a publickey request (RFC 4252 section 7) or its host-bound form (OpenSSH PROTOCOL
/// section 3.1): a query, or with `signed` everything but the signature.
pub(super) fn public_key(
    config: &AuthConfig,
    key: &OfferedIdentity,
    algorithm: usize,
    signed: bool,
) -> Vec<u8> {
    let algorithm = key
        .algorithms
        .get(algorithm)
        .map(String::as_bytes)
        .unwrap_or_default();
    let mut data = Vec::new();
    signed.write(&mut data);
    algorithm.write(&mut data);
    key.blob.as_slice().write(&mut data);
    if config.hostbound {
        (&*config.host_key).write(&mut data);
    }
    let method = match config.hostbound {
        true => HOSTBOUND,
        false => PUBLICKEY,
    };
    request(config, method, &data)
}

/// Returns the data that the signature covers: the session identifier in front of the request.
pub(super) fn to_be_signed(config: &AuthConfig, request: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    (&*config.session_id).write(&mut data);
    data.extend_from_slice(request);
    data
}

pub(super) fn with_signature(mut request: Vec<u8>, signature: &[u8]) -> Vec<u8> {
    signature.write(&mut request);
    request
}

/// Encodes a password request (RFC 4252 section 8).
pub(super) fn password(config: &AuthConfig, password: &str) -> AuthMessage {
    // Full capacity from the start: a growing vector leaves copies of the password behind.
    let mut data = Zeroizing::new(Vec::with_capacity(password.len() + 16));
    false.write(&mut data);
    password.as_bytes().write(&mut data);
    let mut message = Zeroizing::new(Vec::with_capacity(data.len() + config.user.len() + 64));
    let m = UserauthRequest {
        user: config.user.as_bytes(),
        service: CONNECTION,
        method: b"password",
        data: RemainingBytes(&data),
    };
    m.encode(&mut message);
    AuthMessage::secret(message)
}

/// Encodes a keyboard-interactive request (RFC 4256 section 3.1).
pub(super) fn interactive(config: &AuthConfig) -> Vec<u8> {
    let mut data = Vec::new();
    b"".as_slice().write(&mut data);
    b"".as_slice().write(&mut data);
    request(config, b"keyboard-interactive", &data)
}

/// Encodes the answers to an INFO_REQUEST (RFC 4256 section 3.4).
pub(super) fn answers(answers: &[Zeroizing<String>]) -> AuthMessage {
    let len: usize = answers.iter().map(|a| a.len() + 4).sum();
    let mut data = Zeroizing::new(Vec::with_capacity(len));
    for answer in answers {
        answer.as_bytes().write(&mut data);
    }
    let mut message = Zeroizing::new(Vec::with_capacity(len + 16));
    let count = answers.len() as u32;
    UserauthInfoResponse {
        count,
        answers: RemainingBytes(&data),
    }
    .encode(&mut message);
    AuthMessage::secret(message)
}
