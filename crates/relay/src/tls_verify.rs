//! Certificate verifiers that also accept a certificate listed in the CA file itself.
//!
//! `openssl req -x509` makes a self-signed certificate with CA:TRUE. Given as `--ca`, this very
//! certificate is to be trusted, as openssl, curl, socat and stunnel do. webpki refuses a CA
//! certificate as an end entity (RFC 5280 section 4.2.1.9), and a certificate with an unknown
//! issuer, whatever the trust anchors are. Both are accepted here if the certificate equals one of
//! the file byte by byte; its validity dates and its name are checked as always.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// Verifier by certificate authorities, with a list of certificates that are trusted themselves.
pub(crate) struct PinnedCertVerifier<V: ?Sized> {
    by_authority: Arc<V>,
    pinned: Vec<CertificateDer<'static>>,
}

impl<V: ?Sized> fmt::Debug for PinnedCertVerifier<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithPinned")
    }
}

impl<V: ?Sized> PinnedCertVerifier<V> {
    pub(crate) fn new(by_authority: Arc<V>, pinned: Vec<CertificateDer<'static>>) -> Self {
        Self {
            by_authority,
            pinned,
        }
    }

    /// Reports if a refusal concerns the issuer of a certificate that is trusted itself.
    ///
    /// webpki checks the validity dates first, so that an expired or not yet valid certificate
    /// never gets one of these refusals.
    fn overrules(&self, refusal: &Error, certificate: &CertificateDer<'_>) -> bool {
        let is_of_trust = matches!(
            refusal,
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::Other(_))
        );
        is_of_trust && self.pinned.iter().any(|pinned| pinned == certificate)
    }
}

/// Signature methods of both verifier traits, delegated to the verifier by authorities.
macro_rules! signatures_by_authority {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.by_authority
                .verify_tls12_signature(message, certificate, signature)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.by_authority
                .verify_tls13_signature(message, certificate, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.by_authority.supported_verify_schemes()
        }
    };
}

impl<V: ServerCertVerifier + ?Sized> ServerCertVerifier for PinnedCertVerifier<V> {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self
            .by_authority
            .verify_server_cert(certificate, chain, name, stapled, now);
        match verified {
            Err(refusal) if self.overrules(&refusal, certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    signatures_by_authority!();
}

impl<V: ClientCertVerifier + ?Sized> ClientCertVerifier for PinnedCertVerifier<V> {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.by_authority.root_hint_subjects()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.by_authority.client_auth_mandatory()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .by_authority
            .verify_client_cert(certificate, chain, now);
        match verified {
            Err(refusal) if self.overrules(&refusal, certificate) => {
                ParsedCertificate::try_from(certificate)?;
                Ok(ClientCertVerified::assertion())
            }
            verified => verified,
        }
    }

    signatures_by_authority!();
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::server::WebPkiClientVerifier;

    use super::*;

    /// Certificate with CA:TRUE, made by `openssl req -x509 -addext
    /// subjectAltName=DNS:relay.example -days 36500`.
    const OWN: &str = "-----BEGIN CERTIFICATE-----
MIIBoTCCAUegAwIBAgIUBN+87ylygjOCJxlW3umJyVoc63EwCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNcmVsYXkuZXhhbXBsZTAgFw0yNjExMjcwNTA2MDRaGA8yMTI2
MTEwMzA1MDYwNFowGDEWMBQGA1UEAwwNcmVsYXkuZXhhbXBsZTBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABL7kULUClvjq5g4ShqwAuQmFBEQgBK2IAdgsSUuG9pQd
3M08fABp4gdPcN5meYVkpQSrhfa0kfM1uXveH3NwUpmjbTBrMB0GA1UdDgQWBBS+
oDI8VGARWvCaDcJbHG7jtOJPWTAfBgNVHSMEGDAWgBS+oDI8VGARWvCaDcJbHG7j
tOJPWTAPBgNVHRMBAf8EBTADAQH/MBgGA1UdEQQRMA+CDXJlbGF5LmV4YW1wbGUw
CgYIKoZIzj0EAwIDSAAwRQIhAL6jkJ+ykJIKSYyzllT7EAK0/KKUo2pXWpEZJwv0
rM3OAiAv27z2kyB08rUMWxZ4jaLLztcfU5I9ukvWRkFuuL2aWA==
-----END CERTIFICATE-----
";
    /// Second certificate with the same names.
    const OTHER: &str = "-----BEGIN CERTIFICATE-----
MIIBoTCCAUegAwIBAgIUA0m/Jd6DDmKeujGImAsjPG3nPvQwCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNcmVsYXkuZXhhbXBsZTAgFw0yNjExMjcwNTA2MDRaGA8yMTI2
MTEwMzA1MDYwNFowGDEWMBQGA1UEAwwNcmVsYXkuZXhhbXBsZTBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABCpsdUgin4wvyyWEmuj434xW+CO1KGz4a7vVt6frm0s2
gaSXcz4fjnjQTPcAHXfMZMMHR8PoeB3ePslqvar9K3GjbTBrMB0GA1UdDgQWBBTS
VRbzeoYgQawT5r/U9MadueqmiDAfBgNVHSMEGDAWgBTSVRbzeoYgQawT5r/U9Mad
ueqmiDAPBgNVHRMBAf8EBTADAQH/MBgGA1UdEQQRMA+CDXJlbGF5LmV4YW1wbGUw
CgYIKoZIzj0EAwIDSAAwRQIgLL+oeHK7EvnQ6PwM1uwNBydFdaoxLm5chDe1ObhP
0c4CIQCBl8MYPSh04DUCRjd5ALsxVNyt7lrCz45S/WHnSYIC8A==
-----END CERTIFICATE-----
";
    /// Certificate for leaf.example, signed by `OTHER`.
    const LEAF: &str = "-----BEGIN CERTIFICATE-----
MIIBhTCCASygAwIBAgIUJdDkwX+h7xhz6uxos43ar4N+5n8wCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNcmVsYXkuZXhhbXBsZTAgFw0yNjExMjcwNTA2MDRaGA8yMTI2
MTEwMzA1MDYwNFowDzENMAsGA1UEAwwEbGVhZjBZMBMGByqGSM49AgEGCCqGSM49
AwEHA0IABL0Zs3ZjVo3ixRfEkM7ry6pmy2Owy/4tJuLijR2l8qXPNvAYQUMSqP3D
2gy8/6v+xB64RDsY4MFMu9EHmvPs6dGjWzBZMBcGA1UdEQQQMA6CDGxlYWYuZXhh
bXBsZTAdBgNVHQ4EFgQULkEiqIAqEX9rY2rkXQmYYXk8vLEwHwYDVR0jBBgwFoAU
0lUW83qGIEGsE+a/1PTGnbnqpogwCgYIKoZIzj0EAwIDRwAwRAIgYswulcBkwsXv
z1KqUVh2HyPawfl/QNF8iLL0w4khO2cCIAYdkcEhnFzNVu6DI9dYG2c5Mdl09KPM
jvYHQ18XXXiw
-----END CERTIFICATE-----
";

    fn of(pem: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
    }

    fn roots(pem: &str) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(of(pem)).unwrap();
        Arc::new(roots)
    }

