use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sftp::{Limits, ServerInfo, SymlinkOrder, Told};
use wire::Pool;

use super::Refusals;
use crate::DepthLimits;

/// Fills the slice with unpredictable bytes.
pub type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// What a [`crate::Lane`] needs to know before its first byte.
pub struct LaneConfig {
    /// The SSH banner says OpenSSH.
    pub openssh: bool,
    /// The server is a longhaul that a command starts, whose marker comes before anything else: it
    /// numbers handles and answers in order as OpenSSH's does.
    pub ours: bool,
    /// What this server said the last time; with [`LaneConfig::openssh`] it lets everything
    /// leave right behind INIT, before VERSION has come.
    pub remembered: Option<ServerInfo>,
    /// Predict handles where the server allows it.
    pub predict: bool,
    /// Payload bytes of one channel packet: how blocks are cut.
    pub slot: usize,
    /// Memory for blocks.
    pub pool: Pool,
    /// For the names of temporaries.
    pub random: Random,
    /// Bytes in flight.
    pub bytes: DepthLimits,
    /// Requests in flight.
    pub requests: DepthLimits,
    /// The longest READ and WRITE, whatever the server would take.
    pub length: u32,
    /// Received bytes that the disk has not confirmed, beyond the depth, before READs stop.
    pub unwritten: u64,
    /// Files open at once on a lane that does not predict, if the server gives no lower limit.
    pub open_files: usize,
    /// How the server reads SYMLINK.
    pub symlink_order: SymlinkOrder,
    /// Make data smaller for the way, where the server can.
    pub pack: PackingMode,
    /// What a server of ours tells of files beside what every one does.
    pub told: Told,
    /// The path was slower than that takes the last time: it is begun with.
    pub slow: bool,
    /// Bytes that a file may bring beyond the size that the server stated when it was opened, at least;
    /// an eighth of that size where that is more. A file that grows while it is read is copied up to there.
    pub growth: u64,
    /// Bytes that a file may bring whose size the server does not state, or states as 0.
    pub unstated: u64,
    /// Operations that this server was found to refuse before.
    pub refusals: Refusals,
}

/// Whether data are made smaller for the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackingMode {
    /// On paths that are slower than it takes.
    #[default]
    Auto,
    /// Wherever the data allow it.
    Always,
    /// They are not.
    Never,
}

impl LaneConfig {
    /// Defaults for a server of which nothing is known: no prediction.
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
            // What waits in the server is bounded by bytes; this bounds files that have none.
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
            unstated: 16 << 30,
            refusals: Refusals::default(),
        }
    }

    /// Whether all may leave before VERSION comes.
    pub(super) fn early(&self) -> bool {
        let remembered = self.remembered.as_ref();
        remembered.is_some_and(|info| self.answers_in_order(info))
    }

    /// Whether it does, and numbers its handles as OpenSSH's does. What is ours says so itself,
    /// whatever SSH server stands before it.
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

/// What the server can do, from what it said or will say.
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
    /// It makes sums of blocks, and copies between open files.
    pub(super) sums: bool,
    /// It packs and unpacks.
    pub(super) zstd: bool,
    /// Small files as well.
    pub(super) zstd_files: bool,
    pub(super) hardlink: bool,
    pub(super) names_by_id: bool,
    pub(super) ids_by_name: bool,
    /// It tells more of files, and takes nanoseconds.
    pub(super) attributes: bool,
    pub(super) xattrs: bool,
    /// It sets all metadata in one request.
    pub(super) metadata: bool,
    /// It makes names durable.
    pub(super) fsync_set: bool,
    /// It tells of holes.
    pub(super) sparse: bool,
    pub(super) predict: bool,
    /// Requests are carried out one after the other.
    pub(super) in_order: bool,
    /// Several handles may be open for one file, and its ranges may come in any order.
    pub(super) shares_files: bool,
    pub(super) read: u32,
    pub(super) write: u32,
    /// What a WRITE may carry where data are so fast that longer ones do not take longer: `write`, or more.
    pub(super) fast_write: u32,
    pub(super) open_files: usize,
}

