//! Writes the checksum file of `--manifest`.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::Digest;

/// A file of checksums in the format of `b3sum -c` and `sha256sum -c`: `HEX  NAME` per line.
/// Written to a temporary that is renamed when complete; an existing target that is not a regular
/// file, such as a pipe or /dev/null, is written directly.
pub(crate) struct Manifest {
    out: BufWriter<File>,
    /// The temporary's path and the final path.
    named: Option<(PathBuf, PathBuf)>,
}

impl Manifest {
    pub(crate) fn create(target: &Path) -> io::Result<Self> {
        let name = target.file_name().ok_or(io::ErrorKind::IsADirectory)?;
        if target.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if fs::metadata(target).is_ok_and(|there| !there.is_file()) {
            let out = BufWriter::new(File::options().write(true).open(target)?);
            return Ok(Self { out, named: None });
        }
        let temporary = crate::disk::temp_name(name.as_encoded_bytes());
        let temporary = target.with_file_name(crate::walk::local_path(&temporary));
        Ok(Self {
            out: BufWriter::new(File::create_new(&temporary)?),
            named: Some((temporary, target.to_path_buf())),
        })
    }

    pub(crate) fn add(&mut self, digest: &Digest, name: &[u8]) -> io::Result<()> {
        self.out.write_all(&line(digest, name))
    }

    /// Completes the file and renames it.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.out.flush()?;
        match &self.named {
            Some((temporary, target)) => fs::rename(temporary, target),
            None => Ok(()),
        }
    }
}

impl Drop for Manifest {
    fn drop(&mut self) {
        // After the rename this name no longer exists.
        if let Some((temporary, _)) = &self.named {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Formats a line; a leading backslash marks a name with escapes (GNU coreutils, "md5sum
/// invocation").
fn line(digest: &Digest, name: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(name.len());
    for byte in name {
        match byte {
            b'\\' => escaped.extend(b"\\\\"),
            b'\n' => escaped.extend(b"\\n"),
            b'\r' => escaped.extend(b"\\r"),
            _ => escaped.push(*byte),
        }
    }
    let mark: &[u8] = if escaped == name { b"" } else { b"\\" };
    [mark, digest.to_string().as_bytes(), b"  ", &escaped, b"\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_checkers_read_them() {
        let digest = Digest::new(&[0xab; 2]);
        let shown = |name: &[u8]| String::from_utf8_lossy(&line(&digest, name)).into_owned();
        assert_eq!(shown(b"a b"), "abab  a b\n");
        assert_eq!(shown(b"a\\b\nc"), "\\abab  a\\\\b\\nc\n");
    }

    /// Regression test: run as root, the manifest replaced /dev/null by a rename.
    #[test]
    fn what_is_no_file_is_written_into() {
        let place = tempfile::tempdir().unwrap();
        let fifo = place.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let reader = fifo.clone();
        let reader = std::thread::spawn(move || fs::read_to_string(reader).unwrap());
        let mut manifest = Manifest::create(&fifo).unwrap();
        manifest.add(&Digest::new(&[0xab; 2]), b"name").unwrap();
        manifest.finish().unwrap();
        assert_eq!(reader.join().unwrap(), "abab  name\n");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
