//! TLS errors as sentences: rustls itself shows many of them as type names.

use std::fmt::Debug;
use std::io;

use rustls::pki_types::pem;
use rustls::{
    AlertDescription as Alert, CertificateError, Error, InconsistentKeys, PeerIncompatible,
};

/// Describes a TLS error in words that a person would search for. "it" is the other end of the
/// connection, which the caller names before the sentence.
pub(crate) fn sentence(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(why) => certificate(why),
        Error::AlertReceived(alert) => received(*alert),
        Error::PeerIncompatible(why) => incompatible(why),
        Error::PeerMisbehaved(why) => {
            format!("it violated the TLS protocol: {}", spelled(why))
        }
        Error::InvalidMessage(why) => format!(
            "the received data is not TLS, or was damaged ({}): check that the other end uses TLS \
             on this port",
            spelled(why)
        ),
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            "it sent a TLS message out of order".to_owned()
        }
        Error::NoCertificatesPresented => {
            "it sent no certificate, which this relay requires (of clients, because of \
             --client-ca): give it one"
                .to_owned()
        }
        Error::DecryptError => {
            "a TLS record cannot be decrypted: it was modified in transit".to_owned()
        }
        Error::NoApplicationProtocol => {
            "no application protocol in common: use the same --alpn at both ends".to_owned()
        }
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            "the private key (--key) does not belong to the certificate (--cert): name the key \
             from which the certificate was made"
                .to_owned()
        }
        Error::InconsistentKeys(_) => {
            "cannot check if the private key matches the certificate".to_owned()
        }
        Error::InvalidCertRevocationList(why) => {
            format!(
                "cannot use the certificate revocation list: {}",
                spelled(why)
            )
        }
        Error::InvalidEncryptedClientHello(why) => {
            format!("encrypted client hello failed: {}", spelled(why))
        }
        Error::Other(why) => spelled_text(&why.to_string()),
        // The remaining errors are sentences in rustls.
        other => wire::escape::name(other.to_string().as_bytes()).to_string(),
    }
}

/// Describes an I/O error, which may contain a TLS error about the other end ("it").
pub(crate) fn io_sentence(error: &io::Error) -> String {
    tls_error(error).map_or_else(|| sys::os_words(error), sentence)
}

/// Describes an error of the connection to `side`.
pub(crate) fn connection_sentence(side: &str, error: &io::Error) -> String {
    let words = io_sentence(error);
    match tls_error(error) {
        Some(Error::InvalidMessage(_)) => {
            format!("connection closed: invalid data from {side}: {words}")
        }
        Some(_) => format!("connection closed: TLS with {side} failed: {words}"),
        None if error.kind() == io::ErrorKind::InvalidData => {
            format!("connection closed: invalid data from {side}: {words}")
        }
        None => format!("reset: {side} broke the connection: {words}"),
    }
}

/// Returns the TLS error in an I/O error.
pub(crate) fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Describes an error in a PEM file; `what` names the item that was expected.
pub(crate) fn pem_sentence(error: &pem::Error, what: &str) -> String {
    match error {
        pem::Error::NoItemsFound => format!("the file contains no {what} (PEM)"),
        pem::Error::Io(e) => e.to_string(),
        pem::Error::MissingSectionEnd { .. } => {
            "the file is truncated: an END line is missing (PEM)".to_owned()
        }
        pem::Error::IllegalSectionStart { .. } => {
            "a BEGIN line of the file is damaged (PEM)".to_owned()
        }
        other => other.to_string(),
    }
}

const CERTIFICATE: &str = "its certificate";

fn certificate(why: &CertificateError) -> String {
    let of = CERTIFICATE;
    match why {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            wrong_name(why)
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => wrong_time(why),
        CertificateError::UnknownIssuer => format!(
            "{of} is signed by an untrusted authority: pass that authority's certificate as --ca \
             (as --client-ca if it is a client)"
        ),
        CertificateError::Revoked => {
            format!("{of} was revoked by its authority: give it a new one")
        }
        CertificateError::BadEncoding => {
            format!("{of} is damaged or in an unknown format: give it another one")
        }
        CertificateError::BadSignature => format!(
            "{of} has an invalid signature: it was altered, or the file of --ca is an older one \
             of the same authority"
        ),
        CertificateError::UnhandledCriticalExtension => {
            format!("{of} has an unsupported critical extension: give it one without that")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!(
                "{of} is not allowed for this use: its extended key usage must include serverAuth \
                 for a server, clientAuth for a client"
            )
        }
        CertificateError::ApplicationVerificationFailure => {
            "the peer relay's key is not in --pair-allow or known_pairs: if that relay is yours, \
             pass the fingerprint that it logs at its start as --pair-allow"
                .to_owned()
        }
        CertificateError::Other(why) => match why.to_string().as_str() {
            "CaUsedAsEndEntity" => format!(
                "{of} is an authority's own certificate (CA:TRUE): trust it by passing a copy as \
                 --ca (as --client-ca if it is a client), or give it another one"
            ),
            why => format!(
                "{of} cannot be used ({}): give it another one",
                spelled_text(why)
            ),
        },
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            format!(
                "{of} is signed with an algorithm that is not accepted, such as SHA-1 or a small \
                 key: give it one that is signed with SHA-256"
            )
        }
        other => format!(
            "{of} cannot be used ({}): give it another one",
            spelled(other)
        ),
    }
}

