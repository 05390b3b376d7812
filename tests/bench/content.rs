//! Content to copy: created, counted and compared.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use measure::PayloadSize;
use testkit::Seed;

const CHUNK: usize = 16 << 20;
/// Files per folder: the usual width of data folders, and of source folders.
const PER_FOLDER: u64 = 500;
const PER_SOURCE_FOLDER: u64 = 6;

/// Content of a scenario at full size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Content {
    /// One file of this many bytes that do not compress.
    File(u64),
    /// One such file that differs from the old version at the target in `places` places, a
    /// hundredth of it together.
    Changed { size: u64, places: u64 },
    /// Many files of one size.
    Small { files: u64, size: u64 },
    /// Many files, most of them small, a few of up to 1 MiB: 18 kB on average.
    Mixed { files: u64 },
    /// Many files of words, up to 96 KiB and 15 kB on average, six to a folder, like source code.
    Sources { files: u64 },
    /// Many files of 256 KiB of words, which zlib reduces to a third.
    Text { files: u64 },
    /// Many files of 256 KiB that do not compress.
    Noise { files: u64 },
}

impl Content {
    /// Scales the bytes, or the number of files if there are many.
    pub(crate) fn scaled(self, scale: f64) -> Self {
        let of = |number: u64| ((number as f64 * scale).round() as u64).max(1);
        match self {
            // A tiny file is not scaled: such scenarios do not measure rates.
            Self::File(size) if size <= 4096 => self,
            Self::File(size) => Self::File(of(size)),
            Self::Changed { size, places } => Self::Changed {
                size: of(size),
                places,
            },
            Self::Small { files, size } => Self::Small {
                files: of(files),
                size,
            },
            Self::Mixed { files } => Self::Mixed { files: of(files) },
            Self::Sources { files } => Self::Sources { files: of(files) },
            Self::Text { files } => Self::Text { files: of(files) },
            Self::Noise { files } => Self::Noise { files: of(files) },
        }
    }

    pub(crate) fn is_file(self) -> bool {
        matches!(self, Self::File(_) | Self::Changed { .. })
    }

    /// Returns the name of the old version in the folder of sources, if the target has one.
    pub(crate) fn old(self) -> Option<&'static str> {
        matches!(self, Self::Changed { .. }).then_some("old")
    }

    /// Returns the bytes of memory that source and copy take.
    pub(crate) fn room(self) -> u64 {
        let PayloadSize { files, bytes } = self.payload();
        // With an old version there are two files on either side.
        let copies = if self.old().is_some() { 4 } else { 2 };
        (bytes + files * 8192) * copies + (256 << 20)
    }

    /// Returns the name in its folder.
    pub(crate) fn name(self) -> &'static str {
        if self.is_file() { "file" } else { "tree" }
    }

    fn sizes(self) -> Box<dyn Iterator<Item = u64>> {
        let repeat = |files: u64, size: u64| Box::new((0..files).map(move |_| size));
        match self {
            Self::File(size) | Self::Changed { size, .. } => repeat(1, size),
            Self::Small { files, size } => repeat(files, size),
            Self::Text { files } | Self::Noise { files } => repeat(files, 256 << 10),
            Self::Sources { files } => {
                let mut seed = Seed::new(6);
                Box::new((0..files).map(move |_| {
                    let (low, high) = match seed.below(100) {
                        0..60 => (512, 8 << 10),
                        60..90 => (8 << 10, 32 << 10),
                        _ => (32 << 10, 96 << 10),
                    };
                    low + seed.below(high - low)
                }))
            }
            Self::Mixed { files } => {
                let mut seed = Seed::new(2);
                Box::new((0..files).map(move |_| {
                    let (low, high) = match seed.below(100) {
                        0..70 => (0, 4 << 10),
                        70..90 => (4 << 10, 32 << 10),
                        90..99 => (32 << 10, 128 << 10),
                        _ => (128 << 10, 1 << 20),
                    };
                    low + seed.below(high - low)
                }))
            }
        }
    }

    /// Returns the number of files and bytes.
    pub(crate) fn payload(self) -> PayloadSize {
        let mut payload = PayloadSize { files: 0, bytes: 0 };
        for size in self.sizes() {
            payload.files += 1;
            payload.bytes += size;
        }
        payload
    }

    /// Creates the content in `folder` under its name.
    pub(crate) fn make(self, folder: &Path) -> io::Result<()> {
        let mut chunk = match self {
            Self::Text { .. } | Self::Sources { .. } => words(CHUNK),
            _ => Seed::new(1).bytes(CHUNK),
        };
        if let Self::Changed { size, places } = self {
            Self::File(size).make(folder)?;
            let new = folder.join("file");
            fs::copy(&new, folder.join("old"))?;
            let file = File::options().write(true).open(new)?;
            let other = Seed::new(5).bytes((size / places / 100) as usize);
            for place in 0..places {
                // Not at the beginning of a block.
                file.write_all_at(&other, size / places * place + size / places / 3)?;
            }
            return Ok(());
        }
        if let Self::File(size) = self {
            let mut file = File::create(folder.join("file"))?;
            let mut left = size;
            for number in 0_u64.. {
                let len = left.min(CHUNK as u64) as usize;
                // Each chunk differs, so that swapped chunks are detected.
                chunk[..8].copy_from_slice(&number.to_le_bytes());
                file.write_all(&chunk[..len])?;
                left -= len as u64;
                if left == 0 {
                    break;
                }
            }
            return Ok(());
        }
        let tree = folder.join("tree");
        let mut seed = Seed::new(3);
        for (number, size) in self.sizes().enumerate() {
            let number = number as u64;
            let (per_folder, above) = match self {
                Self::Sources { .. } => (PER_SOURCE_FOLDER, format!("part-{:03}/", number / 60)),
                _ => (PER_FOLDER, String::new()),
            };
            let inside = tree.join(format!("{above}folder-{:04}", number / per_folder));
            if number.is_multiple_of(per_folder) {
                fs::create_dir_all(&inside)?;
            }
            let start = seed.below(CHUNK as u64 - size) as usize;
            let bytes = &chunk[start..start + size as usize];
            fs::write(inside.join(format!("file-{number:07}.dat")), bytes)?;
        }
        Ok(())
    }
}

