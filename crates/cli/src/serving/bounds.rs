//! Checks that a key's section in the file grants no more than the flags do.

use std::path::{Component, Path};

use serve::Access;

use super::options::{ServeOptionName, UncheckedKeyOptions};
use crate::flags::low::ServeArgs;
use crate::setting_error::{SettingError, quoted};

/// The reasons why a `[[key]]` contradicts the flags.
pub(super) fn beyond(key: &UncheckedKeyOptions, args: &ServeArgs) -> Vec<SettingError> {
    let owner = key.fingerprint.as_deref().unwrap_or_default();
    let owner = wire::escape::name(owner.as_bytes());
    let mut all = Vec::new();
    let mut wrong = |name: ServeOptionName, value: String, problem: String| {
        all.push(SettingError::option(name.as_str(), value, problem));
    };
    if let (Some(flag), Some(access)) = (args.access, key.access)
        && access != flag
    {
        let flag = match flag {
            Access::ReadOnly => "--read-only",
            Access::WriteOnly => "--write-only",
            Access::Full => "the command line",
        };
        let value = match access {
            Access::Full => "full",
            Access::ReadOnly => "read-only",
            Access::WriteOnly => "write-only",
        };
        let problem = format!(
            "key {owner}: its access is not that of {flag}; remove the option, or use the same \
             access"
        );
        wrong(UncheckedKeyOptions::NAMES.access, quoted(value), problem);
    }
    if let (Some(flag), Some(root)) = (&args.root, &key.root)
        && !is_beneath(root, flag)
    {
        let problem = format!(
            "key {owner}: its root is outside --root {dir}; choose a directory below {dir}",
            dir = flag.display()
        );
        let value = quoted(root.as_os_str().as_encoded_bytes());
        wrong(UncheckedKeyOptions::NAMES.root, value, problem);
    }
    all
}

/// Compares names only: links that lead out of the root are the operator's responsibility.
fn is_beneath(path: &Path, root: &Path) -> bool {
    let climbs = path.components().any(|part| part == Component::ParentDir);
    path.starts_with(root) && !climbs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_given_less_and_no_more() {
        let full = Some(Access::Full);
        let (read, write) = (Some(Access::ReadOnly), Some(Access::WriteOnly));
        for (flag, key, wrong) in [
            (None, full, false),
            (read, None, false),
            (read, read, false),
            (read, full, true),
            (read, write, true),
            (write, read, true),
        ] {
            let args = ServeArgs {
                access: flag,
                ..ServeArgs::default()
            };
            let key = UncheckedKeyOptions {
                access: key,
                ..UncheckedKeyOptions::default()
            };
            assert_eq!(!beyond(&key, &args).is_empty(), wrong, "{key:?} {flag:?}");
        }
        for (flag, key, wrong) in [
            (None, Some("/etc"), false),
            (Some("/srv"), None, false),
            (Some("/srv"), Some("/srv"), false),
            (Some("/srv"), Some("/srv/drop/%u"), false),
            (Some("/srv/%u"), Some("/srv/%u/drop"), false),
            (Some("/srv"), Some("/srv/../etc"), true),
            (Some("/srv"), Some("/srvother"), true),
            (Some("/srv"), Some("/"), true),
            (Some("/home"), Some("%h"), true),
        ] {
            let args = ServeArgs {
                root: flag.map(Into::into),
                ..ServeArgs::default()
            };
            let key = UncheckedKeyOptions {
                root: key.map(Into::into),
                ..UncheckedKeyOptions::default()
            };
            assert_eq!(!beyond(&key, &args).is_empty(), wrong, "{key:?} {flag:?}");
        }
    }
}
