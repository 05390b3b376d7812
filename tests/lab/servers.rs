//! Servers on the far side, and two labs at once.

use std::fs;
use std::path::Path;
use std::time::Duration;

use longhaul_tests::longhaul;
use testkit::{Run, Seed};

use crate::{have, lab};

fn folder_with_file(bytes: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(file, Seed::new(7).bytes(bytes)).expect("our folder");
    folder
}

fn same(folder: &Path, copy: &str) {
    let read = |name: &str| fs::read(folder.join(name)).unwrap_or_default();
    assert!(read("file") == read(copy), "{copy} is another file");
}

const CLIENTS: &[(&str, &str)] = &[("sshd", "openssh-server"), ("scp", "openssh-client")];

#[test]
fn longhaul_scp_sftp_and_ssh_just_work() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = folder_with_file(3_000_000);
    let here = folder.path().display();
    let ours = longhaul().display().to_string();
    if !have(CLIENTS) {
        return;
    }
    for (copy, script) in [
        ("scp", format!("scp -q {here}/file far:{here}/scp")),
        (
            "longhaul",
            format!("{ours} cp -q {here}/file far:{here}/longhaul"),
        ),
        ("v4", format!("{ours} cp -q {here}/file far4:{here}/v4")),
        (
            "sftp",
            format!("echo 'put {here}/file {here}/sftp' | sftp -q -b - far"),
        ),
        ("ssh", format!("ssh far cat {here}/file > {here}/ssh")),
        (
            // A program without ssh_config, with the settings from the environment.
            "environment",
            format!(
                "scp -q -F none -P $LONGHAUL_LAB_PORT -i $LONGHAUL_LAB_KEY \
                 -o UserKnownHostsFile=$LONGHAUL_LAB_KNOWN_HOSTS {here}/file \
                 $LONGHAUL_LAB_USER@far:{here}/environment"
            ),
        ),
    ] {
        let Some(lab) = lab(temporary.path()) else {
            return;
        };
        let lab = lab.args(["--path", "transatlantic", "--sshd", "-q", "--"]);
        lab.args(["sh", "-c", &script]).run().expect_code(0);
        same(folder.path(), copy);
    }
}

#[test]
fn sshd_takes_settings() {
    let temporary = tempfile::tempdir().unwrap();
    if !have(CLIENTS) {
        return;
    }
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let outcome = lab
        .args(["--sshd", "--sshd-option", "Banner=/etc/hostname", "-q"])
        .args(["--sshd-option", "ForceCommand=echo forced"])
        .args(["ssh", "far", "true"])
        .run()
        .expect_code(0);
    assert!(outcome.out().contains("forced"), "{outcome}");
}

#[test]
fn a_far_command_is_waited_for() {
    let temporary = tempfile::tempdir().unwrap();
    if !have(&[("python3", "python3")]) {
        return;
    }
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    let serve = "sleep 1.5; exec python3 -c 'import socket; s = socket.create_server((\"\", 7000)); \
                 c, _ = s.accept(); c.sendall(b\"hello\")'";
    let meet = "import socket; print(socket.create_connection((\"far4\", 7000)).recv(5))";
    let outcome = lab
        .args(["--rtt", "10ms", "-q", "--far", serve, "--far-port", "7000"])
        .args(["python3", "-c", meet])
        .run()
        .expect_code(0);
    assert!(outcome.out().contains("hello"), "{outcome}");
}

#[test]
fn the_lab_sees_nothing_but_its_path() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(lab) = lab(temporary.path()) else {
        return;
    };
    // Own interfaces and processes, and this machine's files.
    let outcome = lab
        .args(["-q", "sh", "-c"])
        .arg("cut -d: -f1 -s /proc/net/dev | xargs; echo first $(cat /proc/1/cmdline | tr '\\0' ' ')")
        .run()
        .expect_code(0);
    let out = outcome.out();
    let interfaces: Vec<&str> = out.lines().next().unwrap_or_default().split(' ').collect();
    assert_eq!(interfaces.len(), 2, "{out}");
    assert!(interfaces.contains(&"lo") && interfaces.contains(&"path"));
    assert!(out.contains("first longhaul lab-world"), "{out}");
}

#[test]
fn two_labs_do_not_disturb_each_other() {
    let temporary = tempfile::tempdir().unwrap();
    if !have(CLIENTS) || !have(&[("ping", "iputils-ping")]) {
        return;
    }
    let labs: Option<Vec<Run>> = ["40ms", "160ms"]
        .iter()
        .map(|rtt| {
            let lab = lab(temporary.path())?;
            Some(lab.args(["--rtt", rtt, "--sshd", "-q"]).args([
                "sh",
                "-c",
                "ssh far true && ping -q -c 5 -i 0.2 far && ssh far true",
            ]))
        })
        .collect();
    let Some(labs) = labs else {
        return;
    };
    let running: Vec<_> = labs.into_iter().map(Run::spawn).collect();
    let least: Vec<Duration> = running
        .into_iter()
        .map(|running| crate::truth::least_rtt(&running.wait().expect_code(0)))
        .collect();
    assert!((40..100).contains(&least[0].as_millis()), "{least:?}");
    assert!((160..220).contains(&least[1].as_millis()), "{least:?}");
}

/// Uploads with zlib work over a long path. Before this, sshd ended each one from 20 ms round-trip
/// time on, because of IGNOREs in front of the data; and a copy of text chose zlib by itself once
/// the path was known to be slow.
#[test]
fn uploads_with_zlib_reach_openssh_over_a_long_path() {
    let temporary = tempfile::tempdir().unwrap();
    if !have(CLIENTS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let lines =
        (0..400_000).map(|n| format!("{n:x} lines of a log, of which zlib leaves little\n"));
    fs::write(folder.path().join("file"), lines.collect::<String>()).expect("our folder");
    let here = folder.path().display();
    let cp = format!("{} cp -q", longhaul().display());
    for rtt in ["20ms", "90ms"] {
        let Some(lab) = lab(temporary.path()) else {
            return;
        };
        let script = format!(
            "{cp} -C {here}/file far:{here}/asked && {cp} {here}/file far:{here}/plain && \
             {cp} {here}/file far:{here}/chosen"
        );
        lab.env("XDG_CACHE_HOME", temporary.path().join(rtt))
            .args(["--rtt", rtt, "--rate", "100Mbit", "--sshd", "-q", "--"])
            .args(["sh", "-c", &script])
            .run()
            .expect_code(0);
        for copy in ["asked", "plain", "chosen"] {
            same(folder.path(), copy);
            fs::remove_file(folder.path().join(copy)).expect("our folder");
        }
    }
}
