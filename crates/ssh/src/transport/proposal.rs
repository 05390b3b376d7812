//! KEXINIT: the algorithms that each side offers, and the negotiation (RFC 4253 section 7.1).

use wire::NameList;

use crate::EndpointRole;
use crate::cipher::{CIPHERS, CipherSpec, MACS, MacSpec, NONE};
use crate::error::{Error, Local, PeerIncompatible, PeerMisbehaved};
use crate::kex::{KEX_METHODS, KexMethod};
use crate::msg::KexInit;

/// Indicator of a client that accepts EXT_INFO (RFC 8308 section 2.1).
pub(crate) const EXT_INFO_C: &str = "ext-info-c";
/// Client's indicator of strict KEX (OpenSSH PROTOCOL section 1.10), the fix of CVE-2023-48795.
pub(crate) const STRICT_C: &str = "kex-strict-c-v00@openssh.com";
/// Server's indicator of strict KEX.
pub(crate) const STRICT_S: &str = "kex-strict-s-v00@openssh.com";

/// Algorithms that one side offers, best first. Names not in our tables are an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlgorithmProposal {
    /// Key exchange methods.
    pub kex: Vec<String>,
    /// Host key algorithms.
    pub host_key: Vec<String>,
    /// Ciphers, for both directions.
    pub ciphers: Vec<String>,
    /// MACs, for both directions; unused with an AEAD cipher.
    pub macs: Vec<String>,
    /// True to offer zlib@openssh.com before none.
    pub compress: bool,
}

/// Protection to disable after authentication, as in HPN-SSH (NoneEnabled, NoneMacEnabled). Both
/// sides must be configured for it: a client then offers `none` first and a server last, in no key
/// exchange before authentication, and neither accepts it without having offered it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DisabledProtection {
    /// Cipher and MAC stay in use.
    #[default]
    Nothing,
    /// No encryption: an attacker on the path can read all data but not change it.
    Cipher,
    /// Neither encryption nor MAC: an attacker on the path can read and change all data.
    CipherAndMac,
}

impl AlgorithmProposal {
    /// Checks that each list is nonempty and has only supported algorithms.
    pub fn check(&self) -> Result<(), Error> {
        let known_cipher = |n: &str| CIPHERS.iter().any(|c| c.name == n);
        let known_mac = |n: &str| MACS.iter().any(|m| m.name == n);
        let known_kex = |n: &str| KEX_METHODS.iter().any(|k| k.name == n);
        for (what, names, known) in [
            (
                "key exchange",
                &self.kex,
                &known_kex as &dyn Fn(&str) -> bool,
            ),
            ("cipher", &self.ciphers, &known_cipher),
            ("MAC", &self.macs, &known_mac),
            ("host key", &self.host_key, &|_: &str| true),
        ] {
            if names.is_empty() {
                return Err(Local::NoAlgorithm(what).into());
            }
            if let Some(name) = names
                .iter()
                .find(|n| !known(n) || NameList::new(n).is_err())
            {
                return Err(Local::UnknownAlgorithm(what, name.clone()).into());
            }
        }
        Ok(())
    }

    /// Returns true if this server has a common algorithm of each kind with a client that sent this
    /// KEXINIT.
    pub(crate) fn suits(&self, client: &KexInit<'_>) -> bool {
        let ours = self.encode(
            EndpointRole::Server,
            [0; 16],
            false,
            false,
            DisabledProtection::Nothing,
        );
        KexInit::decode(&ours).is_ok_and(|ours| {
            negotiate(
                EndpointRole::Server,
                client,
                &ours,
                DisabledProtection::Nothing,
            )
            .is_ok()
        })
    }

    /// Encodes the KEXINIT payload. `first` adds the indicators that only the first one has.
    pub(crate) fn encode(
        &self,
        role: EndpointRole,
        cookie: [u8; 16],
        first: bool,
        guess: bool,
        renounced: DisabledProtection,
    ) -> Vec<u8> {
        let mut kex = self.kex.join(",");
        if first {
            for indicator in match role {
                EndpointRole::Client => [EXT_INFO_C, STRICT_C].as_slice(),
                EndpointRole::Server => [STRICT_S].as_slice(),
            } {
                kex.push(',');
                kex.push_str(indicator);
            }
        }
        let with_none = |list: &[String], renounced: bool| match (renounced, role) {
            (false, _) => list.join(","),
            (true, EndpointRole::Client) => format!("{},{}", NONE.name, list.join(",")),
            (true, EndpointRole::Server) => format!("{},{}", list.join(","), NONE.name),
        };
        let (host_key, ciphers, macs) = (
            self.host_key.join(","),
            with_none(&self.ciphers, renounced != DisabledProtection::Nothing),
            with_none(&self.macs, renounced == DisabledProtection::CipherAndMac),
        );
        let compression = if self.compress {
            "zlib@openssh.com,none"
        } else {
            "none,zlib@openssh.com"
        };
        // The client's order decides, so a client without compression must offer `none` alone.
        let compression = match (self.compress, role) {
            (false, EndpointRole::Client) => "none",
            _ => compression,
        };
        let list = |joined| NameList::new(joined).unwrap_or_else(|_| empty());
        KexInit {
            cookie,
            kex: list(&kex),
            host_key: list(&host_key),
            cipher_c2s: list(&ciphers),
            cipher_s2c: list(&ciphers),
            mac_c2s: list(&macs),
            mac_s2c: list(&macs),
            compression_c2s: list(compression),
            compression_s2c: list(compression),
            language_c2s: empty(),
            language_s2c: empty(),
            first_kex_packet_follows: guess,
            reserved: 0,
        }
        .to_bytes()
    }
}

