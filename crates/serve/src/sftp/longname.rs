//! Formats the human-readable line of a listing, which clients print as received (sftp-common.c,
//! ls_file).

use std::borrow::Cow;
use std::fmt::Write as _;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use rustix::fs::{FileType, Stat};

use super::accounts::AccountNameCache;

/// Age in seconds (half a year) from which the year replaces the time of day.
const RECENT: i64 = 365 * 24 * 3600 / 2;

/// Formats the line of `name` as `ls -l` does.
pub(crate) fn longname(
    name: &[u8],
    stat: &Stat,
    accounts: &mut AccountNameCache,
    zone: &TimeZone,
) -> Vec<u8> {
    let mode = mode(stat.st_mode);
    let links = stat.st_nlink;
    let user = or_number(accounts.user(stat.st_uid), stat.st_uid);
    let mut line = format!("{mode} {links:>4} {user:<8} ");
    let group = or_number(accounts.group(stat.st_gid), stat.st_gid);
    let (size, when) = (stat.st_size, when(stat.st_mtime, zone));
    // Writing to memory cannot fail.
    let _ = write!(line, "{group:<8} {size:>8} {when} ");
    let mut line = line.into_bytes();
    line.extend_from_slice(name);
    line
}

fn or_number(name: &str, id: u32) -> Cow<'_, str> {
    match name {
        "" => id.to_string().into(),
        name => name.into(),
    }
}

fn when(seconds: i64, zone: &TimeZone) -> String {
    let Ok(time) = Timestamp::from_second(seconds) else {
        return "-".to_owned();
    };
    let age = Timestamp::now().as_second() - seconds;
    let shown: Zoned = time.to_zoned(zone.clone());
    let format = match (0..RECENT).contains(&age) {
        true => "%b %e %H:%M",
        false => "%b %e  %Y",
    };
    shown.strftime(format).to_string()
}

/// Formats type and permissions, as `drwxr-xr-x`.
fn mode(mode: u32) -> String {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        _ => '-',
    };
    let mut text = String::from(kind);
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    for (place, (bit, with, without)) in special.into_iter().enumerate() {
        let bits = mode >> (6 - 3 * place) & 7;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & bit != 0) {
            (true, true) => with,
            (false, true) => without,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_as_ls_does() {
        assert_eq!(mode(0o100_644), "-rw-r--r--");
        assert_eq!(mode(0o041_777), "drwxrwxrwt");
        assert_eq!(mode(0o104_750), "-rwsr-x---");
        assert_eq!(mode(0o120_777), "lrwxrwxrwx");
        assert_eq!(mode(0o102_640), "-rw-r-S---");
    }

    #[test]
    fn old_files_have_a_year() {
        assert_eq!(when(0, &TimeZone::UTC), "Jan  1  1970");
    }
}
