#![allow(
    unsafe_code,
    reason = "BytesMut has no safe way to take over bytes that the kernel wrote into its spare capacity"
)]

use std::io;
use std::os::fd::AsFd;

use bytes::BytesMut;

/// Reads once from `fd` into the spare capacity of `segment`; returns the bytes read, 0 at the
/// end of the stream. Does not grow the segment: without spare capacity it reads nothing and
/// fails with `InvalidInput`.
pub fn read_spare(fd: impl AsFd, segment: &mut BytesMut) -> io::Result<usize> {
    let spare = segment.spare_capacity_mut();
    if spare.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (filled, _) = rustix::io::read(fd, spare)?;
    let n = filled.len();
    let len = segment.len() + n;
    // SAFETY: rustix returned the first `n` bytes behind `segment.len()` as initialized, and
    // they lie within the capacity.
    unsafe { segment.set_len(len) };
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn bytes_arrive_behind_those_that_are_there() -> io::Result<()> {
        let (receiver, mut sender) = io::pipe()?;
        sender.write_all(b"world")?;
        drop(sender);
        let mut segment = BytesMut::with_capacity(64);
        segment.extend_from_slice(b"hello ");
        assert_eq!(read_spare(&receiver, &mut segment)?, 5);
        assert_eq!(&segment[..], b"hello world");
        assert_eq!(read_spare(&receiver, &mut segment)?, 0);
        Ok(())
    }

    #[test]
    fn a_full_segment_is_an_error_and_not_an_end() -> io::Result<()> {
        let (receiver, _sender) = io::pipe()?;
        let mut segment = BytesMut::new();
        assert!(read_spare(&receiver, &mut segment).is_err());
        Ok(())
    }
}
