//! SFTP version 3 (draft-ietf-secsh-filexfer-02) with OpenSSH's extensions, without I/O.
//!
//! Client and server share one table of requests and responses; [`SftpClient`] matches replies to
//! requests and passes file data on as slices of the segments in which it arrived.
//!
//! Pure: bytes in, bytes out. All input from a server is untrusted: lengths are bounded, replies
//! must fit their requests, and names are passed on as bytes for the caller to check.

mod attrs;
pub mod blocks;
mod client;
mod error;
mod expected;
mod ids;
mod marker;
mod message;
mod metadata;
pub mod packed;
pub mod pattern;
mod pending;
mod pieces;
mod reply;
mod server_info;
mod splitter;
mod status;
mod temp_name;
mod tree;
pub mod xattrs;

pub use attrs::{Attrs, InodeId};
pub use client::{ClientOutput, INIT, MAX_MESSAGE, SftpClient, SftpClientOptions, SymlinkOrder};
pub use error::Error;
pub use expected::{EntryType, ExpectedEntry, LinkLimit, ListedEntry, NOT_EXPECTED};
pub use ids::{OpenFlags, PutFlags, RequestId};
pub use marker::{
    LonghaulMarkerError, MARKER_PROTOCOL, MarkerLine, MarkerSearch, RemoteBinaryAbsence, marker,
};
pub use message::{Init, NameEntry, Names, Request, Response, Version, frame};
pub use metadata::{HOLE, MOST_SYNCED, MetadataFlags, OWNER_NOT_SET, Parts, Told};
pub use pieces::ReceivedSliceQueue;
pub use reply::{GetFileReply, Handle, NameRecord, Reply, Status, Statvfs, printable};
pub use server_info::{OPENSSH_EXTENSIONS, OUR_EXTENSIONS, ServerInfo, ServerLimits};
pub use splitter::{MessageSplitter, MessageSplitterOutput};
pub use status::{StatusCode, StatusText};
pub use temp_name::{final_name_in, is_temp_name, tagged_name, temp_name};
pub use tree::{TreeFlags, TreeRecord, pack_steps};
