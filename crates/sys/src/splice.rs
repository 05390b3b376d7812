//! Moves data from a socket to a file without copying it through user space (splice(2)).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// Requested size of the pipe in bytes, the most that an unprivileged user may set
/// (/proc/sys/fs/pipe-max-size). Small pieces of data take a whole page each.
const SIZE: usize = 1 << 20;
/// Bytes per read if splice(2) cannot write to a file.
const PIECE: usize = 64 << 10;

/// Pipe that moves data from a socket to files. The kernel copies each byte once, from the receive
/// buffer to the file, where read(2) and write(2) copy it twice. Pages that another process on this
/// machine sends with [`crate::send_parts`] are copied from file to file.
#[derive(Debug)]
pub struct SplicePipe {
    from: OwnedFd,
    to: OwnedFd,
    /// Bytes in the pipe.
    held: usize,
}

impl SplicePipe {
    /// Creates an empty pipe.
    ///
    /// # Errors
    /// There are no free descriptors.
    pub fn new() -> io::Result<Self> {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A smaller pipe works too, with more calls.
        let _ = fcntl_setpipe_size(&to, SIZE);
        Ok(Self { from, to, held: 0 })
    }

    /// Moves at most `most` received bytes from `socket` to the pipe; returns their number, 0 at
    /// the end of the stream.
    ///
    /// # Errors
    /// Errors of splice(2); `WouldBlock` if the socket has no data.
    pub fn fill(&mut self, socket: impl AsFd, most: usize) -> io::Result<usize> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let n = retry_on_intr(|| splice(&socket, None, &self.to, None, most, flags))?;
        self.held += n;
        Ok(n)
    }

    /// Writes all bytes in the pipe to `file` at `offset`. The pipe is empty afterwards, even on
    /// failure.
    ///
    /// # Errors
    /// Errors of write(2).
    pub fn empty(&mut self, file: &File, mut offset: u64) -> Result<(), Errno> {
        while self.held > 0 {
            let done = retry_on_intr(|| {
                let flags = SpliceFlags::MOVE;
                splice(&self.from, None, file, Some(&mut offset), self.held, flags)
            });
            match done {
                Ok(n @ 1..) => self.held = self.held.saturating_sub(n),
                // The file system or the open mode (O_APPEND) does not support splice(2).
                Err(Errno::INVAL) => {
                    return self.read_out(|piece| {
                        let written = file.write_all_at(piece, offset);
                        offset += piece.len() as u64;
                        written.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
                    });
                }
                failed => {
                    self.read_out(|_| Ok(()))?;
                    return Err(failed.err().unwrap_or(Errno::IO));
                }
            }
        }
        Ok(())
    }

    /// Reads the pipe empty and passes the data to `to`; after an error of `to` the rest is
    /// discarded.
    fn read_out(&mut self, mut to: impl FnMut(&[u8]) -> Result<(), Errno>) -> Result<(), Errno> {
        let mut piece = vec![0; PIECE.min(self.held)];
        let mut done = Ok(());
        while self.held > 0 {
            let n = retry_on_intr(|| rustix::io::read(&self.from, &mut piece[..]))?;
            if n == 0 {
                return Err(Errno::IO);
            }
            self.held = self.held.saturating_sub(n);
            if done.is_ok() {
                done = to(&piece[..n]);
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn file(name: &str, append: bool) -> File {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let mut options = File::options();
        let opened = options
            .read(true)
            .append(append)
            .write(!append)
            .create(true);
        let file = opened.open(&path).expect("a file");
        std::fs::remove_file(path).expect("it is there");
        file
    }

    fn sent(bytes: &[u8]) -> (UnixStream, UnixStream) {
        let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
        near.set_nonblocking(true).expect("it can be");
        far.write_all(bytes).expect("there is room");
        (near, far)
    }

    #[test]
    fn bytes_go_to_their_place_in_the_file_and_not_further() {
        let (near, far) = sent(b"before it, to the file, behind it");
        let mut passage = SplicePipe::new().expect("a pipe");
        let file = file("passage", false);
        assert_eq!(passage.fill(&near, 11).expect("they are there"), 11);
        passage.empty(&file, 100).expect("there is room");
        assert_eq!(passage.fill(&near, 11).expect("they are there"), 11);
        passage.empty(&file, 7).expect("there is room");
        let mut there = [1; 111];
        file.read_exact_at(&mut there, 0).expect("it has so many");
        assert_eq!(&there[..7], [0; 7]);
        assert_eq!(&there[7..18], b"to the file");
        assert_eq!(&there[100..], b"before it, ");
        assert_eq!(passage.fill(&near, 100).expect("they are there"), 11);
        passage.empty(&file, 0).expect("there is room");
        let none = passage.fill(&near, 100).expect_err("nothing is there");
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        drop(far);
        assert_eq!(passage.fill(&near, 100).expect("that is its end"), 0);
    }

    /// splice(2) cannot write to a file opened for appending.
    #[test]
    fn what_cannot_be_spliced_to_is_written() {
        let (near, _far) = sent(&[7; 100_000]);
        let mut passage = SplicePipe::new().expect("a pipe");
        let file = file("passage-append", true);
        let mut all = 0;
        while all < 100_000 {
            all += passage.fill(&near, 100_000).expect("they are there");
            passage.empty(&file, 0).expect("there is room");
        }
        let mut there = vec![0; 100_000];
        file.read_exact_at(&mut there, 0).expect("it has so many");
        assert!(there == [7; 100_000]);
    }

    #[test]
    fn what_a_file_does_not_take_is_not_what_the_next_one_gets() {
        let (near, _far) = sent(b"for nobody, for it");
        let mut passage = SplicePipe::new().expect("a pipe");
        let only_read = File::open("/proc/self/exe").expect("it is there");
        assert_eq!(passage.fill(&near, 12).expect("they are there"), 12);
        assert_eq!(passage.empty(&only_read, 0), Err(Errno::BADF));
        let file = file("passage-next", false);
        assert_eq!(passage.fill(&near, 12).expect("they are there"), 6);
        passage.empty(&file, 0).expect("there is room");
        let mut there = [0; 6];
        file.read_exact_at(&mut there, 0).expect("it has so many");
        assert_eq!(&there, b"for it");
        assert_eq!(file.metadata().expect("it is open").len(), 6);
    }
}
