//! Looks up names of users and groups, and home directories.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;

use nix::unistd::{Gid, Group, Uid, User};
use wire::{Field as _, FieldReader};

use super::reply::ReplyBuilder;
use super::request_error::{Exhausted, Invalid, RequestError};
use super::session::{LONGEST, RequestResult};

/// Maximum number of names that ids-by-name@longhaul looks up; each may be a query to a directory
/// server.
const MOST_NAMES: usize = 1024;

/// Cache of names: a listing asks for the same few again and again.
#[derive(Debug, Default)]
pub(super) struct AccountNameCache {
    users: NameCache,
    groups: NameCache,
}

/// Names by ID; empty for an unknown account.
type NameCache = BTreeMap<u32, String>;

/// Maximum number of cached names, because a client may ask for any number of IDs.
const KEPT: usize = 4096;

impl AccountNameCache {
    /// Name of a user; empty if there is none.
    pub(super) fn user(&mut self, id: u32) -> &str {
        known(&mut self.users, id, || {
            let user = User::from_uid(Uid::from_raw(id)).ok()?;
            user.map(|user| user.name)
        })
    }

    /// Name of a group; empty if there is none.
    pub(super) fn group(&mut self, id: u32) -> &str {
        known(&mut self.groups, id, || {
            let group = Group::from_gid(Gid::from_raw(id)).ok()?;
            group.map(|group| group.name)
        })
    }

    /// Looks up names of users and groups, for users-groups-by-id@openssh.com: two strings of IDs
    /// in, two of names out.
    pub(super) fn names_of_ids(
        &mut self,
        users: &[u8],
        groups: &[u8],
        reply: &mut ReplyBuilder<'_>,
    ) -> RequestResult {
        let users = names(users, |id, out| self.user(id).as_bytes().write(out))?;
        let groups = names(groups, |id, out| self.group(id).as_bytes().write(out))?;
        reply.extended(&(users.as_slice(), groups.as_slice()));
        Ok(())
    }
}

fn known(names: &mut NameCache, id: u32, look: impl FnOnce() -> Option<String>) -> &str {
    if names.len() >= KEPT && !names.contains_key(&id) {
        names.clear();
    }
    let name = names
        .entry(id)
        .or_insert_with(|| look().unwrap_or_default());
    name.as_str()
}

/// User ID of a name.
fn user_id(name: &str) -> Option<u32> {
    Some(User::from_name(name).ok()??.uid.as_raw())
}

/// Group ID of a name.
fn group_id(name: &str) -> Option<u32> {
    Some(Group::from_name(name).ok()??.gid.as_raw())
}

/// Home directory of the named user, or of this process's account if `user` is empty.
pub(super) fn home(user: &[u8]) -> Option<Vec<u8>> {
    let found = match user {
        b"" => User::from_uid(Uid::effective()),
        user => User::from_name(std::str::from_utf8(user).ok()?),
    };
    let dir = found.ok()??.dir.into_os_string();
    Some(dir.into_vec())
}

/// Replaces a leading `~` or `~user` with the home directory; returns other paths unchanged.
///
/// # Errors
/// The errors of `home`.
pub(super) fn expand<E>(
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

/// Looks up IDs of users and groups, for ids-by-name@longhaul: two strings of names in, two of IDs
/// out.
pub(super) fn ids_by_name(
    users: &[u8],
    groups: &[u8],
    reply: &mut ReplyBuilder<'_>,
) -> RequestResult {
    let users = ids(users, user_id)?;
    let groups = ids(groups, group_id)?;
    reply.extended(&(users.as_slice(), groups.as_slice()));
    Ok(())
}

/// IDs for the strings in `names`, `u32::MAX` for unknown accounts.
fn ids(names: &[u8], find: impl Fn(&str) -> Option<u32>) -> Result<Vec<u8>, RequestError> {
    let mut reader = FieldReader::new(names);
    let mut ids = Vec::new();
    while reader.left() > 0 {
        let name = reader.string().map_err(|_| Invalid::CutName)?;
        if ids.len() >= 4 * MOST_NAMES {
            return Err(Invalid::TooManyNames.into());
        }
        let id = std::str::from_utf8(name).ok().and_then(&find);
        id.unwrap_or(u32::MAX).write(&mut ids);
    }
    Ok(ids)
}

/// Names for the IDs in `ids`, empty for unknown accounts.
fn names(ids: &[u8], mut write: impl FnMut(u32, &mut Vec<u8>)) -> Result<Vec<u8>, RequestError> {
    let mut reader = FieldReader::new(ids);
    let mut names = Vec::new();
    while reader.left() > 0 {
        let id = reader.u32().map_err(|_| Invalid::CutNumber)?;
        write(id, &mut names);
        // Both lists must fit into one message.
        if names.len() > LONGEST as usize / 4 {
            return Err(Exhausted::Names.into());
        }
    }
    Ok(names)
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
