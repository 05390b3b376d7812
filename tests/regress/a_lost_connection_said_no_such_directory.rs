//! Connection lost during the first requests. An upload to the login directory asks in the same
//! flight if the target is a directory. A connection that died before made that request fail, and
//! the failure was taken for an answer.

use longhaul_tests::{Client, Program, scratch};
use testkit::tree::write_file;

#[test]
fn only_the_reason_is_said() {
    let client = Client::new();
    if client.program == Program::Scp {
        return;
    }
    let files = scratch();
    let file = files.path().join("file");
    write_file(&file, b"content");
    for target in ["h:", "h:there", "h:there/"] {
        let run = client.cp().args(["-D", "/bin/false"]).arg(&file);
        let outcome = run.arg(target).run().expect_code(255);
        let said = outcome.err();
        assert!(!said.contains("directory"), "{outcome}");
        assert_eq!(said.lines().count(), 1, "{outcome}");
        assert!(said.contains("/bin/false ended with status 1"), "{outcome}");
    }
}
