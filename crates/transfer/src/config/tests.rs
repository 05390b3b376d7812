//! Tests of the configuration, with OpenSSH if it is installed, and without.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::*;
use crate::agent::AgentChoice;

const CIPHERS: &[&str] = &[
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
];

fn user(home: &Path) -> LocalUser {
    LocalUser {
        name: "me".into(),
        uid: 1000,
        home: Some(home.into()),
        host: "here.example.org".into(),
    }
}

/// Runs the check with OpenSSH, if installed, and without it.
fn both(text: &str, query: &HostConfigQuery, check: impl Fn(HostConfig, bool)) {
    for result in both_results(text, query) {
        let (config, with_ssh) = result;
        check(config.unwrap(), with_ssh);
    }
}

fn both_results(
    text: &str,
    query: &HostConfigQuery,
) -> Vec<(Result<HostConfig, ConfigError>, bool)> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config");
    fs::write(&file, text.replace("DIR", dir.path().to_str().unwrap())).unwrap();
    fs::write(dir.path().join("included"), "Host inc*\n  Port 2201\n").unwrap();
    let mut query = query.clone();
    query.file = Some(file);
    let mut results = Vec::new();
    if Command::new("ssh").arg("-V").output().is_ok() {
        results.push((query.resolve(&user(Path::new("/home/me"))), true));
    } else {
        eprintln!("skipped in part: ssh is not installed");
    }
    query.ssh = Some("/nonexistent/ssh".into());
    results.push((query.resolve(&user(Path::new("/home/me"))), false));
    results
}

fn host(name: &str) -> HostConfigQuery {
    HostConfigQuery {
        host: name.into(),
        ..HostConfigQuery::default()
    }
}

#[test]
fn nothing_configured_means_our_own_choices_and_no_word() {
    both("", &host("h"), |config, with_ssh| {
        assert_eq!(config.warnings, [""; 0]);
        assert_eq!(config.notes, [""; 0]);
        assert_eq!((config.host_name.as_str(), config.port), ("h", 22));
        assert_eq!(config.ciphers.within(CIPHERS).unwrap(), CIPHERS);
        assert_eq!(config.proxy, ProxyMethod::Direct);
        assert_eq!(config.strict, StrictHostKeyChecking::Ask);
        assert_eq!(config.agent, AgentChoice::Environment);
        assert_eq!(config.rekey, RekeyLimit::default());
        assert_eq!(config.connect_timeout, None);
        assert_eq!(config.required_rsa_size, 2048);
        assert!(config.identity_files.iter().all(|f| !f.explicit) || !with_ssh);
        let usual = Path::new("/home/me/.ssh/id_ed25519");
        assert!(config.identity_files.iter().any(|f| f.path == usual));
        assert!(config.user_known_hosts[0].ends_with(".ssh/known_hosts"));
    });
}

