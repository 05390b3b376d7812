use super::*;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn file(content: &[u8]) -> io::Result<Arc<File>> {
    let mut file = tempfile::tempfile()?;
    file.write_all(content)?;
    // While ext4 writes the file out, st_blocks may briefly indicate holes.
    file.sync_all()?;
    file.rewind()?;
    Ok(Arc::new(file))
}

fn part(mapped: &MappedRange, at: usize, len: usize) -> OutputPart<'_> {
    OutputPart::External {
        lie: mapped,
        at,
        len,
    }
}

type Way = fn(&UnixStream, &[OutputPart<'_>]) -> io::Result<usize>;

/// Both ways to send a mapped file: copies of its data, and its pages.
const WAYS: [Way; 2] = [
    |to, parts| write_parts(to, parts.iter().copied()),
    |to, parts| send_parts(to, parts.iter().copied()),
];

#[test]
fn what_is_mapped_is_written_between_what_is_not() -> io::Result<()> {
    let content: Vec<u8> = (0..=250).cycle().take(30_000).collect();
    let file = file(&content)?;
    let (mapped, at) = MappedFileWindows::default()
        .find(&file, 5_000, 20_000)
        .unwrap();
    for write in WAYS {
        let (mut receiver, sender) = UnixStream::pair()?;
        let parts = [
            OutputPart::Inline(b"before"),
            part(&mapped, at, 20_000),
            OutputPart::Inline(b"behind"),
        ];
        // Parts behind the mapped one wait until the file is known to still reach that far.
        assert_eq!(write(&sender, &parts)?, 20_006);
        assert_eq!(write(&sender, &parts[2..])?, 6);
        drop(sender);
        let mut received = Vec::new();
        receiver.read_to_end(&mut received)?;
        assert!(received == [b"before", &content[5_000..25_000], b"behind"].concat());
    }
    Ok(())
}

/// A socket accepts what it has room for, and the rest later.
#[test]
fn what_a_socket_does_not_take_at_once_is_sent_later() -> io::Result<()> {
    let content: Vec<u8> = (0..=250).cycle().take(3 << 20).collect();
    let file = file(&content)?;
    let (mapped, at) = MappedFileWindows::default()
        .find(&file, 0, content.len())
        .unwrap();
    for write in WAYS {
        let (mut receiver, sender) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        let (mut sent, mut times, mut received) = (0, 0, vec![0; content.len()]);
        while sent < content.len() {
            let rest = [part(&mapped, at + sent, content.len() - sent)];
            let before = sent;
            match write(&sender, &rest) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
            receiver.read_exact(&mut received[before..sent])?;
            times += 1;
        }
        assert!(received == content && times > 1);
    }
    Ok(())
}

#[test]
fn windows_are_found_where_the_file_reaches_and_dropped_when_others_are() -> io::Result<()> {
    let content: Vec<u8> = (0..=250).cycle().take(20 << 20).collect();
    let file = file(&content)?;
    let mut windows = MappedFileWindows::default();
    let mut sent = Vec::new();
    for offset in (0..20 << 20).step_by(1 << 20) {
        let (mapped, at) = windows.find(&file, offset, 1 << 20).unwrap();
        assert_eq!(mapped.offset + at as u64, offset);
        let mut bytes = vec![1; 1 << 20];
        let offset = offset as usize;
        assert!(mapped.copy(at, &mut bytes) && bytes == content[offset..][..1 << 20]);
        assert!(windows.kept.len() <= WINDOWS);
        sent.push(mapped);
    }
    assert!(windows.find(&file, (19 << 20) + 1, 1 << 20).is_none());
    assert!(windows.find(&file, u64::MAX, 1).is_none());
    assert!(windows.find(&file, (4 << 20) - 1, OVERLAP).is_some());
    // The windows stay busy until the last part is written.
    for left in (0..sent.len()).rev() {
        assert!(windows.are_busy(), "{left}");
        sent.remove(0);
    }
    assert!(!windows.are_busy());
    let (sent, _) = windows.find(&file, 0, 1).unwrap();
    windows.forget(&file);
    assert!(windows.kept.is_empty() && windows.are_busy());
    drop(sent);
    assert!(!windows.are_busy() && Arc::into_inner(file).is_some());
    Ok(())
}

/// tmpfs would allocate pages if a hole was mapped.
#[test]
fn holes_stay_holes() -> io::Result<()> {
    for folder in ["/dev/shm", "/tmp"] {
        let Ok(file) = tempfile::tempfile_in(folder) else {
            continue;
        };
        file.set_len(1 << 20)?;
        let before = fstat(&file)?.st_blocks;
        let file = Arc::new(file);
        assert!(
            MappedFileWindows::default()
                .find(&file, 0, 1 << 20)
                .is_none()
        );
        assert_eq!(fstat(&file)?.st_blocks, before);
    }
    Ok(())
}

/// Missing pages, and zeros at the end of the last page, must not pass for the file's content.
#[test]
fn a_file_that_became_shorter_is_an_error() -> io::Result<()> {
    for kept in [0, 100, 5_000, 19_999] {
        let content = vec![7; 20_000];
        let file = file(&content)?;
        let (mapped, at) = MappedFileWindows::default().find(&file, 0, 20_000).unwrap();
        file.set_len(kept)?;
        for write in WAYS {
            let (_receiver, sender) = UnixStream::pair()?;
            // Data that is still available may have been sent before.
            let mut sent = 0;
            let error = loop {
                let rest = [part(&mapped, at + sent, 20_000 - sent)];
                match write(&sender, &rest) {
                    Ok(n) => sent += n,
                    Err(e) => break e,
                }
                assert!(sent <= kept as usize, "{sent} of {kept} bytes");
            };
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{kept} bytes");
            assert!(error.to_string().contains("became shorter"), "{error}");
        }
        let mut bytes = vec![0; 20_000];
        assert!(!mapped.copy(at, &mut bytes));
    }
    Ok(())
}

/// Returns the bytes lent by `mapped`, with `meanwhile` called before the second half is read, and
/// if the file was complete to the end.
fn lent(
    mapped: &MappedRange,
    (at, len, more): (usize, usize, usize),
    meanwhile: impl Fn(),
) -> (bool, Vec<u8>) {
    let mut read = Vec::new();
    let there = mapped.lend(at, len, more, &mut |bytes| {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        read.extend_from_slice(first);
        meanwhile();
        read.extend_from_slice(std::hint::black_box(second));
    });
    (there, read)
}

#[test]
fn what_is_lent_is_the_file_and_what_follows_it_in_its_last_page() -> io::Result<()> {
    let page = rustix::param::page_size();
    let content: Vec<u8> = (0..=250).cycle().take(3 * page + 100).collect();
    let file = file(&content)?;
    let (mapped, at) = MappedFileWindows::default()
        .find(&file, 5, 2 * page)
        .unwrap();
    let (there, read) = lent(&mapped, (at, 2 * page, 20), || {});
    assert!(there && read == content[5..2 * page + 25]);
    let (there, read) = lent(&mapped, (at, 3 * page + 95, 20), || {});
    assert!(there && read == [&content[5..], &[0; 20]].concat());
    // There are no bytes behind the last page.
    for (len, more) in [(3 * page + 95, page), (3 * page + 96, 0)] {
        let lent = lent(&mapped, (at, len, more), || {});
        assert_eq!(lent, (false, Vec::new()), "{len} and {more}");
    }
    assert!(!mapped.is_truncated());
    Ok(())
}

/// A reader gets zeros and continues, is informed, and the window is not used again.
#[test]
fn a_file_that_is_made_shorter_while_it_is_lent_is_noticed() -> io::Result<()> {
    for kept in [0, 100, 50_000, 299_999] {
        let content = vec![7; 300_000];
        let file = file(&content)?;
        let mut windows = MappedFileWindows::default();
        let (mapped, at) = windows.find(&file, 0, 300_000).unwrap();
        let (there, read) = lent(&mapped, (at, 300_000, 0), || file.set_len(kept).unwrap());
        assert_eq!((there, read.len()), (false, 300_000), "{kept}");
        assert!(read[..150_000] == content[..150_000]);
        assert!(read[299_999] == 0 && !lent(&mapped, (at, 300_000, 0), || {}).0);
        let gone = kept < 150_000;
        assert_eq!(mapped.is_truncated(), gone, "{kept}");
        file.set_len(300_000)?;
        // Data that has become a hole is read instead.
        let again = windows.find(&file, 0, 300_000);
        assert!(again.is_none_or(|(again, _)| !again.is_truncated()));
        let (_receiver, sender) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        let written = write_parts(&sender, std::iter::once(part(&mapped, at, 300_000)));
        assert_eq!(written.is_err(), gone, "{kept}");
    }
    Ok(())
}

/// The signal handler searches for the window of an address while other windows appear and
/// disappear at that address.
#[test]
fn windows_that_come_and_go_while_their_files_are_cut_lend_the_file_or_nothing() -> io::Result<()> {
    const UNIT: usize = 64 << 10;
    const UNITS: usize = 32;
    let begun = Instant::now();
    let contents: Vec<Vec<u8>> = [3, 5]
        .map(|step| {
            let bytes = (0..UNIT * UNITS).map(|at| (at / 7 * step % 255) as u8 + 1);
            bytes.collect()
        })
        .into();
    let (lent_whole, lent_torn) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Continues until both outcomes were seen, on any machine.
    let goes_on = || {
        let seen = [&lent_whole, &lent_torn].map(|n| n.load(Ordering::Relaxed));
        let least = if seen.contains(&0) { 20_000 } else { 500 };
        begun.elapsed() < Duration::from_millis(least)
    };
    thread::scope(|scope| {
        for content in &contents {
            let file = file(content).unwrap();
            let (cut, goes_on) = (Arc::clone(&file), &goes_on);
            scope.spawn(move || {
                // Cuts at page boundaries: truncation within a page gives zeros without a signal.
                for turn in (0_usize..).take_while(|_| goes_on()) {
                    let kept = turn * 7 % UNITS * UNIT;
                    cut.set_len(kept as u64).unwrap();
                    cut.write_all_at(&content[kept..], kept as u64).unwrap();
                }
            });
            for first in 0..2 {
                let (file, whole, torn) = (Arc::clone(&file), &lent_whole, &lent_torn);
                scope.spawn(move || {
                    for turn in (first..).take_while(|_| goes_on()) {
                        let mut windows = MappedFileWindows::default();
                        let (from, len) = (turn % 4 * UNIT, (turn % 28 + 1) * UNIT);
                        let Some((mapped, at)) = windows.find(&file, from as u64, len) else {
                            continue;
                        };
                        // The pause ends at varying points between whole, cut and whole again.
                        let pause = Duration::from_micros(turn as u64 % 5 * 40);
                        let (there, read) = lent(&mapped, (at, len, 0), || thread::sleep(pause));
                        match there {
                            true => {
                                assert!(read == content[from..from + len], "other bytes");
                                whole.fetch_add(1, Ordering::Relaxed);
                            }
                            false => {
                                torn.fetch_add(
                                    usize::from(mapped.is_truncated()),
                                    Ordering::Relaxed,
                                );
                            }
                        }
                    }
                });
            }
        }
    });
    let (whole, torn) = (lent_whole.into_inner(), lent_torn.into_inner());
    assert!(whole > 0 && torn > 0, "{whole} whole, {torn} torn");
    Ok(())
}

#[test]
fn what_has_no_pages_is_not_mapped() -> io::Result<()> {
    for path in ["/proc/self/status", "/dev/null", "/"] {
        let file = Arc::new(File::open(path)?);
        assert!(
            MappedFileWindows::default().find(&file, 0, 1).is_none(),
            "{path}"
        );
        assert!(
            MappedFileWindows::default().find(&file, 0, 0).is_none(),
            "{path}"
        );
    }
    Ok(())
}
