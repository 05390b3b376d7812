#![allow(
    unsafe_code,
    reason = "neither rustix nor libc has name_to_handle_at(2), which tells an inode from the one that had its \
              number before"
)]

use std::io;
use std::os::fd::AsFd;

/// Longest file handle in bytes: MAX_HANDLE_SZ of linux/fs.h.
#[cfg(target_os = "linux")]
const LONGEST: usize = 128;

/// Returns an identifier that no other file of the file system has or had. An inode number is
/// reused after the file is removed, and the birth time advances only in milliseconds.
///
/// # Errors
/// Errors of name_to_handle_at(2); `Unsupported` if the file system or the system has no file
/// handles.
#[cfg(target_os = "linux")]
pub fn file_id(file: impl AsFd) -> io::Result<Vec<u8>> {
    use std::os::fd::AsRawFd as _;

    /// `struct file_handle` with room for the longest handle.
    #[repr(C)]
    struct FileHandle {
        bytes: libc::c_uint,
        kind: libc::c_int,
        handle: [u8; LONGEST],
    }

    let mut handle = FileHandle {
        bytes: LONGEST as libc::c_uint,
        kind: 0,
        handle: [0; LONGEST],
    };
    let mut mount: libc::c_int = 0;
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the path ends with a zero byte, `handle` has as many bytes behind its header as it
    // claims, and both outlive the call, which writes to no other memory.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd,
            c"".as_ptr(),
            &raw mut handle,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let len = usize::try_from(handle.bytes).map_or(LONGEST, |len| len.min(LONGEST));
    let mut id = handle.kind.to_ne_bytes().to_vec();
    id.extend_from_slice(&handle.handle[..len]);
    Ok(id)
}

/// Always fails: this system has no file handles.
///
/// # Errors
/// `Unsupported`, always.
#[cfg(not(target_os = "linux"))]
pub fn file_id(_: impl AsFd) -> io::Result<Vec<u8>> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::{self, File};

    use super::file_id;

    #[test]
    fn a_file_is_known_again_and_its_inode_is_not_taken_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "one").expect("ours");
        let Ok(id) = file_id(File::open(&path).expect("ours")) else {
            // Overlayfs, for example, has no file handles.
            return;
        };
        assert_eq!(
            file_id(File::open(&path).expect("ours")).expect("as before"),
            id
        );
        for _ in 0..20 {
            fs::remove_file(&path).expect("ours");
            fs::write(&path, "two").expect("ours");
            let file = File::open(&path).expect("ours");
            assert_ne!(file_id(file).expect("as before"), id);
        }
    }
}