#[test]
fn options_reach_their_fields() {
    let text = "Host h\n HostName real.%h\n Port 2222\n User bob\n IdentityFile ~/.ssh/%r@%h\n \
                IdentitiesOnly yes\n CertificateFile ~/c-cert.pub\n IdentityAgent none\n \
                StrictHostKeyChecking accept-new\n HashKnownHosts yes\n HostKeyAlias al\n \
                UserKnownHostsFile /k/1 /k/2\n ServerAliveInterval 15\n ServerAliveCountMax 7\n \
                ConnectTimeout 90\n ConnectionAttempts 2\n BindAddress 127.0.0.1\n AddressFamily \
                inet\n RekeyLimit 1G 1h\n Compression yes\n LogLevel VERBOSE\n \
                NumberOfPasswordPrompts 1\n PasswordAuthentication no\n PreferredAuthentications \
                publickey,password\n ForwardAgent yes\n BatchMode yes\n ProxyCommand nc %h %p\n";
    both(text, &host("h"), |config, _| {
        assert_eq!(config.host_name, "real.h");
        assert_eq!((config.port, config.user.as_str()), (2222, "bob"));
        let identity = IdentityFile {
            path: "/home/me/.ssh/bob@real.h".into(),
            explicit: true,
        };
        assert_eq!(config.identity_files, [identity]);
        assert!(config.has(SshOptionFlags::IDENTITIES_ONLY));
        assert_eq!(config.certificate_files, [Path::new("/home/me/c-cert.pub")]);
        assert_eq!(config.agent, AgentChoice::None);
        assert_eq!(config.strict, StrictHostKeyChecking::AcceptNew);
        assert!(
            config.has(SshOptionFlags::HASH_KNOWN_HOSTS) && config.has(SshOptionFlags::BATCH_MODE)
        );
        assert_eq!(config.compression, Some(true));
        assert_eq!(config.host_key_name(), "al");
        assert_eq!(
            config.user_known_hosts,
            [Path::new("/k/1"), Path::new("/k/2")]
        );
        assert_eq!(config.alive_interval, Some(Duration::from_secs(15)));
        assert_eq!(config.alive_count_max, 7);
        assert_eq!(
            config.connect_timeout,
            Some(ConnectTimeout::Set(Duration::from_secs(90)))
        );
        assert_eq!(config.connection_attempts, 2);
        assert_eq!(config.bind_address.as_deref(), Some("127.0.0.1"));
        assert_eq!(config.family, AddressFamily::Inet);
        let rekey = RekeyLimit {
            bytes: Some(1 << 30),
            time: Some(Duration::from_secs(3600)),
        };
        assert_eq!(config.rekey, rekey);
        assert_eq!(config.log_level, "VERBOSE");
        assert_eq!(config.password_prompts, 1);
        assert!(
            !config.has(SshOptionFlags::PASSWORD_AUTHENTICATION)
                && config.has(SshOptionFlags::KBD_INTERACTIVE_AUTHENTICATION)
        );
        let preferred = config.preferred_authentications.as_deref();
        assert_eq!(
            preferred,
            Some(&["publickey".into(), "password".into()][..])
        );
        assert_eq!(config.forward_agent, ForwardAgent::Yes);
        assert_eq!(config.proxy, ProxyMethod::Command("nc real.h 2222".into()));
        assert_eq!(config.warnings, [""; 0]);
    });
}

/// `ssh -G` refuses names that the installed ssh does not know, so it does not get the lists.
#[test]
fn lists_of_the_command_line_are_ours_to_read() {
    let kex = [
        "mlkem768x25519-sha256",
        "curve25519-sha256",
        "ecdh-sha2-nistp256",
    ];
    let ours = |option: &str| HostConfigQuery {
        options: vec!["Port=1".into(), option.into(), "KexAlgorithms=none".into()],
        ..host("h")
    };
    for (option, wanted) in [
        ("KexAlgorithms=mlkem768x25519-sha256", &kex[..1]),
        (
            "kexalgorithms \"ecdh-sha2-nistp256,curve25519-*\"",
            &[kex[2], kex[1]],
        ),
        (
            "KexAlgorithms = ^ecdh-sha2-nistp256",
            &[kex[2], kex[0], kex[1]],
        ),
        ("KexAlgorithms=-mlkem*,nothing-at-all", &kex[1..]),
        ("KexAlgorithms=+diffie-hellman-group1-sha1", &kex),
        (
            "KexAlgorithms=diffie-hellman-group14-sha256,curve25519-sha256",
            &kex[1..2],
        ),
    ] {
        // The list in the file has no effect.
        both(
            "KexAlgorithms ecdh-sha2-nistp384\n",
            &ours(option),
            |config, _| {
                assert_eq!(config.kex.within(&kex).unwrap(), wanted, "{option}");
                assert_eq!(config.port, 1);
            },
        );
    }
    for (option, word) in [
        (
            "KexAlgorithms=curve25519-sha265",
            "KexAlgorithms: unknown algorithm curve25519-sha265",
        ),
        (
            "MACs=^hmac-sha3-256",
            "MACs: unknown algorithm hmac-sha3-256",
        ),
        (
            "HostKeyAlgorithms=ed25519",
            "HostKeyAlgorithms: unknown algorithm ed25519",
        ),
        (
            "PubkeyAcceptedKeyTypes=+rsa",
            "PubkeyAcceptedAlgorithms: unknown algorithm rsa",
        ),
    ] {
        for (config, _) in both_results("", &ours(option)) {
            let error = config.unwrap_err().to_string();
            assert!(
                error.contains(word) && error.contains("supported are"),
                "{error}"
            );
        }
    }
    let query = HostConfigQuery {
        cipher: Some("aes128-gmc@openssh.com".into()),
        ..host("h")
    };
    for (config, _) in both_results("", &query) {
        let error = config.unwrap_err().to_string();
        assert!(
            error.contains("Ciphers: unknown algorithm aes128-gmc@openssh.com"),
            "{error}"
        );
    }
}

