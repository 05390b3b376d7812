//! Server ProFTPD with mod_sftp, both its transport and its SFTP server. Copies are compared with
//! those of `scp -s`: exit code, resulting tree, and no file left beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use longhaul_tests::{Client, Program, Scene};
use testkit::KeyKind::{Ecdsa256, Ed25519, Rsa2048};
use testkit::tree::{Compare, Tree, assert_same, write_file};
use testkit::{Outcome, PeerKind, Seed};

use crate::scenarios::{Knows, scenarios};

const KIND: PeerKind = PeerKind::Proftpd;

const KNOWS: Knows = Knows {
    ciphers: &[
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
    ],
    kex: &[
        "curve25519-sha256",
        "curve25519-sha256@libssh.org",
        "ecdh-sha2-nistp256",
        "ecdh-sha2-nistp384",
        "ecdh-sha2-nistp521",
    ],
    macs: &[
        "hmac-sha2-256-etm@openssh.com",
        "hmac-sha2-512-etm@openssh.com",
        "hmac-sha2-256",
        "hmac-sha2-512",
    ],
    // One ECDSA key is shown, the first.
    host_keys: &[Ed25519, Ecdsa256, Rsa2048],
};

scenarios!(KIND, KNOWS;);

/// A copy that scp and longhaul make, each in a folder of its own with the same files.
struct CopyCase {
    what: &'static str,
    flags: &'static [&'static str],
    /// Operands below the folder; `:name` is on the server.
    operands: &'static [&'static str],
}

const fn case(
    what: &'static str,
    flags: &'static [&'static str],
    operands: &'static [&'static str],
) -> CopyCase {
    CopyCase {
        what,
        flags,
        operands,
    }
}

const CASES: &[CopyCase] = &[
    case("new file up", &[], &["here/small", ":there/new"]),
    case(
        "file up over a longer one",
        &[],
        &["here/small", ":there/long"],
    ),
    case(
        "file up over a read-only one",
        &[],
        &["here/small", ":there/closed"],
    ),
    case(
        "file up through a symlink",
        &[],
        &["here/small", ":there/link"],
    ),
    case("file up into a folder", &[], &["here/small", ":there"]),
    case(
        "several files up",
        &[],
        &["here/small", "here/large", ":there"],
    ),
    case("large file up", &[], &["here/large", ":there/new"]),
    case(
        "into a folder that is missing",
        &[],
        &["here/small", ":there/none/new"],
    ),
    case("below a file", &[], &["here/small", ":there/long/new"]),
    case("folder up without -r", &[], &["here/tree", ":there"]),
    case("tree up", &["-r"], &["here/tree", ":there"]),
    case(
        "tree up with times",
        &["-r", "-p"],
        &["here/tree", ":there"],
    ),
    case("no such file here", &[], &["here/none", ":there"]),
    case("new file down", &[], &[":there/long", "here/new"]),
    case(
        "file down over a longer one",
        &[],
        &[":there/long", "here/large"],
    ),
    case("read-only file down", &[], &[":there/closed", "here/new"]),
    case("large file down", &[], &[":there/large", "here/new"]),
    case("tree down", &["-r"], &[":there/tree", "here"]),
    case("folder down without -r", &[], &[":there/tree", "here"]),
    case("pattern down", &[], &[":there/l*g*", "here"]),
    case("pattern that nothing matches", &[], &[":there/z*", "here"]),
    case("no such file there", &[], &[":there/none", "here"]),
];

fn prepare(folder: &Path) {
    for side in ["here", "there"] {
        let at = |name: &str| folder.join(side).join(name);
        write_file(&at("small"), b"small\n");
        write_file(&at("long"), &Seed::new(1).bytes(300_000));
        write_file(&at("large"), &Seed::new(2).bytes(18_000_000));
        write_file(&at("closed"), b"closed\n");
        let mode = fs::Permissions::from_mode(0o444);
        fs::set_permissions(at("closed"), mode).expect("our file");
        std::os::unix::fs::symlink("long", at("link")).expect("our symlink");
    }
    let trees = [folder.join("here/tree"), folder.join("there/tree")];
    // Without read-only files, which scp cannot upload to ProFTPD.
    Tree::small_files(3, 60).make(&trees[0]);
    Tree::small_files(4, 60).make(&trees[1]);
}

fn run(client: &Client, case: &CopyCase, folder: &Path) -> Outcome {
    let flags: &[&str] = match client.is_scp() {
        // The SFTP protocol, which newer versions use by themselves.
        true => &["-s"],
        false => &[],
    };
    let operands = case.operands.iter().map(|operand| {
        let (host, path) = operand
            .strip_prefix(':')
            .map_or(("", *operand), |path| ("peer:", path));
        format!("{host}{}", folder.join(path).display())
    });
    let run = client.cp().args(flags).args(case.flags);
    operands.fold(run, |run, operand| run.arg(operand)).run()
}

/// A second SFTP channel on one connection corrupts the memory of mod_sftp 1.1.1: its process crashed
/// or stopped answering in half of the copies of a tree.
#[test]
fn a_tree_needs_one_channel_on_each_connection() {
    let Some(scene) = Scene::start(KIND) else {
        return;
    };
    Tree::plain(5).make(&scene.path("tree"));
    for number in 0..6 {
        let name = format!("copy-{number}");
        scene.copies(&["-r"], scene.path("tree"), scene.remote(&name));
        assert_same(&scene.path("tree"), &scene.path(&name), Compare::CONTENT);
    }
}

#[test]
fn trees_and_exit_codes_are_those_of_scp() {
    let Some(mut scene) = Scene::start(KIND) else {
        return;
    };
    let ours = scene.client.program.clone();
    for case in CASES {
        let what = case.what;
        let folders = ["scp", "longhaul"].map(|program| {
            let name = format!("{} {program}", what.replace(' ', "-"));
            scene.path(&name.replace(' ', "_"))
        });
        let outcomes = [Program::Scp, ours.clone()].map(|program| {
            let folder = match program {
                Program::Scp => &folders[0],
                Program::Longhaul(_) => &folders[1],
            };
            for side in ["here", "there"] {
                fs::create_dir_all(folder.join(side)).expect("our folder");
            }
            prepare(folder);
            scene.client.program = program;
            run(&scene.client, case, folder)
        });
        let [scp, longhaul] = &outcomes;
        // scp ends with 255 where it kills its ssh, as for a source that is missing.
        let codes = [longhaul, scp].map(Outcome::success);
        assert_eq!(codes[0], codes[1], "{what}:\n{scp}\n{longhaul}");
        eprintln!("{what}: {:?}", scp.code);
        // scp over SFTP adds the owner's write bit, and scp of old did not.
        let compare = match what {
            "read-only file down" => Compare::CONTENT,
            _ => Compare::MODES,
        };
        assert_same(&folders[0], &folders[1], compare);
        for folder in &folders {
            fs::remove_dir_all(folder).expect("our folder");
        }
    }
}
