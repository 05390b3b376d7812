//! ProFTPD with mod_sftp, which is SSH server and SFTP server.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{PeerBuilder, Started};
use crate::background_process::BackgroundProcess;
use crate::keys::KeyPair;
use crate::process::Run;
use crate::{missing, port};

/// Folders in which distributions install modules.
const MODULES: &[&str] = &[
    "/usr/lib/proftpd",
    "/usr/libexec/proftpd",
    "/usr/lib64/proftpd",
];

pub(super) fn start(builder: &PeerBuilder, folder: &Path, keys: &[KeyPair]) -> Option<Started> {
    let program = missing::find_program("proftpd");
    let mut modules = MODULES.iter().map(Path::new);
    let modules = modules.find(|m| m.join("mod_sftp.so").is_file());
    let (Some(program), Some(modules)) = (program, modules) else {
        super::skip(builder.kind, "Debian: proftpd-core proftpd-mod-crypto");
        return None;
    };
    if !missing::is_root() {
        missing::not_here("ProFTPD changes to the account that logs in, which needs root");
        return None;
    }
    let user = super::this_user();
    let config = folder.join("proftpd.conf");
    write_accounts(folder, &user);
    for _ in 0..5 {
        let port = port::free();
        let text = configuration(builder, folder, keys, (modules, port));
        std::fs::write(&config, text).expect("a file of our own");
        let mut command = Command::new(&program);
        command.args(["-n", "-q", "-c"]).arg(&config);
        let log = folder.join("proftpd.log");
        let mut daemon =
            BackgroundProcess::start("proftpd", command, &log).expect("proftpd starts");
        let deadline = Instant::now() + Duration::from_secs(20);
        if port::wait_for(port::loopback(port), deadline, || daemon.alive()) {
            return Some(Started { daemon, port, user });
        }
        assert!(
            daemon.log().contains("Address already in use"),
            "proftpd did not come up:\n{}",
            daemon.log()
        );
    }
    panic!("proftpd found no port");
}

/// Writes an account file with the user alone, whose home is the server's, and the authorized keys
/// in the form that mod_sftp reads (RFC 4716).
fn write_accounts(folder: &Path, user: &str) {
    let account = format!("{user}:*:0:0::{}:/bin/sh\n", folder.join("home").display());
    let file = folder.join("accounts");
    std::fs::write(&file, account).expect("a file of our own");
    private(&file);
    let lines = std::fs::read_to_string(folder.join("authorized_keys")).expect("our own file");
    let mut keys = String::new();
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        let one = folder.join("one-key.pub");
        std::fs::write(&one, format!("{line}\n")).expect("a file of our own");
        let export = Run::new("ssh-keygen").args(["-e", "-m", "RFC4716", "-f"]);
        keys.push_str(&export.arg(&one).run().expect_code(0).out());
    }
    std::fs::write(folder.join("authorized_keys.rfc4716"), keys).expect("a file of our own");
}

fn private(file: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(file, mode).expect("a file of our own");
}

fn configuration(
    builder: &PeerBuilder,
    folder: &Path,
    keys: &[KeyPair],
    (modules, port): (&Path, u16),
) -> String {
    let at = |name: &str| -> PathBuf { folder.join(name) };
    let mut text = format!(
        "ServerType standalone\nDefaultAddress 127.0.0.1\nUseIPv6 off\nPort {port}\nUser root\n\
         Group root\nPidFile {pid}\nScoreboardFile {score}\nModulePath {modules}\n\
         LoadModule mod_sftp.c\nSystemLog {log}\nTransferLog none\nWtmpLog off\nDelayEngine off\n\
         TimesGMT on\nAllowOverwrite on\nAllowStoreRestart on\nUseFtpUsers off\nRootLogin on\n\
         RequireValidShell off\nAuthUserFile {accounts}\nAuthOrder mod_auth_file.c\nMaxInstances \
         none\nSFTPEngine on\nSFTPAuthMethods publickey\nSFTPAuthorizedUserKeys file:{authorized}\n",
        pid = at("proftpd.pid").display(),
        score = at("scoreboard").display(),
        modules = modules.display(),
        log = at("proftpd.log").display(),
        accounts = at("accounts").display(),
        authorized = at("authorized_keys.rfc4716").display(),
    );
    let mut put = |name: &str, value: &str| {
        let _ = writeln!(text, "{name} {value}");
    };
    for key in keys {
        put("SFTPHostKey", &key.private.display().to_string());
    }
    for (name, list) in [
        ("SFTPCiphers", &builder.ciphers),
        ("SFTPKeyExchanges", &builder.kex),
        ("SFTPDigests", &builder.macs),
    ] {
        if !list.is_empty() {
            put(name, &list.join(" "));
        }
    }
    if let Some(bytes) = builder.rekey_bytes {
        let mebibytes = bytes.div_ceil(1 << 20);
        put("SFTPRekey", &format!("required 3600 {mebibytes}"));
    }
    text
}
