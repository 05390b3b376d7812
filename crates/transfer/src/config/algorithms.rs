//! Lists of algorithms as configured, and the algorithms to offer by them.

use super::ConfigError;
use crate::escape;

/// A list of algorithms: chosen by the user, or the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AlgorithmList {
    /// The default: all supported algorithms in longhaul's order.
    #[default]
    Default,
    /// The user's choice.
    Chosen(ChosenAlgorithms),
}

/// A chosen list, split by the way it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenAlgorithms {
    /// The option's name for messages, such as `Ciphers`.
    option: &'static str,
    /// Names given with `^`, which come first.
    head: Vec<String>,
    /// The part of OpenSSH's defaults that remains. The user did not choose its order, so
    /// longhaul's order applies: `Ciphers -chacha20-poly1305@openssh.com` must not make aes128-ctr
    /// the favourite.
    defaults: Vec<String>,
    /// Names given with `+`, or a complete list, in this order.
    tail: Vec<String>,
    /// The list given with `-`, for messages.
    excluded: Option<String>,
}

impl AlgorithmList {
    /// Reconstructs the choice from OpenSSH's resulting `list` and its default list.
    pub(crate) fn chosen(option: &'static str, list: &str, default: Option<&str>) -> Self {
        let list: Vec<String> = split(list);
        let default: Vec<String> = default.map(split).unwrap_or_default();
        // `^x` results in x and then the remaining defaults, `+x` in all defaults and then x, `-x`
        // in the remaining defaults. Any other list is an explicit order.
        for head in 0..=list.len() {
            let (first, rest) = list.split_at(head);
            let mut kept = default.clone();
            kept.retain(|d| !first.contains(d));
            if !kept.is_empty()
                && kept.len() >= default.len().div_ceil(2)
                && rest.starts_with(&kept)
            {
                return Self::Chosen(ChosenAlgorithms {
                    option,
                    head: first.to_vec(),
                    tail: rest[kept.len()..].to_vec(),
                    defaults: kept,
                    excluded: None,
                });
            }
        }
        let mut left = default.iter();
        let is_subset_in_order = list.iter().all(|name| left.any(|d| d == name));
        if is_subset_in_order && list.len() * 2 >= default.len().max(4) {
            return Self::Chosen(ChosenAlgorithms {
                option,
                head: Vec::new(),
                defaults: list,
                tail: Vec::new(),
                excluded: None,
            });
        }
        Self::Chosen(ChosenAlgorithms {
            option,
            head: Vec::new(),
            defaults: Vec::new(),
            tail: list,
            excluded: None,
        })
    }

    /// Builds the list from a flag: the supported names in it, relative to `ours`, and the
    /// sign in front of it (`+`, `-`, `^` or none) with the list itself.
    pub(super) fn given(
        option: &'static str,
        (sign, list): (Option<char>, &str),
        names: Vec<String>,
        ours: Vec<&str>,
    ) -> Self {
        let rest = ours.iter().map(|o| (*o).to_owned());
        let rest = rest.filter(|o| !names.contains(o)).collect();
        let (head, defaults, tail) = match sign {
            Some('^') => (names, rest, Vec::new()),
            Some('-') => (Vec::new(), rest, Vec::new()),
            // Supported algorithms are all offered by default, so `+` adds nothing.
            Some(_) => return Self::Default,
            None => (Vec::new(), Vec::new(), names),
        };
        Self::Chosen(ChosenAlgorithms {
            option,
            head,
            defaults,
            tail,
            excluded: (sign == Some('-')).then(|| format!("-{list}")),
        })
    }

