use std::collections::BTreeMap;

use super::Rng;

/// Form of the handles that the model assigns, which decides if a client can predict them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleStyle {
    /// Four bytes: the index into a table whose free entries are reused last in, first out
    /// (sftp-server.c, handle_new and handle_unused).
    OpenSsh,
    /// Random bytes of this length.
    Random(usize),
}

/// File or directory behind a handle; `left` are the names that READDIR has not returned.
#[derive(Clone, Debug)]
pub(super) enum Open {
    File { inode: u64, read: bool, write: bool },
    Dir { left: Vec<Vec<u8>>, path: Vec<u8> },
}

/// Table of a connection's open handles, which assigns new ones in the style of the server.
#[derive(Debug)]
pub(super) struct Handles {
    style: HandleStyle,
    rng: Rng,
    free: Vec<u32>,
    next: u32,
    open: BTreeMap<Vec<u8>, Open>,
}

impl Handles {
    pub(super) fn new(style: HandleStyle) -> Self {
        Self {
            style,
            rng: Rng::new(77),
            free: Vec::new(),
            next: 0,
            open: BTreeMap::new(),
        }
    }

    pub(super) fn insert(&mut self, open: Open) -> Vec<u8> {
        let handle = match self.style {
            HandleStyle::OpenSsh => {
                let index = self.free.pop().unwrap_or_else(|| {
                    self.next += 1;
                    self.next - 1
                });
                index.to_be_bytes().to_vec()
            }
            HandleStyle::Random(len) => {
                let mut bytes = vec![0; len];
                self.rng.fill(&mut bytes);
                bytes
            }
        };
        self.open.insert(handle.clone(), open);
        handle
    }

    pub(super) fn get_mut(&mut self, handle: &[u8]) -> Option<&mut Open> {
        self.open.get_mut(handle)
    }

    pub(super) fn remove(&mut self, handle: &[u8]) -> bool {
        let was = self.open.remove(handle).is_some();
        if let (true, HandleStyle::OpenSsh, Ok(index)) =
            (was, self.style, <[u8; 4]>::try_from(handle))
        {
            self.free.push(u32::from_be_bytes(index));
        }
        was
    }

    /// Reports if the file is open.
    pub(super) fn has(&self, file: u64) -> bool {
        let is = |open: &Open| matches!(open, Open::File { inode, .. } if *inode == file);
        self.open.values().any(is)
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}
