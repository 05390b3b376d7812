//! Fuzzes private key files, and the public keys and certificates beside them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use fuzz::{Corpus, assert_shown_safely, mutate, parse};
use testkit::keys::KeyFormat;
use testkit::{KeyKind, KeyPair};
use transfer::agent::AgentChoice;
use transfer::config::{HostConfigQuery, IdentityFile, LocalUser};
use transfer::identity::Identities;
use transfer::prompt::NoPrompt;

#[test]
fn key_files() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut sound = Vec::new();
    for (kind, format) in [
        (KeyKind::Ed25519, KeyFormat::OpenSsh),
        (KeyKind::Ecdsa256, KeyFormat::OpenSsh),
        (KeyKind::Ecdsa384, KeyFormat::Pem),
        (KeyKind::Rsa2048, KeyFormat::Pem),
        (KeyKind::Rsa2048, KeyFormat::OpenSsh),
        (KeyKind::Ecdsa256, KeyFormat::Pkcs8),
    ] {
        let here = tempfile::tempdir_in(dir.path()).expect("a folder");
        let pair = KeyPair::generate_with(here.path(), "key", kind, format, "");
        let private = fs::read(&pair.private).expect("a file");
        let public = fs::read(pair.public()).expect("a file");
        sound.push((private, public));
    }
    let private = Corpus(sound.iter().map(|(p, _)| ("private", p.clone())).collect());
    let user = LocalUser {
        name: "me".into(),
        uid: 1000,
        home: Some(dir.path().into()),
        host: "here".into(),
    };
    let query = HostConfigQuery {
        host: "h".into(),
        ssh: Some("/nowhere/ssh".into()),
        file: Some("/dev/null".into()),
        ..HostConfigQuery::default()
    };
    let mut config = query.resolve(&user).expect("a configuration");
    config.agent = AgentChoice::None;
    let path = dir.path().join("key");
    config.identity_files = vec![IdentityFile {
        path: path.clone(),
        explicit: true,
    }];
    parse(512, |u| {
        let (sound_private, sound_public) = u.choose(&sound)?;
        let bytes = match u.ratio(1, 4)? {
            true => sound_private.clone(),
            false => private.mutant(u)?,
        };
        fs::write(&path, bytes).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
        let beside = dir.path().join("key.pub");
        match u.int_in_range(0..=3)? {
            0 => fs::write(beside, mutate(u, sound_public)?).expect("written"),
            1 => fs::write(dir.path().join("key-cert.pub"), mutate(u, sound_public)?)
                .expect("written"),
            _ => drop(fs::remove_file(beside)),
        }
        let mut identities = Identities::gather(&config);
        for warning in &identities.warnings {
            assert_shown_safely(warning, false);
        }
        for at in 0..identities.offers().len() {
            let Some(public) = identities.offers()[at].public.clone() else {
                continue;
            };
            if identities.is_ready(at) && public.certificate().is_none() {
                let algorithm = public.algorithms()[0].to_owned();
                if let Ok(signature) = identities.sign(at, &algorithm, b"data", &mut NoPrompt) {
                    assert_eq!(public.verify(&algorithm, b"data", &signature), Ok(()));
                }
            }
        }
        Ok(())
    });
}
