//! Checks values of the configuration file that are well-formed: their range, what they conflict
//! with, and whether the files that they name exist.

use std::env;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serve::sshd::{AllowedProgram, OfferedAlgorithms, is_fingerprint, unknown_token};

use super::address::is_address;
use super::bounds;
use super::options::{Options, ServeOptionName, UncheckedKeyOptions};
use super::paths::is_absolute;
use crate::command_error::CommandError;
use crate::config_file::is_nearby;
use crate::flags::low::ServeArgs;
use crate::setting_error::{SettingError, quoted};

/// A mistake in the file: the line that it is reported for, and the error.
#[derive(Debug)]
pub(super) struct ConfigMistake {
    line: MistakeLine,
    error: SettingError,
}

/// Line of the file that a mistake is reported for.
#[derive(Clone, Copy, Debug)]
enum MistakeLine {
    /// The line that sets this option.
    Option(ServeOptionName),
    /// The line `[[key]]` with this index.
    Key(usize),
}

impl ConfigMistake {
    /// Offset in the file of the line with the mistake, 0 if there is no such line.
    pub(super) fn offset(&self, text: &str) -> usize {
        let (name, nth) = match self.line {
            MistakeLine::Option(name) => (name.as_str(), 0),
            MistakeLine::Key(nth) => ("[[key]]", nth),
        };
        let mut at = 0;
        let mut found = text.split_inclusive('\n').filter_map(|line| {
            let here = at;
            at += line.len();
            let rest = line.trim_start().strip_prefix(name)?;
            let whole = rest.trim_start().starts_with(['=', '#', '\n']) || rest.trim().is_empty();
            whole.then_some(here)
        });
        found.nth(nth).unwrap_or(0)
    }
}

impl fmt::Display for ConfigMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// Option of `longhaul serve` and the check of its value.
struct OptionRule {
    name: ServeOptionName,
    check: OptionCheck,
}

/// Names of algorithms that the options give, and the algorithms that are known.
type NamedAlgorithms<'a> = (&'a [String], OfferedAlgorithms);

/// Check of an option's value, which the function takes from the options.
enum OptionCheck {
    /// A limit is not 0.
    Limit(fn(&Options) -> Option<usize>),
    /// A time is between 1 second and a year.
    Seconds(fn(&Options) -> Option<u64>),
    /// A file's path is absolute, because the server changes its folder.
    Absolute(fn(&Options) -> Vec<&Path>),
    /// Names of algorithms are known, and there is one.
    Algorithms(fn(&Options) -> Option<NamedAlgorithms<'_>>),
    /// Returns the value and what is wrong with it.
    Other(fn(&Options) -> Option<(String, String)>),
}

impl OptionRule {
    const fn new(name: ServeOptionName, check: OptionCheck) -> Self {
        Self { name, check }
    }

