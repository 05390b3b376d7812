//! Decides if a group has no member besides this user, as a user private group has.
//!
//! Debian's sshd accepts group write permission of `~/.ssh` by the same rule, since with umask 002
//! all folders of a user have it.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::unistd::{Gid, Group, Uid, User};
use rustix::io::Errno;

/// Returns true if only this user and root can use the write permission that `gid` has for the
/// directory `dir`: the group has no other member, and no access control list grants more.
pub(super) fn is_private(dir: BorrowedFd<'_>, gid: u32) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    let (Some(user), Some(group)) = (user, group) else {
        // A group that nobody can look up may have any members.
        return false;
    };
    // Members of directory services are not listed here: `has_only` takes their place by the name.
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let group = GroupMembers {
        gid,
        name: &group.name,
        names: &group.mem,
    };
    group.has_only(&user.name, uid, &accounts) && !has_acl(dir)
}

/// A group and its supplementary members.
struct GroupMembers<'a> {
    gid: u32,
    name: &'a str,
    names: &'a [String],
}

impl GroupMembers<'_> {
    /// Returns true if nobody but `user` and root is in the group, by its list of members and by
    /// the primary groups in `accounts` (passwd(5)). Since accounts may exist elsewhere too, the
    /// group must have the user's name, or be root's.
    fn has_only(&self, user: &str, uid: u32, accounts: &str) -> bool {
        let is_trusted = |name: &str| name == user || name == "root";
        let others = accounts.lines().any(|line| {
            let mut fields = line.split(':').skip(2);
            let mut number = || fields.next()?.parse::<u32>().ok();
            let (Some(id), Some(primary)) = (number(), number()) else {
                return false;
            };
            primary == self.gid && id != uid && id != 0
        });
        let named = self.name == user || self.gid == 0;
        named && !others && self.names.iter().all(|name| is_trusted(name))
    }
}

/// Returns true if the directory has an access control list, or may have one. The bits of the group
/// are its mask then, and do not show who can write.
fn has_acl(dir: BorrowedFd<'_>) -> bool {
    // getxattr(2) takes no O_PATH descriptor.
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let mut none: [u8; 0] = [];
    match rustix::fs::getxattr(path, "system.posix_acl_access", &mut none[..]) {
        Err(Errno::NODATA | Errno::NOTSUP) => false,
        Ok(_) | Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNTS: &str = "root:x:0:0:root:/root:/bin/bash\n\
                            damaged line\n\
                            alice:x:1000:1000::/home/alice:/bin/sh\n\
                            bob:x:1001:100::/home/bob:/bin/sh\n\
                            carol:x:1002:1003::/home/carol:/bin/sh\n";

    #[test]
    fn a_group_is_private_if_only_its_user_is_in_it() {
        let is = |gid, name: &str, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
            let names = &names;
            GroupMembers { gid, name, names }.has_only("alice", 1000, ACCOUNTS)
        };
        assert!(is(1000, "alice", &[]));
        assert!(is(1000, "alice", &["alice", "root"]));
        assert!(!is(1000, "alice", &["alice", "bob"]));
        // A shared group, by its name, by its list or by somebody's primary group.
        assert!(!is(50, "staff", &[]));
        assert!(!is(50, "staff", &["alice"]));
        assert!(!is(1003, "alice", &[]));
        assert!(!is(100, "users", &[]));
        // The group of root in a container that runs with any user ID.
        assert!(is(0, "root", &[]));
        assert!(!is(0, "root", &["bob"]));
    }
}
