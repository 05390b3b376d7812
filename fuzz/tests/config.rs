//! Fuzzes the output of `ssh -G`, configuration files that are read without ssh, and lists of `-o`:
//! the result is an answer or one sentence, never a panic.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use fuzz::{Corpus, assert_shown_safely, parse};
use transfer::config::{HostConfig, HostConfigQuery, LocalUser};

fn user() -> LocalUser {
    LocalUser {
        name: "me".into(),
        uid: 1000,
        home: Some(PathBuf::from("/home/me")),
        host: "here".into(),
    }
}

fn check(config: Result<HostConfig, transfer::config::ConfigError>) {
    match config {
        Ok(config) => {
            for text in config.warnings.iter().chain(&config.notes) {
                assert_shown_safely(text, false);
            }
            assert!(config.required_rsa_size >= 2048);
            for list in [&config.ciphers, &config.macs, &config.kex] {
                if let Ok(names) = list.within(&["aes128-ctr", "hmac-sha2-256"]) {
                    assert!(
                        names
                            .iter()
                            .all(|n| n == "aes128-ctr" || n == "hmac-sha2-256")
                    );
                }
            }
        }
        Err(error) => assert_shown_safely(&error.to_string(), false),
    }
}

const LINES: &str = "host h\nuser me\nhostname h.example.org\nport 22\naddressfamily any\n\
    batchmode no\ncompression yes\nstricthostkeychecking accept-new\nconnecttimeout 1h30m\n\
    serveraliveinterval 15\nrekeylimit 1073741824 3600\nproxyjump a@b:22,[::1]:2222\n\
    identityfile ~/.ssh/id_%u\ncertificatefile none\nidentityagent $SSH_AUTH_SOCK\n\
    ciphers aes128-ctr,chacha20-poly1305@openssh.com\nkexalgorithms ^curve25519-sha256\n\
    userknownhostsfile ~/.ssh/known_hosts \"/a b/${HOME}\"\nsetenv A=b C=\"d e\"\n\
    sendenv LANG LC_*\nforwardagent no\npubkeyauthentication host-bound\n\
    preferredauthentications publickey,password\nhostkeyalias %h-alias\nloglevel INFO\n\
    requiredrsasize 1024\nproxycommand nc %h %p\nnumberofpasswordprompts 3\n";

#[test]
fn output_of_ssh() {
    let dir = tempfile::tempdir().expect("a folder");
    let (program, output) = (dir.path().join("ssh"), dir.path().join("output"));
    let script = format!("#!/bin/sh\nexec cat '{}'\n", output.display());
    fs::write(&program, script).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("set");
    let corpus = Corpus(vec![("output", LINES.into()), ("same", LINES.into())]);
    parse(1024, |u| {
        fs::write(&output, corpus.mutant(u)?).expect("written");
        let query = HostConfigQuery {
            host: "h".into(),
            ssh: Some(program.clone().into()),
            ..HostConfigQuery::default()
        };
        check(query.resolve(&user()));
        Ok(())
    });
}

#[test]
fn files_read_without_ssh() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("config");
    let blocks = "Host *.example.org h !bad\n  User = me\n  Port 2222\n  Ciphers +aes128-ctr\n\
        Match host h exec \"true\"\n  ProxyJump j\nInclude nothing-*\n  IdentityFile \"a b\"\n";
    let corpus = Corpus(vec![("blocks", blocks.into()), ("lines", LINES.into())]);
    let options = [
        "Port=5",
        "User=me",
        "Ciphers=-x",
        "RekeyLimit=1G 1h",
        "Port",
        "=",
        "ProxyJump=a,b",
    ];
    let option = Corpus(
        options
            .iter()
            .map(|o| ("option", o.as_bytes().to_vec()))
            .collect(),
    );
    parse(1024, |u| {
        fs::write(&file, corpus.mutant(u)?).expect("written");
        let chosen = option.mutant(u)?;
        let query = HostConfigQuery {
            host: "h".into(),
            file: Some(file.clone()),
            options: String::from_utf8(chosen).into_iter().collect(),
            ssh: Some("/nowhere/ssh".into()),
            ..HostConfigQuery::default()
        };
        check(query.resolve(&user()));
        Ok(())
    });
}
