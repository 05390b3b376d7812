//! Local file operations for lanes, on a few threads that may block.
//!
//! [`DiskThreadPool`] takes [`schedule::DiskRequest`]s and returns [`schedule::DiskReply`]s. A job's file
//! is a source, a target or, for a copy between two hosts, a [`HostToHostBuffer`] in memory.

mod adopt;
mod check;
mod delta;
mod directories;
mod error;
mod execute;
mod expected;
mod holes;
mod metadata;
mod packed;
mod pool;
mod relay;
mod source;
mod target;
mod temp_name;
mod write_coalescer;

pub(crate) use adopt::{TemporaryFileSweep, adopt_target, remove_temporaries};
pub(crate) use check::ReadBackCheck;
pub(crate) use directories::MadeDirectories;
pub use directories::OpenDirectoryCache;
pub(crate) use directories::{NameInDirectory, WriteDestination, kind_of};
pub(crate) use error::failed_to;
pub use error::{local_fault, os_words};
pub(crate) use expected::ExpectedContent;
pub(crate) use metadata::{
    LostMetadata, before_mode, behind_mode, set_xattrs, xattrs_at, xattrs_of,
};
pub use pool::DiskThreadPool;
pub use relay::HostToHostBuffer;
pub(crate) use relay::{DiskReplyReceiver, MOST_HELD};
pub(crate) use source::{EntryStat, LocalSource, attributes, has_holes, identity, open_regular};
pub(crate) use target::{
    CreateSettings, LocalTarget, TargetFinishSettings, create_target, mtime_of, timestamps,
};
pub(crate) use temp_name::temp_name;
