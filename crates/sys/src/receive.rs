#![allow(
    unsafe_code,
    reason = "neither BytesMut nor Vec has a safe way to take over bytes that the kernel wrote into \
              their spare capacity"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use bytes::BytesMut;
use rustix::io::retry_on_intr;

/// Reads once from `fd` into the spare capacity of `segment`; returns the number of bytes, 0 at the
/// end of the stream. The segment does not grow: without spare capacity the call fails with
/// `InvalidInput`.
pub fn read_spare(fd: impl AsFd, segment: &mut BytesMut) -> io::Result<usize> {
    read_some(fd, segment, usize::MAX)
}

/// Reads once from `fd` at most `most` bytes into the spare capacity of `segment`; returns the
/// number of bytes, 0 at the end of the stream. Fails with `InvalidInput` if there is no room.
pub(crate) fn read_some(fd: impl AsFd, segment: &mut BytesMut, most: usize) -> io::Result<usize> {
    let spare = segment.spare_capacity_mut();
    let most = most.min(spare.len());
    if most == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (filled, _) = rustix::io::read(fd, &mut spare[..most])?;
    let n = filled.len();
    let len = segment.len() + n;
    // SAFETY: rustix returned the first `n` bytes behind `segment.len()` as initialized, and
    // they lie within the capacity.
    unsafe { segment.set_len(len) };
    Ok(n)
}

/// Reads once from `fd`: the first `most` bytes into the spare capacity of `first`, then at most
/// `behind` bytes into that of `second` (readv(2)). Returns the bytes that went into each, both 0
/// at the end of the stream. Fails with `InvalidInput` if `first` has no room for `most`.
pub(crate) fn read_over(
    fd: impl AsFd,
    (first, most): (&mut BytesMut, usize),
    (second, behind): (&mut BytesMut, usize),
) -> io::Result<(usize, usize)> {
    let ends = first.spare_capacity_mut();
    let begins = second.spare_capacity_mut();
    let behind = behind.min(begins.len());
    if most == 0 || ends.len() < most {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [
        libc::iovec {
            iov_base: ends.as_mut_ptr().cast(),
            iov_len: most,
        },
        libc::iovec {
            iov_base: begins.as_mut_ptr().cast(),
            iov_len: behind,
        },
    ];
    // SAFETY: both parts are spare capacity, at least as long as they claim, and exclusively
    // borrowed during the call.
    let n = unsafe { libc::readv(fd.as_fd().as_raw_fd(), parts.as_ptr(), 2) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    let (ended, begun) = (n.min(most), n.saturating_sub(most));
    let (first_len, second_len) = (first.len() + ended, second.len() + begun);
    // SAFETY: the kernel wrote `n` bytes, the first `most` of them behind what is in `first` and
    // the others behind what is in `second`, each within the capacity.
    unsafe {
        first.set_len(first_len);
        second.set_len(second_len);
    }
    Ok((ended, begun))
}

/// Reads at most `most` bytes of a file from `offset` and appends them to `out`, which grows by the
/// bytes read; returns their number, 0 at the end of the file.
///
/// # Errors
/// Errors of pread(2) except EINTR.
pub fn append_at(
    file: impl AsFd,
    out: &mut Vec<u8>,
    most: usize,
    offset: u64,
) -> io::Result<usize> {
    out.reserve(most);
    let end = out.len();
    let spare = out.spare_capacity_mut();
    let most = most.min(spare.len());
    let n = retry_on_intr(|| {
        let (filled, _) = rustix::io::pread(&file, &mut spare[..most], offset)?;
        Ok(filled.len())
    })?;
    // SAFETY: rustix returned the first `n` bytes behind `end` as initialized, and they lie within
    // the capacity.
    unsafe { out.set_len(end + n) };
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
    fn what_is_behind_a_packet_goes_elsewhere() -> io::Result<()> {
        let (receiver, mut sender) = io::pipe()?;
        let mut first = BytesMut::with_capacity(8);
        let mut second = BytesMut::with_capacity(8);
        first.extend_from_slice(b"he");
        sender.write_all(b"ll")?;
        assert_eq!(
            read_over(&receiver, (&mut first, 3), (&mut second, 7))?,
            (2, 0)
        );
        sender.write_all(b"o world, and more")?;
        assert_eq!(
            read_over(&receiver, (&mut first, 1), (&mut second, 7))?,
            (1, 7)
        );
        assert_eq!((&first[..], &second[..]), (&b"hello"[..], &b" world,"[..]));
        assert!(read_over(&receiver, (&mut first, 4), (&mut second, 7)).is_err());
        assert!(read_over(&receiver, (&mut first, 0), (&mut second, 7)).is_err());
        drop(sender);
        second.clear();
        assert_eq!(
            read_over(&receiver, (&mut first, 1), (&mut second, 8))?,
            (1, 8)
        );
        assert_eq!(
            read_over(&receiver, (&mut first, 1), (&mut second, 8))?,
            (0, 0)
        );
        Ok(())
    }

    #[test]
    fn a_full_segment_is_an_error_and_not_an_end() -> io::Result<()> {
        let (receiver, _sender) = io::pipe()?;
        let mut segment = BytesMut::new();
        assert!(read_spare(&receiver, &mut segment).is_err());
        Ok(())
    }

    #[test]
    fn a_file_is_appended_from_an_offset_on_to_its_end() -> io::Result<()> {
        let file = std::fs::File::open("/proc/self/cmdline")?;
        let whole = std::fs::read("/proc/self/cmdline")?;
        let mut out = b"before".to_vec();
        assert_eq!(append_at(&file, &mut out, 3, 1)?, 3);
        assert_eq!(out, [b"before", &whole[1..4]].concat());
        assert_eq!(append_at(&file, &mut out, 100, whole.len() as u64)?, 0);
        assert_eq!(out.len(), 9);
        assert!(append_at(std::fs::File::open("/")?, &mut out, 1, 0).is_err());
        Ok(())
    }
}
