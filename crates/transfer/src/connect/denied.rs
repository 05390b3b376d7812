//! The error text for a refused login: account, keys, methods, and what to try next.

use std::fmt::Write as _;

use ssh::auth::AuthMethod;

use crate::config::{HostConfig, SshOptionFlags};
use crate::escape;

/// The maximum number of keys listed in one message.
const LISTED: usize = 10;

/// The facts about a refused login.
#[derive(Clone, Debug, Default)]
pub(super) struct DeniedLogin<'a> {
    user: &'a str,
    host: &'a str,
    /// Methods that the server accepts; empty if they are not known.
    server: &'a [String],
    /// Methods that this end was allowed to use.
    methods: &'a [AuthMethod],
    /// Port of the server.
    port: u16,
    /// Keys that could be offered: source, type and fingerprint of each.
    offered: Vec<String>,
    /// Reasons why keys were not offered, or could not sign.
    failed: Vec<String>,
    /// The BatchMode setting.
    batch: bool,
    /// True if StrictHostKeyChecking=no accepted a key that differs from the known one.
    distrusted: bool,
}

impl<'a> DeniedLogin<'a> {
    /// A refused login with these settings. `server` is empty if its methods are not known;
    /// `methods` are those that the settings enable; batch mode leaves the interactive ones out.
    pub(super) fn new(
        config: &'a HostConfig,
        server: &'a [String],
        methods: &'a [AuthMethod],
    ) -> Self {
        Self {
            user: &config.user,
            host: &config.host,
            server,
            methods,
            port: config.port,
            batch: config.has(SshOptionFlags::BATCH_MODE),
            ..Self::default()
        }
    }

    /// Adds the keys that could be offered, and the reasons why others could not.
    pub(super) fn with_keys(self, offered: Vec<String>, failed: Vec<String>) -> Self {
        Self {
            offered,
            failed,
            ..self
        }
    }

    /// Notes that StrictHostKeyChecking=no accepted a key that differs from the known one.
    pub(super) fn distrusted(self, distrusted: bool) -> Self {
        Self { distrusted, ..self }
    }
}

