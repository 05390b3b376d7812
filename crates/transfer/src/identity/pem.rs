use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// The first PEM block of a text (RFC 7468, with the headers of RFC 1421 as OpenSSL wrote them).
///
/// Read here rather than by the crates that decode the contents, since each of them insists on a
/// line length of its own, and files in use have others.
pub(super) struct Pem {
    /// What stands after BEGIN: `OPENSSH PRIVATE KEY`.
    pub(super) label: String,
    /// With a `Proc-Type: 4,ENCRYPTED` header, what DEK-Info says.
    pub(super) encryption: Option<String>,
    /// The contents.
    pub(super) der: Zeroizing<Vec<u8>>,
}

impl Pem {
    /// `None` when there is no block, or one without an end, or not in base64.
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