#[test]
fn quiet_tells_nothing() {
    let quiet = HostConfigQuery {
        quiet: true,
        ..host("h")
    };
    both("LogLevel VERBOSE\n", &quiet, |config, _| {
        assert!(!config.tells() && !config.tells_errors());
    });
    both("LogLevel ERROR\n", &host("h"), |config, _| {
        assert!(!config.tells() && config.tells_errors());
    });
    both("", &host("h"), |config, _| assert!(config.tells()));
}

#[test]
fn the_command_line_wins_over_files() {
    let query = HostConfigQuery {
        user: Some("me2".into()),
        port: Some(23),
        options: vec!["ConnectTimeout=5".into(), "Ciphers=aes128-ctr".into()],
        jump: Some("u@j1:22,j2".into()),
        cipher: Some("aes256-gcm@openssh.com".into()),
        compression: true,
        family: AddressFamily::Inet6,
        batch: true,
        ..host("h")
    };
    let text = "User bob\nPort 99\nConnectTimeout 90\nProxyJump none\nBatchMode no\n";
    both(text, &query, |config, _| {
        assert_eq!((config.port, config.user.as_str()), (23, "me2"));
        assert_eq!(
            config.connect_timeout,
            Some(ConnectTimeout::Set(Duration::from_secs(5)))
        );
        assert_eq!(
            config.ciphers.within(CIPHERS).unwrap(),
            ["aes256-gcm@openssh.com"]
        );
        assert!(config.compression == Some(true) && config.has(SshOptionFlags::BATCH_MODE));
        assert_eq!(config.family, AddressFamily::Inet6);
        let ProxyMethod::Jump(hops) = config.proxy else {
            panic!("a jump was asked for");
        };
        let shown: Vec<String> = hops.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["u@j1:22", "j2"]);
    });
}

#[test]
fn include_is_followed_and_match_is_openssh_s_or_said_to_be_skipped() {
    let text =
        "Include DIR/included\nMatch host m* exec \"true\"\n  Port 2202\nHost *\n  Port 2203\n";
    both(text, &host("inc1"), |config, _| {
        assert_eq!(config.port, 2201)
    });
    both(text, &host("m1"), |config, with_ssh| {
        assert_eq!(config.port, if with_ssh { 2202 } else { 2203 });
        let warned = config.warnings.iter().any(|w| w.contains("Match"));
        assert_eq!(warned, !with_ssh);
    });
}

#[test]
fn what_would_weaken_or_change_the_connection_is_named() {
    let text = "VerifyHostKeyDNS yes\nBindInterface lo\nControlMaster auto\n\
                GSSAPIAuthentication yes\nIPQoS af21\nLocalForward 1 h:2\n";
    both(text, &host("h"), |config, _| {
        let mut warnings = config.warnings;
        warnings.sort();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].starts_with("BindInterface"));
        assert!(warnings[1].starts_with("VerifyHostKeyDNS"));
        assert!(config.notes.iter().any(|n| n.starts_with("ControlMaster")));
        assert!(
            config
                .notes
                .iter()
                .any(|n| n.starts_with("GSSAPIAuthentication"))
        );
        assert!(
            !config
                .notes
                .iter()
                .any(|n| n.to_lowercase().contains("ipqos"))
        );
    });
    both(
        "VerifyHostKeyDNS no\nTunnel no\n",
        &host("h"),
        |config, _| {
            assert_eq!(config.warnings, [""; 0]);
        },
    );
}

