//! Parses lists of algorithms on the command line (`-c`, `-o Ciphers=...`).
//!
//! These lists are not passed to `ssh -G`: it refuses names that the installed ssh does not know,
//! and longhaul may support newer or older ones.

use ssh::cipher::{CIPHERS, MACS};
use ssh::kex::KEX_METHODS;
use ssh::key::HOST_KEY_ALGORITHMS;

use super::algorithms::canonical_name;
use super::{AlgorithmList, ConfigError, HostConfigQuery};
use crate::escape;
use crate::known_hosts::matches_pattern;

/// Algorithms of OpenSSH 7.0 to 10.5 that longhaul does not support. They are skipped silently,
/// since lists with them are in use (`HostKeyAlgorithms=+ssh-rsa`). `*` and `?` match as in
/// OpenSSH's lists.
const LEFT_OUT: &[&str] = &[
    "3des-cbc",
    "aes*-cbc*",
    "rijndael-cbc@lysator.liu.se",
    "blowfish-cbc",
    "cast128-cbc",
    "arcfour*",
    "none",
    "hmac-md5*",
    "hmac-sha1*",
    "hmac-ripemd160*",
    "umac-*@openssh.com",
    "diffie-hellman-group*",
    "sntrup4591761x25519-sha512@tinyssh.org",
    "mlkem*",
    "ssh-rsa*",
    "ssh-dss*",
    "rsa-sha2-*",
    "sk-*",
    "webauthn-sk-*",
    "ssh-mldsa*",
];

/// Returns the first value of `keyword` (in lower case) on the command line.
pub(super) fn value_of(query: &HostConfigQuery, keyword: &str) -> Option<String> {
    if keyword == "ciphers"
        && let Some(cipher) = &query.cipher
    {
        return Some(cipher.clone());
    }
    let given = query.options.iter().filter_map(|option| split(option));
    given
        .filter(|(name, _)| canonical(name) == keyword)
        .map(|(_, value)| value.to_owned())
        .next()
}

/// True if an option of the command line is a list of algorithms, which longhaul parses itself.
pub(super) fn is_list(option: &str) -> bool {
    split(option).is_some_and(|(name, _)| supported(canonical(&name)).is_some())
}

/// Parses `list` as OpenSSH does (kex_assemble_names), relative to longhaul's defaults.
pub(super) fn read(
    keyword: &str,
    option: &'static str,
    list: &str,
) -> Result<AlgorithmList, ConfigError> {
    let ours = supported(keyword).unwrap_or_default();
    let sign = list.chars().next().filter(|c| "+-^".contains(*c));
    let list = &list[usize::from(sign.is_some())..];
    let mut names: Vec<String> = Vec::new();
    let given = list.split(',').map(str::trim).filter(|n| !n.is_empty());
    let given_names = given.clone();
    for name in given.map(canonical_name) {
        let meant: Vec<&str> = ours
            .iter()
            .copied()
            .filter(|o| matches_pattern(o, name))
            .collect();
        let left_out = |l: &str| matches_pattern(name, l) || matches_pattern(l, name);
        if meant.is_empty() && sign != Some('-') && !LEFT_OUT.iter().any(|l| left_out(l)) {
            return Err(ConfigError::new(format!(
                "{option}: unknown algorithm {}; supported are {}",
                escape::name(name.as_bytes()),
                ours.join(",")
            )));
        }
        names.extend(meant.into_iter().map(str::to_owned));
    }
    // The list may have no effect, so that one without a supported name is no error here.
    if sign.is_none() && names.is_empty() {
        names.extend(given_names.map(str::to_owned));
    }
    Ok(AlgorithmList::given(option, (sign, list), names, ours))
}

/// Returns the supported algorithms for a keyword that takes a list of them.
fn supported(keyword: &str) -> Option<Vec<&'static str>> {
    let signatures = || HOST_KEY_ALGORITHMS.iter().map(|a| a.name).collect();
    match keyword {
        "ciphers" => Some(CIPHERS.iter().map(|c| c.name).collect()),
        "macs" => Some(MACS.iter().map(|m| m.name).collect()),
        "kexalgorithms" => Some(KEX_METHODS.iter().map(|k| k.name).collect()),
        "hostkeyalgorithms" | "pubkeyacceptedalgorithms" | "casignaturealgorithms" => {
            Some(signatures())
        }
        _ => None,
    }
}

/// Maps old names: OpenSSH 8.4 and older have PubkeyAcceptedKeyTypes.
fn canonical(keyword: &str) -> &str {
    match keyword {
        "pubkeyacceptedkeytypes" => "pubkeyacceptedalgorithms",
        other => other,
    }
}

/// Splits an option into keyword (in lower case) and value: `Name=value`, `Name value`, `Name =
/// "value"`.
pub(super) fn split(option: &str) -> Option<(String, &str)> {
    let option = option.trim();
    let end = option.find(|c: char| c.is_whitespace() || c == '=')?;
    let (name, rest) = option.split_at(end);
    let rest = rest.trim_start();
    let value = rest.strip_prefix('=').unwrap_or(rest).trim();
    Some((name.to_ascii_lowercase(), value.trim_matches('"')))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: "no algorithm is left" did not say what had been given.
    #[test]
    fn a_list_that_leaves_nothing_was_not_named() {
        let said = |list: &str| {
            let chosen = read("ciphers", "Ciphers", list).expect("the names are known");
            let offer = chosen.within(&["aes128-ctr", "chacha20-poly1305@openssh.com"]);
            offer.err().map(|error| error.to_string())
        };
        let unsupported = said("aes128-cbc,3des-cbc").unwrap_or_default();
        let names = "Ciphers: longhaul supports none of aes128-cbc,3des-cbc: use one of aes128-ctr";
        assert!(unsupported.starts_with(names), "{unsupported}");
        let all = said("-aes*,chacha20*").unwrap_or_default();
        let begin = "Ciphers: -aes*,chacha20* excludes every algorithm that longhaul can use";
        assert!(all.starts_with(begin), "{all}");
        for list in ["-aes*", "+aes128-cbc", "aes128-cbc,aes128-ctr"] {
            assert_eq!(said(list), None, "{list}");
        }
    }
}
