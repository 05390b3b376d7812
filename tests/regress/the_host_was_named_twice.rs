//! Repeated host name. The error was `error: peer: peer: permission denied`, once more for each
//! file.

use longhaul_tests::{Client, Program, remote, scratch};
use testkit::tree::write_file;
use testkit::{PeerBuilder, PeerKind};

#[test]
fn one_line_with_the_host_once() {
    let mut client = Client::new();
    if client.program == Program::Scp {
        return;
    }
    let Some(peer) = PeerBuilder::new(PeerKind::OpenSsh).start() else {
        return;
    };
    client.dir.add_host("peer", &peer);
    let files = scratch();
    let file = files.path().join("file");
    write_file(&file, b"content");
    let target = remote("peer", &files.path().join("copy"));
    let outcome = client.cp().arg(&file).arg(target).run().expect_code(255);
    let said = outcome.err();
    assert_eq!(said.matches("peer: ").count(), 1, "{outcome}");
    // Keys and methods follow on lines of their own.
    assert_eq!(said.matches("error: ").count(), 1, "{outcome}");
    assert_eq!(said.matches("permission denied").count(), 1, "{outcome}");
}
