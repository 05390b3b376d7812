use crate::flags::argument_error::ArgumentError;
use crate::flags::flag::{Flag, FlagGroup, FlagValueKind, ScpCompatibility};
use crate::flags::low::ServeArgs;
use crate::serving::address::is_address;
use serve::Access;
use ssh::transport::DisabledProtection;

/// The flags of `longhaul serve`.
pub(super) const ROWS: &[Flag<ServeArgs>] = &[
    Flag {
        short: None,
        long: Some("stdio"),
        takes: FlagValueKind::Nothing,
        help: "Serve one client over standard input and output, like sftp-server",
        doc: "Serve one client over standard input and output, like sftp-server: for Subsystem or \
              ForceCommand in sshd_config, or command= in authorized_keys.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, _| {
            args.stdio = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("marker"),
        takes: FlagValueKind::Value("N"),
        help: "Announce longhaul first; longhaul cp sets this when it starts the server",
        doc: "With --stdio: first write a line that identifies longhaul, for a longhaul cp that \
              speaks version N of the protocol that follows. longhaul cp sets this flag itself; it \
              is of no use for Subsystem and ForceCommand.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, given| {
            let number = given.text()?.parse().ok().filter(|n| *n > 0);
            args.marker = Some(number.ok_or("is not a version number")?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("sum"),
        takes: FlagValueKind::Value("SHA256"),
        help: "Serve only if this program has that SHA-256; longhaul cp sets this",
        doc: "With --stdio: exit at once unless this program's own file has that SHA-256, in \
              hexadecimal digits. A longhaul cp that has sent the program sets this flag if the \
              host has no sha256sum.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, given| {
            args.sum = Some(given.text()?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("once"),
        takes: FlagValueKind::Nothing,
        help: "Accept further connections of the longhaul cp that started this server",
        doc: "Accept further connections on a separate port from the client that started this \
              server through an sshd, and exit when that login ends. longhaul cp sets this flag \
              itself. It sends the accepted client keys on standard input and receives the host \
              key, made for this purpose, on standard output. Each key admits one connection, \
              within 30 seconds. The server serves only files, with the rights of that login, or \
              fewer with --root, --read-only or --write-only. It listens on the address at which \
              sshd was reached.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, _| {
            args.once = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("port-range"),
        takes: FlagValueKind::Value("A-B"),
        help: "With --once: listen on a port from A to B",
        doc: "With --once: listen on one of the ports A to B, such as those that a firewall lets \
              through, instead of a port that the system chooses.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, given| {
            args.ports = Some(ports(&given.text()?)?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("listen"),
        takes: FlagValueKind::Value("ADDR"),
        help: "Run an SSH server at ADDR (PORT, HOST:PORT or :PORT)",
        doc: "Run an SSH server at ADDR: PORT for this machine alone, HOST:PORT, or :PORT for all \
              addresses of this machine. Port 0 lets the system choose; the first line on standard \
              output gives the address. Relative paths start at the account's home. The server \
              admits only the user it runs as or, as root, every account. It serves only files, \
              unless --allow adds programs. It logs logins and the traffic of each session on \
              standard error.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, given| {
            let address = Some(given.text()?).filter(|text| is_address(text));
            args.listen = Some(address.ok_or("is not PORT, HOST:PORT or :PORT")?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("config"),
        takes: FlagValueKind::Value("FILE"),
        help: "Run an SSH server as configured in FILE; flags take precedence",
        doc: "Run an SSH server as configured in FILE, see longhaul-serve.conf(5); flags take \
              precedence. --root, --read-only and --write-only also limit each [[key]]: a file \
              that would give a key more is refused. longhaul serve check FILE reports errors in a \
              file, for a server with the same flags.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, given| {
            args.config = Some(given.os().into());
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("authorized-keys"),
        takes: FlagValueKind::Value("FILE"),
        help: "Accept the keys in FILE instead of ~/.ssh/authorized_keys",
        doc: "Accept the keys in FILE instead of ~/.ssh/authorized_keys; %h stands for the home of \
              the account, %u for its name. The file is read at each login, with the rights of the \
              account, and must be writable by no other user. The server honours the key options \
              from=, expiry-time=, cert-authority, principals=, verify-required and \
              no-touch-required, and those that forbid what it does not offer anyway (restrict, \
              no-pty and the like); a key with any other option is refused. A certificate signed \
              by a key with cert-authority is accepted if the account, or a name in principals=, \
              is among its principals. Its critical options source-address and verify-required are \
              honoured; a certificate with any other critical option is refused.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, given| {
            args.authorized_keys = Some(given.os().into());
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("host-key"),
        takes: FlagValueKind::Values("FILE"),
        help: "Use the private host key in FILE; may be repeated",
        doc: "Use the private host key in FILE; may be repeated. Of several keys of one type, \
              clients see the first during the key exchange, and learn all keys after the login. \
              OpenSSH clients then record the new keys and forget removed ones (UpdateHostKeys): \
              to replace a key, list the new one after the old one for a while. By default the \
              server uses the keys in /etc/ssh if it can read them, otherwise a key that it \
              creates on the first start in $XDG_STATE_HOME/longhaul/host_key. Of the keys in \
              /etc/ssh, ECDSA keys and RSA keys below 3072 bits are left out if there is a better \
              one, unless --old-clients is given. OpenSSH clients whose known_hosts has only such \
              a key of this host, such as one recorded before OpenSSH 8.5, then report a changed \
              host key and refuse to connect. Pass that key with --host-key to keep offering it.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, given| {
            args.host_keys = given.values.into_iter().map(Into::into).collect();
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("old-clients"),
        takes: FlagValueKind::Nothing,
        help: "DANGER: also offer weaker algorithms, for clients without better ones",
        doc: "DANGER: also offer key exchanges that a quantum computer could break (Curve25519, \
              and NIST's curves, whose design some distrust), MACs that are not encrypt-then-MAC, \
              and all host keys in /etc/ssh. An attacker who records such a connection may be able \
              to decrypt it one day. This is for clients without mlkem768x25519-sha256 or \
              sntrup761x25519-sha512: OpenSSH before 8.9 (8.5 to 8.8 can connect without this flag \
              with -o KexAlgorithms=+sntrup761x25519-sha512@openssh.com), OpenSSH for Windows up \
              to 9.8, PuTTY before 0.78, paramiko before 5.1, Go programs built with Go before \
              1.24, JSch 0.1, libssh2 (curl, PHP), ssh2 of Node.js and others. A client that has a \
              better algorithm still uses it, if it prefers it. The log shows the algorithms of \
              each login, and those of each client that was refused for lack of this flag.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, _| {
            args.old_clients = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("root"),
        takes: FlagValueKind::Value("DIR"),
        help: "Serve only DIR, which clients see as /",
        doc: "Serve only DIR, which clients see as /. With --listen, %h and %u stand for the home \
              and the name of the account, %% for %. The kernel resolves all paths below DIR \
              (openat2(2), Linux 5.6), so neither .. nor a symbolic link leads out of it. This \
              does not need root.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, given| {
            args.root = Some(given.os().into());
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("read-only"),
        takes: FlagValueKind::Nothing,
        help: "Refuse all changes",
        doc: "Refuse all changes: clients can only list and read.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, _| args.limit_access(Access::ReadOnly),
    },
    Flag {
        short: None,
        long: Some("write-only"),
        takes: FlagValueKind::Nothing,
        help: "Run a drop box: accept new files, allow no reading or replacing",
        doc: "Run a drop box: clients may add new files and directories. They cannot list, read, \
              change or replace anything that already exists. A client may rename and remove what \
              it has added itself until it disconnects.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, _| args.limit_access(Access::WriteOnly),
    },
    Flag {
        short: None,
        long: Some("allow"),
        takes: FlagValueKind::Values("PROGRAM"),
        help: "Run PROGRAM, such as rsync, for clients that ask for it; may be repeated",
        doc: "Run PROGRAM for clients that ask for a command that starts with exactly that word, \
              such as rsync; may be repeated. PROGRAM is an absolute path, or a name that is \
              looked up along PATH. It runs as the account, without a shell: the command is split \
              into words, and one that needs a shell (wildcards, variables, redirections) is \
              refused. rsync runs only as the server of another rsync, and not with \
              --secluded-args. Any other program receives all arguments that the client sends, so \
              a program that can start others gives as much access as a shell. The program ends \
              with its channel: it still receives the data that arrived before the client closed \
              the channel, and has two seconds to process it. It sees all that the account can \
              see, so it cannot be combined with --root, --read-only, --write-only or a [[key]] \
              with one of these.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, given| {
            let names = given.values.into_iter();
            let names = names.map(|name| name.to_string_lossy().into_owned());
            args.allow = names.collect();
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("no-window-poll"),
        takes: FlagValueKind::Nothing,
        help: "Keep the initial size of channel windows, whatever the path",
        doc: "Keep channel windows at their initial size of 2 MiB. By default they follow the \
              round-trip time and the window of the socket, which the server asks the kernel for.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, _| {
            args.no_window_poll = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("insecure-none-cipher"),
        takes: FlagValueKind::Nothing,
        help: "DANGER: let clients that request it turn off encryption",
        doc: "DANGER: do not encrypt data after the login for clients that request it (longhaul cp \
              --insecure-none-cipher, or HPN-SSH's NoneSwitch). Anyone on the path can read \
              everything that is copied. Logins are still encrypted, and data is still \
              authenticated. Other clients are encrypted as usual.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, _| {
            args.renounced = args.renounced.max(DisabledProtection::Cipher);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("insecure-none-mac"),
        takes: FlagValueKind::Nothing,
        help: "DANGER: like --insecure-none-cipher, and do not authenticate data either",
        doc: "DANGER: like --insecure-none-cipher, and do not authenticate data either, for \
              clients that request that too (HPN-SSH's NoneMacEnabled). Anyone on the path can \
              also change everything that is copied, and issue requests in a user's name.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Serving,
        overrides: &[],
        set: |args, _| {
            args.renounced = DisabledProtection::CipherAndMac;
            Ok(())
        },
    },
    Flag {
        short: Some('v'),
        long: Some("verbose"),
        takes: FlagValueKind::Repeats,
        help: "Log closed files on standard error; repeat for more details",
        doc: "Log each closed file on standard error, with the bytes sent and received. Repeat for \
              more details.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Output,
        overrides: &[],
        set: |args, given| {
            args.verbose = given.times;
            Ok(())
        },
    },
];

/// Parses a port or a range of ports: 4000-4010.
pub(super) fn ports(text: &str) -> Result<(u16, u16), ArgumentError> {
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    let range = text.split_once('-').unwrap_or((text, text));
    let range = port(range.0).zip(port(range.1)).filter(|(a, b)| a <= b);
    range.ok_or_else(|| "is not a range of ports such as 4000-4010".into())
}
