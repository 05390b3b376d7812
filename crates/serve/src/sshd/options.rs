//! Parses the options of a line of authorized_keys (sshd(8), AUTHORIZED_KEYS FILE FORMAT).

use jiff::tz::TimeZone;

use super::authorized::AuthContext;
use super::expiry;
use super::refusal::KeyOptionRefusal;

/// Options about features that this server never provides: terminals, forwarding and the user's
/// login script.
const WITHOUT_EFFECT: [&str; 13] = [
    "restrict",
    "agent-forwarding",
    "no-agent-forwarding",
    "port-forwarding",
    "no-port-forwarding",
    "permitopen",
    "permitlisten",
    "pty",
    "no-pty",
    "user-rc",
    "no-user-rc",
    "X11-forwarding",
    "no-X11-forwarding",
];

/// Options of a line that remain to be checked; `from=` and `expiry-time=` are already checked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UncheckedKeyOptions {
    /// The key is a certificate authority and cannot log in itself.
    authority: bool,
    /// Principals of which a certificate must name one, in place of the account's name.
    principals: Option<Vec<String>>,
    no_touch_required: bool,
    verify_required: bool,
}

impl UncheckedKeyOptions {
    /// True if the key is a certificate authority and cannot log in itself.
    pub(super) fn is_authority(&self) -> bool {
        self.authority
    }

    /// Names of which a certificate for the account of `user` must have one.
    pub(super) fn principals<'n>(&'n self, user: &'n str) -> Vec<&'n str> {
        match &self.principals {
            Some(names) => names.iter().map(String::as_str).collect(),
            None => vec![user],
        }
    }

    /// True if signatures of a security key without touch are accepted.
    pub(super) fn waives_touch(&self) -> bool {
        self.no_touch_required
    }

    /// True if the security key must have verified its user by PIN or biometrics.
    pub(super) fn requires_verification(&self) -> bool {
        self.verify_required
    }

    /// Parses all options and checks those that can be checked now.
    pub(super) fn read(mut options: &str, at: AuthContext) -> Result<Self, KeyOptionRefusal> {
        let mut found = Self::default();
        while !options.is_empty() {
            let (name, value, rest) = next(options)?;
            options = rest;
            let is = |known: &str| name.eq_ignore_ascii_case(known);
            match value {
                _ if WITHOUT_EFFECT.iter().any(|known| is(known)) => {}
                Some(list) if is("from") => {
                    if !at.comes_from(&list) {
                        return Err(KeyOptionRefusal::From);
                    }
                }
                Some(time) if is("expiry-time") => {
                    let until = expiry::read(&time, &TimeZone::system());
                    if at.is_past(until.ok_or(KeyOptionRefusal::UnreadableExpiry)?) {
                        return Err(KeyOptionRefusal::Expired);
                    }
                }
                Some(list) if is("principals") && found.principals.is_none() => {
                    let names = list.split(',').filter(|name| !name.is_empty());
                    found.principals = Some(names.map(str::to_owned).collect());
                }
                None if is("cert-authority") => found.authority = true,
                None if is("touch-required") => found.no_touch_required = false,
                None if is("no-touch-required") => found.no_touch_required = true,
                None if is("verify-required") => found.verify_required = true,
                None if is("no-verify-required") => found.verify_required = false,
                // An unknown option must not be ignored: it may be a forced command that restricts
                // the key.
                _ => return Err(KeyOptionRefusal::Unknown(name.to_owned())),
            }
        }
        Ok(found)
    }
}

/// Splits off one option: its name, its value without quotes, and the rest.
fn next(options: &str) -> Result<(&str, Option<String>, &str), KeyOptionRefusal> {
    let end = options.find([',', '=']).unwrap_or(options.len());
    let (name, rest) = options.split_at(end);
    let Some(quoted) = rest.strip_prefix("=\"") else {
        return match rest.strip_prefix('=') {
            Some(_) => Err(KeyOptionRefusal::Unquoted),
            None => Ok((name, None, rest.strip_prefix(',').unwrap_or(rest))),
        };
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' if quoted[at..].starts_with("\\\"") => {
                value.push('"');
                chars.next();
            }
            '"' => {
                let rest = &quoted[at + 1..];
                return match rest.strip_prefix(',') {
                    None if !rest.is_empty() => Err(KeyOptionRefusal::BehindQuotes),
                    more => Ok((name, Some(value), more.unwrap_or(rest))),
                };
            }
            c => value.push(c),
        }
    }
    Err(KeyOptionRefusal::OpenQuotes)
}
