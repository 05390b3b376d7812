//! Names of users and groups, and where users are at home.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;

use nix::unistd::{Gid, Group, Uid, User};

/// Names that were looked up: a listing asks for the same few again and again. Its size is
/// bounded by the accounts that there are.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    users: BTreeMap<u32, Option<String>>,
    groups: BTreeMap<u32, Option<String>>,
}

/// A client may ask for as many numbers as it likes.
const KEPT: usize = 4096;

impl Accounts {
    /// The name of a user.
    pub(crate) fn user(&mut self, id: u32) -> Option<String> {
        known(&mut self.users, id, |id| {
            User::from_uid(Uid::from_raw(id))
                .ok()?
                .map(|user| user.name)
        })
    }

    /// The name of a group.
    pub(crate) fn group(&mut self, id: u32) -> Option<String> {
        known(&mut self.groups, id, |id| {
            let group = Group::from_gid(Gid::from_raw(id)).ok()?;
            group.map(|group| group.name)
        })
    }
}

fn known(
    names: &mut BTreeMap<u32, Option<String>>,
    id: u32,
    look: impl FnOnce(u32) -> Option<String>,
) -> Option<String> {
    if let Some(name) = names.get(&id) {
        return name.clone();
    }
    if names.len() >= KEPT {
        names.clear();
    }
    let name = look(id);
    names.insert(id, name.clone());
    name
}

/// Where the account of this process is at home, or `user` where one is named.
pub(crate) fn home(user: &[u8]) -> Option<Vec<u8>> {
    let found = match user {
        b"" => User::from_uid(Uid::effective()),
        user => User::from_name(std::str::from_utf8(user).ok()?),
    };
    let dir = found.ok()??.dir.into_os_string();
    Some(dir.into_vec())
}

/// `~`, `~/x` and `~user/x` with the home directory in place; anything else as it is.
pub(crate) fn expand(path: &[u8], home: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let Some(rest) = path.strip_prefix(b"~") else {
        return Some(path.to_vec());
    };
    let end = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
    let (user, below) = rest.split_at(end);
    let mut whole = home(user)?;
    whole.extend_from_slice(below);
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_is_a_home_directory() {
        let home = |user: &[u8]| match user {
            b"" => Some(b"/home/me".to_vec()),
            b"you" => Some(b"/home/you".to_vec()),
            _ => None,
        };
        assert_eq!(expand(b"~", home), Some(b"/home/me".to_vec()));
        assert_eq!(expand(b"~/a", home), Some(b"/home/me/a".to_vec()));
        assert_eq!(expand(b"~you/a", home), Some(b"/home/you/a".to_vec()));
        assert_eq!(expand(b"~nobody-at-all", home), None);
        assert_eq!(expand(b"a/~", home), Some(b"a/~".to_vec()));
    }
}
