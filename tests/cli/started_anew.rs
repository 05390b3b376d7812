//! A server whose machine reboots during a copy.

use longhaul_tests::{Scene, names_in};
use testkit::delay_proxy::Way;
use testkit::missing;
use testkit::peer::PeerBuilder;
use testkit::tree::write_file;
use testkit::{DelayProxy, Seed};

use crate::resumed::is_scp;

const SIZE: usize = 60_000_000;

/// Returns a server whose sessions see the boot id that `boot` has when they start.
fn that_starts_anew(folder: &std::path::Path) -> PeerBuilder {
    use std::os::unix::fs::PermissionsExt;
    let (script, boot) = (folder.join("sftp"), folder.join("boot"));
    let text = format!(
        "#!/bin/sh\nfor s in /usr/lib/openssh /usr/lib/ssh /usr/libexec/openssh /usr/libexec; do\n\
         [ -x $s/sftp-server ] && exec unshare --mount sh -c \
         'mount --bind {} /proc/sys/kernel/random/boot_id && exec \"$0\"' $s/sftp-server\ndone\n",
        boot.display()
    );
    write_file(&script, text.as_bytes());
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("ours");
    PeerBuilder::openssh().option("Subsystem", format!("sftp {}", script.display()))
}

/// Changes the boot id. Running sessions keep the file that was bound there; new ones get the new
/// file.
fn boots(folder: &std::path::Path, id: u8) {
    let id = format!("{id:08}-0000-4000-8000-000000000000\n");
    write_file(&folder.join("new"), id.as_bytes());
    std::fs::rename(folder.join("new"), folder.join("boot")).expect("renamed");
}

/// After a reboot the client does not rely on data that the server had before. It once resumed from
/// data that the machine had lost, and trusted a later sync of it.
#[test]
fn a_server_that_started_anew_meanwhile_is_not_believed_to_have_what_it_had() {
    if is_scp() || !missing::can_unshare_mounts() {
        missing::not_here("only root can give a server another boot id");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    boots(folder.path(), 1);
    let Some(mut scene) = Scene::with(that_starts_anew(folder.path())) else {
        return;
    };
    let proxy = DelayProxy::to(scene.peer.addr()).rate(20_000_000).start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    let content = Seed::new(7).bytes(SIZE);
    write_file(&scene.path("file"), &content);
    std::fs::create_dir(scene.path("to")).expect("our folder");
    let cp = || {
        let cp = scene.client.cp().arg(scene.path("file"));
        cp.arg(scene.remote("to/file"))
    };
    let running = cp().spawn();
    assert!(running.until(|| proxy.carried(Way::Up) > 20_000_000));
    // Without a reboot the copy resumes by itself.
    proxy.cut_now();
    assert!(running.until(|| proxy.carried(Way::Up) > 35_000_000));
    boots(folder.path(), 2);
    proxy.cut_now();
    let outcome = running.wait().expect_code(255);
    let said = outcome.err();
    assert!(said.contains("was rebooted"), "{outcome}");
    assert!(said.contains("to resume"), "{outcome}");
    assert!(!scene.path("to/file").exists(), "{outcome}");
    let outcome = cp().run().expect_code(0);
    assert!(
        outcome.err().contains("resuming the earlier copy"),
        "{outcome}"
    );
    let copied = std::fs::read(scene.path("to/file")).expect("copied");
    assert!(copied == content, "another content");
    assert_eq!(names_in(&scene.path("to")), ["file"]);
}
