//! Limits of size and age of `longhaul sync`, in both directions.

use std::collections::BTreeSet;
use std::fs;
use std::time::SystemTime;

use longhaul_tests::Scene;
use testkit::PeerKind;

use crate::sync::{entries, set_time, sync, write_file};

/// A file out of the limits is not copied, and its counterpart is neither replaced nor deleted.
#[test]
fn files_out_of_the_limits_stay_as_they_are_in_both_directions() {
    let Some(scene) = Scene::beyond_scp(PeerKind::OpenSsh) else {
        return;
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.expect("a clock after 1970").as_secs();
    for (name, size, age) in [
        ("small-old", 10, 90),
        ("small-new", 10, 1),
        ("large-old", 5000, 90),
    ] {
        write_file(&scene.path("a/dir").join(name), &vec![b'x'; size]);
        set_time(&scene.path("a/dir").join(name), now - age * 86_400);
    }
    for (flags, copied) in [
        (&["--max-size=1kB"][..], &["small-new", "small-old"][..]),
        (&["--min-size=1kB"], &["large-old"]),
        (&["--newer=30d"], &["small-new"]),
        (&["--older=30d"], &["large-old", "small-old"]),
        (&["--older=30d", "--max-size=1kB"], &["small-old"]),
    ] {
        for up in [true, false] {
            let _ = fs::remove_dir_all(scene.path("b"));
            for name in ["small-old", "small-new", "large-old", "gone"] {
                write_file(&scene.path("b/dir").join(name), b"before");
                set_time(&scene.path("b/dir").join(name), 1_000_000_000);
            }
            let (from, to) = match up {
                true => (scene.path("a").into_os_string(), scene.remote("b")),
                false => (scene.remote("a"), scene.path("b").into_os_string()),
            };
            let flags: Vec<&str> = flags.iter().copied().chain(["--delete"]).collect();
            sync(&scene, &flags).arg(from).arg(to).run().expect_code(0);
            let files = entries(&scene.path("b/dir"));
            let changed = files
                .iter()
                .filter(|path| fs::read(path).expect("ours") != b"before");
            let names = |path: &std::path::PathBuf| {
                let name = path.file_name().expect("a name");
                name.to_string_lossy().into_owned()
            };
            let changed: BTreeSet<String> = changed.map(names).collect();
            let copied: BTreeSet<String> = copied.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(changed, copied, "{flags:?} up {up}");
            // The file that only the target has is the one that goes.
            assert_eq!(files.len(), 3, "{flags:?} up {up}: {files:?}");
        }
    }
}
