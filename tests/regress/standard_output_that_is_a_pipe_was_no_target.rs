//! Standard output as the target. `cp host:file /dev/stdout | tar x` failed with "no such file or
//! directory".

use longhaul_tests::Scene;
use testkit::PeerKind;
use testkit::tree::write_file;

#[test]
fn it_gets_the_file() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let file = scene.path("file");
    write_file(&file, b"through the pipe\n");
    let run = scene.client.cp().arg("-q").arg(scene.remote("file"));
    let outcome = run.arg("/dev/stdout").run().expect_code(0);
    assert_eq!(outcome.out(), "through the pipe\n", "{outcome}");
}
