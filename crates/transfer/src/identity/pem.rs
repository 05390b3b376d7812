//! Decodes PEM blocks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// The first PEM block of a text (RFC 7468, with the headers of RFC 1421 as OpenSSL wrote them).
///
/// Parsed here because each crate that decodes the contents insists on its own line length, and
/// files in use have others.
pub(super) struct Pem {
    /// The label after BEGIN: `OPENSSH PRIVATE KEY`.
    pub label: String,
    /// The value of DEK-Info, if a `Proc-Type: 4,ENCRYPTED` header is present.
    pub encryption: Option<String>,
    /// The decoded contents.
    pub der: Zeroizing<Vec<u8>>,
}

impl Pem {
    /// Parses the text; `None` without a complete block in base64.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (_, rest) = text.split_once("-----BEGIN ")?;
        let (label, rest) = rest.split_once("-----")?;
        let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
        let mut encoded = Zeroizing::new(Vec::with_capacity(body.len()));
        let (mut encrypted, mut dek_info) = (false, String::new());
        for line in body.lines() {
            match line.split_once(':') {
                Some(("Proc-Type", value)) => encrypted |= value.contains("ENCRYPTED"),
                Some(("DEK-Info", value)) => value.trim().clone_into(&mut dek_info),
                Some(_) => {}
                None => encoded.extend(line.bytes().filter(|b| !b.is_ascii_whitespace())),
            }
        }
        Some(Self {
            label: label.to_owned(),
            encryption: encrypted.then_some(dek_info),
            der: Zeroizing::new(STANDARD.decode(&*encoded).ok()?),
        })
    }
}
