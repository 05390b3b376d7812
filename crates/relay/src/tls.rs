//! TLS settings of legs, and the rustls configuration made from them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::{VerifierBuilderError, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};

use crate::tls_error::{pem_sentence, sentence};
use crate::tls_verify::PinnedCertVerifier;

/// Reason why TLS cannot be set up. The message names the flag or the file.
#[derive(Debug)]
pub enum TlsSettingsError {
    /// A listener with TLS has no certificate.
    NoCertificate,
    /// Only one of the certificate and its key is named.
    NotTogether,
    /// The private key in this file cannot be read.
    Key(PathBuf, pem::Error),
    /// The certificates in this file cannot be read.
    Certificates(PathBuf, pem::Error),
    /// This file contains no certificate.
    Empty(PathBuf),
    /// An authority's certificate in this file cannot be used.
    Authority(PathBuf, rustls::Error),
    /// Clients cannot be verified by the authorities of this file.
    ClientVerifier(PathBuf, VerifierBuilderError),
    /// Servers cannot be verified.
    ServerVerifier(VerifierBuilderError),
    /// The system has no trusted authorities.
    NoSystemRoots,
    /// The certificate or its key cannot be used by a server.
    ServerIdentity(rustls::Error),
    /// The certificate or its key cannot be used by a client.
    ClientIdentity(rustls::Error),
    /// The name of a server is neither a DNS name nor an address.
    InvalidName(String),
    /// The TLS library cannot be set up.
    Library(rustls::Error),
}

impl fmt::Display for TlsSettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCertificate => f.write_str("a LISTEN with tls needs --cert and --key"),
            Self::NotTogether => f.write_str("--cert and --key must be given together"),
            Self::Key(path, e) => write!(
                f,
                "--key: {}: {}",
                path.display(),
                pem_sentence(e, "private key")
            ),
            Self::Certificates(path, e) => {
                write!(f, "{}: {}", path.display(), pem_sentence(e, "certificate"))
            }
            Self::Empty(path) => write!(f, "{} contains no certificate", path.display()),
            Self::Authority(path, e) => write!(f, "{}: {}", path.display(), sentence(e)),
            Self::ClientVerifier(path, e) => write!(f, "--client-ca: {}: {e}", path.display()),
            Self::ServerVerifier(e) => write!(
                f,
                "cannot verify TLS servers: no trusted CA certificates: {e}; install them or give \
                 --ca"
            ),
            Self::NoSystemRoots => f.write_str(
                "cannot verify TLS servers: the system has no trusted CA certificates; install \
                 them or give --ca",
            ),
            Self::ServerIdentity(e) => {
                write!(
                    f,
                    "cannot use --cert and --key for a server: {}",
                    sentence(e)
                )
            }
            Self::ClientIdentity(e) => {
                write!(
                    f,
                    "cannot use --cert and --key for a client: {}",
                    sentence(e)
                )
            }
            Self::InvalidName(text) => write!(
                f,
                "'{}' is not a valid server name: write a DNS name or an IP address",
                wire::escape::name(text.as_bytes())
            ),
            Self::Library(e) => write!(f, "TLS: {}", sentence(e)),
        }
    }
}

impl std::error::Error for TlsSettingsError {}

/// Files and names of the TLS settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain of this relay, its own certificate first.
    pub cert: Option<PathBuf>,
    /// Private key of the certificate.
    pub key: Option<PathBuf>,
    /// Certificate authorities that are trusted for servers; those of the system if not set.
    pub ca: Option<PathBuf>,
    /// Certificate authorities that are trusted for clients; if set, clients must present a
    /// certificate.
    pub client_ca: Option<PathBuf>,
    /// Names of which a client's certificate must contain one; empty accepts any name.
    pub client_names: Vec<String>,
    /// Name to request from servers and to expect in their certificate; the target's name if not
    /// set.
    pub server_name: Option<String>,
    /// Application protocols to negotiate (ALPN, RFC 7301).
    pub alpn: Vec<String>,
    /// Permits TLS 1.3 only.
    pub newest_only: bool,
}

/// TLS settings for a leg on which the relay is the server.
#[derive(Clone)]
pub struct TlsServerSettings {
    config: Arc<ServerConfig>,
    /// Names of which a client's certificate must have one, unless the list is empty.
    names: Arc<[ServerName<'static>]>,
}

impl TlsServerSettings {
    pub(crate) fn new(config: ServerConfig, names: Arc<[ServerName<'static>]>) -> Self {
        let config = Arc::new(config);
        Self { config, names }
    }

    /// Settings of a connection, and the names of which a client's certificate must have one,
    /// unless the list is empty.
    pub(crate) fn settings(&self) -> (Arc<ServerConfig>, Arc<[ServerName<'static>]>) {
        (Arc::clone(&self.config), Arc::clone(&self.names))
    }
}

/// TLS settings for a leg on which the relay is the client.
#[derive(Clone)]
pub struct TlsClientSettings {
    config: Arc<ClientConfig>,
    /// Name that certificates must contain in place of the target's.
    name: Option<ServerName<'static>>,
}

impl fmt::Debug for TlsServerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsServerSettings")
    }
}

impl fmt::Debug for TlsClientSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsClientSettings")
    }
}

