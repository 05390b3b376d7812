//! Configuration of a pair of relays: keys and the authentication of the peer relay.
//!
//! Each relay of a pair has a key and proves it in the TLS handshake of every stripe as a raw
//! public key (RFC 7250). There are no names and no certificate authority; each relay knows the
//! fingerprint of the other's key.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::Ed25519KeyPair;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, aws_lc_rs as provider, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{
    CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName,
    ServerConfig, SignatureScheme, version,
};

use crate::strategy::StripeCountStore;
use crate::tls::{TlsClientSettings, TlsServerSettings};
use crate::tls_error::{io_sentence, pem_sentence, sentence};

/// ALPN protocol name inside TLS, with the version of the pair protocol.
const ALPN: &[u8] = b"longhaul-pair/1";

/// Settings of one relay of a pair.
#[derive(Clone)]
pub struct PairRelaySettings {
    server: TlsServerSettings,
    client: TlsClientSettings,
    /// Fingerprint of this relay's own key.
    fingerprint: String,
    /// Number of stripes for each connection.
    pub stripes: StripeCount,
    /// Maximum buffer for each direction of a connection at each relay, in bytes.
    pub most: usize,
    /// Permits zstd compression of data that waits for a full path.
    pub zstd: bool,
    /// Store of what earlier connections learned about a path.
    pub paths: Option<Arc<dyn StripeCountStore>>,
    /// Logs at info level which settings a connection starts with and what it learns.
    pub explain: bool,
}

/// Number of stripes that carry one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeCount {
    /// Constant number of stripes.
    Fixed(usize),
    /// Starts with one stripe and adds more while the rate rises, up to this number.
    UpTo(usize),
}

/// Fingerprints of the keys that a peer relay may present.
#[derive(Debug, Default)]
pub struct KnownPeers {
    keys: Mutex<BTreeSet<String>>,
    /// File to which the first key is written while no key is known (trust on first use).
    learns: Option<PathBuf>,
}

/// Reason why the private key of a relay cannot be used or created, or the known keys not be read.
#[derive(Debug)]
pub enum PeerKeyError {
    /// The key is not in PEM.
    Pem(pem::Error),
    /// The TLS library rejects the key.
    Tls(rustls::Error),
    /// The public key cannot be computed from the private key.
    NoPublicKey,
    /// The system provides no random numbers for a new key.
    NotCreated,
    /// This word should be the fingerprint of a key and is none.
    NotFingerprint(String),
}

impl fmt::Display for PeerKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pem(e) => f.write_str(&pem_sentence(e, "private key")),
            Self::Tls(e) => write!(f, "cannot use the private key: {}", sentence(e)),
            Self::NoPublicKey => f.write_str(
                "the private key cannot be used, since no public key can be derived from it: name \
                 another file, and longhaul creates a key there",
            ),
            Self::NotCreated => f.write_str("cannot create a key"),
            Self::NotFingerprint(word) => write!(
                f,
                "'{}' is not a fingerprint (SHA256: and 43 characters)",
                wire::escape::name(word.as_bytes())
            ),
        }
    }
}

impl std::error::Error for PeerKeyError {}

/// Reason why the peer relay of a pair cannot be reached at an address.
#[derive(Debug)]
pub enum PeerMeetError {
    /// Nothing answered within this time.
    NoAnswer(Duration),
    /// Nothing listens at the port.
    Refused,
    /// The connection cannot be made for another reason.
    Connect(io::Error),
    /// The name of the peer relay in TLS is invalid.
    Name(InvalidDnsNameError),
    /// The TLS library cannot start the handshake.
    Tls(rustls::Error),
    /// The other end speaks no TLS, or has another key than the known ones.
    Handshake(io::Error),
}

impl fmt::Display for PeerMeetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(within) => write!(
                f,
                "no answer within {:.1} s; a firewall may drop the packets",
                within.as_secs_f64()
            ),
            Self::Refused => f.write_str(
                "connection refused; a firewall or address translation may block the port",
            ),
            Self::Connect(e) => e.fmt(f),
            Self::Name(e) => e.fmt(f),
            Self::Tls(e) => f.write_str(&sentence(e)),
            Self::Handshake(e) => write!(
                f,
                "no TLS connection to the peer relay: {}; another program may listen on this port",
                io_sentence(e)
            ),
        }
    }
}

