//! Error of a failed login. `-B` with a key that needs a passphrase said `permission denied ()`; a
//! refused key said `permission denied (publickey)`; a failing ProxyCommand said "the server closed
//! the connection".

use longhaul_tests::{Client, Program, scratch};
use testkit::keys::KeyFormat;
use testkit::tree::write_file;
use testkit::{KeyKind, KeyPair, Outcome, PeerBuilder};

/// Copies with the key `name` of the client's folder to a server that accepts another one.
fn denied(client: &mut Client, key: &KeyPair, authorized: bool) -> Option<Outcome> {
    let builder = match authorized {
        true => PeerBuilder::openssh().authorize_line(key.public_line()),
        false => PeerBuilder::openssh(),
    };
    let peer = builder.start()?;
    client.dir.add_host("peer", &peer);
    client
        .dir
        .set_for_all("IdentityFile", key.private.display().to_string());
    let files = scratch();
    let file = files.path().join("file");
    write_file(&file, b"content");
    let run = client.cp().arg("-B").arg(&file).arg("peer:x");
    Some(run.run().expect_code(255))
}

#[test]
fn account_keys_and_methods_are_named() {
    let mut client = Client::new();
    if client.program == Program::Scp {
        return;
    }
    let key = KeyPair::generate(client.dir.path(), "refused", KeyKind::Ed25519);
    let Some(outcome) = denied(&mut client, &key, false) else {
        return;
    };
    let said = outcome.err();
    let file = key.private.display().to_string();
    for part in [
        "@peer port ",
        "; the server accepts: publickey",
        &file,
        "SHA256:",
        "authorized_keys",
    ] {
        assert!(said.contains(part), "{part}: {outcome}");
    }
}

#[test]
fn a_key_that_stays_locked_is_the_reason() {
    let mut client = Client::new();
    if client.program == Program::Scp {
        return;
    }
    let folder = client.dir.path().to_owned();
    let key = KeyPair::generate_with(
        &folder,
        "locked",
        KeyKind::Ed25519,
        KeyFormat::OpenSsh,
        "secret",
    );
    let Some(outcome) = denied(&mut client, &key, true) else {
        return;
    };
    let said = outcome.err();
    let file = key.private.display().to_string();
    for part in [
        "@peer port ",
        ": permission denied",
        &file,
        "passphrase",
        "ssh-add",
    ] {
        assert!(said.contains(part), "{part}: {outcome}");
    }
    assert!(!said.contains("()"), "{outcome}");
}

#[test]
fn a_proxy_command_that_fails_is_told_with_its_status_and_words() {
    let client = Client::new();
    if client.program == Program::Scp {
        return;
    }
    let files = scratch();
    let file = files.path().join("file");
    write_file(&file, b"content");
    let command = "ProxyCommand=sh -c 'echo no route by the gate >&2; exit 7'";
    let run = client
        .cp()
        .args(["-o", command])
        .arg(&file)
        .arg("h.invalid:x");
    let outcome = run.run().expect_code(255);
    let said = outcome.err();
    assert!(
        said.contains("the ProxyCommand ended with status 7"),
        "{outcome}"
    );
    assert!(said.contains("no route by the gate"), "{outcome}");
    assert!(!said.contains("the server closed"), "{outcome}");
}
