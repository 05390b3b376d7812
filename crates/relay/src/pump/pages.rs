//! Page-aligned memory that the connections of a thread share.
//!
//! Copies in the kernel and in ciphers are several times slower if source and destination have
//! almost the same offset within a page (`rep movsb`, 4 KiB aliasing); page-aligned memory avoids
//! that.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

const PAGE: usize = 4096;

/// Memory of a fixed length that begins on a page boundary of 4 KiB; a default one is empty.
#[derive(Debug, Default)]
pub(crate) struct PageBuffer {
    memory: Box<[u8]>,
    begin: usize,
    len: usize,
}

impl PageBuffer {
    pub(crate) fn new(len: usize) -> Self {
        let memory: Box<[u8]> = vec![0; len + PAGE].into();
        let begin = memory.as_ptr().align_offset(PAGE).min(PAGE);
        Self { memory, begin, len }
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let end = self.begin + self.len;
        self.memory.get(self.begin..end).unwrap_or_default()
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let end = self.begin + self.len;
        self.memory.get_mut(self.begin..end).unwrap_or_default()
    }
}

/// Memory of one thread, allocated at its first use.
pub(crate) type LazyPageBuffer = RefCell<PageBuffer>;

/// Lends `len` bytes of the thread's memory. A nested call gets a new allocation.
pub(crate) fn lend<T>(shared: &LazyPageBuffer, len: usize, with: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut own;
    let mut lent = shared.try_borrow_mut();
    let pages = match &mut lent {
        Ok(pages) => &mut **pages,
        Err(_) => {
            own = PageBuffer::default();
            &mut own
        }
    };
    if pages.len < len {
        *pages = PageBuffer::new(len);
    }
    with(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_at_a_page_and_is_as_long_as_was_asked() {
        for len in [1, 4095, 4096, 300_000] {
            let pages = PageBuffer::new(len);
            assert_eq!((pages.len(), pages.as_ptr().addr() % PAGE), (len, 0));
        }
        let shared = LazyPageBuffer::default();
        lend(&shared, 10, |one| {
            one.fill(1);
            lend(&shared, 20, |other| other.fill(2));
            assert!(one.iter().all(|byte| *byte == 1));
        });
    }
}
