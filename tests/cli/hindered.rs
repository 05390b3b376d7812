//! Copies that meet a full disk, a target that becomes read-only, or a server that asks for a
//! password, and that continue once the problem is solved.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use longhaul_tests::{Program, Scene, names_in};
use testkit::delay_proxy::Way;
use testkit::missing::{self, sftp_server};
use testkit::peer::{Auth, PASSWORD, PeerBuilder};
use testkit::tree::write_file;
use testkit::{DelayProxy, Outcome, PeerKind, Run, Seed};

use crate::resumed::is_scp;

const MIB: u64 = 1 << 20;
const SIZE: usize = 150 << 20;
pub(crate) const OLD: &[u8] = b"what was there before";

/// File system in a mount namespace of its own, which ends with the process in it.
pub(crate) struct Disk {
    holder: Child,
    /// Path inside the namespace.
    at: PathBuf,
}

impl Disk {
    pub(crate) fn new(at: &Path, mib: u64) -> Self {
        std::fs::create_dir_all(at).expect("our folder");
        let script =
            "mount -t tmpfs -o size=$1m tmpfs \"$0\" && echo mounted && exec sleep 300 >&-";
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation=private", "sh", "-c", script]);
        let unshare = unshare.arg(at).arg(mib.to_string()).stdin(Stdio::null());
        let mut holder = unshare.stdout(Stdio::piped()).spawn().expect("unshare");
        let stdout = holder.stdout.take().expect("piped");
        let disk = Self {
            holder,
            at: at.to_owned(),
        };
        // The pipe ends if the script fails.
        let mut said = String::new();
        BufReader::new(stdout).read_line(&mut said).expect("a pipe");
        assert_eq!(said, "mounted\n", "no mount");
        write_file(&disk.path("file"), OLD);
        disk
    }

    /// Returns a path as seen from outside the namespace.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let root = format!("/proc/{}/root", self.holder.id());
        let at = self.at.strip_prefix("/").unwrap_or(&self.at);
        Path::new(&root).join(at).join(name)
    }

    /// Returns the words that run a command inside the namespace.
    pub(crate) fn enter(&self) -> [String; 4] {
        let pid = self.holder.id().to_string();
        ["nsenter", "--target", &pid, "--mount"].map(str::to_owned)
    }

    pub(crate) fn remount(&self, options: &str) {
        let [nsenter, words @ ..] = self.enter();
        let mut mount = Command::new(nsenter);
        let mount = mount.args(words).args(["mount", "-o"]);
        let mount = mount.arg(format!("remount,{options}")).arg(&self.at);
        assert!(mount.status().is_ok_and(|status| status.success()));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Large file that is copied to such a disk, at either end.
struct Hindered {
    scene: Scene,
    proxy: DelayProxy,
    disk: Disk,
    up: bool,
    content: Vec<u8>,
    /// Words in front of the client's command.
    prefix: Vec<String>,
    folder: tempfile::TempDir,
}

pub(crate) fn write_script(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    write_file(path, text.as_bytes());
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("ours");
}

impl Hindered {
    fn new(up: bool, mib: u64) -> Option<Self> {
        if is_scp() || !missing::can_unshare_mounts() {
            missing::not_here("only root can mount a small file system");
            return None;
        }
        let folder = longhaul_tests::scratch();
        // The contents are removed together with the namespace.
        let disk = Disk::new(&folder.path().join("disk"), mib);
        let server = sftp_server()?;
        let script = folder.path().join("server");
        let subsystem = format!("sftp {}", script.display());
        let text = format!(
            "#!/bin/sh\nexec {} {}\n",
            disk.enter().join(" "),
            server.display()
        );
        write_script(&script, &text);
        let builder = PeerBuilder::new(PeerKind::OpenSsh);
        let builder = match up {
            true => builder.option("Subsystem", subsystem),
            false => builder,
        };
        let mut scene = Scene::with(builder)?;
        let proxy = DelayProxy::to(scene.peer.addr()).rate(100_000_000).start();
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, proxy.port());
        let content = Seed::new(7).bytes(SIZE);
        write_file(&scene.path("file"), &content);
        Some(Self {
            scene,
            proxy,
            disk,
            up,
            content,
            prefix: Vec::new(),
            folder,
        })
    }

    /// Sets the script that sshd runs from now on.
    fn subsystem(&self, script: &str) {
        let new = self.folder.path().join("new");
        write_script(&new, script);
        std::fs::rename(new, self.folder.path().join("server")).expect("ours");
    }

    fn cp(&self) -> Run {
        let Program::Longhaul(program) = &self.scene.client.program else {
            unreachable!("not scp");
        };
        let [nsenter, words @ ..] = self.disk.enter();
        let run = match self.up {
            true => self.scene.client.dir.run(program),
            false => {
                let run = self.scene.client.dir.run(nsenter).args(words);
                run.args(&self.prefix).arg(program)
            }
        };
        let run = run.args(["cp", "-F"]).arg(self.scene.client.dir.config());
        let to = self.disk.at.join("file");
        match self.up {
            true => run
                .arg(self.scene.path("file"))
                .arg(format!("peer:{}", to.display())),
            false => run.arg(self.scene.remote("file")).arg(to),
        }
    }

    /// Asserts that the copy fails with one sentence, and that the existing file is unchanged.
    #[track_caller]
    fn fails(&self, why: [&str; 2]) -> Outcome {
        let outcome = self.cp().run().expect_code(1);
        let said = outcome.err().to_lowercase();
        assert!(said.contains(why[usize::from(self.up)]), "{outcome}");
        let errors = said.lines().filter(|l| l.starts_with("longhaul: ")).count();
        assert!(errors <= 2, "one sentence, and how it goes on: {outcome}");
        assert!(!said.contains("panic"), "{outcome}");
        let old = std::fs::read(self.disk.path("file")).expect("still there");
        assert_eq!(old, OLD, "{outcome}");
        outcome
    }

    fn carried(&self) -> u64 {
        let way = if self.up { Way::Up } else { Way::Down };
        self.proxy.carried(way)
    }

    /// Asserts that the copy completes, and sends no more than the missing bytes plus 64 MiB.
    #[track_caller]
    fn goes_on(&self, there: u64) {
        let before = self.carried();
        let outcome = self.cp().run().expect_code(0);
        assert!(
            outcome.err().contains("resuming the earlier copy"),
            "{outcome}"
        );
        let sent = self.carried() - before;
        let missing = self.content.len() as u64 - there;
        assert!(sent < missing + 64 * MIB, "{sent} bytes\n{outcome}");
        let copied = std::fs::read(self.disk.path("file")).expect("copied");
        assert!(copied == self.content, "another content\n{outcome}");
        assert_eq!(names_in(&self.disk.path("")), ["file"], "{outcome}");
    }
}

