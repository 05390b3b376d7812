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
    use testkit::Seed;

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

    /// Random paths of few different bytes, so that slashes and dots meet often.
    fn random_path(seed: &mut Seed) -> Vec<u8> {
        let len = seed.below(9);
        (0..len)
            .map(|_| b"a.~/b/"[seed.below(6) as usize])
            .collect()
    }

    #[test]
    fn the_name_in_the_target_is_one_component_that_leads_nowhere_else() {
        let mut seed = Seed::new(1);
        for _ in 0..20_000 {
            let path = random_path(&mut seed);
            let text = String::from_utf8(path.clone()).expect("ASCII");
            let last = text.split('/').rfind(|part| !part.is_empty());
            assert_eq!(basename(&path), last.unwrap_or("/").as_bytes(), "{text}");
            let expected = last.filter(|name| !matches!(*name, "." | ".."));
            assert_eq!(name_in_target(&path), expected.map(str::as_bytes), "{text}");
        }
    }

    /// A path that the user wrote reaches the server as it is, apart from `~` of the own account.
    #[test]
    fn a_remote_path_is_sent_without_loss() {
        let mut seed = Seed::new(2);
        for _ in 0..20_000 {
            let path = random_path(&mut seed);
            let text = String::from_utf8_lossy(&path).into_owned();
            match written(&path) {
                RemotePathForm::Plain(sent) => {
                    assert!(
                        !sent.is_empty(),
                        "{text}: the server would refuse an empty path"
                    );
                    let own = text
                        .strip_prefix('~')
                        .map(|rest| rest.trim_start_matches('/'));
                    let expected = match own {
                        Some("") => ".",
                        Some(rest) => rest,
                        None if text.is_empty() => ".",
                        None => &text,
                    };
                    assert_eq!(sent, expected.as_bytes(), "{text}");
                }
                RemotePathForm::Home { user, below } => {
                    assert!(user.len() > 1 && !user.contains(&b'/'), "{text}");
                    assert!(!below.starts_with(b"/"), "{text}: it would be absolute");
                    let joined = [user, b"/".to_vec(), below].concat();
                    let parts = |path: &[u8]| -> Vec<Vec<u8>> {
                        let parts = path.split(|byte| *byte == b'/');
                        parts
                            .filter(|part| !part.is_empty())
                            .map(<[u8]>::to_vec)
                            .collect()
                    };
                    assert_eq!(parts(&joined), parts(&path), "{text}");
                }
            }
        }
    }
}