    /// Time in 2030, or `years` later.
    fn later(years: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs((60 + years) * 31_557_600))
    }

    fn server(given: &str, shown: &str, name: &'static str, now: UnixTime) -> Result<(), Error> {
        let provider = Arc::new(default_provider());
        let inner = WebPkiServerVerifier::builder_with_provider(roots(given), provider);
        let verifier = PinnedCertVerifier::new(inner.build().unwrap(), vec![of(given)]);
        let name = ServerName::try_from(name).unwrap();
        let done = verifier.verify_server_cert(&of(shown), &[], &name, &[], now);
        done.map(drop)
    }

    fn client(given: &str, shown: &str, now: UnixTime) -> Result<(), Error> {
        let provider = Arc::new(default_provider());
        let inner = WebPkiClientVerifier::builder_with_provider(roots(given), provider);
        let verifier = PinnedCertVerifier::new(inner.build().unwrap(), vec![of(given)]);
        verifier.verify_client_cert(&of(shown), &[], now).map(drop)
    }

    /// A self-signed certificate in the CA file is accepted. It was refused as
    /// `Other(OtherError(CaUsedAsEndEntity))`, whereas openssl, curl, socat and stunnel accept it.
    #[test]
    fn a_certificate_that_was_given_itself_is_taken() {
        let (own, now) = ("relay.example", later(0));
        assert_eq!(server(OWN, OWN, own, now), Ok(()));
        assert_eq!(client(OWN, OWN, now), Ok(()));
        // By its authority as usual, and by itself if the authority is not known.
        assert_eq!(server(OTHER, LEAF, "leaf.example", now), Ok(()));
        assert_eq!(server(LEAF, LEAF, "leaf.example", now), Ok(()));
        assert_eq!(client(LEAF, LEAF, now), Ok(()));
    }

    #[test]
    fn its_name_and_its_dates_count_and_no_other_is_taken() {
        let now = later(0);
        let wrong = |done: Result<(), Error>| match done {
            Err(Error::InvalidCertificate(why)) => why,
            done => panic!("{done:?}"),
        };
        assert!(matches!(
            wrong(server(OWN, OWN, "other.example", now)),
            CertificateError::NotValidForNameContext { .. }
        ));
        assert!(matches!(
            wrong(server(LEAF, LEAF, "relay.example", now)),
            CertificateError::NotValidForNameContext { .. }
        ));
        for given in [OWN, LEAF] {
            let name = if given == OWN {
                "relay.example"
            } else {
                "leaf.example"
            };
            for done in [
                server(given, given, name, later(200)),
                client(given, given, later(200)),
            ] {
                assert!(matches!(
                    wrong(done),
                    CertificateError::ExpiredContext { .. }
                ));
            }
            let long_ago = UnixTime::since_unix_epoch(Duration::from_secs(1));
            for done in [
                server(given, given, name, long_ago),
                client(given, given, long_ago),
            ] {
                assert!(matches!(
                    wrong(done),
                    CertificateError::NotValidYetContext { .. }
                ));
            }
        }
        wrong(server(OWN, OTHER, "relay.example", now));
        wrong(server(OWN, LEAF, "leaf.example", now));
        wrong(client(OWN, OTHER, now));
    }
}