    /// Values that break the rule, and the problem with each.
    fn broken(&self, options: &Options) -> Vec<(String, String)> {
        match self.check {
            OptionCheck::Limit(of) => {
                let zero = of(options).filter(|number| *number == 0);
                let problem = |number: usize| {
                    (
                        number.to_string(),
                        "would admit no one; remove it for no limit".into(),
                    )
                };
                zero.map(problem).into_iter().collect()
            }
            // At most a year: longer times are mistakes, and would overflow eventually.
            OptionCheck::Seconds(of) => {
                let wrong = of(options).filter(|seconds| !(1..=31_536_000).contains(seconds));
                let problem = |seconds: u64| {
                    let problem = "must be between 1 second and a year".to_owned();
                    (seconds.to_string(), problem)
                };
                wrong.map(problem).into_iter().collect()
            }
            OptionCheck::Absolute(of) => {
                let relative = of(options).into_iter().filter(|path| !path.is_absolute());
                let problem = |path| (shown(path), "must be an absolute path".to_owned());
                relative.map(problem).collect()
            }
            OptionCheck::Algorithms(of) => {
                let problem = of(options).and_then(|(names, algorithms)| {
                    let why = algorithms.check().err()?;
                    Some((list(names), why.to_string()))
                });
                problem.into_iter().collect()
            }
            OptionCheck::Other(of) => of(options).into_iter().collect(),
        }
    }
}

/// The rules about options above the first `[[key]]`, in the order in which they are reported.
const RULES: &[OptionRule] = {
    const NAMES: super::options::OptionNames = Options::NAMES;
    &[
        OptionRule::new(NAMES.connections, OptionCheck::Limit(|o| o.connections)),
        OptionRule::new(
            NAMES.unauthenticated,
            OptionCheck::Limit(|o| o.unauthenticated),
        ),
        OptionRule::new(
            NAMES.unauthenticated_per_source,
            OptionCheck::Limit(|o| o.unauthenticated_per_source),
        ),
        OptionRule::new(
            NAMES.connections_per_user,
            OptionCheck::Limit(|o| o.connections_per_user),
        ),
        OptionRule::new(
            NAMES.connections_per_second,
            OptionCheck::Limit(|o| o.connections_per_second),
        ),
        OptionRule::new(NAMES.source_block, OptionCheck::Other(source_block)),
        OptionRule::new(NAMES.users, OptionCheck::Other(users)),
        OptionRule::new(NAMES.login_time, OptionCheck::Seconds(|o| o.login_time)),
        OptionRule::new(NAMES.idle_time, OptionCheck::Seconds(|o| o.idle_time)),
        OptionRule::new(NAMES.slow_time, OptionCheck::Seconds(|o| o.slow_time)),
        OptionRule::new(NAMES.listen, OptionCheck::Other(listen)),
        OptionRule::new(NAMES.key_exchange, OptionCheck::Algorithms(key_exchange)),
        OptionRule::new(NAMES.ciphers, OptionCheck::Algorithms(ciphers)),
        OptionRule::new(NAMES.macs, OptionCheck::Algorithms(macs)),
        OptionRule::new(NAMES.root, OptionCheck::Other(root)),
        OptionRule::new(
            NAMES.host_keys,
            OptionCheck::Absolute(|o| o.host_keys.iter().flatten().map(AsRef::as_ref).collect()),
        ),
        OptionRule::new(NAMES.allow, OptionCheck::Other(allow)),
        OptionRule::new(
            NAMES.trusted_user_ca_keys,
            OptionCheck::Absolute(|o| o.trusted_user_ca_keys.as_deref().into_iter().collect()),
        ),
        OptionRule::new(NAMES.metrics, OptionCheck::Other(metrics)),
    ]
};

fn source_block(options: &Options) -> Option<(String, String)> {
    let text = options.source_block.as_deref()?;
    let why = text.parse::<sys::SourcePrefixLengths>().err()?;
    Some((quoted(text), why.to_string()))
}

fn users(options: &Options) -> Option<(String, String)> {
    let none = options.users.as_ref()?.is_empty();
    let problem = "would admit no one; remove it to admit all accounts";
    none.then(|| ("[]".to_owned(), problem.to_owned()))
}

fn listen(options: &Options) -> Option<(String, String)> {
    let address = options.listen.as_ref().filter(|text| !is_address(text))?;
    let problem = "must be \"PORT\", \"HOST:PORT\" or \":PORT\"";
    Some((quoted(address), problem.to_owned()))
}

fn key_exchange(options: &Options) -> Option<(&[String], OfferedAlgorithms)> {
    let names = options.key_exchange.as_ref()?;
    let algorithms = OfferedAlgorithms {
        key_exchange: names.clone(),
        ..OfferedAlgorithms::default()
    };
    Some((names, algorithms))
}

fn ciphers(options: &Options) -> Option<(&[String], OfferedAlgorithms)> {
    let names = options.ciphers.as_ref()?;
    let algorithms = OfferedAlgorithms {
        ciphers: names.clone(),
        ..OfferedAlgorithms::default()
    };
    Some((names, algorithms))
}

fn macs(options: &Options) -> Option<(&[String], OfferedAlgorithms)> {
    let names = options.macs.as_ref()?;
    let algorithms = OfferedAlgorithms {
        macs: names.clone(),
        ..OfferedAlgorithms::default()
    };
    Some((names, algorithms))
}

fn root(options: &Options) -> Option<(String, String)> {
    let root = options.root.as_ref().filter(|path| !is_absolute(path))?;
    Some((shown(root), "must be an absolute path".to_owned()))
}

fn allow(options: &Options) -> Option<(String, String)> {
    let names = options.allow.as_ref().filter(|names| !names.is_empty())?;
    Some((list(names), why_not_allowed(options.narrower()?)))
}

fn metrics(options: &Options) -> Option<(String, String)> {
    let metrics = options.metrics.as_ref().filter(|at| !is_nearby(at))?;
    let problem = "must be an address of this machine alone, such as 127.0.0.1:9100, or the path \
                   of a UNIX socket";
    Some((quoted(metrics), problem.to_owned()))
}

/// The reason why `allow` excludes any restriction of the served files.
pub(super) fn why_not_allowed(restriction: &str) -> String {
    format!(
        "programs cannot be allowed together with {restriction}, because they can access all files \
         of the account: remove one of the two"
    )
}

/// Finds the mistakes in a file for a server with these flags.
pub(super) fn mistakes(options: &Options, args: &ServeArgs) -> Vec<ConfigMistake> {
    let mut all = Vec::new();
    for rule in RULES {
        let broken = rule.broken(options).into_iter();
        all.extend(broken.map(|(value, problem)| ConfigMistake {
            line: MistakeLine::Option(rule.name),
            error: SettingError::option(rule.name.as_str(), value, problem),
        }));
    }
    for (nth, key) in options.key.iter().flatten().enumerate() {
        let above = options.key.iter().flatten().take(nth);
        let errors = wrong_key(key, above, args);
        all.extend(errors.into_iter().map(|error| ConfigMistake {
            line: MistakeLine::Key(nth),
            error,
        }));
    }
    all.extend(missing(options, args));
    all
}

/// Mistakes in a `[[key]]`.
fn wrong_key<'k>(
    key: &UncheckedKeyOptions,
    mut above: impl Iterator<Item = &'k UncheckedKeyOptions>,
    args: &ServeArgs,
) -> Vec<SettingError> {
    const NAMES: super::options::KeyOptionNames = UncheckedKeyOptions::NAMES;
    let mut all = Vec::new();
    let mut wrong = |name: ServeOptionName, value: String, problem: &str| {
        all.push(SettingError::option(name.as_str(), value, problem));
    };
    let fingerprint = key.fingerprint.as_deref().unwrap_or_default();
    if !is_fingerprint(fingerprint) {
        let problem = "is not a fingerprint, which a [[key]] must have: ssh-keygen -l prints it as \
                       SHA256:...";
        wrong(NAMES.fingerprint, quoted(fingerprint), problem);
    }
    if key.fingerprint.is_some() && above.any(|other| other.fingerprint == key.fingerprint) {
        let problem = "has another [[key]] above: merge the two";
        wrong(NAMES.fingerprint, quoted(fingerprint), problem);
    }
    if let Some(root) = key.root.as_ref().filter(|root| !is_absolute(root)) {
        wrong(NAMES.root, shown(root), "must be an absolute path");
    }
    all.extend(bounds::beyond(key, args));
    all
}

