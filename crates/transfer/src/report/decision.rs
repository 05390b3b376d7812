//! What a run decided by itself, or was told, and what each decision rests on: `--explain`. Whoever
//! decides leaves one of these; words are made of them in one place, the command line's.

use std::path::PathBuf;
use std::time::Duration;

use schedule::{Limiter, PackingMode, TrialResult};

use super::{FarEnd, Name, Verified};
use crate::copy::Delta;
use crate::memory::findings::Compressed;

/// One decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// About which host, as the user wrote it; none where it holds for the run.
    pub host: Option<Name>,
    /// What was decided.
    pub choice: Choice,
    /// What it comes from.
    pub origin: Origin,
}

impl Decision {
    /// One that is not yet told of which host it is.
    pub fn new(choice: Choice, origin: Origin) -> Self {
        Self {
            host: None,
            choice,
            origin,
        }
    }
}

/// What a decision comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nothing spoke for anything else.
    Default,
    /// The user said so on the command line: the flag, or the option of `-o`.
    Flag(&'static str),
    /// The user said so in this ssh_config; OpenSSH's own two where it is not named.
    Config(Option<PathBuf>),
    /// It was learned or measured so long ago.
    Memory(Duration),
    /// It was measured in this run.
    Measured,
    /// The far end left nothing else.
    Peer,
}

/// What was decided, with what speaks for it.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// The cipher of the connections.
    Cipher {
        /// SSH's name.
        name: String,
        /// Why it stands where it does in the order that was offered.
        order: CipherOrder,
    },
    /// The key exchange.
    KeyExchange {
        /// SSH's name.
        name: String,
        /// Whether it was begun before the server had said what it has.
        guess: Guessed,
    },
    /// zlib, which the SSH connection has or has not.
    Zlib {
        /// It has.
        on: bool,
        /// Why.
        why: ZlibWhy,
    },
    /// zstd by blocks, which a longhaul at the far end knows.
    Zstd {
        /// When it was to be used.
        pack: PackingMode,
        /// Bytes of files that were to be made smaller.
        tried: u64,
        /// What became of them.
        became: u64,
        /// Bytes that were confirmed in all.
        moved: u64,
    },
    /// What served at the far end.
    FarEnd(FarEnd),
    /// How many connections and channels there were at last.
    Lanes {
        /// TCP connections.
        connections: u32,
        /// SFTP channels on each.
        channels: u32,
        /// What held the copy back, once that could be told.
        limiter: Option<Limiter>,
        /// What the last try with more of them brought.
        tried: Option<TrialResult>,
        /// What paid the last time: connections, channels on each.
        learned: Option<(u32, u32)>,
    },
    /// The mark on packets, 0 to 63.
    Dscp(u8),
    /// TCP's congestion control on this end's sockets.
    Congestion {
        /// By the kernel's name; none for the system's own.
        name: Option<String>,
        /// Packets were lost, and so it was asked for.
        losses: bool,
    },
    /// How files were laid on lanes.
    Files {
        /// Files that were cut into parts.
        cut: u64,
        /// From how many bytes on.
        from: u64,
        /// Files that were one request each.
        whole: u64,
    },
    /// Whether what the far end has of a file in an older form is used.
    Delta {
        /// When it was to be.
        mode: Delta,
        /// Bytes that did not have to be sent.
        reused: u64,
    },
    /// How files were compared with their sources.
    Verify(Option<Verified>),
}

/// Why ciphers were offered in the order that they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CipherOrder {
    /// The user has chosen them.
    Chosen,
    /// The processor has instructions for AES, or has not.
    Instructions(bool),
    /// They were measured, and the fastest come first.
    Measured {
        /// By what.
        by: String,
        /// Between the two ends, and not on this processor alone.
        both_ends: bool,
        /// Names, and bytes a second.
        rates: Vec<(String, u64)>,
    },
}

/// How a key exchange was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guessed {
    /// With the server's favourite of the last time, and that was right.
    Remembered,
    /// With what servers of its version prefer, and that was right.
    ByVersion,
    /// It was not guessed, or not rightly.
    No,
}

/// Why zlib was used, or was not.
#[derive(Clone, Debug, PartialEq)]
pub enum ZlibWhy {
    /// As it was set.
    Set,
    /// It was asked for, and the server has none.
    Refused,
    /// A longhaul there makes data smaller by blocks, and once is enough.
    BlocksInstead,
    /// Who copies holds the rate down, or what is copied from here is not to be looked at.
    NotAsked,
    /// A connection with it failed before, for which it had not been asked for.
    Failed,
    /// How fast the path is was not seen yet.
    PathUnknown,
    /// The path moves so many bytes a second, which zlib does not do.
    PathFast(u64),
    /// There are no data at this end to look at.
    Unseen,
    /// Several files would go through one stream, whose lengths tell whoever wrote one of them and
    /// sees the path what is in another: the user has to allow it.
    Several,
    /// There is too little to be worth the round trip that it costs.
    Little(u64),
    /// The data were looked at.
    Looked {
        /// Bytes a second that the path moves.
        path: u64,
        /// What was seen.
        sample: Sample,
        /// Bytes of files a second that were to be expected with zlib.
        expected: u64,
    },
    /// The same was measured before.
    Found(Compressed),
}

/// A quick look at the beginnings of some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// How many.
    pub files: u32,
    /// Bytes of them that were deflated.
    pub bytes: u64,
    /// What is left of a thousand of those.
    pub left: u32,
    /// Bytes a second that one core deflates.
    pub rate: u64,
    /// Bytes that there are to copy, as far as was seen.
    pub total: u64,
}
