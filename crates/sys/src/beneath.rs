//! Opens paths that must stay beneath a directory that is held open.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
#[cfg(target_os = "linux")]
use rustix::fs::{ResolveFlags, openat2};
#[cfg(not(target_os = "linux"))]
use rustix::io::Errno;
use rustix::io::Result;

/// How symlinks in a path are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymlinkPolicy {
    /// The kernel follows them as if the held directory were `/` (RESOLVE_IN_ROOT of openat2(2)).
    WithinRoot,
    /// A symlink anywhere in the path is an error (ELOOP), and `..` does not lead above the held
    /// directory.
    Refused,
}

/// Opens `path` beneath `root`. The kernel resolves the path in one step, so a process that moves
/// directories or creates symlinks meanwhile cannot redirect it. An empty path opens `root` itself.
///
/// # Errors
/// Errors of openat2(2): ELOOP for a symlink that is refused, EXDEV for a path that leaves `root`.
/// A kernel without openat2 (before Linux 5.6) fails with ENOSYS for [`SymlinkPolicy::WithinRoot`].
pub fn open_beneath(
    root: impl AsFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    symlinks: SymlinkPolicy,
) -> Result<OwnedFd> {
    let path = match path {
        b"" => b".",
        path => path,
    };
    let flags = flags | OFlags::CLOEXEC;
    // openat2 refuses a mode unless O_CREAT is set.
    let mode = match flags.contains(OFlags::CREATE) {
        true => mode,
        false => Mode::empty(),
    };
    call(root, path, flags, mode, symlinks)
}

#[cfg(target_os = "linux")]
fn call(
    root: impl AsFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    symlinks: SymlinkPolicy,
) -> Result<OwnedFd> {
    use rustix::io::Errno;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Attempts after EAGAIN, which openat2(2) returns if a rename races with the lookup of `..`.
    const TRIES: u32 = 64;
    static MISSING: AtomicBool = AtomicBool::new(false);

    let root = root.as_fd();
    let refused = symlinks == SymlinkPolicy::Refused;
    if refused && MISSING.load(Ordering::Relaxed) {
        return by_components(root, path, flags, mode);
    }
    let resolve = match symlinks {
        SymlinkPolicy::WithinRoot => ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        SymlinkPolicy::Refused => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    };
    let mut tries = 0;
    loop {
        match openat2(root, path, flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => tries += 1,
            // Container runtimes older than openat2 forbid the call with EPERM.
            Err(e @ (Errno::NOSYS | Errno::PERM)) if refused => {
                if e == Errno::NOSYS {
                    MISSING.store(true, Ordering::Relaxed);
                }
                return by_components(root, path, flags, mode);
            }
            other => return other,
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn call(
    root: impl AsFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    symlinks: SymlinkPolicy,
) -> Result<OwnedFd> {
    match symlinks {
        SymlinkPolicy::WithinRoot => Err(Errno::NOSYS),
        SymlinkPolicy::Refused => by_components(root.as_fd(), path, flags, mode),
    }
}

/// Opens the components of `path` one after the other and refuses symlinks and `..`.
fn by_components(
    root: std::os::fd::BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd> {
    use rustix::fs::openat;
    use rustix::io::Errno;

    #[cfg(target_os = "linux")]
    const PASSING: OFlags = OFlags::PATH;
    #[cfg(not(target_os = "linux"))]
    const PASSING: OFlags = OFlags::RDONLY;

    if path.first() == Some(&b'/') {
        return Err(Errno::XDEV);
    }
    let names = path.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names.filter(|name| !matches!(*name, b"" | b".")).collect();
    if names.contains(&&b".."[..]) {
        return Err(Errno::XDEV);
    }
    let Some((last, dirs)) = names.split_last() else {
        return openat(root, ".", flags, mode);
    };
    let step = |at: std::os::fd::BorrowedFd<'_>, name: &[u8], flags: OFlags| {
        let opened = openat(at, name, flags | OFlags::NOFOLLOW, mode);
        match opened {
            // With O_DIRECTORY and O_NOFOLLOW a symlink gives ENOTDIR.
            Err(Errno::NOTDIR) if is_symlink(at, name) => Err(Errno::LOOP),
            // With O_PATH and O_NOFOLLOW a symlink itself is opened.
            Ok(found) if !flags.contains(OFlags::NOFOLLOW) && is_itself_symlink(&found) => {
                Err(Errno::LOOP)
            }
            opened => opened,
        }
    };
    let mut held: Option<OwnedFd> = None;
    for name in dirs {
        let at = held.as_ref().map_or(root, AsFd::as_fd);
        held = Some(step(
            at,
            name,
            PASSING | OFlags::DIRECTORY | OFlags::CLOEXEC,
        )?);
    }
    step(held.as_ref().map_or(root, AsFd::as_fd), last, flags)
}

fn is_itself_symlink(found: &OwnedFd) -> bool {
    use rustix::fs::{FileType, fstat};
    fstat(found).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

fn is_symlink(at: std::os::fd::BorrowedFd<'_>, name: &[u8]) -> bool {
    use rustix::fs::{AtFlags, FileType, statat};
    statat(at, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    #[test]
    fn a_symlink_anywhere_in_a_path_is_refused_with_openat2_and_without() -> std::io::Result<()> {
        let dir = tempfile::tempdir()?;
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("root/a/b"))?;
        fs::create_dir_all(at("outside/b"))?;
        symlink(at("outside"), at("root/out"))?;
        symlink("a", at("root/within"))?;
        symlink(at("outside"), at("root/a/last"))?;
        let root = File::open(at("root"))?;
        type Open = fn(&File, &[u8], OFlags) -> Result<OwnedFd>;
        let both: [Open; 2] = [
            |root, path, flags| {
                open_beneath(root, path, flags, Mode::empty(), SymlinkPolicy::Refused)
            },
            |root, path, flags| by_components(root.as_fd(), path, flags, Mode::empty()),
        ];
        let directory = OFlags::RDONLY | OFlags::DIRECTORY;
        for open in both {
            for found in ["a", "a/b", ".", "a//b/", "a/./b"] {
                assert!(open(&root, found.as_bytes(), directory).is_ok(), "{found}");
            }
            for link in ["out", "out/b", "within", "within/b", "a/last", "a/last/b"] {
                let refused = open(&root, link.as_bytes(), directory).err();
                assert_eq!(refused, Some(Errno::LOOP), "{link}");
            }
            let path = OFlags::PATH;
            assert_eq!(open(&root, b"a/last", path).err(), Some(Errno::LOOP));
            assert!(open(&root, b"a/last", path | OFlags::NOFOLLOW).is_ok());
            for above in ["..", "a/../../outside", "/etc"] {
                assert!(open(&root, above.as_bytes(), directory).is_err(), "{above}");
            }
            let missing = open(&root, b"a/c", directory).err();
            assert_eq!(missing, Some(Errno::NOENT));
        }
        Ok(())
    }
}