/// Finds files that do not exist. A file that this process may not access is passed over, since the
/// server may run as another user.
fn missing(options: &Options, args: &ServeArgs) -> Vec<ConfigMistake> {
    const NAMES: super::options::OptionNames = Options::NAMES;
    let mut all = Vec::new();
    let mut add = |name: ServeOptionName, value: String, problem: Option<String>| {
        all.extend(problem.map(|problem| ConfigMistake {
            line: MistakeLine::Option(name),
            error: SettingError::option(name.as_str(), value, problem),
        }));
    };
    if args.host_keys.is_empty() {
        for file in options.host_keys.iter().flatten() {
            add(NAMES.host_keys, shown(file), no_file(file));
        }
    }
    if let Some(file) = &options.trusted_user_ca_keys {
        add(NAMES.trusted_user_ca_keys, shown(file), no_file(file));
    }
    if let (None, Some(file)) = (&args.authorized_keys, &options.authorized_keys) {
        add(NAMES.authorized_keys, shown(file), meaningless_token(file));
    }
    if let (None, Some(root)) = (&args.root, &options.root) {
        add(NAMES.root, shown(root), no_root(root));
    }
    if args.allow.is_empty() {
        let path = env::var_os("PATH");
        for name in options.allow.iter().flatten() {
            let found = AllowedProgram::find(name, path.as_deref());
            add(
                NAMES.allow,
                quoted(name),
                found.err().map(|e| e.to_string()),
            );
        }
    }
    for (nth, key) in options.key.iter().flatten().enumerate() {
        let root = key.root.as_ref();
        let wrong = root.and_then(|root| Some((root, no_root(root)?)));
        all.extend(wrong.map(|(root, problem)| ConfigMistake {
            line: MistakeLine::Key(nth),
            error: SettingError::option(
                UncheckedKeyOptions::NAMES.root.as_str(),
                shown(root),
                problem,
            ),
        }));
    }
    all
}

fn shown(path: &Path) -> String {
    quoted(path.as_os_str().as_encoded_bytes())
}

fn list(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(quoted).collect();
    format!("[{}]", names.join(", "))
}

/// Checks that the pattern of a setting contains only known tokens.
///
/// # Errors
/// One sentence with the name of the setting.
pub(super) fn known_tokens(name: &str, pattern: &Path) -> Result<(), CommandError> {
    match meaningless_token(pattern) {
        None => Ok(()),
        Some(problem) => Err(format!("{name} {}: {problem}", pattern.display()).into()),
    }
}

/// The problem of a pattern with an unknown token.
fn meaningless_token(pattern: &Path) -> Option<String> {
    let token = unknown_token(pattern)?;
    let token = wire::escape::name(token.as_bytes());
    Some(format!("unknown token {token}: use %h, %u, or %% for %"))
}

fn no_root(root: &Path) -> Option<String> {
    let problem = match fs::metadata(root) {
        _ if is_pattern(root) || root.is_relative() => None,
        Ok(meta) if !meta.is_dir() => Some("is not a directory"),
        Err(e) if is_missing(e.kind()) => Some("does not exist"),
        _ => None,
    };
    meaningless_token(root).or_else(|| problem.map(str::to_owned))
}

fn no_file(file: &Path) -> Option<String> {
    let problem = match fs::metadata(file) {
        _ if file.is_relative() => None,
        Ok(meta) if meta.is_dir() => Some("is a directory"),
        Err(e) if is_missing(e.kind()) => Some("does not exist"),
        _ => None,
    };
    problem.map(str::to_owned)
}

fn is_missing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Returns true if the path has tokens, and so differs between accounts.
pub(super) fn is_pattern(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().contains(&b'%')
}
