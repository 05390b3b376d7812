//! Names of users and groups, and where users are at home.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;

use nix::unistd::{Gid, Group, Uid, User};

/// Names that were looked up: a listing asks for the same few again and again.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    users: Names,
    groups: Names,
}

/// By number; empty where there is no such account.
type Names = BTreeMap<u32, String>;

/// A client may ask for as many numbers as it likes.
const KEPT: usize = 4096;

impl Accounts {
    /// The name of a user, empty where there is none.
    pub(crate) fn user(&mut self, id: u32) -> &str {
        known(&mut self.users, id, || {
            let user = User::from_uid(Uid::from_raw(id)).ok()?;
            user.map(|user| user.name)
        })
    }

    /// The name of a group, empty where there is none.
    pub(crate) fn group(&mut self, id: u32) -> &str {
        known(&mut self.groups, id, || {
            let group = Group::from_gid(Gid::from_raw(id)).ok()?;
            group.map(|group| group.name)
        })
    }
}

fn known(names: &mut Names, id: u32, look: impl FnOnce() -> Option<String>) -> &str {
    if names.len() >= KEPT && !names.contains_key(&id) {
        names.clear();
    }
    let name = names
        .entry(id)
        .or_insert_with(|| look().unwrap_or_default());
    name.as_str()
}

/// The number of a user.
pub(crate) fn user_id(name: &str) -> Option<u32> {
    Some(User::from_name(name).ok()??.uid.as_raw())
}

/// The number of a group.
pub(crate) fn group_id(name: &str) -> Option<u32> {
    Some(Group::from_name(name).ok()??.gid.as_raw())
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
///
/// # Errors
/// Those of `home`.
pub(crate) fn expand<E>(
    path: &[u8],
    home: impl Fn(&[u8]) -> Result<Vec<u8>, E>,
) -> Result<Vec<u8>, E> {
    let Some(rest) = path.strip_prefix(b"~") else {
        return Ok(path.to_vec());
    };
    let end = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
    let (user, below) = rest.split_at(end);
    let mut whole = home(user)?;
    whole.extend_from_slice(below);
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_is_a_home_directory() {
        let home = |user: &[u8]| match user {
            b"" => Ok(b"/home/me".to_vec()),
            b"you" => Ok(b"/home/you".to_vec()),
            _ => Err(()),
        };
        assert_eq!(expand(b"~", home), Ok(b"/home/me".to_vec()));
        assert_eq!(expand(b"~/a", home), Ok(b"/home/me/a".to_vec()));
        assert_eq!(expand(b"~you/a", home), Ok(b"/home/you/a".to_vec()));
        assert_eq!(expand(b"~nobody-at-all", home), Err(()));
        assert_eq!(expand(b"a/~", home), Ok(b"a/~".to_vec()));
    }
}