    /// Returns the algorithms to offer out of `supported`, which is in longhaul's order of
    /// preference.
    ///
    /// Unsupported names are skipped silently. An empty result is an error that names the option
    /// and the supported algorithms.
    pub fn within(&self, supported: &[&str]) -> Result<Vec<String>, ConfigError> {
        let Self::Chosen(chosen) = self else {
            return Ok(supported.iter().map(|s| (*s).to_owned()).collect());
        };
        let have = |name: &&String| supported.contains(&name.as_str());
        let mut offer: Vec<String> = chosen.head.iter().filter(have).cloned().collect();
        let ours = supported.iter().map(|s| (*s).to_owned());
        offer.extend(ours.filter(|s| chosen.defaults.contains(s)));
        offer.extend(chosen.tail.iter().filter(have).cloned());
        let mut seen = Vec::new();
        offer.retain(|name| {
            let new = !seen.contains(name);
            seen.push(name.clone());
            new
        });
        if offer.is_empty() {
            let named: Vec<&str> = [&chosen.head, &chosen.tail]
                .into_iter()
                .flatten()
                .map(String::as_str)
                .collect();
            // With no name of its own, the list is what an exclusion has left of the defaults.
            let excluded = chosen.excluded.as_deref().unwrap_or("the list");
            let text = match named.is_empty() {
                true => format!(
                    "{}: {} excludes every algorithm that longhaul can use: keep one of {}",
                    chosen.option,
                    escape::name(excluded.as_bytes()),
                    supported.join(",")
                ),
                false => none_supported(chosen.option, &named.join(","), supported),
            };
            return Err(ConfigError::new(text));
        }
        Ok(offer)
    }

    /// True if `name` may be used, for lists without an order (CA signatures).
    pub fn allows(&self, name: &str) -> bool {
        match self {
            Self::Default => true,
            Self::Chosen(c) => [&c.head, &c.defaults, &c.tail]
                .iter()
                .any(|part| part.iter().any(|n| n == name)),
        }
    }
}

/// Message about a list of names that longhaul does not support.
fn none_supported(option: &str, list: &str, supported: &[&str]) -> String {
    let list = escape::name(list.as_bytes());
    format!(
        "{option}: longhaul supports none of {list}: use one of {}",
        supported.join(",")
    )
}

fn split(list: &str) -> Vec<String> {
    list.split(',')
        .map(str::trim)
        .filter(|n| !n.is_empty())
        .map(|name| canonical_name(name).into())
        .collect()
}

/// Maps a name to the one that is known here. HPN-SSH has its own name for multi-threaded
/// chacha20-poly1305, which never appears alone in a proposal; both names mean the same algorithm.
pub(super) fn canonical_name(name: &str) -> &str {
    match name {
        "chacha20-poly1305-mt@hpnssh.org" => "chacha20-poly1305@openssh.com",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: &str = "chacha,ctr128,ctr192,ctr256,gcm128,gcm256";
    const OURS: &[&str] = &["gcm128", "gcm256", "chacha", "ctr128", "old"];

    fn offer(list: &str) -> Result<String, ConfigError> {
        let chosen = AlgorithmList::chosen("Ciphers", list, Some(DEFAULT));
        chosen.within(OURS).map(|o| o.join(","))
    }

    #[test]
    fn an_explicit_order_holds_and_one_that_nobody_chose_is_ours() {
        let table = [
            // Explicit lists of several lengths.
            ("ctr128,gcm256", "ctr128,gcm256"),
            ("ctr128,nothing,gcm128", "ctr128,gcm128"),
            ("gcm256", "gcm256"),
            // Results of +old, ^old, ^gcm256, -chacha.
            (
                "chacha,ctr128,ctr192,ctr256,gcm128,gcm256,old",
                "gcm128,gcm256,chacha,ctr128,old",
            ),
            (
                "old,chacha,ctr128,ctr192,ctr256,gcm128,gcm256",
                "old,gcm128,gcm256,chacha,ctr128",
            ),
            (
                "gcm256,chacha,ctr128,ctr192,ctr256,gcm128",
                "gcm256,gcm128,chacha,ctr128",
            ),
            ("ctr128,ctr192,ctr256,gcm128,gcm256", "gcm128,gcm256,ctr128"),
        ];
        for (list, wanted) in table {
            assert_eq!(offer(list).as_deref(), Ok(wanted), "{list}");
        }
    }

    #[test]
    fn a_cipher_on_threads_is_the_cipher() {
        let list = "chacha20-poly1305-mt@hpnssh.org,gcm128";
        let chosen = AlgorithmList::chosen("Ciphers", list, None);
        let offer = chosen.within(&["gcm128", "chacha20-poly1305@openssh.com"]);
        assert_eq!(offer.unwrap(), ["chacha20-poly1305@openssh.com", "gcm128"]);
    }

    #[test]
    fn a_choice_that_leaves_nothing_names_the_option_and_what_there_is() {
        let error = offer("3des,blowfish").unwrap_err().to_string();
        assert!(
            error.contains("Ciphers") && error.contains("gcm128,gcm256"),
            "{error}"
        );
        assert_eq!(AlgorithmList::Default.within(OURS).unwrap(), OURS);
    }
}
