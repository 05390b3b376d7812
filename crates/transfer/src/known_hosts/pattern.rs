//! Matches host names against OpenSSH's wildcard patterns.

/// True if `name` matches `pattern`, in which `*` is any text and `?` any character (OpenSSH's
/// match.c `match_pattern`).
///
/// Memory is linear and time at most quadratic, so that a line of known_hosts cannot cause a hang.
pub fn matches_pattern(name: &str, pattern: &str) -> bool {
    matches_bytes(name.as_bytes(), pattern.as_bytes())
}

fn matches_bytes(name: &[u8], pattern: &[u8]) -> bool {
    let (mut n, mut p) = (0, 0);
    // The position to continue from if the text after the last `*` does not match.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((n, p + 1));
                p += 1;
            }
            Some(c) if *c == b'?' || Some(c) == name.get(n) => {
                n += 1;
                p += 1;
            }
            _ => match retry {
                Some((from, after)) => {
                    retry = Some((from + 1, after));
                    n = from + 1;
                    p = after;
                }
                None => return false,
            },
        }
    }
    pattern
        .get(p..)
        .is_some_and(|rest| rest.iter().all(|c| *c == b'*'))
}

/// True if `name` matches one of the comma-separated patterns and none of those with `!`.
pub(super) fn matches_list(name: &[u8], patterns: &[u8]) -> bool {
    let mut found = false;
    for pattern in patterns.split(|b| *b == b',') {
        match pattern.strip_prefix(b"!") {
            Some(not) if matches_bytes(name, not) => return false,
            None if matches_bytes(name, pattern) => found = true,
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards() {
        for (name, pattern, fits) in [
            ("host", "host", true),
            ("host", "hos", false),
            ("host", "host?", false),
            ("host", "h?s?", true),
            ("host", "*", true),
            ("", "*", true),
            ("", "", true),
            ("", "?", false),
            ("a.example.org", "*.example.org", true),
            ("example.org", "*.example.org", false),
            ("aXbXc", "a*b*c", true),
            ("aXbXcd", "a*b*c", false),
            ("mississippi", "m*iss*ip*i", true),
            ("[h]:22", "[h]:*", true),
        ] {
            assert_eq!(matches_pattern(name, pattern), fits, "{name} {pattern}");
        }
        let name = "a".repeat(2000);
        let pattern = format!("{}b", "a*".repeat(500));
        assert!(!matches_pattern(&name, &pattern));
    }

    #[test]
    fn negation_wins_wherever_it_stands() {
        assert!(matches_list(b"a.org", b"b.org,*.org"));
        assert!(!matches_list(b"a.org", b"*.org,!a.org"));
        assert!(!matches_list(b"a.org", b"!a.org,*.org"));
        assert!(!matches_list(b"b.org", b"!a.org"));
    }
}