// OpenSSH's server reports only "failure", whatever the reason.
const FULL: [&str; 2] = ["no space left on device", "failure"];
const READ_ONLY: [&str; 2] = ["read-only file system", "failure"];

#[test]
fn a_disk_that_is_full_keeps_what_is_there_and_goes_on_when_it_has_room() {
    for up in [true, false] {
        let Some(copy) = Hindered::new(up, 120) else {
            return;
        };
        let outcome = copy.fails(FULL);
        // The same command fails again until there is room, so it is not called the way on.
        assert!(!outcome.err().contains("to resume: "), "{outcome}");
        // The disk is still full for the second run.
        copy.fails(FULL);
        copy.disk.remount("size=400m");
        copy.goes_on(100 * MIB);
    }
}

/// The next run spoke of the bytes of a temporary that the failed run had removed.
#[test]
fn what_was_removed_after_a_full_disk_is_not_claimed_by_the_next_run() {
    for up in [true, false] {
        let Some(copy) = Hindered::new(up, 50) else {
            return;
        };
        let outcome = copy.fails(FULL);
        assert!(!outcome.err().contains("to resume"), "{outcome}");
        assert_eq!(names_in(&copy.disk.path("")), ["file"], "{outcome}");
        copy.disk.remount("size=400m");
        let outcome = copy.cp().run().expect_code(0);
        assert!(!outcome.err().contains("resuming"), "{outcome}");
    }
}

#[test]
fn a_disk_that_becomes_full_while_a_copy_goes_on_loses_nothing() {
    for up in [true, false] {
        let Some(copy) = Hindered::new(up, 400) else {
            return;
        };
        let before = copy.carried();
        let running = copy.cp().spawn();
        assert!(running.until(|| copy.carried() - before > 80 * MIB));
        running.interrupt();
        running.wait().expect_code(130);
        copy.disk.remount("size=130m");
        copy.fails(FULL);
        copy.disk.remount("size=400m");
        copy.goes_on(100 * MIB);
    }
}

#[test]
fn a_disk_that_is_read_only_is_said_and_loses_nothing() {
    for up in [true, false] {
        let Some(copy) = Hindered::new(up, 400) else {
            return;
        };
        copy.disk.remount("ro");
        copy.fails(READ_ONLY);
        assert_eq!(names_in(&copy.disk.path("")), ["file"]);
        copy.disk.remount("rw");
        let before = copy.carried();
        let running = copy.cp().spawn();
        assert!(running.until(|| copy.carried() - before > 80 * MIB));
        running.interrupt();
        running.wait().expect_code(130);
        let left = names_in(&copy.disk.path(""));
        copy.disk.remount("ro");
        copy.fails(READ_ONLY);
        assert_eq!(names_in(&copy.disk.path("")), left);
        copy.disk.remount("rw");
        copy.goes_on(40 * MIB);
    }
}

