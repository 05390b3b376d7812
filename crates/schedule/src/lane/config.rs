use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sftp::{ServerInfo, SymlinkOrder, Told};
use wire::PacketPool;

use super::{RefusedOperations, server};
use crate::{InflightBounds, RemotePath};

/// Fills the slice with unpredictable bytes.
pub type RandomFill = Box<dyn FnMut(&mut [u8]) + Send>;

/// Settings that a [`crate::Lane`] needs before its first byte.
pub struct LaneConfig {
    /// The SSH banner names OpenSSH.
    pub openssh: bool,
    /// The server is a longhaul started by a command, announced by its marker: it numbers handles
    /// and answers in order as OpenSSH's does.
    pub ours: bool,
    /// Server's VERSION from an earlier run; with [`LaneConfig::openssh`] requests may be sent
    /// right after INIT, before VERSION has come.
    pub remembered: Option<ServerInfo>,
    /// Predict handles if the server allows it.
    pub predict: bool,
    /// Payload bytes of one channel packet, the unit in which blocks are cut.
    pub slot: usize,
    /// Memory for blocks.
    pub pool: PacketPool,
    /// Source of random bytes for the names of temporaries.
    pub random: RandomFill,
    /// Limits of the bytes in flight.
    pub bytes: InflightBounds,
    /// Limits of the requests in flight.
    pub requests: InflightBounds,
    /// Maximum length of a READ or WRITE in bytes, even if the server takes more.
    pub length: u32,
    /// Number of received bytes, beyond the depth, that the disk may still have to write before
    /// READs stop.
    pub unwritten: u64,
    /// Maximum number of open files on a lane that does not predict, if the server has no lower
    /// limit.
    pub open_files: usize,
    /// Argument order of the server's SYMLINK.
    pub symlink_order: SymlinkOrder,
    /// Compress data if the server can.
    pub pack: CompressionMode,
    /// Attributes beyond the standard ones to request from a longhaul server.
    pub told: Told,
    /// Directories below which a longhaul server follows no symlink, as the user named them.
    pub roots: Vec<RemotePath>,
    /// Start with compression, since the path was slow the last time.
    pub slow: bool,
    /// Minimum number of bytes that a file may bring beyond the size stated when it was opened; one
    /// eighth of that size if that is more. A file that grows while it is read is copied up to this
    /// limit.
    pub growth: u64,
    /// Maximum number of bytes of a file whose size the server does not state, or states as 0.
    pub unstated: u64,
    /// Operations that this server is known to refuse.
    pub refusals: RefusedOperations,
}

/// Policy for compressing file data with zstd, where the server can decompress it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompressionMode {
    /// Compress on paths that are slower than compression.
    #[default]
    Auto,
    /// Compress all data that become smaller.
    Always,
    /// Do not compress.
    Never,
}

impl LaneConfig {
    /// Returns defaults for an unknown server: no prediction.
    pub fn new(pool: PacketPool, random: RandomFill) -> Self {
        const MIB: u64 = 1 << 20;
        Self {
            openssh: false,
            ours: false,
            remembered: None,
            predict: false,
            slot: pool.slot(),
            pool,
            random,
            bytes: InflightBounds {
                initial: 4 * MIB,
                min: 4 * MIB,
                max: 16 * MIB,
            },
            // Data waiting in the server are limited by bytes; this limits empty files.
            requests: InflightBounds {
                initial: 2048,
                min: 2048,
                max: 16 * 1024,
            },
            length: server::FAST_LENGTH,
            unwritten: 8 * MIB,
            open_files: 100,
            symlink_order: SymlinkOrder::OpenSsh,
            pack: CompressionMode::default(),
            told: Told::default(),
            roots: Vec::new(),
            slow: false,
            growth: 8 * MIB,
            unstated: 256 * MIB,
            refusals: RefusedOperations::default(),
        }
    }

    /// Returns true if requests may be sent before VERSION comes.
    pub(super) fn early(&self) -> bool {
        let remembered = self.remembered.as_ref();
        remembered.is_some_and(|info| self.answers_in_order(info))
    }

    /// Returns true if the server answers in order and numbers its handles as OpenSSH's does. A
    /// longhaul server announces this itself, behind any SSH server.
    pub(super) fn answers_in_order(&self, info: &ServerInfo) -> bool {
        self.ours || info.is_ours() || self.openssh && info.is_openssh_set()
    }
}

impl fmt::Debug for LaneConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneConfig")
            .field("openssh", &self.openssh)
            .field("ours", &self.ours)
            .field("predict", &self.predict)
            .finish_non_exhaustive()
    }
}

/// Counters of a lane, for the progress line and for finding the limiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LaneStats {
    /// Unfinished jobs that were pushed.
    pub jobs: usize,
    /// Requests without an answer.
    pub requests_in_flight: u64,
    /// Bytes of file data and overhead in requests without an answer.
    pub bytes_in_flight: u64,
    /// Number of requests that may be in flight.
    pub requests_depth: u64,
    /// Number of bytes that may be in flight.
    pub bytes_depth: u64,
    /// Bytes being read from the disk.
    pub reading: u64,
    /// Bytes received that the disk has not confirmed.
    pub unwritten: u64,
    /// Lowest latency of a request.
    pub latency: Option<Duration>,
    /// Highest recent rate in bytes per second.
    pub rate: Option<f64>,
    /// Number of times that the depth kept the lane from sending.
    pub stalls_depth: u64,
    /// Number of times that bytes were ready and the channel had no room.
    pub stalls_room: u64,
    /// Number of times that the disk kept READs back.
    pub stalls_disk: u64,
    /// The lane predicts handles.
    pub predicting: bool,
    /// Bytes of blocks given to compression, before and after it.
    pub packed: (u64, u64),
    /// Number of files transferred in one request each.
    pub whole: u64,
}
