use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sftp::{Limits, ServerInfo, SymlinkOrder, Told};
use wire::Pool;

use super::Refusals;
use crate::DepthLimits;

/// Fills the slice with unpredictable bytes.
pub type Random = Box<dyn FnMut(&mut [u8]) + Send>;

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
    pub pool: Pool,
    /// Source of random bytes for the names of temporaries.
    pub random: Random,
    /// Limits of the bytes in flight.
    pub bytes: DepthLimits,
    /// Limits of the requests in flight.
    pub requests: DepthLimits,
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
    pub pack: PackingMode,
    /// File attributes to request from a longhaul server beyond the standard ones.
    pub told: Told,
    /// Start with compression, since the path was slow the last time.
    pub slow: bool,
    /// Minimum number of bytes that a file may bring beyond the size stated when it was opened; one
    /// eighth of that size if that is more. A file that grows while it is read is copied up to this
    /// limit.
    pub growth: u64,
    /// Maximum number of bytes of a file whose size the server does not state, or states as 0.
    pub unstated: u64,
    /// Operations that this server is known to refuse.
    pub refusals: Refusals,
}

/// Choice of compression for file data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackingMode {
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
    pub fn new(pool: Pool, random: Random) -> Self {
        const MIB: u64 = 1 << 20;
        Self {
            openssh: false,
            ours: false,
            remembered: None,
            predict: false,
            slot: pool.slot(),
            pool,
            random,
            bytes: DepthLimits {
                initial: 4 * MIB,
                min: 4 * MIB,
                max: 16 * MIB,
            },
            // Data waiting in the server are limited by bytes; this limits empty files.
            requests: DepthLimits {
                initial: 2048,
                min: 2048,
                max: 16 * 1024,
            },
            length: FAST_LENGTH,
            unwritten: 8 * MIB,
            open_files: 100,
            symlink_order: SymlinkOrder::OpenSsh,
            pack: PackingMode::default(),
            told: Told::default(),
            slow: false,
            growth: 8 * MIB,
            unstated: 256 * MIB,
            refusals: Refusals::default(),
        }
    }

    /// Returns true if requests may be sent before VERSION comes.
    pub(super) fn early(&self) -> bool {
        let remembered = self.remembered.as_ref();
        remembered.is_some_and(|info| self.answers_in_order(info))
    }

    /// Returns true if the server answers in order and numbers its handles as OpenSSH's does. A
    /// longhaul server says so itself, behind any SSH server.
    fn answers_in_order(&self, info: &ServerInfo) -> bool {
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

/// Abilities of the server, from its VERSION or the expected one.
#[derive(Clone, Debug, Default)]
pub(super) struct Server {
    pub(super) posix_rename: bool,
    pub(super) fsync: bool,
    pub(super) lsetstat: bool,
    pub(super) limits: bool,
    pub(super) expand_path: bool,
    pub(super) put_file: bool,
    pub(super) list_tree: bool,
    pub(super) get_file: bool,
    /// Computes block sums, and copies between open files.
    pub(super) sums: bool,
    /// Compresses and decompresses data.
    pub(super) zstd: bool,
    /// Compresses small files as well.
    pub(super) zstd_files: bool,
    pub(super) hardlink: bool,
    pub(super) names_by_id: bool,
    pub(super) ids_by_name: bool,
    /// Sends more attributes, and accepts nanoseconds.
    pub(super) attributes: bool,
    pub(super) xattrs: bool,
    /// Sets all metadata in one request.
    pub(super) metadata: bool,
    /// Makes names durable.
    pub(super) fsync_set: bool,
    /// Reports holes.
    pub(super) sparse: bool,
    pub(super) predict: bool,
    /// Executes requests in order.
    pub(super) in_order: bool,
    /// Several handles may be open for one file, and its ranges may come in any order.
    pub(super) shares_files: bool,
    pub(super) read: u32,
    pub(super) write: u32,
    /// Length of a WRITE on paths so fast that longer ones take no noticeable time: `write`, or
    /// more.
    pub(super) fast_write: u32,
    pub(super) open_files: usize,
}

/// Largest READ and WRITE of OpenSSH in bytes (sftp-server.c: its message limit less 1 KiB).
const OPENSSH_LENGTH: u32 = 255 * 1024;
/// Largest answer to a READ before OpenSSH 8.6, in bytes.
const OPENSSH_OLD_READ: u32 = 64 * 1024;
/// Length that OpenSSH's sftp uses with unknown servers (DEFAULT_COPY_BUFLEN), and the minimum that
/// the draft requires, in bytes.
const SAFE_LENGTH: u32 = 32 * 1024;
/// Upper bound in bytes of blocks and answers, even if the server claims more: asyncssh offers 4
/// MiB, and an answer longer than [`sftp::MAX_MESSAGE`] ends the channel.
const MAX_LENGTH: u64 = OPENSSH_LENGTH as u64;
/// Longest WRITE to a longhaul server in bytes. The server executes it as one write(2): 4 GiB into
/// memory took 0.247 s of its processor time per GB instead of 0.27.
const FAST_LENGTH: u32 = 1 << 20;
/// Maximum duration in seconds of a WRITE longer than OpenSSH's. A path of 1 Gbit/s gains nothing
/// from longer ones, and short ones give more frequent answers.
const FAST: f64 = 1e-3;
const PAGE: u32 = 4096;

impl Server {
    pub(super) fn new(config: &LaneConfig, info: &ServerInfo) -> Self {
        let openssh = config.answers_in_order(info);
        let limits = info.has("limits@openssh.com");
        let mut server = Self {
            posix_rename: info.has("posix-rename@openssh.com"),
            fsync: info.has("fsync@openssh.com"),
            lsetstat: info.has("lsetstat@openssh.com"),
            limits,
            expand_path: info.has("expand-path@openssh.com"),
            put_file: info.has("put-file@longhaul"),
            list_tree: info.has("list-tree@longhaul"),
            get_file: info.has("get-file@longhaul"),
            zstd: info.has("write-zstd@longhaul") && info.has("read-zstd@longhaul"),
            zstd_files: info.has("put-file-zstd@longhaul") && info.has("get-file-zstd@longhaul"),
            hardlink: info.has("hardlink@openssh.com"),
            names_by_id: info.has("users-groups-by-id@openssh.com"),
            ids_by_name: info.has("ids-by-name@longhaul"),
            attributes: info.has("attributes@longhaul"),
            xattrs: info.has("get-xattrs@longhaul"),
            metadata: info.has("set-metadata@longhaul"),
            fsync_set: info.has("fsync-set@longhaul"),
            sparse: info.has("read-sparse@longhaul"),
            sums: info.has("hash@longhaul") && info.has("copy-data"),
            predict: config.predict && openssh,
            in_order: openssh,
            shares_files: openssh || config.openssh && info.is_restricted_openssh(),
            read: match (openssh, limits) {
                (true, true) => OPENSSH_LENGTH,
                (true, false) => OPENSSH_OLD_READ,
                (false, _) => SAFE_LENGTH,
            },
            write: if openssh { OPENSSH_LENGTH } else { SAFE_LENGTH },
            fast_write: 0,
            open_files: config.open_files.max(1),
        };
        server.write = whole_pages(server.write.min(config.length));
        server.read = whole_pages(server.read.min(config.length));
        server.fast_write = server.write;
        if let Some(limits) = info.limits {
            server.apply(config, limits);
        }
        server
    }

    pub(super) fn apply(&mut self, config: &LaneConfig, limits: Limits) {
        let length = |limit: u64| {
            let allowed = match limit {
                0 => OPENSSH_LENGTH,
                limit => u32::try_from(limit.clamp(1024, MAX_LENGTH)).unwrap_or(SAFE_LENGTH),
            };
            allowed.min(config.length)
        };
        self.read = whole_pages(length(limits.read));
        self.write = whole_pages(length(limits.write));
        // Only a longhaul server is known to accept longer WRITEs.
        let fast = match self.put_file {
            true => u32::try_from(limits.write.min(FAST_LENGTH.into())).unwrap_or(FAST_LENGTH),
            false => 0,
        };
        self.fast_write = whole_pages(fast.min(config.length)).max(self.write);
        if limits.handles > 0 {
            // Leaves half of the limit to other users of that process.
            let half = usize::try_from(limits.handles / 2).unwrap_or(usize::MAX);
            self.open_files = config.open_files.min(half).max(1);
        }
    }

    /// Returns the length of a WRITE at `offset` for a rate of `rate` bytes per second. WRITEs
    /// longer than usual end at multiples of their length, which suits the write-back of file
    /// systems.
    pub(super) fn fast_piece(&self, offset: u64, rate: Option<f64>) -> u64 {
        let lasts = (FAST * rate.unwrap_or_default()) as u64;
        let fast = u64::from(self.fast_write);
        match fast > u64::from(self.write) && lasts >= fast {
            true => fast - offset % fast,
            false => self.write.into(),
        }
    }
}

/// Rounds a large length down to whole pages, so that neither end touches a page twice.
fn whole_pages(length: u32) -> u32 {
    if length >= 16 * PAGE {
        length - length % PAGE
    } else {
        length
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