/// Describes a certificate whose names do not include the requested one.
fn wrong_name(why: &CertificateError) -> String {
    let of = CERTIFICATE;
    match why {
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let expected = wire::escape::name(expected.to_str().as_bytes()).to_string();
            // rustls shows names as DnsName("h") and IpAddress(192.0.2.1).
            let names: Vec<String> = presented.iter().map(|name| bare_name(name)).collect();
            match names.is_empty() {
                true => format!(
                    "{of} has no name in subjectAltName, expected {expected}; a common name \
                     alone does not count (create it with openssl req -addext \
                     subjectAltName=DNS:{expected})"
                ),
                false => format!(
                    "{of} is for {}, not for {expected}: pass one of its names as --server-name, \
                     or give it a certificate for {expected}",
                    names.join(", ")
                ),
            }
        }
        _ => format!(
            "{of} is for another host name: pass a name that it has as --server-name, or give it \
             another certificate"
        ),
    }
}

/// Describes a certificate that is used before or after its validity.
fn wrong_time(why: &CertificateError) -> String {
    let of = CERTIFICATE;
    match why {
        CertificateError::Expired => {
            format!("{of} has expired: renew it there, or check the clock of this machine")
        }
        CertificateError::ExpiredContext { time, not_after } => {
            let ago = time.as_secs().saturating_sub(not_after.as_secs());
            format!(
                "{of} expired {}: renew it there, or check the clock of this machine",
                days(ago, "ago")
            )
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            let until = not_before.as_secs().saturating_sub(time.as_secs());
            format!(
                "{of} is not valid yet: {}; check the clock of this machine",
                days(until, "from now")
            )
        }
        _ => {
            format!("{of} is not valid yet: check the clock of this machine")
        }
    }
}

fn received(alert: Alert) -> String {
    let why = match alert {
        Alert::UnknownCA => {
            "it does not trust the authority that signed this relay's certificate (--cert): add \
             that authority there, or use another certificate"
        }
        Alert::BadCertificate => {
            "it rejected this relay's certificate (--cert): its log has the reason, often that the \
             certificate lacks the expected name (openssl x509 -text -in FILE shows the names)"
        }
        Alert::CertificateExpired => "this relay's certificate (--cert) has expired: renew it",
        Alert::CertificateRevoked => {
            "this relay's certificate (--cert) was revoked: use another one"
        }
        Alert::CertificateUnknown | Alert::UnsupportedCertificate => {
            "it does not accept this relay's certificate (--cert): its log may have the reason"
        }
        Alert::CertificateRequired | Alert::NoCertificate => {
            "it requires a certificate from this relay: pass one with --cert and --key"
        }
        Alert::AccessDenied => {
            "it does not permit this relay's certificate or key: permit it there"
        }
        Alert::HandshakeFailure => {
            "it supports none of the TLS algorithms of this relay, or requires a certificate of this \
             relay (--cert and --key): its log may have the reason"
        }
        Alert::ProtocolVersion => {
            "no TLS version in common: both ends must support TLS 1.2 or 1.3, and --tls-min must \
             permit it"
        }
        Alert::UnrecognisedName => {
            "it does not serve the requested host name: pass one that it serves as --server-name"
        }
        Alert::NoApplicationProtocol => {
            "no application protocol in common: use the same --alpn at both ends"
        }
        Alert::DecryptError => {
            "it could not verify this relay's signature: check that --key belongs to --cert"
        }
        Alert::InternalError => "it reports an internal error: see its log",
        other => {
            return format!(
                "it sent the TLS alert {}: its log may have the reason",
                spelled(&other)
            );
        }
    };
    why.to_owned()
}

fn incompatible(why: &PeerIncompatible) -> String {
    let why = match why {
        PeerIncompatible::NoCipherSuitesInCommon => {
            "it supports no cipher suite of this relay (AES-GCM or ChaCha20-Poly1305): upgrade \
             its TLS library or permit one"
        }
        PeerIncompatible::NoKxGroupsInCommon => {
            "it supports no key exchange of this relay (X25519, P-256 or P-384): upgrade its TLS \
             library or permit one"
        }
        PeerIncompatible::NoSignatureSchemesInCommon
        | PeerIncompatible::NoCertificateRequestSignatureSchemesInCommon => {
            "no signature algorithm in common: use another type of certificate, such as ECDSA P-256"
        }
        PeerIncompatible::ServerDoesNotSupportTls12Or13
        | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
        | PeerIncompatible::SupportedVersionsExtensionRequired
        | PeerIncompatible::Tls12NotOffered
        | PeerIncompatible::Tls12NotOfferedOrEnabled => {
            "no TLS version in common: both ends must support TLS 1.2 or 1.3, and --tls-min must \
             permit it"
        }
        other => return format!("its TLS is incompatible: {}", spelled(other)),
    };
    format!("its TLS is incompatible: {why}")
}