fn empty() -> NameList<'static> {
    NameList::new("").expect("an empty list is a list")
}

/// Algorithms negotiated for one direction; the two may differ (RFC 4253 section 7.1).
#[derive(Clone, Copy, Debug)]
pub struct DirectionAlgorithms {
    /// Chosen cipher.
    pub cipher: &'static CipherSpec,
    /// Chosen MAC; `None` with an AEAD cipher, and if it is disabled together with the cipher.
    pub mac: Option<&'static MacSpec>,
    /// True if zlib@openssh.com starts after authentication.
    pub compress: bool,
}

/// Result of the negotiation that both KEXINITs determine (RFC 4253 section 7.1).
#[derive(Clone, Debug)]
pub struct NegotiatedAlgorithms {
    /// Key exchange method.
    pub kex: &'static KexMethod,
    /// Host key algorithm.
    pub host_key: String,
    /// Algorithms from client to server.
    pub c2s: DirectionAlgorithms,
    /// Algorithms from server to client.
    pub s2c: DirectionAlgorithms,
    /// True if both sides list the same key exchange and host key algorithm first, so that a
    /// guessed packet is valid (RFC 4253 section 7).
    pub guess_right: bool,
}

/// Negotiates algorithms: of each kind the first name on the client's list that the server has too
/// (RFC 4253 section 7.1). `role` is ours.
///
/// # Errors
/// There is no common algorithm of some kind, or the peer wants `none` without agreement.
pub(crate) fn negotiate(
    role: EndpointRole,
    client: &KexInit<'_>,
    server: &KexInit<'_>,
    renounced: DisabledProtection,
) -> Result<NegotiatedAlgorithms, Error> {
    let choose = |what, client: NameList<'_>, server: NameList<'_>| {
        let theirs = match role {
            EndpointRole::Client => server,
            EndpointRole::Server => client,
        };
        choose(client, server).ok_or_else(|| {
            let names: Vec<&str> = theirs.iter().filter(|n| !is_indicator(n)).collect();
            PeerIncompatible::NoCommon {
                what,
                theirs: names.join(","),
                could_be: false,
            }
        })
    };
    let kex = choose("key exchange method", client.kex, server.kex)?;
    let host_key = choose("host key algorithm", client.host_key, server.host_key)?;
    let direction = |cipher: (NameList<'_>, NameList<'_>),
                     mac: (NameList<'_>, NameList<'_>),
                     compression: (NameList<'_>, NameList<'_>)|
     -> Result<DirectionAlgorithms, Error> {
        let name = choose("cipher", cipher.0, cipher.1)?;
        let cipher = match name == NONE.name {
            true if renounced != DisabledProtection::Nothing => &NONE,
            // Our list does not have it in this case.
            true => return Err(PeerMisbehaved::NotRenounced.into()),
            false => find(CIPHERS, "cipher", &name, |c| c.name)?,
        };
        let mac = match cipher.is_aead() {
            true => None,
            false => match choose("MAC", mac.0, mac.1)? {
                // No MAC is never accepted with a cipher: encryption without authentication
                // protects nothing.
                name if name == NONE.name => {
                    match cipher.is_none() && renounced == DisabledProtection::CipherAndMac {
                        true => None,
                        false => return Err(PeerMisbehaved::NotRenounced.into()),
                    }
                }
                name => Some(find(MACS, "MAC", &name, |m| m.name)?),
            },
        };
        let compression = choose("compression", compression.0, compression.1)?;
        Ok(DirectionAlgorithms {
            cipher,
            mac,
            compress: compression == "zlib@openssh.com",
        })
    };
    Ok(NegotiatedAlgorithms {
        kex: find(KEX_METHODS, "key exchange method", &kex, |k| k.name)?,
        host_key,
        c2s: direction(
            (client.cipher_c2s, server.cipher_c2s),
            (client.mac_c2s, server.mac_c2s),
            (client.compression_c2s, server.compression_c2s),
        )?,
        s2c: direction(
            (client.cipher_s2c, server.cipher_s2c),
            (client.mac_s2c, server.mac_s2c),
            (client.compression_s2c, server.compression_s2c),
        )?,
        guess_right: client.kex.first() == server.kex.first()
            && client.host_key.first() == server.host_key.first(),
    })
}

fn find<T>(
    table: &'static [T],
    what: &'static str,
    name: &str,
    name_of: impl Fn(&T) -> &str,
) -> Result<&'static T, Error> {
    // Indicators such as ext-info-c may be on both lists and must never be chosen.
    table
        .iter()
        .find(|row| name_of(row) == name)
        .ok_or_else(|| {
            PeerIncompatible::NoCommon {
                what,
                theirs: name.to_owned(),
                could_be: false,
            }
            .into()
        })
}

fn choose(client: NameList<'_>, server: NameList<'_>) -> Option<String> {
    client
        .iter()
        .filter(|n| !is_indicator(n))
        .find(|n| server.contains(n))
        .map(str::to_owned)
}

/// Returns true for a name that announces a feature and is not an algorithm.
fn is_indicator(name: &str) -> bool {
    name.starts_with("ext-info-") || name.starts_with("kex-strict-")
}
