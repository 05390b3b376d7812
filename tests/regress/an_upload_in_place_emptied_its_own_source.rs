//! In-place copy onto the source. `cp --inplace big localhost:big` left 32 KiB of the file.

use std::fs;

use longhaul_tests::Scene;
use testkit::tree::write_file;
use testkit::{PeerKind, Seed};

#[test]
fn the_same_file_is_refused() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    if scene.client.is_scp() {
        return;
    }
    let file = scene.path("big");
    let bytes = Seed::new(1).bytes(3_000_000);
    write_file(&file, &bytes);
    fs::hard_link(&file, scene.path("other")).expect("ours");
    for target in ["big", "other", "."] {
        let target = scene.remote(target);
        let run = scene.client.cp().arg("--inplace").arg(&file).arg(target);
        let outcome = run.run().expect_code(1);
        let outcome = outcome.expect_err(&["source and target are the same file"]);
        assert!(fs::read(&file).expect("it is there") == bytes, "{outcome}");
    }
}