fn bare_name(name: &str) -> String {
    let inner = name
        .split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'));
    let bare = inner.unwrap_or(name).trim_matches('"');
    wire::escape::name(bare.as_bytes()).to_string()
}

fn days(seconds: u64, end: &str) -> String {
    match seconds / 86400 {
        0 => format!("less than a day {end}"),
        1 => format!("a day {end}"),
        days => format!("{days} days {end}"),
    }
}

/// Converts the name of a variant to words: `MissingKeyExchange` becomes `missing key exchange`.
fn spelled(variant: &impl Debug) -> String {
    spelled_text(&format!("{variant:?}"))
}

fn spelled_text(text: &str) -> String {
    // Fields of the variant are dropped; a text of several words is a sentence already.
    let name = text.split(['(', '{']).next().unwrap_or_default().trim_end();
    if name.contains(' ') {
        return wire::escape::name(text.as_bytes()).to_string();
    }
    let mut words = String::new();
    let mut before = ' ';
    for c in name.chars() {
        if c.is_ascii_uppercase() && before.is_ascii_lowercase() {
            words.push(' ');
        }
        words.push(c.to_ascii_lowercase());
        before = c;
    }
    words
}

#[cfg(test)]
mod tests {
    use rustls::{InvalidMessage, PeerMisbehaved};

    use super::*;

    /// No error is shown by its type name. A user once read `Other(OtherError(CaUsedAsEndEntity))`.
    #[test]
    fn no_error_of_tls_is_the_name_of_a_type() {
        let errors: Vec<Error> = vec![
            CertificateError::Expired.into(),
            CertificateError::UnknownIssuer.into(),
            CertificateError::BadSignature.into(),
            CertificateError::InvalidPurpose.into(),
            CertificateError::InvalidOcspResponse.into(),
            CertificateError::ApplicationVerificationFailure.into(),
            CertificateError::NotValidForNameContext {
                expected: "a.example".try_into().unwrap(),
                presented: vec!["DnsName(\"b.example\")".to_owned()],
            }
            .into(),
            CertificateError::Other(rustls::OtherError(std::sync::Arc::new(io::Error::other(
                "CaUsedAsEndEntity",
            ))))
            .into(),
            CertificateError::Other(rustls::OtherError(std::sync::Arc::new(io::Error::other(
                "PathLenConstraintViolated",
            ))))
            .into(),
            Error::AlertReceived(Alert::UnknownCA),
            Error::AlertReceived(Alert::BadRecordMac),
            Error::AlertReceived(Alert::Unknown(77)),
            PeerIncompatible::NoCipherSuitesInCommon.into(),
            PeerIncompatible::NullCompressionRequired.into(),
            PeerMisbehaved::IllegalHelloRetryRequestWithEmptyCookie.into(),
            InvalidMessage::InvalidContentType.into(),
            InvalidMessage::MissingData("ServerName").into(),
            InvalidMessage::DuplicateExtension(7).into(),
            Error::InappropriateMessage {
                expect_types: vec![],
                got_type: rustls::ContentType::Alert,
            },
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch),
            Error::NoCertificatesPresented,
            Error::DecryptError,
            Error::General("a reason".to_owned()),
        ];
        for error in errors {
            let text = sentence(&error);
            let is_type = |word: &str| {
                let humps = word.as_bytes().windows(2);
                humps
                    .filter(|w| w[0].is_ascii_lowercase() && w[1].is_ascii_uppercase())
                    .count()
                    > 0
            };
            let known = ["subjectAltName", "serverAuth", "clientAuth", "ChaCha20"];
            let words = text.split(|c: char| !c.is_ascii_alphanumeric());
            let bad = words
                .filter(|word| is_type(word) && !known.contains(word))
                .count();
            assert!(bad == 0 && !text.contains("Error("), "{error:?}: {text}");
            assert!(text.len() > 10, "{text}");
        }
    }

    #[test]
    fn names_that_a_certificate_has_are_shown_bare() {
        let error = CertificateError::NotValidForNameContext {
            expected: "a.example".try_into().unwrap(),
            presented: vec![
                "DnsName(\"b.example\")".to_owned(),
                "IpAddress(::1)".to_owned(),
            ],
        };
        assert!(certificate(&error).contains("is for b.example, ::1, not for a.example: "));
    }
}
