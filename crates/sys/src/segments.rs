use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;

use bytes::BytesMut;

use crate::receive::{read_over, read_some};

/// Size of a segment in bytes. One read takes all that a socket usually holds, which keeps slices
/// few; a slice that is held long still keeps little memory.
const SEGMENT: usize = 1 << 20;
/// Extra room at the end of a segment for the rest of a packet that began in it. Without it, moving
/// the incomplete packet to the next segment copied half a packet per segment, and our own packets
/// are a quarter of a segment. Untouched room costs no memory.
const TAIL: usize = 260 << 10;
/// Least room in bytes for another read into a segment; with less, reads get so short that a new
/// segment is better.
const LEAST_READ: usize = 64 << 10;
/// Maximum number of used segments kept until their slices are gone; further ones go back to the
/// allocator.
const KEPT: usize = 64;

/// Receive buffers: data is read into large segments and passed on as slices. A segment is reused
/// once its last slice is dropped, since fresh memory costs a page fault per 4 KiB received.
#[derive(Debug, Default)]
pub struct ReceiveBuffers {
    current: BytesMut,
    /// Data received after the packet that ends `current`, or an empty segment.
    behind: BytesMut,
    used: VecDeque<BytesMut>,
    /// True once `current` is a segment, not the empty buffer from the start.
    filled: bool,
    /// Maximum bytes per read while the rate is limited.
    limit: Option<usize>,
}

impl ReceiveBuffers {
    /// Returns the bytes received and not yet consumed; the caller takes complete packets from the
    /// front.
    pub fn received(&mut self) -> &mut BytesMut {
        &mut self.current
    }

    /// Limits each further read to `bytes`; `None` removes the limit.
    pub fn set_limit(&mut self, bytes: Option<usize>) {
        self.limit = bytes;
    }

    /// Returns the limit of [`ReceiveBuffers::set_limit`].
    pub fn limit(&self) -> Option<usize> {
        self.limit
    }