/// Generates sentences of the most common words with their natural frequency.
fn words(len: usize) -> Vec<u8> {
    const WORDS: &str = "the of and to in is that it was for on are as with his they at be this \
        from have or by one had not but what all were when we there can an your which their said \
        if do will each about how up out them then she many some so these would other into has \
        more her two like him see time could no make than first been its who now people my made \
        over did down only way find use may water long little very after words called just where \
        most know transfer channel window packet server client latency throughput directory";
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut seed = Seed::new(4);
    let mut text = Vec::with_capacity(len + 64);
    while text.len() < len {
        let (a, b) = (
            seed.below(words.len() as u64),
            seed.below(words.len() as u64),
        );
        let word = words[a.min(b) as usize];
        text.extend_from_slice(word.as_bytes());
        match seed.below(14) {
            0 => text.extend_from_slice(b".\n"),
            1 => text.extend_from_slice(format!(" {}", seed.below(10_000)).as_bytes()),
            _ => text.push(b' '),
        }
    }
    text.truncate(len);
    text
}

/// Counts files and bytes, including unfinished files.
pub(crate) fn count(root: &Path) -> PayloadSize {
    let mut payload = PayloadSize { files: 0, bytes: 0 };
    let mut next = vec![root.to_owned()];
    while let Some(path) = next.pop() {
        let Ok(data) = fs::symlink_metadata(&path) else {
            continue;
        };
        if data.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            next.extend(entries.map(|entry| entry.path()));
        } else {
            payload.files += 1;
            payload.bytes += data.len();
        }
    }
    payload
}

/// Returns the first difference between two files or trees as text, ignoring times and modes.
pub(crate) fn difference(left: &Path, right: &Path) -> Option<String> {
    let name = |path: &Path| {
        let name = path.strip_prefix(left).unwrap_or(path);
        match name.as_os_str().is_empty() {
            true => "the file".to_owned(),
            false => name.display().to_string(),
        }
    };
    let mut buffers = [vec![0; 1 << 20], vec![0; 1 << 20]];
    let mut next = vec![left.to_owned()];
    let mut files = 0_u64;
    while let Some(path) = next.pop() {
        let other = path
            .strip_prefix(left)
            .ok()
            .filter(|inside| !inside.as_os_str().is_empty())
            .map_or_else(|| right.to_owned(), |inside| right.join(inside));
        if path.is_dir() {
            if !other.is_dir() {
                return Some(format!("the folder {} is not there", name(&path)));
            }
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            next.extend(entries.map(|entry| entry.path()));
            continue;
        }
        files += 1;
        match same(&path, &other, &mut buffers) {
            Ok(true) => {}
            Ok(false) => return Some(format!("{} differs", name(&path))),
            Err(error) => return Some(format!("{}: {error}", name(&path))),
        }
    }
    let there = count(right).files;
    (there != files).then(|| format!("{there} files are there instead of {files}"))
}

fn same(left: &Path, right: &Path, buffers: &mut [Vec<u8>; 2]) -> io::Result<bool> {
    let [mut left, mut right] = [File::open(left)?, File::open(right)?];
    if left.metadata()?.len() != right.metadata()?.len() {
        return Ok(false);
    }
    let [here, there] = buffers;
    loop {
        let len = left.read(here)?;
        if len == 0 {
            return Ok(true);
        }
        right.read_exact(&mut there[..len])?;
        if here[..len] != there[..len] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_what_it_says_and_differences_show() {
        let folder = tempfile::tempdir().expect("a folder");
        let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
        for content in [
            Content::File(3 << 20),
            Content::Changed {
                size: 3 << 20,
                places: 10,
            },
            Content::Mixed { files: 700 },
            Content::Sources { files: 70 },
            Content::Text { files: 3 },
        ] {
            for place in [&here, &there] {
                let _ = fs::remove_dir_all(place);
                fs::create_dir(place).expect("a folder");
                content.make(place).expect("room");
            }
            let [left, right] = [&here, &there].map(|place| place.join(content.name()));
            assert_eq!(count(&left), content.payload());
            assert_eq!(difference(&left, &right), None);
            if let Some(old) = content.old() {
                let old = here.join(old);
                assert_eq!(count(&old), content.payload());
                assert!(difference(&left, &old).is_some());
            }
            let victim = match content {
                _ if content.is_file() => right.clone(),
                Content::Sources { .. } => right.join("part-000/folder-0000/file-0000002.dat"),
                _ => right.join("folder-0000/file-0000002.dat"),
            };
            let mut bytes = fs::read(&victim).expect("a file");
            *bytes.last_mut().expect("bytes") ^= 1;
            fs::write(&victim, bytes).expect("written");
            assert!(difference(&left, &right).is_some());
            fs::remove_file(&victim).expect("removed");
            assert!(difference(&left, &right).is_some());
        }
        fs::write(there.join("tree/folder-0000/file-0000002.dat"), "").expect("written");
        fs::write(there.join("tree/more"), "").expect("written");
        assert!(difference(&here.join("tree"), &there.join("tree")).is_some());
    }
}