static NEWEST: &[&SupportedProtocolVersion] = &[&version::TLS13];

type TlsIdentity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl TlsFiles {
    /// Builds the settings for a listener.
    ///
    /// # Errors
    /// Names the file that cannot be read or used, and the reason.
    pub fn server(&self) -> Result<TlsServerSettings, TlsSettingsError> {
        let (chain, key) = self.identity()?.ok_or(TlsSettingsError::NoCertificate)?;
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(self.versions())
            .map_err(TlsSettingsError::Library)?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let given = certificates(path)?;
                let verifier = WebPkiClientVerifier::builder_with_provider(
                    Arc::new(roots(path, &given)?),
                    Arc::new(aws_lc_rs::default_provider()),
                );
                let wrong = |e| TlsSettingsError::ClientVerifier(path.clone(), e);
                let verifier = verifier.build().map_err(wrong)?;
                builder
                    .with_client_cert_verifier(Arc::new(PinnedCertVerifier::new(verifier, given)))
            }
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(TlsSettingsError::ServerIdentity)?;
        config.alpn_protocols = self.alpn();
        config.ticketer = aws_lc_rs::Ticketer::new().map_err(TlsSettingsError::Library)?;
        let names = self.client_names.iter().map(|text| name(text));
        Ok(TlsServerSettings::new(
            config,
            names.collect::<Result<_, _>>()?,
        ))
    }

    /// Builds the settings for targets.
    ///
    /// # Errors
    /// Names the file that cannot be read or used, and the reason.
    pub fn client(&self) -> Result<TlsClientSettings, TlsSettingsError> {
        let (roots, given) = match &self.ca {
            Some(path) => {
                let given = certificates(path)?;
                (roots(path, &given)?, given)
            }
            None => (system_roots()?, Vec::new()),
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let verifier = verifier.build().map_err(TlsSettingsError::ServerVerifier)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(self.versions())
            .map_err(TlsSettingsError::Library)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PinnedCertVerifier::new(verifier, given)));
        let mut config = match self.identity()? {
            None => builder.with_no_client_auth(),
            Some((certificates, key)) => builder
                .with_client_auth_cert(certificates, key)
                .map_err(TlsSettingsError::ClientIdentity)?,
        };
        config.alpn_protocols = self.alpn();
        let name = self.server_name.as_deref().map(name).transpose()?;
        Ok(TlsClientSettings::new(config, name))
    }

    fn identity(&self) -> Result<Option<TlsIdentity>, TlsSettingsError> {
        let (cert, key) = match (&self.cert, &self.key) {
            (None, None) => return Ok(None),
            (Some(cert), Some(key)) => (cert, key),
            _ => return Err(TlsSettingsError::NotTogether),
        };
        let private =
            PrivateKeyDer::from_pem_file(key).map_err(|e| TlsSettingsError::Key(key.clone(), e))?;
        Ok(Some((certificates(cert)?, private)))
    }

    fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        match self.newest_only {
            true => NEWEST,
            false => rustls::ALL_VERSIONS,
        }
    }

    fn alpn(&self) -> Vec<Vec<u8>> {
        let names = self.alpn.iter();
        names.map(|name| name.as_bytes().to_vec()).collect()
    }
}

impl TlsClientSettings {
    pub(crate) fn new(config: ClientConfig, name: Option<ServerName<'static>>) -> Self {
        let config = Arc::new(config);
        Self { config, name }
    }

    /// Settings of a connection.
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// Returns the name that the server's certificate must contain.
    pub(crate) fn name_for(&self, host: &str) -> Result<ServerName<'static>, TlsSettingsError> {
        match &self.name {
            Some(name) => Ok(name.clone()),
            None => name(host),
        }
    }
}

/// Reports if a certificate contains one of these names.
pub(crate) fn has_name(certificate: &CertificateDer<'_>, names: &[ServerName<'static>]) -> bool {
    let Ok(parsed) = ParsedCertificate::try_from(certificate) else {
        return false;
    };
    names
        .iter()
        .any(|name| verify_server_name(&parsed, name).is_ok())
}

fn name(text: &str) -> Result<ServerName<'static>, TlsSettingsError> {
    let name = ServerName::try_from(text.to_owned());
    name.map_err(|_| TlsSettingsError::InvalidName(text.to_owned()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsSettingsError> {
    let wrong = |e| TlsSettingsError::Certificates(path.to_owned(), e);
    let all = CertificateDer::pem_file_iter(path).map_err(wrong)?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    match all.is_empty() {
        true => Err(TlsSettingsError::Empty(path.to_owned())),
        false => Ok(all),
    }
}

fn roots(
    path: &Path,
    given: &[CertificateDer<'static>],
) -> Result<RootCertStore, TlsSettingsError> {
    let mut roots = RootCertStore::empty();
    for certificate in given {
        let added = roots.add(certificate.clone());
        added.map_err(|e| TlsSettingsError::Authority(path.to_owned(), e))?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, TlsSettingsError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match roots.is_empty() {
        true => Err(TlsSettingsError::NoSystemRoots),
        false => Ok(roots),
    }
}
