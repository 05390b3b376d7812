//! The program's epoll instances, and the registrations in them. A registration belongs to the
//! socket that had the descriptor at the time, so a replaced socket must be registered again.
//!
//! Registrations are read from /proc (proc_pid_fdinfo(5)) and not remembered, since programs also
//! make them in ways that hooks miss, such as io_uring.

use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Maximum number of instances that are remembered.
const MOST: usize = 32;

/// Descriptors of epoll instances, each plus one; 0 means free.
pub(crate) struct EpollTable([AtomicI32; MOST]);

impl EpollTable {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicI32::new(0) }; MOST])
    }

    /// Notes an instance. If the table is full, it replaces another one.
    pub(crate) fn note(&self, epoll: i32) {
        let Some(mark) = epoll.checked_add(1).filter(|mark| *mark > 0) else {
            return;
        };
        let free =
            |place: &&AtomicI32| matches!(place.load(Relaxed), 0) || place.load(Relaxed) == mark;
        let place = self.0.iter().find(free);
        let place = place.or_else(|| self.0.get(epoll.cast_unsigned() as usize % MOST));
        if let Some(place) = place {
            place.store(mark, Relaxed);
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = i32> {
        let marks = self.0.iter().map(|place| place.load(Relaxed));
        marks.filter(|mark| *mark > 0).map(|mark| mark - 1)
    }
}

/// Registration of a descriptor with an epoll instance (`struct epoll_event`), read from /proc to
/// be repeated for another socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpollRegistration {
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// Parser for an instance's lines in /proc, fed in pieces.
pub(crate) struct FdinfoParser {
    fd: u64,
    line: [u8; 128],
    len: usize,
    found: Option<EpollRegistration>,
}

impl FdinfoParser {
    /// Searches for this descriptor.
    pub(crate) fn new(fd: i32) -> Self {
        Self {
            fd: u64::try_from(fd).unwrap_or(u64::MAX),
            line: [0; 128],
            len: 0,
            found: None,
        }
    }

    pub(crate) fn take(&mut self, piece: &[u8]) {
        for byte in piece {
            if *byte == b'\n' {
                let line = self.line.get(..self.len).unwrap_or_default();
                self.found = self.found.or_else(|| read(line, self.fd));
                self.len = 0;
            } else if let Some(place) = self.line.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
    }

    pub(crate) fn found(&self) -> Option<EpollRegistration> {
        self.found
    }
}

/// Parses `tfd:        5 events:       19 data:                5  pos:0 ino:61af sdev:7`, with any
/// number of spaces.
fn read(line: &[u8], fd: u64) -> Option<EpollRegistration> {
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t' | b':'))
        .filter(|word| !word.is_empty());
    let mut field = |name: &[u8], radix| {
        let at = words.next().filter(|word| *word == name);
        at.and_then(|_| number(words.next()?, radix))
    };
    if field(b"tfd", 10)? != fd {
        return None;
    }
    let events = u32::try_from(field(b"events", 16)?).ok()?;
    let data = field(b"data", 16)?;
    Some(EpollRegistration { events, data })
}

fn number(word: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(word).ok()?, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t1057\n\
        tfd:        5 events: 80000019 data: ffff00000005  pos:0 ino:61af sdev:7\n\
        tfd:       15 events:       1d data:       15  pos:0 ino:61b0 sdev:7\n";

    #[test]
    fn a_registration_is_found_however_the_text_is_cut() {
        for len in 1..TEXT.len() {
            for (fd, events, data) in [(5, 0x8000_0019, 0xffff_0000_0005), (15, 0x1d, 0x15)] {
                let mut lines = FdinfoParser::new(fd);
                TEXT.chunks(len).for_each(|piece| lines.take(piece));
                assert_eq!(
                    lines.found(),
                    Some(EpollRegistration { events, data }),
                    "{len}"
                );
            }
        }
        for fd in [1, 55, -1] {
            let mut lines = FdinfoParser::new(fd);
            lines.take(TEXT);
            assert_eq!(lines.found(), None);
        }
    }

    #[test]
    fn instances_are_noted_once_and_no_more_than_there_is_room() {
        let epolls = EpollTable::new();
        for _ in 0..3 {
            for epoll in [0, 7, i32::MAX, -1, 7] {
                epolls.note(epoll);
            }
        }
        assert!(epolls.all().eq([0, 7]));
        (0..100).for_each(|epoll| epolls.note(epoll));
        assert_eq!(epolls.all().count(), MOST);
        assert!(epolls.all().any(|epoll| epoll == 99));
    }
}
