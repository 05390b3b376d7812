//! Abilities and limits of the server at the other end of a lane.

use bitflags::bitflags;
use sftp::{ServerInfo, ServerLimits};

use super::config::LaneConfig;

bitflags! {
    /// Abilities of the server, from its VERSION or the expected one.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct ServerCapabilities: u32 {
        /// posix-rename@openssh.com.
        const POSIX_RENAME = 1;
        /// fsync@openssh.com.
        const FSYNC = 1 << 1;
        /// lsetstat@openssh.com.
        const LSETSTAT = 1 << 2;
        /// limits@openssh.com.
        const LIMITS = 1 << 3;
        /// expand-path@openssh.com.
        const EXPAND_PATH = 1 << 4;
        /// put-file@longhaul.
        const PUT_FILE = 1 << 5;
        /// list-tree@longhaul.
        const LIST_TREE = 1 << 6;
        /// get-file@longhaul.
        const GET_FILE = 1 << 7;
        /// Block sums, and copies between open files.
        const SUMS = 1 << 8;
        /// Compressed READs and WRITEs.
        const ZSTD = 1 << 9;
        /// Compressed small files.
        const ZSTD_FILES = 1 << 10;
        /// hardlink@openssh.com.
        const HARDLINK = 1 << 11;
        /// users-groups-by-id@openssh.com.
        const NAMES_BY_ID = 1 << 12;
        /// ids-by-name@longhaul.
        const IDS_BY_NAME = 1 << 13;
        /// More attributes, with nanoseconds.
        const ATTRIBUTES = 1 << 14;
        /// get-xattrs@longhaul.
        const XATTRS = 1 << 15;
        /// All metadata in one request.
        const METADATA = 1 << 16;
        /// Durable names.
        const FSYNC_SET = 1 << 17;
        /// Reports of holes.
        const SPARSE = 1 << 18;
        /// Handles can be predicted.
        const PREDICT = 1 << 19;
        /// Requests are executed in order.
        const IN_ORDER = 1 << 20;
        /// Several handles may be open for one file, and its ranges may come in any order.
        const SHARES_FILES = 1 << 21;
        /// Paths below the target are resolved without symlinks.
        const HOLD_ROOT = 1 << 22;
        /// statvfs@openssh.com.
        const STATVFS = 1 << 23;
        /// FIFOs are opened without waiting and written in order. sftp-server seeks in every file.
        const FIFOS = 1 << 24;
        /// Changes only the entry that a request expects.
        const EXPECT = 1 << 25;
        /// The server compares an entry with the listed one.
        const EXPECT_LISTED = 1 << 26;
    }
}

/// Extensions that a capability needs, all of them.
const EXTENSIONS: [(ServerCapabilities, &[&str]); 24] = [
    (
        ServerCapabilities::POSIX_RENAME,
        &["posix-rename@openssh.com"],
    ),
    (ServerCapabilities::FSYNC, &["fsync@openssh.com"]),
    (ServerCapabilities::LSETSTAT, &["lsetstat@openssh.com"]),
    (ServerCapabilities::LIMITS, &["limits@openssh.com"]),
    (
        ServerCapabilities::EXPAND_PATH,
        &["expand-path@openssh.com"],
    ),
    (ServerCapabilities::PUT_FILE, &["put-file@longhaul"]),
    (ServerCapabilities::LIST_TREE, &["list-tree@longhaul"]),
    (ServerCapabilities::GET_FILE, &["get-file@longhaul"]),
    (ServerCapabilities::SUMS, &["hash@longhaul", "copy-data"]),
    (
        ServerCapabilities::ZSTD,
        &["write-zstd@longhaul", "read-zstd@longhaul"],
    ),
    (
        ServerCapabilities::ZSTD_FILES,
        &["put-file-zstd@longhaul", "get-file-zstd@longhaul"],
    ),
    (ServerCapabilities::HARDLINK, &["hardlink@openssh.com"]),
    (
        ServerCapabilities::NAMES_BY_ID,
        &["users-groups-by-id@openssh.com"],
    ),
    (ServerCapabilities::IDS_BY_NAME, &["ids-by-name@longhaul"]),
    (ServerCapabilities::ATTRIBUTES, &["attributes@longhaul"]),
    (ServerCapabilities::XATTRS, &["get-xattrs@longhaul"]),
    (ServerCapabilities::METADATA, &["set-metadata@longhaul"]),
    (ServerCapabilities::FSYNC_SET, &["fsync-set@longhaul"]),
    (ServerCapabilities::SPARSE, &["read-sparse@longhaul"]),
    (ServerCapabilities::HOLD_ROOT, &["hold-root@longhaul"]),
    (ServerCapabilities::STATVFS, &["statvfs@openssh.com"]),
    (ServerCapabilities::FIFOS, &["put-file@longhaul"]),
    (ServerCapabilities::EXPECT, &["expect@longhaul"]),
    (
        ServerCapabilities::EXPECT_LISTED,
        &["expect@longhaul", "expect-listed@longhaul"],
    ),
];

