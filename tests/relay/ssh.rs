//! SSH through a relay, its main purpose.

use longhaul_tests::Scene;
use testkit::Seed;
use testkit::peer::PeerKind;
use testkit::tree::write_file;

use crate::world::Relay;

#[test]
fn copies_go_through_it() {
    let Some(scene) = Scene::start(PeerKind::OpenSsh) else {
        return;
    };
    let content = Seed::new(1).bytes(20_000_000);
    write_file(&scene.path("file"), &content);
    let to = format!("127.0.0.1:{}", scene.peer.port());
    let relay = Relay::start(&["127.0.0.1:0", &to]);
    let port = relay.address().port().to_string();
    // The host key is the server's, under any name.
    let alias = format!("HostKeyAlias=[127.0.0.1]:{}", scene.peer.port());
    let through: [&[&str]; 2] = [
        &["-P", &port, "-o", &alias],
        &[
            "-o",
            &format!(
                "ProxyCommand={} relay - {to}",
                longhaul_tests::longhaul().display()
            ),
        ],
    ];
    for (nth, flags) in through.into_iter().enumerate() {
        let (there, back) = (format!("there{nth}"), format!("back{nth}"));
        scene.copies(flags, scene.path("file"), scene.remote(&there));
        scene.copies(flags, scene.remote(&there), scene.path(&back));
        assert!(
            std::fs::read(scene.path(&back)).unwrap() == content,
            "{flags:?}"
        );
    }
    relay.says("closed, ");
}
