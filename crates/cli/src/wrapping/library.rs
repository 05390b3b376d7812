//! Provides the library as a file for the loader; this program embeds it.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use transfer::disk::os_words;
use transfer::{LonghaulDirKind, PrivateDir, escape};

use super::WrapFailure;

/// The library, built by build.rs.
#[cfg(wraps)]
const HELD: Option<&[u8]> = Some(include_bytes!(concat!(
    env!("OUT_DIR"),
    "/liblonghaul_wrap.so"
)));
#[cfg(not(wraps))]
const HELD: Option<&[u8]> = None;

/// The path of the library file, which is written if missing.
///
/// # Errors
/// The library is missing and cannot be written; a sentence.
pub(super) fn find() -> Result<PathBuf, WrapFailure> {
    let path = match env::var_os("LONGHAUL_WRAP_LIB").filter(|path| !path.is_empty()) {
        Some(path) => named(Path::new(&path))?,
        None => kept()?,
    };
    let shown = escape::path(&path);
    // The loader ends a name at either character (ld.so(8)).
    if path
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|b| matches!(b, b':' | b' '))
    {
        return Err(format!(
            "{shown}: the loader cannot load a library whose path has a colon or a space: set \
             XDG_CACHE_HOME to another directory"
        )
        .into());
    }
    let mount = statvfs(&path).map_err(|e| format!("{shown}: {e}"))?;
    if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(format!(
            "{shown}: libraries cannot be loaded from a file system mounted noexec: set \
             XDG_CACHE_HOME to another directory"
        )
        .into());
    }
    Ok(path)
}

/// Checks the library that LONGHAUL_WRAP_LIB names.
fn named(path: &Path) -> Result<PathBuf, WrapFailure> {
    let path = std::path::absolute(path).map_err(|e| format!("LONGHAUL_WRAP_LIB: {e}"))?;
    match fs::metadata(&path) {
        Ok(file) if file.is_file() => Ok(path),
        Ok(_) => Err(format!("LONGHAUL_WRAP_LIB: {} is not a file", escape::path(&path)).into()),
        Err(e) => Err(format!("LONGHAUL_WRAP_LIB: {}: {e}", escape::path(&path)).into()),
    }
}

/// Writes our library to the user's cache, unless it is there already.
fn kept() -> Result<PathBuf, WrapFailure> {
    let held = HELD.ok_or("longhaul wrap needs 64-bit Linux")?;
    let room = library_folder()?;
    let path = room.join(format!("liblonghaul_wrap-{:016x}.so", name(held)));
    if fs::read(&path).is_ok_and(|there| there == held) {
        return Ok(path);
    }
    let fail = |e: io::Error| {
        let path = escape::path(&path);
        format!("{path}: cannot write the library: {e}; set XDG_CACHE_HOME to another directory")
    };
    // Write a new file and rename it: another longhaul may be writing too, and programs may have
    // the existing one mapped.
    let fresh = room.join(format!("new-{}", std::process::id()));
    let _ = fs::remove_file(&fresh);
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o700)
        .open(&fresh);
    let written = file.and_then(|mut file| file.write_all(held));
    written
        .and_then(|()| fs::rename(&fresh, &path))
        .inspect_err(|_| drop(fs::remove_file(&fresh)))
        .map_err(fail)?;
    Ok(path)
}

/// The private folder of the library.
///
/// # Errors
/// The folder cannot be created; a sentence.
pub(super) fn library_folder() -> Result<PathBuf, WrapFailure> {
    let cache = LonghaulDirKind::Cache.path().ok_or(
        "no directory for the library: set HOME or XDG_CACHE_HOME, or name a library with \
         LONGHAUL_WRAP_LIB",
    )?;
    let room = cache.join("wrap");
    // Files in this folder are loaded into programs of this user, so it must be private.
    let made = PrivateDir::create(&room);
    made.map_err(|e| {
        format!(
            "{}: cannot store the library: {}; set XDG_CACHE_HOME to another directory",
            escape::path(&room),
            os_words(&e)
        )
    })?;
    Ok(room)
}

/// Hash of the content (FNV-1a) for the file name, so that several versions can coexist.
fn name(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
