use std::collections::BTreeMap;
use std::ops::Bound;

use sftp::{Attrs, StatusCode};

use super::power::UnsyncedChanges;

/// File system in memory. Names refer to inodes, so that open files survive a rename.
#[derive(Clone, Debug)]
pub struct Fs {
    pub(super) names: BTreeMap<Vec<u8>, u64>,
    pub(super) inodes: BTreeMap<u64, Node>,
    next: u64,
    /// Maximum total size of all files, in bytes.
    pub capacity: u64,
    /// Mode bits removed from new files and folders.
    pub umask: u32,
    /// Current time for new timestamps, in seconds.
    pub clock: u32,
    /// Changes of the owner, and of the group to another one than this, are refused.
    pub only_group: Option<u32>,
    /// Permission bits are ignored, as for root.
    pub ignores_modes: bool,
    /// All directories are sticky: entries of other users than 1000 cannot be renamed, replaced or
    /// removed.
    pub sticky: bool,
    /// Names that differ in the case of ASCII letters are one.
    pub folds_case: bool,
    /// The next write with data changes a bit of it, as a failing disk does.
    pub damages_next_write: bool,
    /// Changes that a power loss undoes, if they are recorded ([`Fs::lose_power`]).
    pub(super) unsynced: Option<UnsyncedChanges>,
}

/// Inode of the file system in memory, to which names and open handles refer by number.
#[derive(Clone, Debug)]
pub struct Node {
    /// Type and content.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Access and modification time.
    pub times: (u32, u32),
}

/// Type and content of an inode of the file system in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file with its data.
    File(Vec<u8>),
    /// A directory.
    Dir,
    /// A symlink with its target.
    Symlink(Vec<u8>),
    /// A device that discards what is written; the bytes written so far.
    Device(Vec<u8>),
}

/// Error of a file operation in memory, as the system call of a real server would return it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "errno's own names")]
pub enum Errno {
    NoEnt,
    Access,
    Exist,
    IsDir,
    NotDir,
    NoSpace,
    NotEmpty,
    Inval,
    Loop,
    NameTooLong,
}

impl Errno {
    /// Maps the error to an SFTP status, as errno_to_portable of sftp-server.c does.
    pub fn status(self) -> StatusCode {
        match self {
            Self::NoEnt | Self::NotDir | Self::Loop => StatusCode::NO_SUCH_FILE,
            Self::Access => StatusCode::PERMISSION_DENIED,
            Self::Inval | Self::NameTooLong => StatusCode::BAD_MESSAGE,
            Self::Exist | Self::IsDir | Self::NoSpace | Self::NotEmpty => StatusCode::FAILURE,
        }
    }
}

const HOME: &[u8] = b"/home/u";

impl Default for Fs {
    fn default() -> Self {
        let mut fs = Self {
            names: BTreeMap::new(),
            inodes: BTreeMap::new(),
            next: 1,
            capacity: u64::MAX,
            umask: 0o022,
            clock: 1_000_000,
            only_group: None,
            ignores_modes: false,
            sticky: false,
            folds_case: false,
            damages_next_write: false,
            unsynced: None,
        };
        for dir in [b"/".as_slice(), b"/home", HOME, b"/dev"] {
            fs.link(dir.to_vec(), Kind::Dir, 0o755);
        }
        fs.link(b"/dev/null".to_vec(), Kind::Device(Vec::new()), 0o666);
        fs
    }
}

impl Fs {
    /// Sets or removes a name, which a power loss may undo.
    fn name(&mut self, path: Vec<u8>, inode: Option<u64>) {
        let before = match inode {
            Some(inode) => self.names.insert(path.clone(), inode),
            None => self.names.remove(&path),
        };
        if let Some(unsynced) = &mut self.unsynced {
            unsynced.renamed(path, before);
        }
    }

    fn link(&mut self, path: Vec<u8>, kind: Kind, mode: u32) -> u64 {
        let id = self.next;
        self.next += 1;
        let node = Node {
            kind,
            mode,
            owner: (1000, 1000),
            times: (self.clock, self.clock),
        };
        self.inodes.insert(id, node);
        self.name(path, Some(id));
        id
    }