#[test]
fn a_choice_of_algorithms_that_leaves_nothing_is_an_error_that_names_it() {
    both("Ciphers 3des-cbc\n", &host("h"), |config, _| {
        let error = config.ciphers.within(CIPHERS).unwrap_err().to_string();
        assert!(
            error.starts_with("Ciphers") && error.contains("aes128-gcm"),
            "{error}"
        );
    });
    both(
        "Ciphers -chacha20-poly1305@openssh.com\n",
        &host("h"),
        |config, _| {
            let offer = config.ciphers.within(CIPHERS).unwrap();
            assert_eq!(
                offer,
                [
                    "aes128-gcm@openssh.com",
                    "aes256-gcm@openssh.com",
                    "aes128-ctr"
                ]
            );
        },
    );
}

#[test]
fn what_openssh_rejects_is_an_error_in_its_words() {
    for (result, with_ssh) in both_results("Port none\n", &host("h")) {
        let error = result.unwrap_err().to_string();
        assert!(!with_ssh || error.contains("line 1"), "{error}");
    }
    let missing = HostConfigQuery {
        file: Some("/nonexistent/config".into()),
        ..host("h")
    };
    assert!(missing.resolve(&user(Path::new("/home/me"))).is_err());
}

#[test]
fn tokens_and_variables() {
    let tokens = TokenValues {
        asked: "n".into(),
        host: "h".into(),
        port: 22,
        user: "r".into(),
        alias: "k".into(),
        jump: "j".into(),
        local: user(Path::new("/home/me")),
    };
    let percent = |text| tokens.percent("X", text);
    let wanted = "n h 22 r k j me 1000 /home/me here.example.org here %";
    assert_eq!(
        percent("%n %h %p %r %k %j %u %i %d %l %L %%").unwrap(),
        wanted
    );
    assert_eq!(percent("%C").unwrap().len(), 40);
    assert!(percent("%z").is_err() && percent("x%").is_err());
    let path = |text: &str| {
        tokens
            .path("X", Path::new(text))
            .map(|p| p.display().to_string())
    };
    assert_eq!(path("~/a").unwrap(), "/home/me/a");
    assert_eq!(path("~").unwrap(), "/home/me");
    assert_eq!(path("a~/b").unwrap(), "a~/b");
    assert_eq!(
        path("/x/${PATH}/y").unwrap(),
        format!("/x/{}/y", std::env::var("PATH").unwrap())
    );
    assert!(path("~bob/x").is_err() && path("${NOT_SET_HERE}").is_err() && path("${x").is_err());
}

#[test]
fn send_env_takes_back_the_names_before() {
    let text = "SendEnv LANG LC_ALL X? -LC_*\n";
    both(text, &host("h"), |config, _| {
        assert!(config.sends("LANG") && config.sends("XY"));
        assert!(!config.sends("LC_ALL") && !config.sends("PATH") && !config.sends("X"));
    });
}

#[test]
fn rsa_keys_have_to_be_long_enough() {
    both("RequiredRSASize 4096\n", &host("h"), |config, _| {
        let rsa = ssh::key::PrivateKey::generate_rsa().unwrap();
        let why = config.check_size(rsa.public()).unwrap_err().to_string();
        assert!(why.contains("3072") && why.contains("4096"), "{why}");
        let ed25519 = ssh::key::PrivateKey::generate_ed25519().unwrap();
        assert_eq!(config.check_size(ed25519.public()), Ok(()));
    });
    both("", &host("h"), |config, _| {
        let rsa = ssh::key::PrivateKey::generate_rsa().unwrap();
        assert_eq!(config.check_size(rsa.public()), Ok(()));
    });
}

