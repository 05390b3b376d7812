use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::Digest;

/// A file of sums as `b3sum -c` and `sha256sum -c` read it: `HEX  NAME` a line. It is written
/// beside its final name, which it gets when it is whole.
pub(crate) struct Manifest {
    out: BufWriter<File>,
    temporary: PathBuf,
    target: PathBuf,
}

impl Manifest {
    pub(crate) fn create(target: &Path) -> io::Result<Self> {
        let name = target.file_name().ok_or(io::ErrorKind::IsADirectory)?;
        if target.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let temporary = crate::disk::temp_name(name.as_encoded_bytes());
        let temporary = target.with_file_name(crate::walk::local_path(&temporary));
        Ok(Self {
            out: BufWriter::new(File::create_new(&temporary)?),
            temporary,
            target: target.to_path_buf(),
        })
    }

    pub(crate) fn add(&mut self, digest: &Digest, name: &[u8]) -> io::Result<()> {
        self.out.write_all(&line(digest, name))
    }

    /// Gives it its name.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.out.flush()?;
        fs::rename(&self.temporary, &self.target)
    }
}

impl Drop for Manifest {
    fn drop(&mut self) {
        // After the rename there is nothing of that name.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// A backslash in front says that the name has escapes (GNU coreutils, "md5sum invocation").
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
}
