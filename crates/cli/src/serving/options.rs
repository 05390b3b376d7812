//! The options of a configuration file of `longhaul serve`, as a table: the parser and the man page
//! longhaul-serve.conf(5) come from it.

use std::path::PathBuf;

use serde::Deserialize;
use serve::Access;
use serve::sshd::OfferedAlgorithms;

/// Entry of longhaul-serve.conf(5) for one option; unknown options of a file are found by its name.
pub(crate) struct ServeOptionDoc {
    /// Name in the file.
    pub(crate) name: &'static str,
    /// Form of the value.
    pub(crate) takes: &'static str,
    /// Description in sentences.
    pub(crate) doc: &'static str,
}

/// Name of an option in a configuration file of `longhaul serve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServeOptionName(&'static str);

impl ServeOptionName {
    pub(crate) fn as_str(self) -> &'static str {
        self.0
    }
}

macro_rules! options {
    ($(#[$meta:meta])* $name:ident, $names:ident { $($field:ident ($key:literal): $type:ty = $takes:literal, $doc:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(crate) struct $name {
            $(#[serde(rename = $key)] pub(crate) $field: Option<$type>,)*
        }

        impl $name {
            /// The documentation of the options.
            pub(crate) const ROWS: &[ServeOptionDoc] = &[
                $(ServeOptionDoc { name: $key, takes: $takes, doc: $doc },)*
            ];

            /// The names of the options.
            pub(crate) const NAMES: $names = $names { $($field: ServeOptionName($key)),* };
        }

        /// The names of the options, each in the field that holds its value.
        #[allow(dead_code, reason = "only those are named whose values are checked")]
        pub(crate) struct $names {
            $(pub(crate) $field: ServeOptionName,)*
        }
    };
}

options! {
    /// The content of a configuration file.
    Options, OptionNames {
        listen("listen"): String = "\"PORT\", \"HOST:PORT\" or \":PORT\"",
            "The address to listen on, as in --listen, which takes precedence.";
        host_keys("host-keys"): Vec<PathBuf> = "list of files",
            "Absolute paths of the private host keys, in order of preference. Of several keys of \
             one type, clients see the first during the key exchange, and learn all keys after the \
             login, as with --host-key. By default the server uses the keys in /etc/ssh if it can \
             read them, otherwise a key that it creates. Without old-clients, ECDSA keys and RSA \
             keys below 3072 bits in /etc/ssh are left out if there is a better one.";
        authorized_keys("authorized-keys"): PathBuf = "file",
            "The file that lists the keys of an account: %h stands for its home, %u for its name, \
             %% for %; a relative path starts at the home. The default is .ssh/authorized_keys.";
        trusted_user_ca_keys("trusted-user-ca-keys"): PathBuf = "file",
            "A file of public keys, one per line, that act as certificate authorities. A \
             certificate that one of them has signed is accepted for every account among its \
             principals, whatever that account's authorized_keys says. The file is read at each \
             login, with the rights of the account, and must be writable only by its owner, who \
             must be root or the account. By default the only authorities are those in \
             authorized_keys (cert-authority).";
        root("root"): PathBuf = "directory",
            "Serve only this directory, which clients see as /. %h and %u stand for the home and \
             the name of the account, %% for %.";
        access("access"): Access = "\"full\", \"read-only\" or \"write-only\"",
            "The rights of clients: full (all that the account may do), read-only, or write-only \
             (a drop box: only add new files).";
        allow("allow"): Vec<String> = "list of programs",
            "Programs to run for clients that ask for them, as with --allow. The default is none.";
        users("users"): Vec<String> = "list of names",
            "Accounts that may log in. The default is every account that may log in otherwise. Has \
             no effect if the server does not run as root.";
        nologin_shells("nologin-shells"): bool = "true or false",
            "Admit accounts whose shell is nologin or false, which serve for transfers only. The \
             default is to refuse them.";
        old_clients("old-clients"): bool = "true or false",
            "DANGER: true also offers weaker algorithms, for clients without better ones, as \
             --old-clients does: an attacker who records such a connection can decrypt it once \
             there is a quantum computer. The default is false.";
        key_exchange("key-exchange"): Vec<String> = "list of names",
            "Key exchange methods to offer, in order of preference, regardless of old-clients. The \
             default is those that resist quantum computers: mlkem768x25519-sha256, \
             sntrup761x25519-sha512 and sntrup761x25519-sha512@openssh.com; with old-clients also \
             curve25519-sha256, curve25519-sha256@libssh.org and ecdh-sha2-nistp256, -nistp384 and \
             -nistp521.";
        ciphers("ciphers"): Vec<String> = "list of names",
            "Ciphers to offer. The default is all: AES-GCM, chacha20-poly1305 and AES-CTR.";
        macs("macs"): Vec<String> = "list of names",
            "MACs to offer, for ciphers without built-in authentication, regardless of \
             old-clients. The default is the encrypt-then-MAC ones: hmac-sha2-256-etm@openssh.com \
             and hmac-sha2-512-etm@openssh.com; with old-clients also hmac-sha2-256 and \
             hmac-sha2-512.";
        connections("connections"): usize = "number",
            "Maximum number of connections at once. The default is 1024. A quarter of them, or as \
             many as unauthenticated allows if that is less, is reserved for connections that have \
             not logged in, and for root.";
        unauthenticated("unauthenticated"): usize = "number",
            "Maximum number of connections at once that have not logged in. The default is 100. A \
             further one replaces the oldest connection of the source that has most of them.";
        unauthenticated_per_source("unauthenticated-per-source"): usize = "number",
            "Maximum number of connections from one source that have not logged in. The default is \
             20. A connection that closes before logging in counts for two more seconds.";
        source_block("source-block"): String = "\"BITS:BITS\"",
            "Count addresses that share the first bits as one source: bits of IPv4, and of IPv6, \
             as PerSourceNetBlockSize of sshd does. The default is \"32:56\".";
        connections_per_user("connections-per-user"): usize = "number",
            "Maximum number of connections at once of one account. The default is a share: four \
             times as many as remain for other accounts, which is four fifths for a single \
             account. The share does not apply to root, nor to a server that has only one account.";
        connections_per_second("connections-per-second"): usize = "number",
            "Maximum number of new connections per second; further ones are refused. The default \
             is no limit.";
        login_time("login-time"): u64 = "seconds",
            "Seconds that a client has to log in. The default is 60.";
        idle_time("idle-time"): u64 = "seconds",
            "Seconds after which an idle connection, one without requests or data, is closed even \
             if it has open files. The default is no limit.";
        slow_time("slow-time"): u64 = "seconds",
            "Seconds after which a client that does not read its waiting data is disconnected. The \
             default is 300.";
        log_files("log-files"): u64 = "number of bytes",
            "Log a line for each file of which at least this many bytes were sent or received, \
             when it is closed or its client disconnects: path, bytes sent, bytes received. The \
             default is 1048576; 0 logs all files. Smaller files appear only in the line of their \
             session, which has the number of opened files and all bytes, and with -v.";
        metrics("metrics"): String = "\"ADDRESS:PORT\" or \"/path\"",
            "Serve metrics for Prometheus at this loopback address or UNIX socket. The default is \
             none.";
        key("key"): Vec<UncheckedKeyOptions> = "[[key]] tables",
            "Settings that differ for one key, see KEYS.";
    }
}

options! {
    /// The settings of one key, which override the general ones.
    UncheckedKeyOptions, KeyOptionNames {
        fingerprint("fingerprint"): String = "\"SHA256:...\"",
            "The fingerprint of the key, as ssh-keygen -l prints it. Required. The fingerprint of \
             an authority applies to the certificates that it has signed, unless there is an entry \
             for the key in the certificate.";
        root("root"): PathBuf = "directory",
            "Serve only this directory to clients with this key. If --root is given, the directory must \
             be below that one.";
        access("access"): Access = "\"full\", \"read-only\" or \"write-only\"",
            "The rights of clients with this key. If --read-only or --write-only is given, this must be \
             the same.";
    }
}

impl Options {
    /// Names an option that restricts some client's access, if one does.
    pub(crate) fn narrower(&self) -> Option<&'static str> {
        let keys = || self.key.iter().flatten();
        let less = |access: Option<Access>| access.is_some_and(|a| a != Access::Full);
        match () {
            () if self.root.is_some() || keys().any(|k| k.root.is_some()) => Some("a root"),
            () if less(self.access) || keys().any(|k| less(k.access)) => {
                Some("limited access (read-only, write-only)")
            }
            () => None,
        }
    }

    /// The algorithms to offer. Kinds that the file does not list get the secure defaults, or all
    /// algorithms with `old_clients`.
    pub(crate) fn algorithms(&self, old_clients: bool) -> OfferedAlgorithms {
        let rest = match old_clients {
            true => OfferedAlgorithms::all(),
            false => OfferedAlgorithms::default(),
        };
        OfferedAlgorithms {
            key_exchange: self.key_exchange.clone().unwrap_or(rest.key_exchange),
            ciphers: self.ciphers.clone().unwrap_or(rest.ciphers),
            macs: self.macs.clone().unwrap_or(rest.macs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_go_before_what_old_clients_need() {
        let listed = Options {
            key_exchange: Some(vec!["ecdh-sha2-nistp256".to_owned()]),
            ..Options::default()
        };
        for old in [false, true] {
            let rest =
                [OfferedAlgorithms::default(), OfferedAlgorithms::all()][usize::from(old)].clone();
            assert_eq!(Options::default().algorithms(old), rest);
            let offered = listed.algorithms(old);
            assert_eq!(offered.key_exchange, ["ecdh-sha2-nistp256"]);
            assert_eq!(offered.macs, rest.macs);
        }
    }

    #[test]
    fn every_row_says_what_it_is() {
        for row in Options::ROWS.iter().chain(UncheckedKeyOptions::ROWS) {
            assert!(
                row.doc.ends_with('.') && !row.takes.is_empty(),
                "{}",
                row.name
            );
            assert!(
                row.name
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b == b'-')
            );
        }
    }
}
