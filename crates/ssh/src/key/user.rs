//! Certificates of users (OpenSSH PROTOCOL.certkeys), as a server takes them.

use wire::Reader;

use super::{Certificate, CertificateError, CertificateKind, PublicKey};

/// What a user certificate demands and allows of whoever shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserTerms {
    /// Addresses and networks it may be shown from; from everywhere without.
    pub source_address: Option<String>,
    /// The security key must have known who touched it.
    pub verify_required: bool,
    /// Nobody need have touched the security key.
    pub no_touch_required: bool,
}

impl Certificate {
    /// Whether the user certificate holds at `now` (seconds since 1970) for one of `names`, signed
    /// by a key that `is_trusted_ca`, and under which terms.
    ///
    /// A certificate without principals is refused, as OpenSSH does since 10.3, and names are compared
    /// as they are: users have no wildcards. Of critical options those of [`UserTerms`] are known.
    /// `force-command` is not: who forces a command must not have files served instead.
    pub fn validate_user(
        &self,
        names: &[&str],
        now: u64,
        is_trusted_ca: impl Fn(&PublicKey) -> bool,
    ) -> Result<UserTerms, CertificateError> {
        let names_one = |principal: &str| names.contains(&principal);
        let all = names.join(" or ");
        self.validate(CertificateKind::User, now, is_trusted_ca, names_one, &all)?;
        let mut terms = UserTerms::default();
        for (name, data) in &self.critical_options {
            let malformed = || CertificateError::MalformedOption { name: name.clone() };
            match (name.as_str(), data.is_empty()) {
                ("source-address", _) => {
                    terms.source_address = Some(text(data).ok_or_else(malformed)?);
                }
                ("verify-required", true) => terms.verify_required = true,
                ("verify-required", false) => return Err(malformed()),
                _ => return Err(CertificateError::CriticalOption { name: name.clone() }),
            }
        }
        terms.no_touch_required = self
            .extensions
            .iter()
            .any(|(name, _)| name == "no-touch-required");
        Ok(terms)
    }
}

/// The string that is the data of an option.
fn text(data: &[u8]) -> Option<String> {
    let mut r = Reader::new(data);
    let text = r.string().ok()?;
    r.finish().ok()?;
    String::from_utf8(text.to_vec()).ok()
}