/// OpenSSH's largest READ and WRITE (sftp-server.c: its message limit less 1 KiB).
const OPENSSH_LENGTH: u32 = 255 * 1024;
/// What READ answers at most before 8.6.
const OPENSSH_OLD_READ: u32 = 64 * 1024;
/// What OpenSSH's sftp uses with servers it knows nothing of (DEFAULT_COPY_BUFLEN), and the
/// least the draft asks of them.
const SAFE_LENGTH: u32 = 32 * 1024;
/// Bounds blocks and answers whatever the server claims: asyncssh offers 4 MiB, and an answer
/// longer than [`sftp::MAX_MESSAGE`] ends the channel.
const MAX_LENGTH: u64 = OPENSSH_LENGTH as u64;
/// The longest WRITE to a server of ours: it is carried out as one write(2), for which 4 GiB into memory took
/// 0.247 s of its processor for each GB instead of 0.27.
const FAST_LENGTH: u32 = 1 << 20;
/// Seconds that a WRITE lasts at most to be longer than OpenSSH takes it: on a path of 1 Gbit/s nothing is gained,
/// and whoever waits for answers learns more of short ones.
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
        // Others have not been seen to like it.
        let fast = match self.put_file {
            true => u32::try_from(limits.write.min(FAST_LENGTH.into())).unwrap_or(FAST_LENGTH),
            false => 0,
        };
        self.fast_write = whole_pages(fast.min(config.length)).max(self.write);
        if limits.handles > 0 {
            // Half is left to whatever else holds files open in that process.
            let half = usize::try_from(limits.handles / 2).unwrap_or(usize::MAX);
            self.open_files = config.open_files.min(half).max(1);
        }
    }

    /// How much of a file a WRITE at `offset` carries where `rate` bytes a second are moved. Longer ones than
    /// usual end at multiples of their length, as what file systems gather does.
    pub(super) fn fast_piece(&self, offset: u64, rate: Option<f64>) -> u64 {
        let lasts = (FAST * rate.unwrap_or_default()) as u64;
        let fast = u64::from(self.fast_write);
        match fast > u64::from(self.write) && lasts >= fast {
            true => fast - offset % fast,
            false => self.write.into(),
        }
    }
}

/// Large requests begin and end with a page, so that neither end touches one twice.
fn whole_pages(length: u32) -> u32 {
    if length >= 16 * PAGE {
        length - length % PAGE
    } else {
        length
    }
}

/// How a lane is doing: evidence for the progress line and for saying what the limit was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LaneStats {
    /// Jobs pushed and not done.
    pub jobs: usize,
    /// Requests without an answer.
    pub requests_in_flight: u64,
    /// Bytes of file data and overhead in requests without an answer.
    pub bytes_in_flight: u64,
    /// How many requests may be in flight.
    pub requests_depth: u64,
    /// How many bytes may be in flight.
    pub bytes_depth: u64,
    /// Bytes being read from the disk.
    pub reading: u64,
    /// Bytes received that the disk has not confirmed.
    pub unwritten: u64,
    /// The lowest latency of a request.
    pub latency: Option<Duration>,
    /// The highest rate of late, in bytes a second.
    pub rate: Option<f64>,
    /// Times that something could have been sent and the depth forbade it.
    pub stalls_depth: u64,
    /// Times that bytes were ready and the channel had no room.
    pub stalls_room: u64,
    /// Times that READs were held back for the disk.
    pub stalls_disk: u64,
    /// Handles are predicted.
    pub predicting: bool,
    /// Bytes of blocks that were to be made smaller, and what became of them.
    pub packed: (u64, u64),
    /// Files that were one request.
    pub whole: u64,
}
