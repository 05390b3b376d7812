//! Estimates the rest of a walk.

/// Files found so far, and their directories. The estimate lets further connections start while the
/// first directories of the tree are listed.
#[derive(Debug, Default)]
pub(super) struct TreeSample {
    dirs: u64,
    files: u64,
    bytes: u64,
    /// Files and bytes that the server has counted.
    counted: (u64, u64),
}

impl TreeSample {
    /// Notes the first entries of a directory.
    pub(super) fn directory(&mut self) {
        self.dirs += 1;
    }

    /// Notes a file of `size` bytes.
    pub(super) fn file(&mut self, size: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(size);
    }

    /// Adds a count of files and bytes by the server.
    pub(super) fn counted(&mut self, files: u64, bytes: u64) {
        self.counted.0 = self.counted.0.saturating_add(files);
        self.counted.1 = self.counted.1.saturating_add(bytes);
    }

    /// Estimates files and bytes of the whole tree: the server's count, or more if each of the
    /// `unseen` directories has as much as those seen have on average.
    pub(super) fn of_all(&self, unseen: u64) -> (u64, u64) {
        let all = |seen: u64| {
            let more = u128::from(seen) * u128::from(unseen) / u128::from(self.dirs.max(1));
            seen.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
        };
        let (files, bytes) = self.counted;
        (all(self.files).max(files), all(self.bytes).max(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_looked_into_is_like_what_was() {
        let mut sample = TreeSample::default();
        assert_eq!(sample.of_all(1000), (0, 0));
        sample.directory();
        assert_eq!(sample.of_all(100), (0, 0), "one that has no files");
        sample.directory();
        for _ in 0..100 {
            sample.file(4096);
        }
        assert_eq!(sample.of_all(0), (100, 100 * 4096));
        assert_eq!(sample.of_all(100), (5100, 5100 * 4096));
        sample.counted(6000, 5100);
        assert_eq!(sample.of_all(100), (6000, 5100 * 4096));
        sample.file(u64::MAX);
        assert_eq!(sample.of_all(u64::MAX).1, u64::MAX);
    }
}