/// Capabilities of the server, its maximum READ and WRITE in bytes and its limit of open files; the
/// expected ones until it has answered.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerProfile {
    capabilities: ServerCapabilities,
    read_length: u32,
    write_length: u32,
    /// Length of a WRITE on paths so fast that longer ones take no noticeable time: `write_length`,
    /// or more.
    fast_write_length: u32,
    open_files: usize,
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
pub(super) const FAST_LENGTH: u32 = 1 << 20;
/// Maximum duration in seconds of a WRITE longer than OpenSSH's. A path of 1 Gbit/s gains nothing
/// from longer ones, and short ones give more frequent answers.
const FAST: f64 = 1e-3;
const PAGE: u32 = 4096;

impl ServerProfile {
    /// Returns the server that `info` describes.
    pub(super) fn new(config: &LaneConfig, info: &ServerInfo) -> Self {
        let openssh = config.answers_in_order(info);
        let mut capabilities = ServerCapabilities::empty();
        for (capability, extensions) in EXTENSIONS {
            let all = extensions.iter().all(|name| info.has(name));
            capabilities.set(capability, all);
        }
        let shares = openssh || config.openssh && info.is_restricted_openssh();
        capabilities.set(ServerCapabilities::PREDICT, config.predict && openssh);
        capabilities.set(ServerCapabilities::IN_ORDER, openssh);
        capabilities.set(ServerCapabilities::SHARES_FILES, shares);
        let limits = capabilities.contains(ServerCapabilities::LIMITS);
        let read = match (openssh, limits) {
            (true, true) => OPENSSH_LENGTH,
            (true, false) => OPENSSH_OLD_READ,
            (false, _) => SAFE_LENGTH,
        };
        let write = if openssh { OPENSSH_LENGTH } else { SAFE_LENGTH };
        let write = whole_pages(write.min(config.length));
        let mut server = Self {
            capabilities,
            read_length: whole_pages(read.min(config.length)),
            write_length: write,
            fast_write_length: write,
            open_files: config.open_files.max(1),
        };
        if let Some(limits) = info.limits {
            server.apply(config, limits);
        }
        server
    }

    /// Takes over the limits that the server has answered.
    pub(super) fn apply(&mut self, config: &LaneConfig, limits: ServerLimits) {
        let length = |limit: u64| {
            let allowed = match limit {
                0 => OPENSSH_LENGTH,
                limit => u32::try_from(limit.clamp(1024, MAX_LENGTH)).unwrap_or(SAFE_LENGTH),
            };
            allowed.min(config.length)
        };
        self.read_length = whole_pages(length(limits.read));
        self.write_length = whole_pages(length(limits.write));
        // Only a longhaul server is known to accept longer WRITEs.
        let fast = match self.can(ServerCapabilities::PUT_FILE) {
            true => u32::try_from(limits.write.min(FAST_LENGTH.into())).unwrap_or(FAST_LENGTH),
            false => 0,
        };
        self.fast_write_length = whole_pages(fast.min(config.length)).max(self.write_length);
        if limits.handles > 0 {
            // Leaves half of the limit to other users of that process.
            let half = usize::try_from(limits.handles / 2).unwrap_or(usize::MAX);
            self.open_files = config.open_files.min(half).max(1);
        }
    }

