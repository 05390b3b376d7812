use std::fmt::Debug;
use std::fs::File;
use std::io;

/// Content that a file must have before it gets its final name. The host that the file is read from
/// is not believed.
pub(crate) trait ExpectedContent: Debug + Send + Sync {
    /// Size of the file in bytes.
    fn size(&self) -> u64;

    /// Compares a complete file.
    ///
    /// # Errors
    /// The file differs, or cannot be read.
    fn check(&self, file: &File) -> io::Result<()>;
}