impl DeniedLogin<'_> {
    /// Returns the message, several lines without the host as prefix.
    pub(super) fn text(&self) -> String {
        let (user, host) = (
            escape::name(self.user.as_bytes()),
            escape::name(self.host.as_bytes()),
        );
        let port = match self.port {
            0 | 22 => String::new(),
            port => format!(" port {port}"),
        };
        let mut text = match self.server {
            [] => format!("{user}@{host}{port}: permission denied"),
            methods => {
                let methods = escape::name(methods.join(", ").as_bytes()).to_string();
                format!("permission denied for {user}@{host}{port}; the server accepts: {methods}")
            }
        };
        let mut list = |title: &str, lines: &[String]| {
            for line in lines.iter().take(LISTED) {
                let _ = write!(text, "\n  {title}: {line}");
            }
            if lines.len() > LISTED {
                let _ = write!(text, "\n  ... and {} more", lines.len() - LISTED);
            }
        };
        // A server that does not accept keys has not looked at them.
        if self.server.is_empty() || self.accepts("publickey") {
            list("key offered", &self.offered);
        }
        list("key not used", &self.failed);
        for advice in self.advice() {
            let _ = write!(text, "\n{advice}");
        }
        text
    }

    /// True if the server accepts this authentication method.
    fn accepts(&self, method: &str) -> bool {
        self.server.iter().any(|name| name == method)
    }

    fn advice(&self) -> Vec<String> {
        let accepts = |name: &str| self.accepts(name);
        let asks = accepts("password") || accepts("keyboard-interactive");
        let enabled = |method: AuthMethod| self.methods.contains(&method);
        let interactive = enabled(AuthMethod::Password) || enabled(AuthMethod::KeyboardInteractive);
        let locked = self.batch && !self.failed.is_empty();
        let mut advice: Vec<String> = Vec::new();
        if self.distrusted && asks {
            advice.push("passwords and codes are not sent because the host key has changed".into());
        } else if asks && !interactive {
            advice.push(
                "password and keyboard-interactive authentication are disabled by -o or in \
                 ssh_config (PasswordAuthentication, KbdInteractiveAuthentication, \
                 PreferredAuthentications)"
                    .into(),
            );
            if locked {
                advice.push(
                    "batch mode (-B, BatchMode) cannot ask for a passphrase: run without it, or \
                     load the key into an agent with ssh-add"
                        .into(),
                );
            }
        } else if self.batch && !accepts("publickey") && !locked && asks {
            advice.push(
                "the server wants a password or code, and batch mode never asks for one: leave out \
                 -B, or BatchMode if it is set by -o or in ssh_config"
                    .into(),
            );
        } else if self.batch && !enabled(AuthMethod::PublicKey) && asks {
            advice.push(
                "batch mode (-B, BatchMode) cannot ask for a password or code: run without it"
                    .into(),
            );
        } else if (self.batch && asks) || locked {
            advice.push(
                "batch mode (-B, BatchMode) cannot ask for a password, code or passphrase: run \
                 without it, or load the key into an agent with ssh-add"
                    .into(),
            );
        }
        if accepts("publickey") && !enabled(AuthMethod::PublicKey) {
            advice.push(
                "public key authentication is disabled by -o or in ssh_config \
                 (PubkeyAuthentication, PreferredAuthentications)"
                    .into(),
            );
        } else if accepts("publickey") && self.offered.is_empty() && self.failed.is_empty() {
            advice.push("no key to offer: name one with -i FILE, or load one with ssh-add".into());
        } else if accepts("publickey") && !self.offered.is_empty() {
            advice.push(format!(
                "check that {} is the right account and that its authorized_keys has one of \
                 these keys; the server's log has the reason",
                escape::name(self.user.as_bytes())
            ));
        }
        let ours = ["publickey", "password", "keyboard-interactive"];
        if !self.server.is_empty() && !self.server.iter().any(|s| ours.contains(&s.as_str())) {
            advice.push(
                "longhaul supports none of these methods; -S ssh uses the system's ssh, which \
                 may support them"
                    .into(),
            );
        }
        advice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[AuthMethod] = &[
        AuthMethod::PublicKey,
        AuthMethod::KeyboardInteractive,
        AuthMethod::Password,
    ];

    fn denied<'a>(server: &'a [String]) -> DeniedLogin<'a> {
        DeniedLogin {
            user: "alice",
            host: "h",
            server,
            methods: ALL,
            ..DeniedLogin::default()
        }
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|n| (*n).to_owned()).collect()
    }

    /// Bug: of two hosts of one command that differ in the port, nobody could tell which refused.
    #[test]
    fn a_refused_login_names_another_port_than_22() {
        let server = names(&["publickey"]);
        for (port, shown) in [(22, "alice@h; the"), (2401, "alice@h port 2401; the")] {
            let text = DeniedLogin {
                port,
                ..denied(&server)
            }
            .text();
            assert!(text.contains(shown), "{text}");
        }
    }

    #[test]
    fn a_refused_login_names_account_keys_methods_and_what_to_do() {
        let server = names(&["publickey", "password"]);
        let text = DeniedLogin {
            offered: names(&["/k/id (ED25519 SHA256:x)", "work (agent) (RSA SHA256:y)"]),
            failed: names(&["/k/locked: needs a passphrase"]),
            ..denied(&server)
        }
        .text();
        for part in [
            "alice@h",
            "publickey, password",
            "/k/id (ED25519 SHA256:x)",
            "work (agent)",
            "/k/locked: needs a passphrase",
            "authorized_keys",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    /// Regression test: `-B` with a key that needs a passphrase printed `permission denied ()`.
    #[test]
    fn batch_mode_with_a_locked_key_says_so() {
        let text = DeniedLogin {
            methods: &[AuthMethod::PublicKey],
            failed: names(&["/k/locked: needs a passphrase"]),
            batch: true,
            ..denied(&[])
        }
        .text();
        assert!(text.starts_with("alice@h: permission denied\n"), "{text}");
        assert!(
            text.contains("/k/locked") && text.contains("ssh-add"),
            "{text}"
        );
        assert!(!text.contains("()"), "{text}");
    }

    /// Bug: a key was said to be offered, and ssh-add to help, where the server accepts no keys.
    #[test]
    fn a_server_that_wants_a_password_was_offered_keys() {
        let server = names(&["password"]);
        let text = DeniedLogin {
            batch: true,
            offered: names(&["/k (ssh-ed25519 SHA256:x)"]),
            ..denied(&server)
        }
        .text();
        assert!(text.contains("leave out -B"), "{text}");
        assert!(!text.contains("/k") && !text.contains("ssh-add"), "{text}");
    }

    /// Bug: a user without -B, or one who had disabled passwords by -o, was told to leave out batch mode
    /// or to look in ssh_config.
    #[test]
    fn batch_mode_was_blamed_for_disabled_passwords() {
        let server = names(&["publickey", "password"]);
        let text = DeniedLogin {
            methods: &[],
            batch: true,
            ..denied(&server)
        }
        .text();
        assert!(!text.contains("batch mode"), "{text}");
        assert_eq!(text.matches("disabled by -o or in ssh_config").count(), 2);
        // A locked key could be used without batch mode.
        let text = DeniedLogin {
            methods: &[AuthMethod::PublicKey],
            failed: names(&["/k/locked: needs a passphrase"]),
            batch: true,
            ..denied(&server)
        }
        .text();
        assert!(text.contains("cannot ask for a passphrase:"), "{text}");
    }

    #[test]
    fn methods_that_are_not_ours_lead_to_the_systems_ssh() {
        let server = names(&["gssapi-with-mic\x1b[2J"]);
        let text = denied(&server).text();
        assert!(text.contains("-S ssh") && !text.contains('\x1b'), "{text}");
        let server = names(&["publickey"]);
        assert!(denied(&server).text().contains("-i FILE"));
    }

    #[test]
    fn many_keys_are_not_all_listed() {
        let server = names(&["publickey"]);
        let offered = (0..30).map(|n| format!("key{n}")).collect();
        let text = DeniedLogin {
            offered,
            ..denied(&server)
        }
        .text();
        assert!(
            text.contains("... and 20 more") && !text.contains("key15"),
            "{text}"
        );
    }
}