impl std::error::Error for PeerMeetError {}

impl fmt::Debug for PairRelaySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairRelaySettings")
    }
}

impl PairRelaySettings {
    /// Creates the settings for a private key (PEM, PKCS#8).
    ///
    /// # Errors
    /// The key cannot be used.
    pub fn new(key: &[u8], known: KnownPeers) -> Result<Self, PeerKeyError> {
        let wrong = PeerKeyError::Tls;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(PeerKeyError::Pem)?;
        let key = provider::sign::any_supported_type(&key).map_err(wrong)?;
        let public = key.public_key().ok_or(PeerKeyError::NoPublicKey)?;
        let public = public.as_ref().to_vec();
        let fingerprint = fingerprint(&public);
        let own = Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], key));
        let algorithms = provider::default_provider().signature_verification_algorithms;
        let known = Arc::new(known);
        let verifier = |learns| {
            Arc::new(PeerKeyVerifier {
                known: Arc::clone(&known),
                learns,
                algorithms,
            })
        };
        let provider = Arc::new(provider::default_provider());
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(wrong)?
            .with_client_cert_verifier(verifier(false))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(
                Arc::clone(&own),
            )));
        server.alpn_protocols = vec![ALPN.to_vec()];
        // No session tickets: a resumed session would outlive the removal of its key from the
        // allowed ones.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(wrong)?
            .dangerous()
            .with_custom_certificate_verifier(verifier(true))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own)));
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        Ok(Self {
            server: TlsServerSettings::new(server, Arc::new([])),
            client: TlsClientSettings::new(client, None),
            fingerprint,
            stripes: StripeCount::UpTo(8),
            most: 64 << 20,
            zstd: true,
            paths: None,
            explain: false,
        })
    }

    /// Returns the fingerprint of this relay's own key, to be configured at the peer relay.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns the TLS settings for stripes that the peer relay opens.
    pub fn entrance(&self) -> TlsServerSettings {
        self.server.clone()
    }

    /// Returns the TLS settings for stripes that this relay opens.
    pub(crate) fn opener(&self) -> &TlsClientSettings {
        &self.client
    }

    /// Checks that the peer relay answers at an address with a known key, and waits at most
    /// `within`.
    ///
    /// # Errors
    /// The peer relay does not answer, or not as one.
    pub fn meet(&self, at: SocketAddr, within: Duration) -> Result<(), PeerMeetError> {
        let until = Instant::now() + within;
        let tcp = TcpStream::connect_timeout(&at, within);
        let mut tcp = tcp.map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut => PeerMeetError::NoAnswer(within),
            io::ErrorKind::ConnectionRefused => PeerMeetError::Refused,
            _ => PeerMeetError::Connect(e),
        })?;
        let name = ServerName::try_from("pair").map_err(PeerMeetError::Name)?;
        let mut tls =
            ClientConnection::new(self.client.config(), name).map_err(PeerMeetError::Tls)?;
        while tls.is_handshaking() {
            let left = until.saturating_duration_since(Instant::now());
            let left = left.max(Duration::from_millis(1));
            let done = tcp.set_read_timeout(Some(left));
            let done = done.and_then(|()| tls.complete_io(&mut tcp));
            done.map_err(PeerMeetError::Handshake)?;
        }
        Ok(())
    }
}

/// Generates an Ed25519 key pair (PEM, PKCS#8).
///
/// # Errors
/// Returns an error if the system provides no random numbers.
pub fn new_key() -> Result<zeroize::Zeroizing<String>, PeerKeyError> {
    let wrong = |_| PeerKeyError::NotCreated;
    let key = Ed25519KeyPair::generate().map_err(wrong)?;
    let document = key.to_pkcs8v1().map_err(wrong)?;
    let text = zeroize::Zeroizing::new(STANDARD.encode(document.as_ref()));
    let pem = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        *text
    );
    Ok(zeroize::Zeroizing::new(pem))
}

/// Returns the SHA-256 fingerprint of a public key in base64, in the format of ssh-keygen(1).
fn fingerprint(public: &[u8]) -> String {
    format!(
        "SHA256:{}",
        STANDARD_NO_PAD.encode(digest(&SHA256, public).as_ref())
    )
}

