//! User certificates (OpenSSH PROTOCOL.certkeys), as a server validates them.

use wire::FieldReader;

use super::{Certificate, CertificateError, CertificateKind, PublicKey};

/// Conditions of a user certificate for its holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserCertificateTerms {
    /// Addresses and networks that the certificate may be used from; `None` for all.
    pub source_address: Option<String>,
    /// True if a security key must have verified the user.
    pub verify_required: bool,
    /// True if the security key need not have been touched.
    pub no_touch_required: bool,
}

impl Certificate {
    /// Checks that the user certificate is valid at `now` (seconds since 1970) for one of `names`,
    /// and signed by a CA for which `is_trusted_ca` returns true; returns its conditions.
    ///
    /// A certificate without principals is refused, as in OpenSSH since 10.3. Names are compared
    /// exactly: user principals have no wildcards. The supported critical options are those of
    /// [`UserCertificateTerms`]. `force-command` is refused, since a CA that forces a command must
    /// not have files served instead.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn validate_user(
        &self,
        names: &[&str],
        now: u64,
        is_trusted_ca: impl Fn(&PublicKey) -> bool,
    ) -> Result<UserCertificateTerms, CertificateError> {
        let names_one = |principal: &str| names.contains(&principal);
        let all = names.join(" or ");
        self.validate(CertificateKind::User, now, is_trusted_ca, names_one, &all)?;
        let mut terms = UserCertificateTerms::default();
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

/// Decodes the string in the data of an option.
fn text(data: &[u8]) -> Option<String> {
    let mut r = FieldReader::new(data);
    let text = r.string().ok()?;
    r.finish().ok()?;
    String::from_utf8(text.to_vec()).ok()
}