    /// Creates an entry for a test, regardless of permissions.
    pub fn place(&mut self, path: &str, kind: Kind, mode: u32) {
        let path = absolute(path.as_bytes());
        self.link(path, kind, mode);
    }

    /// Returns the data of a file, following symlinks.
    pub fn data(&self, path: &str) -> Option<&[u8]> {
        match &self.at(path)?.kind {
            Kind::File(data) | Kind::Device(data) => Some(data),
            _ => None,
        }
    }

    /// Returns an inode, following symlinks.
    pub fn at(&self, path: &str) -> Option<&Node> {
        let path = self.resolve(path.as_bytes(), true).ok()?;
        self.inodes.get(self.names.get(&path)?)
    }

    /// Returns an inode to change it, following symlinks.
    pub fn at_mut(&mut self, path: &str) -> Option<&mut Node> {
        let path = self.resolve(path.as_bytes(), true).ok()?;
        self.inodes.get_mut(self.names.get(&path)?)
    }

    /// Returns all names below the home directory, relative to it.
    pub fn names(&self) -> Vec<String> {
        let prefix = [HOME, b"/"].concat();
        self.names
            .keys()
            .filter_map(|n| n.strip_prefix(prefix.as_slice()))
            .map(|n| String::from_utf8_lossy(n).into_owned())
            .collect()
    }

