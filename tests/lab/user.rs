//! Lab of an unprivileged user, in a user namespace.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use longhaul_tests::longhaul;
use testkit::{Run, missing};

use crate::have;

/// User id that no distribution uses as far as we know, below 65534.
const USER: u32 = 64_322;

/// Shell script that, as root, becomes an unprivileged user with an account, for whom /dev/net/tun
/// is open as on most distributions; all of that in a mount namespace of its own.
const BECOME: &str = r#"
    mount -t tmpfs tmpfs "$0/private" && mknod "$0/private/tun" c 10 200 &&
    chmod 666 "$0/private/tun" && mount --bind "$0/private/tun" /dev/net/tun &&
    mount --bind "$0/passwd" /etc/passwd &&
    exec setpriv --reuid 64322 --regid 64322 --clear-groups "$@"
"#;

#[test]
fn an_ordinary_user_has_it_all_too() {
    if !missing::is_root() {
        // Every other test already runs unprivileged then.
        return;
    }
    if !missing::can_unshare_mounts() {
        missing::not_here("root can't become a user with an account of its own");
        return;
    }
    if !have(&[("setpriv", "util-linux"), ("ping", "iputils-ping")])
        || !have(&[("sshd", "openssh-server"), ("scp", "openssh-client")])
    {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let open = |mode| fs::Permissions::from_mode(mode);
    fs::set_permissions(path, open(0o755)).unwrap();
    for name in ["private", "home"] {
        fs::create_dir(path.join(name)).unwrap();
    }
    std::os::unix::fs::chown(path.join("home"), Some(USER), Some(USER)).unwrap();
    let mut passwd = fs::read_to_string("/etc/passwd").unwrap();
    let home = path.join("home").display().to_string();
    passwd.push_str(&format!("labtest:x:{USER}:{USER}::{home}:/bin/sh\n"));
    fs::write(path.join("passwd"), passwd).unwrap();
    let program = path.join("longhaul");
    fs::copy(longhaul(), &program).unwrap();
    let script = format!(
        "id -un && ping -q -c 2 -i 0.2 far && echo text > {home}/file && \
         scp -q {home}/file far:{home}/scp && {} cp -q {home}/file far:{home}/longhaul && \
         cmp {home}/file {home}/scp && cmp {home}/file {home}/longhaul && \
         stat -c %U {home}/longhaul && ssh -tt far tty",
        program.display()
    );
    let outcome = Run::new("unshare")
        .args(["--mount", "sh", "-c", BECOME])
        .arg(path)
        .arg(&program)
        .args(["lab", "--path", "transatlantic", "--cc", "bbr", "--sshd"])
        .args(["sh", "-c", &script])
        .env("HOME", &home)
        .env("TMPDIR", &home)
        .env_remove("XDG_CACHE_HOME")
        .timeout(Duration::from_secs(60))
        .run();
    if outcome.code == Some(125) && outcome.err().contains("user namespace") {
        missing::skip("user namespaces of ordinary users", outcome.err().trim());
        return;
    }
    let outcome = outcome.expect_code(0);
    let out = outcome.out();
    assert_eq!(out.matches("labtest").count(), 2, "{outcome}");
    assert!(out.contains("/dev/pts/"), "{outcome}");
    assert!(outcome.err().contains("near to far"), "{outcome}");
    let left: Vec<_> = fs::read_dir(&home)
        .unwrap()
        .flatten()
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("longhaul-lab")
        })
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
