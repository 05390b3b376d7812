//! Fuzzes the host memory file: no content causes a panic, and no host gets the memory of another.

use std::time::SystemTime;

use fuzz::{Corpus, parse};
use transfer::memory::{AcceptedLoginKey, HostMemory, HostMemoryStore};

#[test]
fn damaged_files() {
    let dir = tempfile::tempdir().expect("a folder");
    let memories = HostMemoryStore::at(dir.path().join("hosts"));
    let now = SystemTime::now();
    let memory = HostMemory {
        banner: "SSH-2.0-OpenSSH_9.2".into(),
        accepted_key: Some(AcceptedLoginKey {
            fingerprint: "SHA256:def".into(),
            algorithm: "ssh-ed25519".into(),
            sufficient: true,
        }),
        sftp_extensions: vec![("a".into(), "1".into())],
        ..HostMemory::default()
    };
    let stored = |user: &str| {
        memories
            .store("host", 22, user, &memory, now)
            .expect("stored");
        let mut files = std::fs::read_dir(dir.path().join("hosts")).expect("a folder");
        let file = files.next().expect("a file").expect("an entry").path();
        let text = std::fs::read(&file).expect("read");
        (file, text)
    };
    let (file, text) = stored("other");
    std::fs::remove_file(file).expect("removed");
    let foreign = text.clone();
    let (file, text) = stored("user");
    let corpus = Corpus(vec![("file", text), ("foreign", foreign)]);
    parse(2048, |u| {
        let bytes = corpus.mutant(u)?;
        std::fs::write(&file, &bytes).expect("written");
        if memories.load("host", 22, "user", now).is_some() {
            // Independent of white space and escapes, such as \u0075 for a letter.
            let told: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
            let of = |name: &str| told.get(name).and_then(|value| value.as_str());
            let text = String::from_utf8_lossy(&bytes);
            assert_eq!(
                (of("user"), of("host")),
                (Some("user"), Some("host")),
                "{text}"
            );
        }
        Ok(())
    });
}
