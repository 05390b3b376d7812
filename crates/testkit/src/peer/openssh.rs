//! OpenSSH's sshd with a configuration of its own.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Auth, PASSWORD, PeerBuilder, PeerKind, Started};
use crate::background_process::{BackgroundProcess, ends_with_this_thread};
use crate::keys::KeyPair;
use crate::process::Run;
use crate::{missing, port};

/// Account that exists only inside the server's mount namespace. No distribution that we know uses
/// its uid, which is below 65534.
const ACCOUNT: &str = "longhaul-test";
const ACCOUNT_UID: u32 = 64_321;

pub(super) fn start(builder: &PeerBuilder, folder: &Path, keys: &[KeyPair]) -> Option<Started> {
    let sshd = program(builder.kind)?;
    // HPN-SSH's server as root needs an account of its own for the time before authentication.
    let for_itself = builder.kind == PeerKind::Hpn && missing::is_root();
    let with_password = builder.auth == Auth::Password;
    let needs_account = with_password || for_itself;
    if needs_account && !missing::can_unshare_mounts() {
        missing::not_here("sshd checks passwords only of accounts, which root could lend it");
        return None;
    }
    if missing::is_root() {
        // Privilege separation folder of sshd, which service managers usually create.
        std::fs::create_dir_all("/run/sshd").expect("/run/sshd");
        std::fs::set_permissions("/run/sshd", std::fs::Permissions::from_mode(0o755))
            .expect("/run/sshd");
    }
    let config = folder.join("sshd_config");
    // The port can be taken between the check and the bind; sshd then ends at once.
    for _ in 0..5 {
        let port = port::free();
        std::fs::write(&config, configuration(builder, folder, keys, (&sshd, port)))
            .expect("a file of our own");
        let mut command = if needs_account {
            lend_accounts(folder);
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c"]).arg(
                "mount --bind \"$0/passwd\" /etc/passwd && mount --bind \"$0/shadow\" /etc/shadow \
                 && exec \"$@\"",
            );
            command.arg(folder).arg(&sshd);
            command
        } else if builder.with_this_thread {
            let mut command = ends_with_this_thread();
            command.arg(&sshd);
            command
        } else {
            Command::new(&sshd)
        };
        command.arg("-D").arg("-e").arg("-f").arg(&config);
        let mut daemon = BackgroundProcess::start("sshd", command, &folder.join("sshd.log"))
            .expect("sshd starts");
        let deadline = Instant::now() + Duration::from_secs(20);
        if daemon
            .line_after("Server listening on ", deadline)
            .is_some()
        {
            let user = if with_password {
                ACCOUNT.to_owned()
            } else {
                super::this_user()
            };
            return Some(Started { daemon, port, user });
        }
        assert!(
            daemon.log().contains("Address already in use"),
            "sshd did not come up:\n{}",
            daemon.log()
        );
    }
    panic!("sshd found no port");
}

/// Returns the sshd to run; `None`, after reporting the skip, if it is missing.
fn program(kind: PeerKind) -> Option<PathBuf> {
    let installed = "Debian: openssh-server openssh-client";
    let keygen = missing::find_program("ssh-keygen");
    let sshd = match kind {
        PeerKind::NewestOpenSsh | PeerKind::Hpn => {
            let file = match kind {
                PeerKind::Hpn => "hpn-ssh/sbin/hpnsshd",
                _ => "openssh/sbin/sshd",
            };
            let sshd = missing::newest_peer(file);
            if sshd.is_none() {
                missing::not_here(&format!("LONGHAUL_PEERS names no folder with {file}"));
                return None;
            }
            sshd
        }
        _ => missing::find_program("sshd"),
    };
    if sshd.is_none() || keygen.is_none() {
        super::skip(kind, installed);
    }
    sshd.filter(|_| keygen.is_some())
}

/// Returns the sftp-server that belongs to the sshd.
fn sftp_server(kind: PeerKind) -> Option<PathBuf> {
    match kind {
        PeerKind::NewestOpenSsh => missing::newest_peer("openssh/libexec/sftp-server"),
        PeerKind::Hpn => missing::newest_peer("hpn-ssh/libexec/hpnsftp-server"),
        _ => missing::sftp_server(),
    }
}

/// Reports if every account may run the program.
fn open_to_all(program: &Path) -> bool {
    let open = |path: &Path| {
        let meta = std::fs::metadata(path);
        meta.is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0)
    };
    std::fs::canonicalize(program).is_ok_and(|real| real.ancestors().all(open))
}

/// Reports if sshd penalizes addresses for failed logins (PerSourcePenalties, since 9.8), which
/// some tests cause on purpose.
fn punishes(sshd: &Path) -> bool {
    // Older versions have no -V; they print the version with the usage.
    let outcome = Run::new(sshd).arg("-V").run();
    let said = outcome.out() + &outcome.err();
    let version = said.split_once("OpenSSH_").map(|(_, rest)| {
        let mut numbers = rest.split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next().and_then(|n| n.parse::<u32>().ok());
        (next(), next())
    });
    version >= Some((Some(9), Some(8)))
}