/// Quota as a program meets it: writes fail although the disk has room. Test machines rarely have
/// quotas, and root is exempt from them, so that a file size limit replaces it; sshd gives the same
/// answer for both.
#[test]
fn a_quota_is_said_and_what_is_there_is_gone_on_with() {
    const LIMIT: &str = "trap '' XFSZ; ulimit -f 245760; exec \"$@\"";
    for up in [true, false] {
        let Some(mut copy) = Hindered::new(up, 400) else {
            return;
        };
        if up {
            let limit = copy.scene.path("limit");
            write_file(&limit, b"");
            let server = sftp_server().expect("it was there");
            let script = format!(
                "#!/bin/sh\nset -- {} {}\n[ -e {} ] || exec \"$@\"\n{LIMIT}\n",
                copy.disk.enter().join(" "),
                server.display(),
                limit.display()
            );
            copy.subsystem(&script);
            copy.fails(["", "failure"]);
            std::fs::remove_file(limit).expect("ours");
        } else {
            copy.prefix = ["sh", "-c", LIMIT, "sh"].map(str::to_owned).to_vec();
            copy.fails(["file too large", ""]);
            copy.prefix.clear();
        }
        copy.goes_on(100 * MIB);
    }
}

/// Server that asks for a password, and the number of times that the client was asked for it.
struct Asking {
    scene: Scene,
    proxy: DelayProxy,
    content: Vec<u8>,
}

impl Asking {
    fn new() -> Option<Self> {
        if is_scp() {
            return None;
        }
        let builder = PeerBuilder::new(PeerKind::Paramiko).auth(Auth::Password);
        let mut scene = Scene::with(builder)?;
        let proxy = DelayProxy::to(scene.peer.addr()).rate(10_000_000).start();
        scene
            .client
            .dir
            .add_host_at("peer", &scene.peer, proxy.port());
        let content = Seed::new(7).bytes(40_000_000);
        write_file(&scene.path("file"), &content);
        Some(Self {
            scene,
            proxy,
            content,
        })
    }

    fn asked(&self) -> usize {
        self.scene.client.dir.asked().lines().count()
    }

    fn cp(&mut self) -> Run {
        let run = self.scene.client.answering(PASSWORD);
        run.arg(self.scene.path("file"))
            .arg(self.scene.remote("copy"))
    }
}

#[test]
fn a_person_who_has_to_log_in_again_is_asked_once() {
    let Some(mut copy) = Asking::new() else {
        return;
    };
    let running = copy.cp().spawn();
    assert!(running.until(|| copy.proxy.carried(Way::Up) > 15_000_000));
    assert_eq!(copy.asked(), 1);
    copy.proxy.cut_now();
    let outcome = running.wait().expect_code(0);
    assert!(outcome.err().contains("reconnected"), "{outcome}");
    assert_eq!(copy.asked(), 2, "{outcome}");
    let copied = std::fs::read(copy.scene.path("copy")).expect("copied");
    assert!(copied == copy.content, "another content");
}

#[test]
fn a_person_whose_answer_is_refused_is_not_asked_again() {
    let Some(mut copy) = Asking::new() else {
        return;
    };
    let running = copy.cp().spawn();
    assert!(running.until(|| copy.proxy.carried(Way::Up) > 15_000_000));
    copy.scene.client.dir.askpass("wrong");
    copy.proxy.cut_now();
    let outcome = running.wait();
    assert_eq!(outcome.code, Some(255), "{outcome}");
    assert_eq!(copy.asked(), 2, "{outcome}");
    assert!(outcome.err().contains("to resume"), "{outcome}");
    let outcome = copy.cp().run().expect_code(0);
    assert!(
        outcome.err().contains("resuming the earlier copy"),
        "{outcome}"
    );
    let copied = std::fs::read(copy.scene.path("copy")).expect("copied");
    assert!(copied == copy.content, "another content");
}

/// Data at such a server is never known to be durable.
#[test]
fn a_server_that_cannot_sync_is_gone_on_with_while_its_machine_runs() {
    if is_scp() {
        return;
    }
    let Some(server) = sftp_server() else { return };
    let subsystem = format!("sftp {} -P fsync", server.display());
    let builder = PeerBuilder::new(PeerKind::OpenSsh).option("Subsystem", subsystem);
    let Some(mut scene) = Scene::with(builder) else {
        return;
    };
    let proxy = DelayProxy::to(scene.peer.addr()).rate(40_000_000).start();
    scene
        .client
        .dir
        .add_host_at("peer", &scene.peer, proxy.port());
    let content = Seed::new(7).bytes(100 << 20);
    write_file(&scene.path("file"), &content);
    std::fs::create_dir(scene.path("to")).expect("our folder");
    let cp = || {
        let cp = scene.client.cp().arg(scene.path("file"));
        cp.arg(scene.remote("to/file"))
    };
    let running = cp().spawn();
    assert!(running.until(|| proxy.carried(Way::Up) > 80 * MIB));
    testkit::process::must("kill", &["-9".as_ref(), running.pid().to_string().as_ref()]);
    running.wait();
    let before = proxy.carried(Way::Up);
    let outcome = cp().run().expect_code(0);
    assert!(
        outcome.err().contains("resuming the earlier copy"),
        "{outcome}"
    );
    let sent = proxy.carried(Way::Up) - before;
    assert!(sent < 20 * MIB + 64 * MIB, "{sent} bytes\n{outcome}");
    let copied = std::fs::read(scene.path("to/file")).expect("copied");
    assert!(copied == content, "another content");
    assert_eq!(names_in(&scene.path("to")), ["file"]);
}
