//! Generator of file trees with everything that has broken a copy program before.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::seed::Seed;

/// File sizes around the limits of pages, channel packets and SFTP requests, and larger than a few
/// requests.
const SIZES: [usize; 15] = [
    0,
    1,
    4095,
    4096,
    4097,
    32_767,
    32_768,
    32_769,
    65_536,
    261_119,
    261_120,
    261_121,
    300 << 10,
    1 << 20,
    3_000_001,
];

/// Names that shells, terminals and careless programs mishandle.
const NAMES: [&[u8]; 14] = [
    b"with space",
    b" leading and trailing ",
    b"new\nline",
    b"tab\there",
    b"\x1b[31mred\x1b[0m",
    b"\x1b]0;title\x07",
    "æøå 漢字 🦀".as_bytes(),
    b"latin1-\xe9\xff",
    b"-rf",
    b"quote'\"`$(echo x)",
    b"back\\slash",
    b"glob*[a]?",
    b"colon:name",
    b"#hash~",
];

/// Selection of the contents that [`Tree::make`] generates; one seed always gives the same tree.
#[derive(Debug, Clone)]
pub struct Tree {
    seed: u64,
    odd_names: bool,
    symlinks: bool,
    folder_links: bool,
    many_small: usize,
    sizes: bool,
}

impl Tree {
    /// Everything that scp copies too: sizes around each limit, odd names, deep paths, modes,
    /// times, and symlinks to files.
    pub fn full(seed: u64) -> Self {
        Self {
            seed,
            odd_names: true,
            symlinks: true,
            folder_links: false,
            many_small: 40,
            sizes: true,
        }
    }

    /// Plain names and files only, which any program copies.
    pub fn plain(seed: u64) -> Self {
        Self {
            odd_names: false,
            symlinks: false,
            ..Self::full(seed)
        }
    }

    /// Only `count` small files in a few folders.
    pub fn small_files(seed: u64, count: usize) -> Self {
        Self {
            many_small: count,
            sizes: false,
            ..Self::plain(seed)
        }
    }

    /// Adds symlinks to folders and dangling symlinks, on which scp fails.
    pub fn with_folder_links(mut self) -> Self {
        self.folder_links = true;
        self
    }

    /// Creates the folder `root` with the tree in it.
    ///
    /// # Panics
    /// Panics if a file cannot be written.
    pub fn make(&self, root: &Path) {
        let mut seed = Seed::new(self.seed);
        make_folder(root);
        if self.sizes {
            for size in SIZES {
                write_file(&root.join(format!("size-{size}")), &seed.bytes(size));
            }
            self.make_modes(root, &mut seed);
        }
        self.make_small(&root.join("small"), &mut seed);
        if self.odd_names {
            let folder = root.join("odd");
            make_folder(&folder);
            for name in NAMES {
                let content = seed.bytes(20);
                write_file(&folder.join(OsStr::from_bytes(name)), &content);
            }
            let inside = folder.join(OsStr::from_bytes(b"dir \xfe\n"));
            make_folder(&inside);
            write_file(&inside.join("file"), b"in an odd folder");
        }
        if self.symlinks {
            make_symlinks(root, self.folder_links);
        }
        self.make_deep(root, &mut seed);
        set_times(root, &mut seed);
    }

    fn make_small(&self, root: &Path, seed: &mut Seed) {
        make_folder(root);
        make_folder(&root.join("empty"));
        for number in 0..self.many_small {
            let folder = root.join(format!("d{}", number % 7));
            if number < 7 {
                make_folder(&folder);
            }
            let len = seed.below(5000) as usize;
            write_file(&folder.join(format!("f{number}")), &seed.bytes(len));
        }
    }

    fn make_modes(&self, root: &Path, seed: &mut Seed) {
        let folder = root.join("modes");
        make_folder(&folder);
        for mode in [0o400, 0o444, 0o600, 0o640, 0o644, 0o700, 0o755, 0o775] {
            let file = folder.join(format!("{mode:o}"));
            write_file(&file, &seed.bytes(100));
            set_mode(&file, mode);
        }
        let closed = folder.join("closed");
        make_folder(&closed);
        write_file(&closed.join("file"), b"in a folder others may not enter");
        set_mode(&closed, 0o700);
    }

    fn make_deep(&self, root: &Path, seed: &mut Seed) {
        let mut folder = root.join("deep");
        make_folder(&folder);
        for level in 0..24 {
            folder = folder.join(format!("level-{level}"));
            make_folder(&folder);
        }
        write_file(&folder.join("bottom"), &seed.bytes(1000));
    }
}

/// Writes a file.
///
/// # Panics
/// Panics if the file cannot be written.
pub fn write_file(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn make_folder(path: &Path) {
    fs::create_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn make_symlinks(root: &Path, folder_links: bool) {
    let folder = root.join("links");
    make_folder(&folder);
    write_file(&folder.join("target"), b"the target of a link");
    make_folder(&folder.join("folder"));
    write_file(&folder.join("folder/inside"), b"inside the target folder");
    symlink("target", folder.join("to-file")).expect("a symlink");
    if folder_links {
        symlink("folder", folder.join("to-folder")).expect("a symlink");
        symlink("nowhere", folder.join("dangling")).expect("a symlink");
    }
}

/// Sets times to whole seconds between 2001 and 2020, the resolution of SFTP.
fn set_times(root: &Path, seed: &mut Seed) {
    let mut paths = Vec::new();
    collect(root, &mut paths);
    // Sorted, so that equal seeds give equal times; deepest first, because creating an entry
    // changes the time of its folder.
    paths.sort();
    for path in paths.iter().rev() {
        let time = Duration::from_secs(980_000_000 + seed.below(600_000_000));
        let meta = fs::symlink_metadata(path).expect("it was just listed");
        if meta.is_symlink() {
            continue;
        }
        let file =
            fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let time = SystemTime::UNIX_EPOCH + time;
        let times = fs::FileTimes::new().set_accessed(time).set_modified(time);
        file.set_times(times).expect("the owner may set times");
    }
}

fn collect(folder: &Path, into: &mut Vec<std::path::PathBuf>) {
    into.push(folder.to_owned());
    for entry in fs::read_dir(folder).expect("a folder of ours") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.is_symlink() {
            collect(&path, into);
        } else {
            into.push(path);
        }
    }
}