/// Environment that keeps bash from reading ~/.bashrc. bash reads that file of the user who runs
/// the tests if sshd starts it, unless a shell is above it (run_startup_files), and the file may
/// wait for a lock that a killed session left behind, a minute each time.
const NO_STARTUP_FILE: &str = "SHLVL=1";

fn configuration(
    builder: &PeerBuilder,
    folder: &Path,
    keys: &[KeyPair],
    (sshd, port): (&Path, u16),
) -> String {
    let mut text = String::new();
    let asked = |(name, _): &(String, String)| name == "PerSourcePenalties";
    if punishes(sshd) && !builder.options.iter().any(asked) {
        text.push_str("PerSourcePenalties no\n");
    }
    let mut put = |name: &str, value: &str| {
        let _ = writeln!(text, "{name} {value}");
    };
    for (name, value) in &builder.options {
        match name.as_str() {
            // sshd uses only the first SetEnv line.
            "SetEnv" => put(name, &format!("{value} {NO_STARTUP_FILE}")),
            _ => put(name, value),
        }
    }
    for (name, values) in [
        ("Ciphers", &builder.ciphers),
        ("KexAlgorithms", &builder.kex),
        ("MACs", &builder.macs),
    ] {
        if !values.is_empty() {
            put(name, &values.join(","));
        }
    }
    if let Some(bytes) = builder.rekey_bytes {
        put("RekeyLimit", &bytes.to_string());
    }
    for key in keys {
        put("HostKey", &key.private.display().to_string());
        if builder.host_certificates_by.is_some() {
            put("HostCertificate", &key.certificate().display().to_string());
        }
    }
    if let Some(authority) = &builder.user_authority {
        put(
            "TrustedUserCAKeys",
            &authority.public().display().to_string(),
        );
    }
    let in_folder = |name: &str| folder.join(name).display().to_string();
    let password = if builder.auth == Auth::Password {
        "yes"
    } else {
        "no"
    };
    // The lent account may not reach a program that was built below somebody's home.
    let reached = |path: &PathBuf| builder.auth != Auth::Password || open_to_all(path);
    let server = sftp_server(builder.kind).filter(reached).map_or_else(
        || "internal-sftp".to_owned(),
        |path| path.display().to_string(),
    );
    for (name, value) in [
        ("ListenAddress", format!("127.0.0.1:{port}")),
        ("PidFile", "none".to_owned()),
        ("AuthorizedKeysFile", in_folder("authorized_keys")),
        // The folder is under /tmp, which StrictModes would reject.
        ("StrictModes", "no".to_owned()),
        ("UsePAM", "no".to_owned()),
        ("PermitRootLogin", "yes".to_owned()),
        ("PasswordAuthentication", password.to_owned()),
        ("KbdInteractiveAuthentication", "no".to_owned()),
        ("UseDNS", "no".to_owned()),
        ("SetEnv", NO_STARTUP_FILE.to_owned()),
        // Many tests share one address, so that the protections of a real server would make them
        // flaky.
        ("MaxStartups", "1000".to_owned()),
        ("LogLevel", "VERBOSE".to_owned()),
        (
            "Subsystem",
            format!("sftp {server} -d {}", in_folder("home")),
        ),
    ] {
        // sshd takes the first value of most options, but rejects a second subsystem.
        if !builder.options.iter().any(|(given, _)| given == name) {
            put(name, &value);
        }
    }
    text
}

/// Writes account files with two more accounts, for a mount namespace of the server: the machine's
/// files stay unchanged.
fn lend_accounts(folder: &Path) {
    use std::os::unix::fs::chown;
    let home = folder.join("home");
    let mut passwd = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd");
    let _ = writeln!(
        passwd,
        "{ACCOUNT}:x:{ACCOUNT_UID}:{ACCOUNT_UID}::{}:/bin/sh",
        home.display()
    );
    let _ = writeln!(
        passwd,
        "hpnsshd:x:{}:65534::/nonexistent:/usr/sbin/nologin",
        ACCOUNT_UID + 1
    );
    let mut shadow = std::fs::read_to_string("/etc/shadow").expect("/etc/shadow, as root");
    let _ = writeln!(shadow, "{ACCOUNT}:{}:20000:0:99999:7:::", hashed(PASSWORD));
    std::fs::write(folder.join("passwd"), passwd).expect("a file of our own");
    let file = folder.join("shadow");
    std::fs::write(&file, shadow).expect("a file of our own");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))
        .expect("a file of our own");
    chown(&home, Some(ACCOUNT_UID), Some(ACCOUNT_UID)).expect("root may give files away");
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))
        .expect("a folder of our own");
}

/// Returns the crypt(3) hash of a password.
fn hashed(password: &str) -> String {
    let outcome = Run::new("openssl")
        .args(["passwd", "-6", password])
        .run()
        .expect_code(0);
    outcome.out().trim().to_owned()
}