    /// Returns true if the server has all of these capabilities.
    pub(super) fn can(&self, capabilities: ServerCapabilities) -> bool {
        self.capabilities.contains(capabilities)
    }

    /// Returns the length of a READ in bytes.
    pub(super) fn read_length(&self) -> u32 {
        self.read_length
    }

    /// Returns the length of a WRITE in bytes.
    pub(super) fn write_length(&self) -> u32 {
        self.write_length
    }

    /// Returns the length in bytes of a WRITE on a fast path.
    pub(super) fn fast_write_length(&self) -> u32 {
        self.fast_write_length
    }

    /// Returns the number of files that may be open at once.
    pub(super) fn open_files(&self) -> usize {
        self.open_files
    }

    /// Returns the length of a WRITE at `offset` for a rate of `rate` bytes per second. WRITEs
    /// longer than usual end at multiples of their length, which suits the write-back of file
    /// systems.
    pub(super) fn fast_piece(&self, offset: u64, rate: Option<f64>) -> u64 {
        let lasts = (FAST * rate.unwrap_or_default()) as u64;
        let fast = u64::from(self.fast_write_length);
        match fast > u64::from(self.write_length) && lasts >= fast {
            true => fast - offset % fast,
            false => self.write_length.into(),
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

#[cfg(test)]
mod tests {
    use wire::PacketPool;

    use super::*;

    fn server(openssh: bool, extensions: &[&str]) -> ServerProfile {
        let pool = PacketPool::new(32 * 1024, 4);
        let mut config = LaneConfig::new(pool, Box::new(|bytes| bytes.fill(0)));
        config.openssh = openssh;
        let version = |name: &str| match name {
            "statvfs@openssh.com" => b"2".to_vec(),
            _ => b"1".to_vec(),
        };
        let pair = |name: &&str| (name.as_bytes().to_vec(), version(name));
        let info = ServerInfo {
            version: 3,
            extensions: extensions.iter().map(pair).collect(),
            limits: None,
        };
        ServerProfile::new(&config, &info)
    }

    #[test]
    fn a_capability_needs_each_of_its_extensions() {
        let mut seen = ServerCapabilities::empty();
        for (capability, extensions) in EXTENSIONS {
            assert!(!seen.intersects(capability), "{capability:?} twice");
            seen |= capability;
            assert!(server(false, extensions).can(capability));
            for left_out in 0..extensions.len() {
                let mut some = extensions.to_vec();
                some.remove(left_out);
                assert!(!server(false, &some).can(capability), "{capability:?}");
            }
        }
        let inferred = ServerCapabilities::PREDICT
            | ServerCapabilities::IN_ORDER
            | ServerCapabilities::SHARES_FILES;
        assert_eq!(seen | inferred, ServerCapabilities::all());
    }

    #[test]
    fn an_unknown_server_gets_short_requests_and_its_limits_are_kept_to() {
        let mut server = server(false, &["posix-rename@openssh.com"]);
        assert!(!server.can(ServerCapabilities::IN_ORDER | ServerCapabilities::PREDICT));
        assert_eq!(
            (server.read_length(), server.write_length()),
            (SAFE_LENGTH, SAFE_LENGTH)
        );
        let pool = PacketPool::new(32 * 1024, 4);
        let config = LaneConfig::new(pool, Box::new(|bytes| bytes.fill(0)));
        let limits = ServerLimits {
            packet: 0,
            read: 100_000,
            write: u64::MAX,
            handles: 9,
        };
        server.apply(&config, limits);
        assert_eq!(server.read_length(), 100_000 - 100_000 % PAGE);
        assert_eq!(
            server.write_length(),
            whole_pages(OPENSSH_LENGTH),
            "at most"
        );
        assert_eq!(
            server.fast_write_length(),
            server.write_length(),
            "not ours"
        );
        assert_eq!(server.open_files(), 4);
    }
}