    /// Returns true if more was received than [`ReceiveBuffers::received`] shows; the next read
    /// returns it at once.
    pub fn holds_more(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Reads once from `fd` behind the bytes that are there and makes room for at least `wanted` in
    /// all; returns the number of bytes, 0 at the end of the stream.
    pub fn read(&mut self, fd: impl AsFd, wanted: usize) -> io::Result<usize> {
        self.read_most(fd, wanted, usize::MAX)
    }

    /// Reads like [`ReceiveBuffers::read`], but takes at most `most` bytes from the socket; bytes
    /// received earlier do not count.
    pub fn read_most(&mut self, fd: impl AsFd, wanted: usize, most: usize) -> io::Result<usize> {
        if self.holds_more() {
            return Ok(self.go_on());
        }
        let missing = wanted.saturating_sub(self.current.len());
        let room = self.current.capacity() - self.current.len();
        if room < missing.max(LEAST_READ.min(most)) + TAIL {
            let ends_here = (1..=room).contains(&missing) && !self.current.is_empty();
            if ends_here && self.limit.is_none() && most > missing {
                return self.read_over(fd, missing);
            }
            self.next(wanted);
        }
        if let Some(limit) = self.limit {
            // The additional copy costs nothing at a limited rate.
            let mut part = vec![0; limit.clamp(1, most)];
            let n = rustix::io::read(fd, &mut part)?;
            self.current.extend_from_slice(&part[..n]);
            return Ok(n);
        }
        let room = self.current.capacity() - self.current.len();
        read_some(fd, &mut self.current, (room - TAIL).min(most))
    }

    /// Frees the memory that holds no unread data.
    pub fn trim(&mut self) {
        self.used.clear();
        if self.behind.is_empty() {
            self.behind = BytesMut::new();
        }
        if self.current.is_empty() {
            self.current = BytesMut::new();
            self.filled = false;
        }
    }

    /// Reads the `missing` bytes of a packet behind its beginning, and what follows into another
    /// segment.
    fn read_over(&mut self, fd: impl AsFd, missing: usize) -> io::Result<usize> {
        if self.behind.capacity() < SEGMENT {
            self.behind = self.free(SEGMENT + TAIL);
        }
        // The tail of `behind` stays free for the end of a packet, since a socket may hold more
        // than a segment.
        let (ended, _) = read_over(
            fd,
            (&mut self.current, missing),
            (&mut self.behind, SEGMENT),
        )?;
        Ok(ended)
    }

    /// Moves the bytes received behind the packet to `current`; returns their number.
    fn go_on(&mut self) -> usize {
        let more = self.behind.len();
        if self.current.is_empty() {
            let behind = std::mem::take(&mut self.behind);
            self.replace(behind);
        } else {
            // The caller has left a part of `current` unread.
            self.current.extend_from_slice(&self.behind);
            self.behind.clear();
        }
        more
    }

    /// Switches to another segment and copies the incomplete packet into it.
    fn next(&mut self, wanted: usize) {
        let mut next = self.free(SEGMENT.max(wanted + LEAST_READ) + TAIL);
        next.extend_from_slice(&self.current);
        self.replace(next);
    }

    /// Returns a segment without live slices, reused or new.
    fn free(&mut self, capacity: usize) -> BytesMut {
        let free = self.used.iter_mut().position(|s| s.try_reclaim(capacity));
        free.and_then(|at| self.used.swap_remove_front(at))
            .unwrap_or_else(|| BytesMut::with_capacity(capacity))
    }

    fn replace(&mut self, next: BytesMut) {
        let mut used = std::mem::replace(&mut self.current, next);
        used.clear();
        if self.filled && self.used.len() < KEPT {
            self.used.push_back(used);
        }
        self.filled = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_stay_whole_over_segments_and_memory_is_used_again() -> io::Result<()> {
        let (receiver, mut sender) = io::pipe()?;
        let mut segments = ReceiveBuffers::default();
        let mut addresses = std::collections::BTreeSet::new();
        let pattern: Vec<u8> = (0..=250).cycle().take(251 * 40_000).collect();
        let mut seen = 0;
        for part in pattern.chunks(50_000) {
            sender.write_all(part)?;
            let mut left = part.len();
            while left > 0 {
                left -= segments.read(&receiver, 33_333)?;
                while segments.received().len() >= 33_333 {
                    let packet = segments.received().split_to(33_333).freeze();
                    assert_eq!(packet, pattern[seen..seen + packet.len()]);
                    addresses.insert(packet.as_ptr() as usize / SEGMENT);
                    seen += packet.len();
                }
            }
        }
        assert!(seen > pattern.len() - 33_333);
        assert!(addresses.len() <= 4, "{} segments", addresses.len());
        segments.trim();
        assert!(segments.used.is_empty() && segments.received().len() == pattern.len() - seen);
        segments.received().clear();
        segments.trim();
        assert_eq!(segments.received().capacity(), 0);
        sender.write_all(b"more")?;
        assert_eq!(segments.read(&receiver, 4)?, 4);
        assert_eq!(&segments.received()[..], b"more");
        Ok(())
    }
    /// Packets of any size end in the segment in which they began: nothing received is copied.
    #[test]
    fn a_packet_ends_where_it_began() -> io::Result<()> {
        for size in [33_333, 200_000, 262_144] {
            let (mut sender, receiver) = UnixStream::pair()?;
            let bytes = vec![7; size];
            let count = 8 * SEGMENT / size;
            let writer =
                std::thread::spawn(move || (0..count).try_for_each(|_| sender.write_all(&bytes)));
            let mut segments = ReceiveBuffers::default();
            let (mut seen, mut moved) = (0, 0);
            while seen < count {
                let begun = segments.received().as_ptr();
                let some = !segments.received().is_empty();
                segments.read(&receiver, size)?;
                // A copied packet starts at another address.
                moved += usize::from(some && begun != segments.received().as_ptr());
                while segments.received().len() >= size {
                    let _packet = segments.received().split_to(size);
                    seen += 1;
                }
            }
            writer.join().expect("it writes")?;
            assert_eq!(moved, 0, "packets of {size}");
        }
        Ok(())
    }

    /// Regression: a socket that held more than a segment filled the next one to the end of its
    /// tail, and the packet that began there was copied.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_packet_ends_where_it_began_however_much_is_there() -> io::Result<()> {
        use std::io::{Seek as _, SeekFrom};
        // A file returns as many bytes as were asked for.
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let mut file = std::fs::File::from(rustix::fs::memfd_create("packets", flags)?);
        let size = 200_000;
        let count = 8 * SEGMENT / size;
        file.write_all(&vec![7; size * count])?;
        file.seek(SeekFrom::Start(0))?;
        let mut segments = ReceiveBuffers::default();
        let (mut seen, mut moved) = (0, 0);
        while seen < count {
            let begun = segments.received().as_ptr();
            let some = !segments.received().is_empty();
            segments.read(&file, size)?;
            moved += usize::from(some && begun != segments.received().as_ptr());
            while segments.received().len() >= size {
                let _packet = segments.received().split_to(size);
                seen += 1;
            }
        }
        assert_eq!(moved, 0);
        Ok(())
    }

    #[test]
    fn what_is_left_for_later_stays_in_front() -> io::Result<()> {
        let (receiver, mut sender) = io::pipe()?;
        let mut segments = ReceiveBuffers::default();
        segments.received().reserve(10);
        segments.received().extend_from_slice(b"pack");
        sender.write_all(b"et and more")?;
        assert_eq!(segments.read(&receiver, 6)?, 2);
        assert!(segments.holds_more());
        // The unread bytes stay in place.
        assert_eq!(segments.read(&receiver, 0)?, 9);
        assert!(!segments.holds_more());
        assert_eq!(&segments.received()[..], b"packet and more");
        Ok(())
    }
}
