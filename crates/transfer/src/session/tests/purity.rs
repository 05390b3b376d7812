//! The deciding part of a session has no socket, file, clock or thread, so that a test can repeat
//! every decision.

use std::fs;
use std::path::{Path, PathBuf};

/// Text that must not occur outside tests.
const FORBIDDEN: [&str; 8] = [
    "Instant::now",
    "SystemTime::now",
    "thread::",
    "std::fs",
    "std::net",
    "crossbeam",
    "recv_timeout",
    "mio::",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        match path.is_dir() {
            true if name == "io" || name == "tests" => {}
            true => sources(&path, found),
            false => found.push(path),
        }
    }
}

#[test]
fn what_decides_has_no_clock_socket_file_or_thread() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/session");
    let mut found = Vec::new();
    sources(&folder, &mut found);
    assert!(found.len() > 20, "{found:?}");
    for path in found {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for word in FORBIDDEN {
            // A link registers its descriptors with the loop that owns it.
            let link = path.ends_with("link.rs") && word == "mio::";
            let lines = code
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            let uses = lines.filter(|line| line.contains(word)).count();
            assert!(uses == 0 || link, "{} uses {word}", path.display());
        }
    }
}
