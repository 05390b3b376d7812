use rustix::fs::Stat;
use sftp::Attrs;

/// What a client is told of a file.
pub(crate) fn attributes(stat: &Stat) -> Attrs {
    Attrs {
        size: Some(stat.st_size.unsigned_abs()),
        owner: Some((stat.st_uid, stat.st_gid)),
        permissions: Some(stat.st_mode),
        times: Some((seconds(stat.st_atime), seconds(stat.st_mtime))),
    }
}

/// The protocol ends in 2106 and begins in 1970.
fn seconds(time: i64) -> u32 {
    u32::try_from(time.max(0)).unwrap_or(u32::MAX)
}