impl KnownPeers {
    /// Adds the fingerprints from the text of a file: the first word of each line; `#` starts a
    /// comment.
    ///
    /// # Errors
    /// Names the first word that is not a fingerprint.
    pub fn add(&mut self, text: &str) -> Result<(), PeerKeyError> {
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            if let Some(word) = line.split_whitespace().next() {
                if !is_fingerprint(word) {
                    return Err(PeerKeyError::NotFingerprint(word.to_owned()));
                }
                self.lock().insert(word.to_owned());
            }
        }
        Ok(())
    }

    /// Trusts the first key that the target presents while no key is known, and writes it to this
    /// file.
    pub fn learn(&mut self, file: PathBuf) {
        self.learns = Some(file);
    }

    /// Reports if no key is known.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports if the text has the form of a fingerprint: `SHA256:` and 32 bytes in base64.
pub fn is_fingerprint(text: &str) -> bool {
    let hash = text.strip_prefix("SHA256:");
    let hash = hash.and_then(|hash| STANDARD_NO_PAD.decode(hash).ok());
    hash.is_some_and(|hash| hash.len() == 32)
}

/// TLS verifier that accepts the peer relay by the fingerprint of its raw public key.
#[derive(Debug)]
struct PeerKeyVerifier {
    known: Arc<KnownPeers>,
    learns: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PeerKeyVerifier {
    fn learns(&self) -> Option<&PathBuf> {
        self.known.learns.as_ref().filter(|_| self.learns)
    }

    fn check(&self, key: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let fingerprint = fingerprint(key);
        let keys = self.known.lock();
        if keys.contains(&fingerprint) || keys.is_empty() && self.learns().is_some() {
            return Ok(());
        }
        tracing::warn!(
            "refused a peer relay with the key {fingerprint}: it is not in --pair-allow or \
             known_pairs; if that relay is yours, pass this fingerprint as --pair-allow"
        );
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    /// Records the key of the peer relay on first use, after its signature has been verified.
    fn keep(&self, key: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let fingerprint = fingerprint(key);
        let mut keys = self.known.lock();
        let Some(file) = self.learns().filter(|_| !keys.contains(&fingerprint)) else {
            return Ok(());
        };
        if !keys.is_empty() {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        let kept = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file)
            .and_then(|mut file| writeln!(file, "{fingerprint}"));
        match kept {
            Ok(()) => {
                tracing::warn!("added the key {fingerprint} to known_pairs (--pair-accept-new)")
            }
            Err(e) => tracing::warn!("{}: {e}", file.display()),
        }
        keys.insert(fingerprint);
        Ok(())
    }

    fn verify(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let public = SubjectPublicKeyInfoDer::from(key.as_ref());
        let valid =
            verify_tls13_signature_with_raw_key(message, &public, signature, &self.algorithms)?;
        self.keep(key)?;
        Ok(valid)
    }
}

const OLD: rustls::Error =
    rustls::Error::PeerIncompatible(rustls::PeerIncompatible::Tls12NotOfferedOrEnabled);

/// Signature methods of `ServerCertVerifier` and `ClientCertVerifier`, which are identical for raw
/// public keys.
macro_rules! signatures_by_raw_key {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(OLD)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            self.verify(message, key, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for PeerKeyVerifier {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(key).map(|()| ServerCertVerified::assertion())
    }

    signatures_by_raw_key!();
}

impl ClientCertVerifier for PeerKeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(key).map(|()| ClientCertVerified::assertion())
    }

    signatures_by_raw_key!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_in_files() {
        let key = new_key().unwrap();
        let one = PairRelaySettings::new(key.as_bytes(), KnownPeers::default()).unwrap();
        let again = PairRelaySettings::new(key.as_bytes(), KnownPeers::default()).unwrap();
        assert_eq!(one.fingerprint(), again.fingerprint());
        assert!(is_fingerprint(one.fingerprint()));
        let mut known = KnownPeers::default();
        let text = format!("# ours\n\n{}  far:7000 # there\n", one.fingerprint());
        known.add(&text).unwrap();
        assert!(!known.is_empty());
        for text in ["SHA256:short", "nonsense", "MD5:1"] {
            assert!(known.add(text).is_err(), "{text}");
        }
    }
}
