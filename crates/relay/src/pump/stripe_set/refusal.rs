//! Why the first stripe to a peer relay could not be used.

use std::fmt;
use std::io;

use rustls::Error as TlsError;

use super::StripeOpener;
use crate::tls_error::{io_sentence, tls_error};

/// Error of a stripe on which the peer relay has sent nothing, as a sentence for the user.
#[derive(Clone, Debug)]
pub(crate) struct UnusablePeerRelay(String);

impl UnusablePeerRelay {
    pub(super) fn error(why: &io::Error, asks: Option<&StripeOpener>) -> io::Error {
        let (target, own_key) = match asks {
            Some(asks) => (asks.target.as_str(), asks.facing.fingerprint()),
            None => ("the target", ""),
        };
        io::Error::new(why.kind(), Self(sentence(why, target, own_key)))
    }

    /// Returns the one in an I/O error.
    pub(crate) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl fmt::Display for UnusablePeerRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnusablePeerRelay {}

/// Only a refusal is answered by advice about this relay's key, `own_key`: a server that does not
/// speak TLS has not seen it.
fn sentence(why: &io::Error, target: &str, own_key: &str) -> String {
    let words = io_sentence(why);
    match tls_error(why) {
        Some(TlsError::InvalidMessage(_)) => format!(
            "{target} is not a longhaul relay with /pair: it does not speak TLS: check the \
             address and port"
        ),
        Some(TlsError::AlertReceived(_)) | None => format!(
            "the peer relay does not accept this relay's connection: {words}: check that its \
             --pair-allow has this relay's key, {own_key}"
        ),
        Some(_) => format!("TLS with the peer relay failed: {words}"),
    }
}

#[cfg(test)]
mod tests {
    use rustls::{AlertDescription, CertificateError, InvalidMessage};

    use super::*;

    fn of_tls(error: TlsError) -> String {
        let error = io::Error::new(io::ErrorKind::InvalidData, error);
        sentence(&error, "h:22", "SHA256:own")
    }

    /// Bug: where another server listened, the user was told to check `--pair-allow` of a relay
    /// that does not exist.
    #[test]
    fn a_server_without_tls_was_said_to_reject_the_key() {
        let text = of_tls(InvalidMessage::InvalidContentType.into());
        assert!(text.starts_with("h:22 is not a longhaul relay"), "{text}");
        assert!(!text.contains("--pair-allow"), "{text}");
    }

    /// Bug: where this relay rejected the key of the peer relay, the user was told the opposite.
    #[test]
    fn only_a_refusal_names_the_own_key() {
        let text = of_tls(TlsError::AlertReceived(AlertDescription::AccessDenied));
        assert!(text.contains("SHA256:own"), "{text}");
        let text = of_tls(CertificateError::ApplicationVerificationFailure.into());
        assert!(!text.contains("SHA256:own"), "{text}");
    }
}
