//! Finds the program to wrap, and checks if a library can be preloaded into it.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use shim::program::{ExecutableFormat, HEAD, look};
use transfer::escape;

use super::go::is_go;
use super::{NONE, WrapFailure};

/// Executable that was found on the PATH or by its path, as a shell finds it.
pub(super) struct ProgramFile {
    pub(super) path: PathBuf,
}

/// Result of the check if the library can be preloaded into a program, or into its interpreter if
/// it is a script.
pub(super) enum WrapCheck {
    /// The program can be wrapped; the text describes how.
    Supported(String),
    /// The reason why not, and the alternative, to be printed after the program's name.
    Unsupported(String),
}

/// Advice for programs that cannot load the library.
const INSTEAD: &str = "use longhaul dial for programs that use ssh, or longhaul relay";

/// Returns true if the program has GCC's address sanitizer as a library, which ends programs that
/// have loaded another library before it. Clang's is part of the program.
pub(super) fn wants_to_be_first(found: &ProgramFile) -> bool {
    const NAME: &[u8] = b"libasan.so";
    // Linkers write the names of libraries near the beginning.
    let head = head(&found.path).unwrap_or_default();
    head.windows(NAME.len()).any(|part| part == NAME)
}

/// Finds the program as a shell does.
///
/// # Errors
/// The program was not found; a sentence.
pub(super) fn find(name: &OsStr) -> Result<ProgramFile, WrapFailure> {
    let shown = super::named(name);
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Ok(_) => Ok(ProgramFile { path }),
            Err(e) => Err(WrapFailure::Exit(NONE, format!("{shown}: {e}").into())),
        };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let runs = |file: &PathBuf| file.is_file() && access(file, Access::EXEC_OK).is_ok();
    let mut files = env::split_paths(&path).map(|folder| folder.join(name));
    match files.find(runs) {
        Some(path) => Ok(ProgramFile { path }),
        None => {
            let why = format!("{shown}: no such program on the PATH");
            Err(WrapFailure::Exit(NONE, why.into()))
        }
    }
}

/// Checks the file, and its interpreter if it is a script.
pub(super) fn check(found: &ProgramFile) -> WrapCheck {
    // As many interpreters as the kernel follows at most (BINPRM_MAX_RECURSION).
    look_at(&found.path, 5)
}

fn look_at(path: &Path, depth: u32) -> WrapCheck {
    let read = head(path).and_then(|head| Ok((head, head_of_own()?, fs::metadata(path)?)));
    let (head, own, file) = match read {
        Ok(read) => read,
        Err(e) => {
            return WrapCheck::Unsupported(format!("cannot be read and checked: {e}"));
        }
    };
    let why = match look(&head, &own) {
        ExecutableFormat::Script { .. } if depth == 0 => "has too many nested interpreters",
        ExecutableFormat::Script {
            interpreter,
            argument,
        } => return script(interpreter, argument, depth),
        ExecutableFormat::Foreign => {
            "is built for another processor or for 32 bits and cannot load the library"
        }
        ExecutableFormat::Unknown => "is not an ELF program and cannot load a library",
        ExecutableFormat::Static { go: true } | ExecutableFormat::Dynamic { go: true, .. } => {
            "is written in Go and bypasses the C library"
        }
        ExecutableFormat::Static { .. } | ExecutableFormat::Dynamic { .. } if is_go(path) => {
            "is written in Go and bypasses the C library"
        }
        ExecutableFormat::Static { go: false } => "is statically linked and cannot load a library",
        ExecutableFormat::Dynamic { .. } if gains(path, &file) => {
            "is privileged (setuid, setgid or capabilities), so the loader ignores LD_PRELOAD"
        }
        ExecutableFormat::Dynamic { loader, .. } => {
            let musl = loader.windows(7).any(|part| part == b"ld-musl");
            let of = if musl { "musl" } else { "glibc" };
            let loader = escape::name(loader);
            return WrapCheck::Supported(format!("it is dynamically linked with {of} ({loader})"));
        }
    };
    WrapCheck::Unsupported(format!("{why}: {INSTEAD}"))
}

fn script(interpreter: &[u8], argument: &[u8], depth: u32) -> WrapCheck {
    let path = PathBuf::from(OsStr::from_bytes(interpreter));
    let mut words = argument
        .split(|b| b.is_ascii_whitespace())
        .filter(|w| !w.is_empty());
    // env(1) finds the interpreter on the PATH; -S and assignments may come before its name.
    let named = (path.file_name() == Some(OsStr::new("env")))
        .then(|| words.find(|word| !word.starts_with(b"-") && !word.contains(&b'=')))
        .flatten()
        .and_then(|name| find(OsStr::from_bytes(name)).ok());
    let path = named.map_or(path, |found| found.path);
    let shown = escape::path(&path);
    match look_at(&path, depth - 1) {
        WrapCheck::Supported(how) => WrapCheck::Supported(format!("a script for {shown}: {how}")),
        WrapCheck::Unsupported(why) => {
            WrapCheck::Unsupported(format!("is a script for {shown}, which {why}"))
        }
    }
}

/// Returns true if the kernel runs the program in secure mode, in which the loader ignores the
/// environment (AT_SECURE, getauxval(3)).
fn gains(path: &Path, file: &fs::Metadata) -> bool {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let setuid = file.mode() & 0o4000 != 0 && file.uid() != user.as_raw();
    let setgid = file.mode() & 0o2010 == 0o2010 && file.gid() != group.as_raw();
    let mut room = [0; 64];
    let capable = rustix::fs::getxattr(path, "security.capability", &mut room[..]).is_ok();
    setuid || setgid || (capable && !user.is_root())
}

fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    file.take(HEAD as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// The ELF header of this program, as an example of what runs here.
fn head_of_own() -> io::Result<Vec<u8>> {
    head(&env::current_exe()?)
}