    /// Resolves a path to its canonical form; the last component may be missing.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Vec<u8>, Errno> {
        let full = absolute(path);
        let mut left: Vec<Vec<u8>> = full
            .split(|b| *b == b'/')
            .filter(|c| !c.is_empty())
            .rev()
            .map(<[u8]>::to_vec)
            .collect();
        let mut at = b"/".to_vec();
        let mut links = 0;
        while let Some(name) = left.pop() {
            match name.as_slice() {
                b"." => continue,
                b".." => {
                    at = parent(&at);
                    continue;
                }
                _ => {}
            }
            if name.len() > 255 {
                return Err(Errno::NameTooLong);
            }
            let next = self.spelled(&at, &name);
            match self.kind(&next) {
                Some(Kind::Symlink(to)) if follow || !left.is_empty() => {
                    links += 1;
                    if links > 16 {
                        return Err(Errno::Loop);
                    }
                    if to.starts_with(b"/") {
                        at = b"/".to_vec();
                    }
                    let parts = to.split(|b| *b == b'/').filter(|c| !c.is_empty());
                    left.extend(parts.rev().map(<[u8]>::to_vec));
                }
                Some(Kind::Dir) => at = next,
                Some(_) if left.is_empty() => at = next,
                Some(_) => return Err(Errno::NotDir),
                None if left.is_empty() => at = next,
                None => return Err(Errno::NoEnt),
            }
        }
        Ok(at)
    }

    /// Returns the path of `name` in `dir`, as it is spelled if it exists.
    fn spelled(&self, dir: &[u8], name: &[u8]) -> Vec<u8> {
        let path = join(dir, name);
        if !self.folds_case || self.names.contains_key(&path) {
            return path;
        }
        let is_it = |known: &&Vec<u8>| known.eq_ignore_ascii_case(&path);
        self.names.keys().find(is_it).cloned().unwrap_or(path)
    }

    fn kind(&self, path: &[u8]) -> Option<&Kind> {
        Some(&self.inodes.get(self.names.get(path)?)?.kind)
    }

    /// Returns the inode at a path.
    pub fn lookup(&self, path: &[u8], follow: bool) -> Result<u64, Errno> {
        let path = self.resolve(path, follow)?;
        self.names.get(&path).copied().ok_or(Errno::NoEnt)
    }

    /// Returns an inode by its number.
    pub fn node(&mut self, inode: u64) -> Result<&mut Node, Errno> {
        self.inodes.get_mut(&inode).ok_or(Errno::NoEnt)
    }

    /// Returns the attributes of an inode.
    pub fn stat(&self, inode: u64) -> Result<Attrs, Errno> {
        let node = self.inodes.get(&inode).ok_or(Errno::NoEnt)?;
        let (kind, size) = match &node.kind {
            Kind::File(data) => (0o100_000, data.len()),
            Kind::Dir => (0o040_000, 4096),
            Kind::Symlink(to) => (0o120_000, to.len()),
            Kind::Device(_) => (0o020_000, 0),
        };
        Ok(Attrs {
            size: Some(size as u64),
            owner: Some(node.owner),
            permissions: Some(kind | node.mode),
            times: Some(node.times),
            ..Attrs::default()
        })
    }

    /// Resolves a path at which to create an entry: its directory must exist and be writable.
    fn place_for(&self, path: &[u8], follow: bool) -> Result<Vec<u8>, Errno> {
        let path = self.resolve(path, follow)?;
        let dir = self.names.get(&parent(&path)).ok_or(Errno::NoEnt)?;
        let dir = self.inodes.get(dir).ok_or(Errno::NoEnt)?;
        if dir.kind != Kind::Dir {
            return Err(Errno::NotDir);
        }
        if dir.mode & 0o200 == 0 {
            return Err(Errno::Access);
        }
        Ok(path)
    }

    /// Opens a file by the flags CREAT, TRUNC and EXCL.
    pub fn open(
        &mut self,
        path: &[u8],
        write: bool,
        (create, truncate, exclusive): (bool, bool, bool),
        mode: u32,
    ) -> Result<u64, Errno> {
        let any = self.ignores_modes;
        match self.lookup(path, !exclusive) {
            Ok(_) if create && exclusive => Err(Errno::Exist),
            Ok(inode) => {
                let node = self.node(inode)?;
                let needed = if write { 0o200 } else { 0o400 };
                match &mut node.kind {
                    Kind::Dir if write => return Err(Errno::IsDir),
                    _ if node.mode & needed == 0 && !any => return Err(Errno::Access),
                    Kind::File(data) if truncate => data.clear(),
                    _ => {}
                }
                Ok(inode)
            }
            Err(Errno::NoEnt) if create => {
                let path = self.place_for(path, true)?;
                let mode = mode & 0o7777 & !self.umask;
                Ok(self.link(path, Kind::File(Vec::new()), mode))
            }
            Err(errno) => Err(errno),
        }
    }

    /// Writes bytes to a file and sets its modification time.
    pub fn write(&mut self, inode: u64, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let end = offset as usize + bytes.len();
        let (capacity, clock) = (self.capacity, self.clock);
        let damages = !bytes.is_empty() && std::mem::take(&mut self.damages_next_write);
        let used: u64 = match capacity {
            u64::MAX => 0,
            _ => self.inodes.values().map(Node::size).sum(),
        };
        if let Some(unsynced) = &mut self.unsynced {
            unsynced.wrote(inode, offset, end as u64);
        }
        let node = self.node(inode)?;
        node.times.1 = clock;
        match &mut node.kind {
            Kind::File(data) => {
                let grows = end.saturating_sub(data.len()) as u64;
                if used + grows > capacity {
                    return Err(Errno::NoSpace);
                }
                if data.len() < end {
                    data.resize(end, 0);
                }
                if let Some(place) = data.get_mut(offset as usize..end) {
                    place.copy_from_slice(bytes);
                    if damages && let Some(last) = place.last_mut() {
                        *last ^= 1;
                    }
                }
                Ok(())
            }
            Kind::Device(data) => {
                data.extend_from_slice(bytes);
                Ok(())
            }
            _ => Err(Errno::IsDir),
        }
    }

    /// Sets attributes.
    pub fn set(&mut self, inode: u64, attrs: &Attrs) -> Result<(), Errno> {
        let only = self.only_group;
        let node = self.node(inode)?;
        if let (Some(only), Some((user, group))) = (only, attrs.owner)
            && (user != node.owner.0 || (group != node.owner.1 && group != only))
        {
            return Err(Errno::Access);
        }
        if let (Some(size), Kind::File(data)) = (attrs.size, &mut node.kind) {
            data.resize(size as usize, 0);
        }
        if let Some(mode) = attrs.permissions {
            node.mode = mode & 0o7777;
        }
        node.times = attrs.times.unwrap_or(node.times);
        node.owner = attrs.owner.unwrap_or(node.owner);
        Ok(())
    }

    /// Makes a directory or a symlink.
    pub fn make(&mut self, path: &[u8], kind: Kind, mode: u32) -> Result<(), Errno> {
        if self.lookup(path, false).is_ok() {
            return Err(Errno::Exist);
        }
        let path = self.place_for(path, false)?;
        let mode = mode & 0o7777 & !self.umask;
        self.link(path, kind, mode);
        Ok(())
    }

    /// Removes a file or an empty directory.
    pub fn remove(&mut self, path: &[u8], dir: bool) -> Result<(), Errno> {
        let inode = self.lookup(path, false)?;
        let is_dir = self.node(inode)?.kind == Kind::Dir;
        match (dir, is_dir) {
            (false, true) => return Err(Errno::IsDir),
            (true, false) => return Err(Errno::NotDir),
            _ => {}
        }
        let path = self.place_for(path, false)?;
        if dir && !self.list(&path).is_empty() {
            return Err(Errno::NotEmpty);
        }
        if self.is_kept(inode) {
            return Err(Errno::Access);
        }
        self.name(path, None);
        Ok(())
    }

    /// Returns true if the sticky bit of its directory keeps an entry from being removed.
    fn is_kept(&self, inode: u64) -> bool {
        let node = self.inodes.get(&inode);
        self.sticky && node.is_some_and(|node| node.owner.0 != 1000)
    }

    /// Renames an entry.
    pub fn rename(&mut self, from: &[u8], to: &[u8], replace: bool) -> Result<(), Errno> {
        let inode = self.lookup(from, false)?;
        let (from, to) = (self.place_for(from, false)?, self.place_for(to, false)?);
        match self.kind(&to) {
            Some(_) if !replace => return Err(Errno::Exist),
            Some(Kind::Dir) => return Err(Errno::IsDir),
            _ => {}
        }
        if self.names.get(&to).is_some_and(|old| self.is_kept(*old)) {
            return Err(Errno::Access);
        }
        if self.is_kept(inode) {
            // RENAME of sftp-server.c is link(2) and unlink(2), and neither name can be removed.
            if !replace {
                self.name(to, Some(inode));
            }
            return Err(Errno::Access);
        }
        // rename(2) does nothing if both names refer to one file.
        if self.names.get(&to) != Some(&inode) {
            if let Some(unsynced) = &mut self.unsynced {
                unsynced.begin(2);
            }
            self.name(from, None);
            self.name(to, Some(inode));
        }
        Ok(())
    }

    /// Makes another name of a file.
    pub fn hard_link(&mut self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        let inode = self.lookup(from, false)?;
        let to = self.place_for(to, false)?;
        match self.names.contains_key(&to) {
            true => Err(Errno::Exist),
            false => {
                self.name(to, Some(inode));
                Ok(())
            }
        }
    }

    /// Returns the names in a directory.
    pub fn list(&self, dir: &[u8]) -> Vec<Vec<u8>> {
        let prefix = match dir {
            b"/" => b"/".to_vec(),
            dir => [dir, b"/"].concat(),
        };
        let above = (Bound::Excluded(&prefix), Bound::Unbounded);
        let below = self.names.range::<Vec<u8>, _>(above);
        below
            .map_while(|(name, _)| name.strip_prefix(prefix.as_slice()))
            .filter(|name| !name.contains(&b'/'))
            .map(<[u8]>::to_vec)
            .collect()
    }

    /// Returns the number of names of an inode.
    pub fn names_of(&self, inode: u64) -> u32 {
        let names = self.names.values().filter(|to| **to == inode);
        u32::try_from(names.count()).unwrap_or(u32::MAX)
    }

    /// Returns all names with their inodes, in order.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &Node)> {
        let names = self.names.iter();
        names.filter_map(|(name, inode)| Some((name.as_slice(), self.inodes.get(inode)?)))
    }
}

impl Node {
    fn size(&self) -> u64 {
        match &self.kind {
            Kind::File(data) => data.len() as u64,
            _ => 0,
        }
    }
}

fn absolute(path: &[u8]) -> Vec<u8> {
    match path {
        [b'/', ..] => path.to_vec(),
        _ => [HOME, b"/", path].concat(),
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir {
        b"/" => [b"/", name].concat(),
        dir => [dir, b"/", name].concat(),
    }
}

fn parent(path: &[u8]) -> Vec<u8> {
    match path.iter().rposition(|b| *b == b'/') {
        Some(0) | None => b"/".to_vec(),
        Some(at) => path[..at].to_vec(),
    }
}
