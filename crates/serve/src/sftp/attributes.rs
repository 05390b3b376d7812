use rustix::fs::{FileType, Stat};
use sftp::{Attrs, InodeId, Told};

/// Converts stat(2) data to the attributes sent to a client.
pub(crate) fn attributes(stat: &Stat, told: Told) -> Attrs {
    let nanoseconds = || {
        (
            nanoseconds(stat.st_atime_nsec),
            nanoseconds(stat.st_mtime_nsec),
        )
    };
    Attrs {
        size: Some(stat.st_size.unsigned_abs()),
        owner: Some((stat.st_uid, stat.st_gid)),
        permissions: Some(stat.st_mode),
        times: Some((seconds(stat.st_atime), seconds(stat.st_mtime))),
        nanoseconds: told.contains(Told::NANOSECONDS).then(nanoseconds),
        link: identity(stat, told),
        expected: None,
    }
}

/// Device, inode and link count of a file that has several names, or of a directory, if the client
/// asked for them.
fn identity(stat: &Stat, told: Told) -> Option<InodeId> {
    let names = u32::try_from(stat.st_nlink).unwrap_or(u32::MAX);
    let is_told = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => told.contains(Told::LINKS) && names > 1,
        FileType::Directory => told.contains(Told::DEVICES),
        _ => false,
    };
    is_told.then_some(InodeId {
        device: stat.st_dev,
        inode: stat.st_ino,
        names,
    })
}

/// Clamps a time to the protocol's range, 1970 to 2106.
pub(super) fn seconds(time: i64) -> u32 {
    u32::try_from(time.max(0)).unwrap_or(u32::MAX)
}

fn nanoseconds(part: impl TryInto<u32>) -> u32 {
    part.try_into().unwrap_or(0)
}
