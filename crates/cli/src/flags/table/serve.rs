use crate::flags::flag::{Flag, Group, Scp, ValueKind};
use crate::flags::low::ServeArgs;
use crate::serving::address::is_address;
use serve::Access;
use ssh::transport::DisabledProtection;

/// The flags of `longhaul serve`.
pub(super) const ROWS: &[Flag<ServeArgs>] = &[
    Flag {
        short: None,
        long: Some("stdio"),
        takes: ValueKind::Nothing,
        help: "Serve one client over standard input and output, as sftp-server does",
        doc: "Serve one client over standard input and output, as sftp-server does: for \
              Subsystem or ForceCommand of sshd_config, or a command= of authorized_keys.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &[],
        set: |args, _| {
            args.stdio = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("marker"),
        takes: ValueKind::Value("N"),
        help: "Say first that this is longhaul; for longhaul cp, which starts it so",
        doc: "With --stdio: write a line that says that this is longhaul before anything else, for a \
              longhaul cp that speaks version N of what comes then, which it asks for by itself. \
              For Subsystem and ForceCommand it is of no use.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &[],
        set: |args, given| {
            let number = given.text()?.parse().ok().filter(|n| *n > 0);
            args.marker = Some(number.ok_or("is no version")?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("sum"),
        takes: ValueKind::Value("SHA256"),
        help: "Serve only if this program has that sum; for longhaul cp, which asks so",
        doc: "With --stdio: end at once unless this program's own file has that SHA-256, in \
              hexadecimal digits. A longhaul cp that has sent it asks so where there is no \
              sha256sum.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &[],
        set: |args, given| {
            args.sum = Some(given.text()?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("once"),
        takes: ValueKind::Nothing,
        help: "Wait for more connections of the longhaul cp that has started it",
        doc: "Wait at a port of its own for further connections of the client that has started it \
              through an sshd, and end with that login: longhaul cp does so by itself, and tells by \
              standard input which keys are let in. Each lets in one connection within 30 seconds; \
              the host key is made for this and told by standard output. Nothing but files is \
              served, with the rights of that login, and less with --root, --read-only or \
              --write-only. It listens at the address at which sshd was reached.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &[],
        set: |args, _| {
            args.once = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("port-range"),
        takes: ValueKind::Value("A-B"),
        help: "With --once: wait at one of the ports A to B",
        doc: "With --once: wait at one of the ports A to B, which a firewall lets through, and not \
              at one that the system chooses.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &[],
        set: |args, given| {
            args.ports = Some(ports(&given.text()?)?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("listen"),
        takes: ValueKind::Value("ADDR"),
        help: "Be an SSH server at ADDR (PORT, HOST:PORT or :PORT)",
        doc: "Be an SSH server at ADDR: PORT for this machine alone, HOST:PORT, or :PORT for all \
              addresses of this machine. Port 0 lets the system choose; the first line on standard output tells where it listens. \
              Paths that are not absolute begin at home. \
              Nobody but the user it runs as is let in, or, as root, every account; nothing but \
              files is served, unless --allow says so. Logins, and what sessions have moved, are told on standard error.",
        scp: Scp::Ours,
        group: Group::Serving,
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
        takes: ValueKind::Value("FILE"),
        help: "Be an SSH server as FILE says; flags go before it",
        doc: "Be an SSH server as FILE says, see longhaul-serve.conf(5); flags go before it. What \
              a [[key]] may is bounded by --root, --read-only and --write-only: with one that would be \
              given more, the file is refused. longhaul serve check FILE tells what is wrong with one, \
              for a server with the flags that are given beside it.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &[],
        set: |args, given| {
            args.config = Some(given.os().into());
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("authorized-keys"),
        takes: ValueKind::Value("FILE"),
        help: "Let in the keys of FILE rather than of ~/.ssh/authorized_keys",
        doc: "Let in the keys of FILE rather than of ~/.ssh/authorized_keys; %h stands for the \
              home of the account, %u for its name. It is read at each login, with the rights of \
              the account, and must be writable by nobody else. Of its options from=, expiry-time=, \
              cert-authority, principals=, verify-required and no-touch-required are honoured, and \
              those that forbid what is not to be had here anyway (restrict, no-pty and the like); \
              a key with any other option is refused. Certificates that a key with cert-authority \
              has signed are let in where the account, or one of principals=, is among their \
              principals; of their critical options source-address and verify-required are honoured, \
              and a certificate with any other is refused.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &[],
        set: |args, given| {
            args.authorized_keys = Some(given.os().into());
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("host-key"),
        takes: ValueKind::Values("FILE"),
        help: "Be the host whose private key is in FILE; may be repeated",
        doc: "Be the host whose private key is in FILE; may be repeated. Of several of a type clients \
              are shown the first, and are told of all once they are logged in. OpenSSH's take down \
              those that they did not know, and forget those that are gone (UpdateHostKeys): to replace \
              a key, name the new one behind it for a while. Without it the keys of /etc/ssh are used \
              where they can be read, else one that \
              is made at the first start and kept in $XDG_STATE_HOME/longhaul/host_key. Of the keys of \
              /etc/ssh those of ECDSA, and of RSA with fewer than 3072 bits, are left out where there \
              is a better one, unless --old-clients is given. OpenSSH takes that for a changed host key \
              where it knows this host by such a key alone, as what it has learned before 8.5: it warns \
              and refuses. A key that is named here is not left out.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &[],
        set: |args, given| {
            args.host_keys = given.values.into_iter().map(Into::into).collect();
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("old-clients"),
        takes: ValueKind::Nothing,
        help: "DANGER: also offer what is weaker, to clients that have nothing better",
        doc: "DANGER: also offer key exchanges that hold until there is a quantum computer \
              (Curve25519, and NIST's curves, which some mistrust as they are), MACs of what is not \
              encrypted, and all host keys of /etc/ssh. Whoever records what is copied with such a \
              key exchange can open it one day. It is for clients that have none like \
              mlkem768x25519-sha256 or sntrup761x25519-sha512: OpenSSH before 8.9 (8.5 to 8.8 come in \
              without this flag by -o KexAlgorithms=+sntrup761x25519-sha512@openssh.com) and as it is \
              for Windows to 9.8, PuTTY before 0.78, paramiko before 5.1, programs in Go from before \
              1.24, JSch 0.1, libssh2 (curl, PHP), ssh2 of Node.js and others. A client that has one \
              uses it as ever, if it prefers it. The log tells of each login what protects it, and \
              of each client that was turned away for want of this flag what it has.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &[],
        set: |args, _| {
            args.old_clients = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("root"),
        takes: ValueKind::Value("DIR"),
        help: "Serve what lies beneath DIR, which clients see as /",
        doc: "Serve what lies beneath DIR, which clients see as /. With --listen, %h and %u stand for home \
              and name of the account, %% for %. The kernel resolves their paths \
              there (openat2(2), Linux 5.6), so that neither .. nor a symlink leads out; no root \
              is needed for that.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &[],
        set: |args, given| {
            args.root = Some(given.os().into());
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("read-only"),
        takes: ValueKind::Nothing,
        help: "Let nothing be changed",
        doc: "Let nothing be changed.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &["write-only"],
        set: |args, _| {
            args.access = Some(Access::ReadOnly);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("write-only"),
        takes: ValueKind::Nothing,
        help: "Be a drop box: new files may come, nothing may be read or replaced",
        doc: "Be a drop box: new files and directories may be put there; what was there before is \
              neither listed, read, changed nor replaced. What a client has put there itself it \
              may rename and remove as long as it stays connected.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &["read-only"],
        set: |args, _| {
            args.access = Some(Access::WriteOnly);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("allow"),
        takes: ValueKind::Values("PROGRAM"),
        help: "Run PROGRAM for clients that ask for it, such as rsync; may be repeated",
        doc: "Run PROGRAM, a name that is looked for along PATH or an absolute path, for clients that ask \
              for a command which begins with exactly that, such as rsync for rsync's users; may be \
              repeated. It runs as the account, without a shell: the command is split into words, and \
              one that a shell would have to read (with wildcards, variables, redirections) is \
              refused. rsync is run as another rsync's server only, and not with --secluded-args; any other program with whatever words \
              the client says, so that one which runs others gives as much as a shell. It ends with its channel: what came before the client closed that it is still given, \
              and two seconds to make something of it. What it sees is all that the account sees, so that \
              there is none with --root, --read-only, --write-only or a [[key]] that has one of these.",
        scp: Scp::Ours,
        group: Group::Serving,
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
        takes: ValueKind::Nothing,
        help: "Leave the windows of channels as they begin, whatever the path is like",
        doc: "Do not ask the kernel for the round trip and the window of the socket, which the \
              windows of channels follow otherwise: they stay as they begin, at 2 MiB.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &[],
        set: |args, _| {
            args.no_window_poll = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("insecure-none-cipher"),
        takes: ValueKind::Nothing,
        help: "DANGER: let clients that were told the same do without encryption",
        doc: "DANGER: do not encrypt what is said after the login with clients that were told the same \
              (longhaul cp --insecure-none-cipher, or HPN-SSH's NoneSwitch): whoever is on the \
              path can read all that is copied. Logins are encrypted, and what is sent is still \
              authenticated. Clients that ask for nothing of the kind are encrypted as ever.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &[],
        set: |args, _| {
            args.renounced = args.renounced.max(DisabledProtection::Cipher);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("insecure-none-mac"),
        takes: ValueKind::Nothing,
        help: "DANGER: like --insecure-none-cipher, and without authentication of data",
        doc: "DANGER: --insecure-none-cipher, and no authentication of data either, with clients that were \
              told that too (HPN-SSH's NoneMacEnabled): whoever is on the path can also change \
              all that is copied, and give requests in a user's name.",
        scp: Scp::Ours,
        group: Group::Serving,
        overrides: &[],
        set: |args, _| {
            args.renounced = DisabledProtection::CipherAndMac;
            Ok(())
        },
    },
    Flag {
        short: Some('v'),
        long: Some("verbose"),
        takes: ValueKind::Repeats,
        help: "Say on standard error which files are closed; more often, say more",
        doc: "Say on standard error which files are closed, with the bytes sent and received. \
              More often, say more.",
        scp: Scp::Ours,
        group: Group::Output,
        overrides: &[],
        set: |args, given| {
            args.verbose = given.times;
            Ok(())
        },
    },
];

/// Parses a port or a range of ports: 4000-4010.
pub(super) fn ports(text: &str) -> Result<(u16, u16), String> {
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    let range = text.split_once('-').unwrap_or((text, text));
    let range = port(range.0).zip(port(range.1)).filter(|(a, b)| a <= b);
    range.ok_or_else(|| "is no range of ports, such as 4000-4010".to_owned())
}
