//! The options of a configuration file of `longhaul serve`, as a table: the parser and the man page
//! longhaul-serve.conf(5) come from it.

use std::path::PathBuf;

use serde::Deserialize;
use serve::Access;
use serve::listen::Algorithms;

/// The documentation of an option.
pub(crate) struct OptionDoc {
    /// Name in the file.
    pub(crate) name: &'static str,
    /// Form of the value.
    pub(crate) takes: &'static str,
    /// Description in sentences.
    pub(crate) doc: &'static str,
}

macro_rules! options {
    ($(#[$meta:meta])* $name:ident { $($field:ident ($key:literal): $type:ty = $takes:literal, $doc:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(crate) struct $name {
            $(#[serde(rename = $key)] pub(crate) $field: Option<$type>,)*
        }

        impl $name {
            /// The documentation of the options.
            pub(crate) const ROWS: &[OptionDoc] = &[
                $(OptionDoc { name: $key, takes: $takes, doc: $doc },)*
            ];
        }
    };
}

options! {
    /// The content of a configuration file.
    Options {
        listen("listen"): String = "\"PORT\", \"HOST:PORT\" or \":PORT\"",
            "Where to listen, as --listen, which goes before it.";
        host_keys("host-keys"): Vec<PathBuf> = "list of files",
            "Private keys of this host, absolute paths, the preferred first; of several of a type clients are shown the \
             first, and are told of all once they are logged in, as with --host-key. Without it the keys \
             of /etc/ssh where they can be read (without old-clients not those of ECDSA, or of RSA with \
             fewer than 3072 bits, where there is a better one), else one that is made.";
        authorized_keys("authorized-keys"): PathBuf = "file",
            "Where an account's keys are: %h stands for its home, %u for its name, %% for %; what \
             is not absolute is at home. Without it .ssh/authorized_keys.";
        trusted_user_ca_keys("trusted-user-ca-keys"): PathBuf = "file",
            "Public keys, one on each line, whose certificates let into every account that is \
             among their principals, whatever its authorized_keys says. It is read at each login, \
             with the rights of the account, and must be writable by nobody but its owner: root or \
             the account. Without it there are the authorities of authorized_keys alone \
             (cert-authority).";
        root("root"): PathBuf = "directory",
            "Serve what lies beneath this directory, which clients see as /. %h and %u stand for \
             home and name of the account, %% for %.";
        access("access"): Access = "\"full\", \"read-only\" or \"write-only\"",
            "What clients may do: all that the account may, nothing that changes something, or \
             nothing but putting new files (a drop box).";
        allow("allow"): Vec<String> = "list of programs",
            "Programs to run for clients that ask for them, as --allow. Without it none is run.";
        users("users"): Vec<String> = "list of names",
            "Accounts that may log in. Without it all that may by themselves; of no use where the \
             server is not root's.";
        nologin_shells("nologin-shells"): bool = "true or false",
            "Let in accounts whose shell is nologin or false: accounts for transfers alone. \
             Without it they are refused.";
        old_clients("old-clients"): bool = "true or false",
            "DANGER: with true, also offer what is weaker, for clients that have nothing better, as \
             --old-clients: whoever records what they copy can open it once there is a quantum \
             computer. Without it false.";
        key_exchange("key-exchange"): Vec<String> = "list of names",
            "Key exchange methods to offer, the preferred first, whatever old-clients says. Without \
             it those that no quantum computer of later on opens: mlkem768x25519-sha256, \
             sntrup761x25519-sha512 and sntrup761x25519-sha512@openssh.com; with old-clients also \
             curve25519-sha256, curve25519-sha256@libssh.org and ecdh-sha2-nistp256, -nistp384 and \
             -nistp521.";
        ciphers("ciphers"): Vec<String> = "list of names",
            "Ciphers to offer. Without it all there are: AES-GCM, chacha20-poly1305 and AES-CTR.";
        macs("macs"): Vec<String> = "list of names",
            "MACs to offer, for ciphers without one of their own, whatever old-clients says. Without \
             it those of what is encrypted: hmac-sha2-256-etm@openssh.com and \
             hmac-sha2-512-etm@openssh.com; with old-clients also hmac-sha2-256 and hmac-sha2-512.";
        connections("connections"): usize = "number",
            "Connections at once. Without it 1024. A quarter of them, or as many as strangers says if \
             that is less, is kept for those that have not logged in, and for root.";
        strangers("strangers"): usize = "number",
            "Connections at once that have not logged in. Without it 100. For one more the oldest of the source \
             with most of them makes room.";
        strangers_per_source("strangers-per-source"): usize = "number",
            "Of those, from one source. Without it 20. Whoever leaves without having logged in counts \
             for two seconds more.";
        source_block("source-block"): String = "\"BITS:BITS\"",
            "Count addresses with the same first bits as one source: bits of IPv4, and of IPv6, as \
             PerSourceNetBlockSize of sshd. Without it \"32:56\".";
        connections_per_user("connections-per-user"): usize = "number",
            "Connections at once of one account. Without it a share: four times as many as are left \
             for other accounts, which is four fifths for one account alone. root and the account of \
             a server that has no other are not bound by the share.";
        connections_per_second("connections-per-second"): usize = "number",
            "New connections in a second; those beyond are turned away. Without it as many as come.";
        login_time("login-time"): u64 = "seconds",
            "Time to log in. Without it 60.";
        idle_time("idle-time"): u64 = "seconds",
            "A connection on which nothing was asked or moved for so long ends, whatever is open. Without \
             it none does.";
        slow_time("slow-time"): u64 = "seconds",
            "A client that takes nothing of what waits for it for so long is given up. Without it \
             300.";
        log_files("log-files"): u64 = "number of bytes",
            "Files of which at least so much was sent or received have a line of their own in the \
             log when they are closed, or left open by a client that went: path, sent, received. \
             Without it 1048576, with 0 all have one. Smaller ones are in the line of their \
             session alone, which tells how many files it has opened and all bytes, and with -v.";
        metrics("metrics"): String = "\"ADDRESS:PORT\" or \"/path\"",
            "Tell figures to Prometheus at this loopback address or UNIX socket. Without it nowhere.";
        key("key"): Vec<KeyOptions> = "[[key]] tables",
            "What is different for a key, see KEYS.";
    }
}

options! {
    /// The settings of one key, which override the general ones.
    KeyOptions {
        fingerprint("fingerprint"): String = "\"SHA256:...\"",
            "Of which key, as ssh-keygen -l tells it. There must be one. That of an authority counts \
             for the certificates it has signed, unless there is one for the key in a certificate.";
        root("root"): PathBuf = "directory",
            "As above, for this key; beneath that of --root, if it is given.";
        access("access"): Access = "\"full\", \"read-only\" or \"write-only\"",
            "As above, for this key; the same as --read-only or --write-only, if one is given.";
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
                Some("less than full access (read-only, write-only)")
            }
            () => None,
        }
    }

    /// The algorithms to offer. Kinds that the file does not list get the secure defaults, or all
    /// algorithms with `old_clients`.
    pub(crate) fn algorithms(&self, old_clients: bool) -> Algorithms {
        let rest = match old_clients {
            true => Algorithms::all(),
            false => Algorithms::default(),
        };
        Algorithms {
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
            let rest = [Algorithms::default(), Algorithms::all()][usize::from(old)].clone();
            assert_eq!(Options::default().algorithms(old), rest);
            let offered = listed.algorithms(old);
            assert_eq!(offered.key_exchange, ["ecdh-sha2-nistp256"]);
            assert_eq!(offered.macs, rest.macs);
        }
    }

    #[test]
    fn every_row_says_what_it_is() {
        for row in Options::ROWS.iter().chain(KeyOptions::ROWS) {
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
