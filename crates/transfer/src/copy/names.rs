//! Path syntax as scp reads it.

/// Last component of a path, ignoring trailing slashes. Returns `/` for `/` and for an empty path.
pub(crate) fn basename(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |i| i + 1);
    let path = &path[..end];
    let start = path.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
    if path.is_empty() {
        b"/"
    } else {
        &path[start..]
    }
}

/// Name that a source gets inside the target directory; `None` for `.`, `..` and `/`, whose
/// contents are copied into the target itself.
pub(super) fn name_in_target(source: &[u8]) -> Option<&[u8]> {
    match basename(source) {
        b"." | b".." | b"/" => None,
        name => Some(name),
    }
}

/// Remote path as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RemotePathForm {
    /// Sent to the server unchanged: a session starts in the login directory.
    Plain(Vec<u8>),
    /// Path below the home directory of a user, which the server must expand.
    Home {
        /// `~user`.
        user: Vec<u8>,
        /// Path below it, without leading slashes; empty for the home directory itself.
        below: Vec<u8>,
    },
}

/// Classifies a remote path as scp's prepare_remote_path does.
pub(super) fn written(path: &[u8]) -> RemotePathForm {
    let plain = |path: &[u8]| RemotePathForm::Plain(path.to_vec());
    match path {
        b"" | b"~" => plain(b"."),
        [b'~', b'/', rest @ ..] => {
            let skip = rest.iter().take_while(|b| **b == b'/').count();
            let rest = &rest[skip..];
            plain(if rest.is_empty() { b"." } else { rest })
        }
        [b'~', ..] => {
            let end = path.iter().position(|b| *b == b'/').unwrap_or(path.len());
            let (user, below) = path.split_at(end);
            let skip = below.iter().take_while(|b| **b == b'/').count();
            RemotePathForm::Home {
                user: user.to_vec(),
                below: below[skip..].to_vec(),
            }
        }
        _ => plain(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_component_is_found() {
        for (path, name) in [
            (&b"a/b"[..], &b"b"[..]),
            (b"a/b//", b"b"),
            (b"b", b"b"),
            (b"/", b"/"),
            (b"", b"/"),
            (b"a/..", b".."),
        ] {
            assert_eq!(basename(path), name);
        }
        assert_eq!(name_in_target(b"a/.."), None);
        assert_eq!(name_in_target(b"x/"), Some(&b"x"[..]));
    }

    #[test]
    fn the_login_directory_needs_no_question() {
        let plain = |p: &[u8]| RemotePathForm::Plain(p.to_vec());
        assert_eq!(written(b""), plain(b"."));
        assert_eq!(written(b"~"), plain(b"."));
        assert_eq!(written(b"~//"), plain(b"."));
        assert_eq!(written(b"~//a b"), plain(b"a b"));
        assert_eq!(written(b"/x/~"), plain(b"/x/~"));
        for (path, below) in [
            (&b"~joe//x/*"[..], &b"x/*"[..]),
            (b"~joe", b""),
            (b"~joe/", b""),
        ] {
            let (user, below) = (b"~joe".to_vec(), below.to_vec());
            assert_eq!(written(path), RemotePathForm::Home { user, below });
        }
    }
}
