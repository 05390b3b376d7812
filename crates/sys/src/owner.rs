//! Owners of files in the form of chown(2).

use rustix::fs::{Gid, Uid};

/// Converts a user and a group for chown(2), where -1 leaves the old one. A peer may send any
/// number, and rustix's types do not admit that one.
pub fn chown_ids(user: u32, group: u32) -> (Option<Uid>, Option<Gid>) {
    (
        (user != u32::MAX).then(|| Uid::from_raw(user)),
        (group != u32::MAX).then(|| Gid::from_raw(group)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_that_no_user_has_leaves_the_owner() {
        assert_eq!(chown_ids(u32::MAX, u32::MAX), (None, None));
        let (user, group) = chown_ids(u32::MAX - 1, 0);
        assert_eq!(user.map(Uid::as_raw), Some(u32::MAX - 1));
        assert_eq!(group, Some(Gid::ROOT));
    }
}