/// Regression test: `-o StrictHostKeyChecking=accept-new` failed for a user without passwd entry
/// and HOME.
#[test]
fn a_user_without_a_home_has_no_usual_files_and_may_name_others() {
    let mut query = host("h");
    query.ssh = Some("/nonexistent/ssh".into());
    query.file = Some("none".into());
    let homeless = LocalUser {
        home: None,
        ..user(Path::new("/"))
    };
    let config = query.resolve(&homeless).unwrap();
    assert!(config.has(SshOptionFlags::HOMELESS) && config.user_known_hosts.is_empty());
    assert!(config.identity_files.is_empty());
    query.options = vec!["UserKnownHostsFile=/k".into()];
    let config = query.resolve(&homeless).unwrap();
    assert_eq!(config.user_known_hosts, [Path::new("/k")]);
    assert!(!config.has(SshOptionFlags::HOMELESS));
    query.options = vec!["UserKnownHostsFile=~/k".into()];
    assert!(query.resolve(&homeless).is_err());
    query.options = vec!["UserKnownHostsFile=none".into()];
    assert!(
        !query
            .resolve(&homeless)
            .unwrap()
            .has(SshOptionFlags::HOMELESS)
    );
}

/// CVE-2025-61984 and 61985 for every value: `ssh -G` prints one line per setting, so a newline in
/// `-i` used to be read as a ProxyCommand, which a shell ran.
#[test]
fn no_value_of_the_command_line_has_a_control_character() {
    let settings: [fn(&mut HostConfigQuery, String); 13] = [
        |q, v| q.host = v,
        |q, v| q.user = Some(v),
        |q, v| q.file = Some(v.into()),
        |q, v| q.identities = vec!["/k".into(), v.into()],
        |q, v| q.jump = Some(v),
        |q, v| q.cipher = Some(v),
        |q, v| q.options = vec![v],
        |q, v| q.options = vec![format!("UserKnownHostsFile={v}")],
        |q, v| q.options = vec![format!("BindAddress={v}")],
        |q, v| q.options = vec![format!("IdentityAgent={v}")],
        |q, v| q.options = vec![format!("CertificateFile {v}")],
        |q, v| q.options = vec![format!("User={v}")],
        |q, v| q.options = vec!["Port=22".into(), format!("HostKeyAlias={v}")],
    ];
    for setting in settings {
        for control in (0..0x20).chain([0x7f]).map(char::from) {
            for value in [
                format!("a{control}proxycommand touch pwned"),
                format!("a{control}"),
            ] {
                let mut query = host("h");
                setting(&mut query, value);
                // ssh is not even started: this program could not be.
                query.ssh = Some("/dev/null".into());
                let why = query.resolve(&user(Path::new("/home/me"))).unwrap_err();
                let why = why.to_string();
                assert!(
                    !why.contains(char::is_control) && !why.contains("cannot be run"),
                    "{why}"
                );
            }
        }
    }
}

/// CVE-2023-51385 and CVE-2025-61984: names go into a ProxyCommand that a shell runs.
#[test]
fn names_that_a_shell_could_run_are_refused_wherever_they_come_from() {
    for name in [
        "$(id)",
        "a;id",
        "`id`",
        "a|id",
        "a&id",
        "-oProxyCommand=id",
        "a'b",
        "{a,b}",
    ] {
        let mut named = host("h");
        named.user = Some(name.replace("$(id)", "(id)"));
        let mut option = host("h");
        option.options = vec![format!("User={}", name.replace("$(id)", "(id)"))];
        let mut real = host("h");
        real.options = vec![format!("HostName={name}")];
        for query in [host(name), named, option, real] {
            assert!(
                query.resolve(&user(Path::new("/home/me"))).is_err(),
                "{name} {query:?}"
            );
        }
        let text = format!("Host h\n  HostName \"{name}\"\n");
        for (result, with_ssh) in both_results(&text, &host("h")) {
            assert!(result.is_err(), "{name} {with_ssh}");
        }
    }
}

/// Regression test: a live ControlMaster was not used, and a second factor was requested again.
#[test]
fn an_open_connection_of_ssh_is_found_while_its_process_listens() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cm-h");
    let text = format!("Host h\n  ControlPath {}/cm-%n\n", dir.path().display());
    let found = |expected: Option<&Path>| {
        both_results(&text, &host("h"))
            .into_iter()
            .all(|(config, _)| {
                let config = config.unwrap();
                config.control_master.as_deref() == expected && config.warnings.is_empty()
            })
    };
    assert!(found(None));
    let master = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(found(Some(&socket)));
    drop(master);
    // A dead master leaves its socket.
    assert!(socket.exists() && found(None));
}
