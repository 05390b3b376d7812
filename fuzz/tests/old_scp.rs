//! Fuzzes the old scp protocol of `longhaul serve`: no input touches anything outside the root,
//! mixes an existing file with another, or leaves anything behind.

use std::fs;
use std::path::Path;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use fuzz::{mutate, operate};
use serve::{Access, AnswerChunk, ExportedTree, ScpCommand, ScpServer};
use wire::PacketPool;

/// Size of a channel packet in bytes.
const SLOT: usize = 32 << 10;
const COMMANDS: [&str; 13] = [
    "scp -t /",
    "scp -rt /",
    "scp -rpt /dir",
    "scp -dt /theirs",
    "scp -pt theirs",
    "scp -t out/file",
    "scp -rpf /",
    "scp -f * ../file */*",
    "scp -pf theirs '' out",
    "scp -rf [d-t]* ~/dir",
    "/usr/bin/scp -rf */ [[:alpha:]]*/[ ~*/x ~[ dir/",
    "scp -t loop*/../dangling",
    // Matches more than the server is willing to search.
    "scp -f loop*/loop*/loop*/loop*/loop*/loop*/loop*/loop*/loop*/loop*/loop*/loop*/*/",
];
const NAMES: [&str; 7] = ["theirs", "dir", "new", "..", "out", "../file", "a\u{7f}b"];
const CONTENT: &[u8] = b"theirs, and not to be half of it";

/// Returns protocol lines and data, most of them as a client sends them.
fn said(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut said = Vec::new();
    for _ in 0..u.int_in_range(0..=12)? {
        let name = u.choose(&NAMES)?;
        let len = u.int_in_range(0..=40)?;
        let data = vec![b'n'; u.int_in_range(0..=len)?];
        match u.int_in_range(0..=9)? {
            0 => said.extend_from_slice(b"T1 0 2 0\n"),
            1 | 2 => said.extend_from_slice(format!("D0755 0 {name}\n").as_bytes()),
            3 => said.extend_from_slice(b"E\n"),
            4 => said.extend_from_slice(b"\x01trouble\n"),
            5 => said.push(u.int_in_range(0..=2)?),
            6 | 7 => {
                said.extend_from_slice(format!("C0644 {len} {name}\n").as_bytes());
                said.extend(data);
            }
            _ => {
                said.extend_from_slice(format!("C0644 {len} {name}\n").as_bytes());
                said.extend(vec![b'n'; len]);
                said.push(0);
            }
        }
    }
    if u.ratio(1, 3)? {
        said = mutate(u, &said)?;
    }
    Ok(said)
}

fn left_over(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_dir = entry.file_type().expect("known").is_dir();
        name.ends_with(".longhaul") || is_dir && left_over(&entry.path())
    })
}

#[test]
fn nothing_is_harmed() {
    operate(4096, |u| {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("dir")).expect("ours");
        fs::write(root.join("theirs"), CONTENT).expect("ours");
        fs::write(folder.path().join("file"), "outside").expect("ours");
        for (says, name) in [
            ("..", "out"),
            ("../file2", "dangling"),
            (".", "loop1"),
            (".", "loop2"),
        ] {
            std::os::unix::fs::symlink(says, root.join(name)).expect("ours");
        }
        let access = *u.choose(&[Access::Full, Access::ReadOnly, Access::WriteOnly])?;
        let export = ExportedTree::beneath(&root, access).expect("openat2");
        let command = u.choose(&COMMANDS)?;
        let command = ScpCommand::parse(command.as_bytes())
            .expect("scp")
            .expect("sound");
        let mut scp = ScpServer::new(PacketPool::new(SLOT, 2), SLOT, &export, 20, command);
        let (said, mut heard) = (said(u)?, 0);
        let mut rest = &said[..];
        while !rest.is_empty() && scp.status().is_none() {
            let (piece, others) = rest.split_at(u.int_in_range(1..=rest.len())?);
            rest = others;
            let mut received = Bytes::copy_from_slice(piece);
            // The loop continues while there is work; it must end.
            for turn in 0.. {
                scp.handle(&mut received);
                let Ok(()) = scp.take_answers(|answer| {
                    heard += match answer {
                        AnswerChunk::Bytes(bytes) => bytes.len(),
                        AnswerChunk::Block(block) => block.len(),
                    };
                    Ok::<_, std::convert::Infallible>(())
                });
                if scp.status().is_some() || received.is_empty() && !scp.has_more() {
                    break;
                }
                assert!(turn < 10_000, "it goes on for ever");
            }
        }
        assert!(heard < 1 << 20, "no more than there is");
        if u.arbitrary()? {
            // EOF directly after the client's data.
            scp.end();
            assert!(!scp.has_open(), "something is open though it is over");
        } else {
            drop(scp);
        }
        assert!(!left_over(&root), "a temporary is left");
        let outside = fs::read(folder.path().join("file")).expect("it is there");
        assert_eq!(outside, b"outside");
        assert!(!folder.path().join("file2").exists(), "made outside");
        // A mode from the client may make the file unreadable for us.
        if let Ok(theirs) = fs::read(root.join("theirs")) {
            let replaced = access == Access::Full && !theirs.starts_with(&CONTENT[..1]);
            assert!(replaced || theirs == CONTENT, "half of it is another's");
        }
        Ok(())
    });
}
