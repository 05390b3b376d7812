//! `longhaul serve --listen` with clients that disconnect, or exceed their time limits.

use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longhaul_tests::stranger::Stranger;
use ssh::msg::ChannelData;
use testkit::tree::write_file;

use crate::hostile_clients::{friend, is_served, listening, open_session, request, stranger};
use crate::serving::openssh;

#[test]
fn whoever_goes_in_the_middle_of_a_key_exchange_disturbs_nobody() {
    let scene = listening(&[]);
    write_file(&scene.path("file"), b"content");
    let mut good = openssh(&scene, "sftp").arg("peer").in_terminal().spawn();
    assert!(good.shows("sftp>"), "{}", scene.peer.log());
    let over = || {
        let log = scene.peer.log();
        log.matches(": disconnected").count() + log.matches(": ended: ").count()
    };
    for stage in 0..4 {
        let before = over();
        let mut friend = friend(&scene);
        friend.transport.rekey().expect("it may");
        let kexinit = friend.output().expect("it has keys");
        let said = match stage {
            0 => kexinit.len() / 2,
            _ => kexinit.len(),
        };
        friend
            .stream
            .write_all(&kexinit[..said])
            .expect("it listens");
        if stage > 1 {
            // Half or all of the client's public value, without NEWKEYS after it.
            friend.read().expect("the server's KEXINIT");
            let value = friend.output().expect("it has keys");
            assert!(!value.is_empty());
            let said = value.len() / (4 - stage);
            friend.stream.write_all(&value[..said]).expect("it listens");
        }
        drop(friend);
        testkit::wait::until(
            Duration::from_secs(20),
            || over() != before,
            || format!("{stage} is still there:\n{}", scene.peer.log()),
        );
    }
    let back = scene.path("back").display().to_string();
    let file = scene.path("file").display().to_string();
    good.type_in(&format!("get {file} {back}\npwd\n"));
    assert!(good.shows("Remote working directory"));
    assert_eq!(fs::read(&back).expect("it came"), b"content");
    let log = scene.peer.log();
    assert!(!log.contains("panic"), "{log}");
    drop(good);
    is_served(&scene);
}

/// Sends an SFTP message on the only channel.
fn sftp_message(parts: &[&[u8]]) -> Vec<u8> {
    let message = parts.concat();
    let data = [&(message.len() as u32).to_be_bytes()[..], &message].concat();
    ChannelData {
        recipient: 0,
        data: &data,
    }
    .to_bytes()
}

/// Returns the next answer, which is of this type.
fn answer(friend: &mut Stranger, kind: u8) -> Bytes {
    loop {
        let heard = friend.hear().expect("it answers");
        // Skips number, channel and length of the data, and the length of the message.
        if heard.first() == Some(&ChannelData::NUMBER) && heard.get(13) == Some(&kind) {
            return heard.slice(13..);
        }
    }
}

/// The client has requested 32 MiB and reads none of them.
#[test]
fn whoever_takes_nothing_of_what_it_asked_for_is_given_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("serve.toml");
    write_file(&config, b"slow-time = 2\n");
    let scene = listening(&["--config", &config.display().to_string()]);
    write_file(&scene.path("large"), &vec![3; 32 << 20]);
    let mut friend = friend(&scene);
    friend.say(&open_session()).expect("it listens");
    friend.hear().expect("CHANNEL_OPEN_CONFIRMATION");
    let subsystem = request(b"subsystem", b"\0\0\0\x04sftp");
    friend.say(&subsystem).expect("it listens");
    let version = sftp_message(&[b"\x01\0\0\0\x03"]);
    friend.say(&version).expect("it listens");
    answer(&mut friend, 2);
    let path = scene.path("large").display().to_string();
    let len = (path.len() as u32).to_be_bytes();
    let open = [
        b"\x03\0\0\0\x01",
        &len[..],
        path.as_bytes(),
        b"\0\0\0\x01\0\0\0\0",
    ];
    friend.say(&sftp_message(&open)).expect("it listens");
    // HANDLE: type and id, then the handle with its length.
    let handle = answer(&mut friend, 102).slice(5..);
    let begun = Instant::now();
    for n in 0..1024_u32 {
        let (number, offset) = ((2 + n).to_be_bytes(), (u64::from(n) << 15).to_be_bytes());
        let read = [b"\x05", &number[..], &handle, &offset, b"\0\0\x80\0"];
        friend.say(&sftp_message(&read)).expect("it listens");
    }
    is_served(&scene);
    scene.logs("the client does not read its data (option slow-time)");
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(2), "{took:?}");
    // What had already been sent is still read before the connection ends.
    friend.end();
    is_served(&scene);
}

/// The login time limit, for which sshd has a handler of SIGALRM (CVE-2024-6387).
#[test]
fn whoever_has_no_time_left_to_log_in_reads_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("serve.toml");
    write_file(&config, b"login-time = 2\n");
    let scene = listening(&["--config", &config.display().to_string()]);
    let begun = Instant::now();
    let end = stranger(&scene).end();
    assert_eq!(end.words(), "login timeout", "{end:?}");
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_secs(2) && took < Duration::from_secs(10),
        "{took:?}"
    );
    scene.logs("ended with an error: login timeout");
}
