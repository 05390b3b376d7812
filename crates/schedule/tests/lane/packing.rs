//! Compression of file data in transit.

use schedule::{CompressionMode, FileCopyOptions};
use testkit::sftp_model::SftpServerProfile;

use crate::world::{Mode, World, bytes, config, link};

fn world(pack: CompressionMode) -> World {
    let mut config = config(Mode::Predicting, 1);
    config.remembered = None;
    config.pack = pack;
    World::with(config, SftpServerProfile::ours(), link(), 1)
}

fn text(len: usize) -> Vec<u8> {
    let line = b"a line of a log that says the same again and again: 200 OK\n";
    line.iter().copied().cycle().take(len).collect()
}

#[test]
fn what_becomes_smaller_goes_packed_both_ways() {
    for pack in [CompressionMode::Auto, CompressionMode::Always] {
        let data = text(3_000_001);
        let mut w = world(pack);
        let put = w.put(data.clone(), "up", FileCopyOptions::default());
        w.place("down", &data, 0o644);
        let get = w.get("down", None);
        w.run();
        assert!(w.done(put) && w.done(get), "{:?}", w.events);
        assert!(w.model.fs.data("up") == Some(data.as_slice()));
        assert!(w.got("down") == Some(data.as_slice()));
        assert!(w.model.packed > 5_500_000, "{}", w.model.packed);
        assert_eq!(w.disk.open_sources() + w.disk.targets(), 0);
    }
}

/// Data read together with OPEN used to be sent uncompressed: half of each file in a tree of such
/// files.
#[test]
fn what_a_file_begins_with_goes_packed_too() {
    let data = text(200_000);
    let mut w = world(CompressionMode::Always);
    let puts: Vec<_> = (0..20)
        .map(|n| w.put(data.clone(), &format!("up{n}"), FileCopyOptions::default()))
        .collect();
    w.run();
    for (n, put) in puts.into_iter().enumerate() {
        assert!(w.done(put), "{:?}", w.events);
        assert!(w.model.fs.data(&format!("up{n}")) == Some(data.as_slice()));
    }
    // Everything except the data sent before the server announced its support.
    assert!(w.model.packed >= 19 * 200_000, "{}", w.model.packed);
    assert_eq!(w.disk.open_sources() + w.disk.targets(), 0);
}

#[test]
fn what_does_not_become_smaller_goes_as_it_is() {
    let data = bytes(30_000_000, 4);
    let mut w = world(CompressionMode::Always);
    w.put(data.clone(), "up", FileCopyOptions::default());
    w.place("down", &data, 0o644);
    w.get("down", None);
    w.run();
    assert!(w.model.fs.data("up") == Some(data.as_slice()));
    assert!(w.got("down") == Some(data.as_slice()));
    assert_eq!(w.model.packed, 0);
    let tried = w
        .model
        .log()
        .iter()
        .filter(|name| **name == "read-zstd@longhaul")
        .count();
    let plainly = w.model.log().iter().filter(|name| **name == "READ").count();
    assert!(tried > 0 && tried < plainly, "{tried} and {plainly}");
}

#[test]
fn none_is_packed_for_others_and_where_it_is_not_wanted() {
    let data = text(1_000_000);
    for (pack, server) in [
        (CompressionMode::Never, SftpServerProfile::ours()),
        (CompressionMode::Always, SftpServerProfile::openssh()),
    ] {
        let mut config = config(Mode::Plain, 1);
        config.pack = pack;
        let mut w = World::with(config, server, link(), 1);
        w.put(data.clone(), "up", FileCopyOptions::default());
        w.run();
        assert!(w.model.fs.data("up") == Some(data.as_slice()));
        assert_eq!(w.model.packed, 0);
    }
}

#[test]
fn a_block_that_is_not_what_it_claims_fails_the_file_and_leaves_nothing() {
    let mut w = world(CompressionMode::Always);
    w.model.lies_about_lengths = true;
    w.place("down", &text(1_000_000), 0o644);
    let get = w.get("down", None);
    w.run();
    assert!(
        w.failed(get).is_some() || w.error.is_some(),
        "{:?}",
        w.events
    );
    assert_eq!(w.got("down"), None);
}

#[test]
fn small_files_go_packed_both_ways() {
    let data = text(20_000);
    let mut w = world(CompressionMode::Always);
    w.place("down", &data, 0o644);
    w.place("short", b"short", 0o644);
    let mut jobs: Vec<_> = (0..20)
        .map(|n| w.put(data.clone(), &format!("up{n}"), FileCopyOptions::default()))
        .collect();
    jobs.push(w.put(b"short".to_vec(), "put-short", FileCopyOptions::default()));
    // The server's abilities are known by now.
    w.run();
    jobs.extend(["down", "short"].map(|name| w.get(name, None)));
    w.run();
    assert!(jobs.into_iter().all(|job| w.done(job)), "{:?}", w.events);
    for n in 0..20 {
        assert!(w.model.fs.data(&format!("up{n}")) == Some(data.as_slice()));
    }
    assert_eq!(w.model.fs.data("put-short"), Some(&b"short"[..]));
    assert!(w.got("down") == Some(data.as_slice()));
    assert_eq!(w.got("short"), Some(&b"short"[..]));
    assert!(w.model.packed >= 20 * 20_000, "{}", w.model.packed);
    let (tried, became) = w.lane.stats().packed;
    assert!(tried > 0 && became * 4 < tried, "{tried} {became}");
    assert_eq!(w.disk.open_sources() + w.disk.targets(), 0);
}

#[test]
fn small_files_that_do_not_become_smaller_are_tried_now_and_then() {
    let mut w = world(CompressionMode::Always);
    for n in 0..200 {
        w.put(
            bytes(8000, n),
            &format!("up{n}"),
            FileCopyOptions::default(),
        );
        w.place(&format!("down{n}"), &bytes(8000, n), 0o644);
    }
    w.run();
    for n in 0..200 {
        w.get(&format!("down{n}"), None);
    }
    w.run();
    assert_eq!(w.model.packed, 0);
    for n in 0..200 {
        assert!(w.got(&format!("down{n}")) == Some(bytes(8000, n).as_slice()));
    }
    let count = |name| w.model.log().iter().filter(|n| **n == name).count();
    let (tried, plainly) = (count("get-file-zstd@longhaul"), count("get-file@longhaul"));
    assert!((1..20).contains(&tried), "{tried}");
    assert!(plainly >= 180, "{plainly}");
}

#[test]
fn a_small_file_that_is_not_what_it_claims_fails_and_leaves_nothing() {
    let mut w = world(CompressionMode::Always);
    w.model.lies_about_lengths = true;
    w.place("down", &text(20_000), 0o644);
    w.put(text(20_000), "up", FileCopyOptions::default());
    w.run();
    let get = w.get("down", None);
    w.run();
    assert!(w.failed(get).is_some(), "{:?}", w.events);
    assert_eq!(w.got("down"), None);
}
