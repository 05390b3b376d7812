use std::fs;

use sftp::{Attrs, OpenFlags};
use ssh::EndpointRole;
use ssh::channel::ChannelsConfig;
use wire::{Field, PacketPool};

use super::*;
use crate::testing::input;
use crate::{Access, ExportedTree};

/// A session that has received all of `said` and has had no turn.
fn received<'s>(
    export: &'s ExportedTree,
    name: &str,
    command: &str,
    said: &[u8],
) -> SessionChannel<'s> {
    let id = ChannelId(0);
    let pool = PacketPool::new(32 << 10, 2);
    let mut channels = Channels::new(EndpointRole::Server, ChannelsConfig::default(), pool);
    let mut data = Vec::new();
    command.as_bytes().write(&mut data);
    let mut session = SessionChannel::new(id, 100.into());
    let what = (&ServedClientSettings::default(), export);
    session.request(&mut channels, what, name.as_bytes(), &data, true);
    for piece in said.chunks(9) {
        session.data(Bytes::copy_from_slice(piece));
    }
    session
}

#[test]
fn a_file_whose_channel_is_closed_at_once_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let export = ExportedTree::beneath(folder.path(), Access::Full).expect("openat2");
    for (name, said, eof, closed, there) in [
        ("a", &b"C0644 3 x\nnew"[..], true, true, true),
        ("b", b"C0644 3 x\nnew\0", true, true, true),
        ("c", b"C0644 3 x\nnew\0", false, true, true),
        ("d", b"C0644 3 x\nnew", false, true, true),
        ("e", b"C0644 3 x\nnew", true, false, true),
        ("f", b"C0644 3 x\nnew\0", false, false, true),
        // Without EOF the client may have been about to declare the file invalid.
        ("g", b"C0644 3 x\nnew", false, false, false),
        ("h", b"C0644 4 x\nnew", true, true, false),
        ("i", b"C0644 3 x\nnew\x01no", true, true, false),
    ] {
        let mut session = received(&export, "exec", &format!("scp -t {name}"), said);
        if eof {
            session.eof();
        }
        session.finish(closed);
        drop(session);
        assert_eq!(folder.path().join(name).exists(), there, "{name}");
    }
    let names = crate::testing::names(folder.path());
    assert_eq!(names, ["a", "b", "c", "d", "e", "f"], "and nothing is left");
}

#[test]
fn requests_that_came_before_a_channel_was_closed_are_carried_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let export = ExportedTree::beneath(folder.path(), Access::Full).expect("openat2");
    let handle = &[0; 4][..];
    let mut said = input(
        &[
            sftp::Request::Open {
                path: b"new",
                flags: OpenFlags::WRITE | OpenFlags::CREAT,
                attrs: Attrs::default(),
            },
            sftp::Request::Write {
                handle,
                offset: 0,
                data: b"all of it",
            },
            // The requests behind it wait for the blocking pool.
            sftp::Request::Fsync { handle },
            sftp::Request::Close { handle },
            sftp::Request::PosixRename {
                from: b"new",
                to: b"it",
            },
        ],
        true,
    )
    .to_vec();
    // An incomplete request.
    said.extend(&input(&[sftp::Request::Remove { path: b"it" }], false)[..9]);
    for closed in [true, false] {
        received(&export, "subsystem", "sftp", &said).finish(closed);
        let it = folder.path().join("it");
        assert_eq!(fs::read(&it).expect("it"), b"all of it");
        fs::remove_file(it).expect("ours");
    }
}

#[test]
fn nothing_is_given_to_a_client_that_has_left() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("file"), vec![0; 3_000_000]).expect("ours");
    let export = ExportedTree::beneath(folder.path(), Access::Full).expect("openat2");
    let mut session = received(&export, "exec", "scp -f file", &[0; 3]);
    session.finish(true);
    let moved = session.server.as_ref().map(ChannelFileServer::moved);
    assert_eq!(moved.map(|moved| moved.sent), Some(0));
}

/// Bug: the pool's descriptor stayed readable after the session had ended, and the loop span until
/// the client closed the channel.
#[test]
fn nobody_waits_for_what_is_done_for_a_session_that_is_over() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("file"), b"content").expect("ours");
    let export = ExportedTree::beneath(folder.path(), Access::Full).expect("openat2");
    let handle = &[0; 4][..];
    let open = sftp::Request::Open {
        path: b"file",
        flags: OpenFlags::READ | OpenFlags::WRITE,
        attrs: Attrs::default(),
    };
    let mut said = input(&[open, sftp::Request::Fsync { handle }], true).to_vec();
    said.extend([0; 9]);
    let mut session = received(&export, "subsystem", "sftp", &said);
    let pool = PacketPool::new(32 << 10, 2);
    let mut channels = Channels::new(EndpointRole::Server, ChannelsConfig::default(), pool);
    while !session.received.is_empty() {
        session.turn(Instant::now(), &mut channels);
    }
    assert!(session.over);
    assert_eq!(session.watch(&channels).count(), 0);
    assert!(!session.has_work(&channels));
}

/// Bug: answers that the client did not read, followed by 2 KiB in each segment, kept 1.26 MiB per
/// segment.
#[test]
fn little_that_waits_does_not_keep_all_it_lay_in() {
    let mut session = SessionChannel::new(ChannelId(0), 100.into());
    let segments: Vec<Bytes> = (0..300).map(|n| vec![n as u8; 1 << 20].into()).collect();
    for segment in &segments {
        session.data(segment.slice(9..9 + (2 << 10)));
    }
    let kept = segments.iter().filter(|segment| !segment.is_unique());
    assert!(kept.count() <= 6);
    let waiting = Vec::from(session.received.take()).concat();
    assert_eq!(waiting.len(), session.waiting);
    let mut each = waiting.chunks(2 << 10).zip(&segments);
    assert!(each.all(|(got, sent)| got == &sent[9..][..2 << 10]));
}
