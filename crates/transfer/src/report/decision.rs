//! The decisions of a run and their reasons, for `--explain`, as data. The command line turns them
//! into text in one place.

use std::path::PathBuf;
use std::time::Duration;

use schedule::{CompressionMode, Limiter, TrialResult};

use super::{EscapedName, FarEndServerReport, HostCopyRoute, VerifyResult};
use crate::copy::DeltaUse;
use crate::detour::RouteResult;
use crate::memory::findings::CompressionResult;

/// A decision that the program made in a run, with its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The host concerned, as the user wrote it; `None` for the whole run.
    pub host: Option<EscapedName>,
    /// The decision itself.
    pub choice: DecisionSubject,
    /// The origin of the decision.
    pub origin: DecisionOrigin,
}

impl Decision {
    /// Creates a decision without a host.
    pub fn new(choice: DecisionSubject, origin: DecisionOrigin) -> Self {
        Self {
            host: None,
            choice,
            origin,
        }
    }
}

/// The origin of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecisionOrigin {
    /// The default; no fact suggested anything else.
    Default,
    /// The user's command line: the flag, or the option of `-o`.
    Flag(&'static str),
    /// This ssh_config file; `None` for OpenSSH's two default files.
    Config(Option<PathBuf>),
    /// Learned or measured earlier; contains the age.
    Memory(Duration),
    /// Measured in this run.
    Measured,
    /// The only possibility with this far end.
    Peer,
}

/// The subject of a decision, with its evidence.
#[derive(Clone, Debug, PartialEq)]
pub enum DecisionSubject {
    /// The cipher of the connections.
    Cipher {
        /// The SSH name.
        name: String,
        /// The reason for its position in the offered order.
        order: CipherOrderReason,
    },
    /// The key exchange.
    KeyExchange {
        /// The SSH name.
        name: String,
        /// Origin of the key exchange guess that was made before the server's proposal arrived.
        guess: KexGuessKind,
    },
    /// zlib compression of the SSH connection.
    Zlib {
        /// True if zlib is used.
        on: bool,
        /// The reason.
        why: ZlibReason,
    },
    /// zstd compression in blocks, with a longhaul at the far end.
    Zstd {
        /// The requested mode.
        pack: CompressionMode,
        /// File bytes that were passed to the compressor.
        tried: u64,
        /// Size of these bytes after compression.
        became: u64,
        /// All confirmed bytes.
        moved: u64,
    },
    /// The SFTP server at the far end.
    FarEnd(FarEndServerReport),
    /// The final number of connections and channels.
    Lanes {
        /// TCP connections.
        connections: u32,
        /// SFTP channels per connection.
        channels: u32,
        /// The limiter of the copy, if known.
        limiter: Option<Limiter>,
        /// The result of the last trial with more connections or channels.
        tried: Option<TrialResult>,
        /// The numbers that paid in an earlier copy: connections, channels per connection.
        learned: Option<(u32, u32)>,
        /// The number of connections that `--connections` permits, if it was given.
        permitted: Option<u32>,
    },
    /// The DSCP value of packets, 0 to 63.
    Dscp(u8),
    /// The TCP congestion control of local sockets.
    Congestion {
        /// The kernel's name; `None` for the system's default.
        name: Option<String>,
        /// True if it was requested because packets were lost.
        losses: bool,
    },
    /// The distribution of files over lanes.
    Files {
        /// Files that were cut into ranges.
        cut: u64,
        /// The size in bytes from which on files are cut.
        from: u64,
        /// Files that one request stored as a whole.
        whole: u64,
    },
    /// The use of basis files at the far end (delta).
    Delta {
        /// The requested mode.
        mode: DeltaUse,
        /// Bytes that did not have to be sent.
        reused: u64,
    },
    /// The way of the data between two hosts.
    HostWay(HostCopyRoute),
    /// Relaying hosts for all connections to the host.
    Detour {
        /// The hosts as the user named them; `None` for the direct way.
        through: Option<String>,
        /// The reason.
        why: DetourReason,
    },
    /// The comparison of files with their sources; `None` if there was none.
    Verify(Option<VerifyResult>),
}

/// The reason for a way through relaying hosts, or for the direct one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetourReason {
    /// The user has named the hosts.
    Given,
    /// Figures of the direct way, and of the candidates with their names.
    Measured(RouteResult, Vec<(String, RouteResult)>),
    /// Nothing was measured, for this reason.
    NotMeasured(&'static str),
    /// The chosen candidate did not connect, for this reason.
    Failed(String),
}

/// The reason for the order in which ciphers were offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CipherOrderReason {
    /// The user's choice.
    Chosen,
    /// True if the processor has AES instructions.
    Instructions(bool),
    /// Measured rates, fastest first.
    Measured {
        /// The program that measured.
        by: String,
        /// True if measured between both ends, false if on this processor alone.
        both_ends: bool,
        /// Names, and bytes per second.
        rates: Vec<(String, u64)>,
    },
}

/// The kind of guess with which a key exchange began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KexGuessKind {
    /// A correct guess: the server's preference at the last visit.
    Remembered,
    /// A correct guess: the preference of servers of this version.
    ByVersion,
    /// No guess, or a wrong one.
    No,
}

/// The reason why zlib was used or not.
#[derive(Clone, Debug, PartialEq)]
pub enum ZlibReason {
    /// The user's setting.
    Set,
    /// Requested, but not offered by the server.
    Refused,
    /// The longhaul at the far end compresses in blocks, so zlib would be a second compression.
    BlocksInstead,
    /// The rate is limited by the user, or the data on this machine may not be sampled.
    NotAsked,
    /// An earlier connection failed with zlib that the user had not requested.
    Failed,
    /// The path's rate is not known yet.
    PathUnknown,
    /// The path moves this many bytes per second, which zlib cannot.
    PathFast(u64),
    /// This end has no data to sample.
    Unseen,
    /// Several files would share one compression stream, whose packet lengths could tell the author
    /// of one file, if they observe the path, about the contents of another: the user must allow
    /// that.
    Several,
    /// The amount of data is too small to be worth the round trip.
    Little(u64),
    /// The result of sampling the data.
    Looked {
        /// Bytes per second that the path moves.
        path: u64,
        /// The sample.
        sample: CompressibilitySample,
        /// Expected file bytes per second with zlib.
        expected: u64,
    },
    /// The result of an earlier measurement with such data.
    Found(CompressionResult),
}

/// A quick sample of the beginnings of some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressibilitySample {
    /// The number of files sampled.
    pub files: u32,
    /// Bytes that were compressed.
    pub bytes: u64,
    /// Compressed size per 1,000 bytes of the sample.
    pub left: u32,
    /// Bytes per second that one core deflates.
    pub rate: u64,
    /// Bytes to copy, as far as counted.
    pub total: u64,
}
