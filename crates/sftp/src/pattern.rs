//! Remote patterns as in glob(3): `*`, `?` and `[...]` within a component, `\` to quote a
//! character; a leading dot is matched only by a dot.

/// Component of a remote path, which may be a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathComponent {
    /// Literal name.
    Name(Vec<u8>),
    /// Pattern in the syntax of [`fast_glob`].
    Pattern(NamePattern),
}

/// Pattern for one component of a path, to match against the names of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern {
    glob: Vec<u8>,
    dot: bool,
}

impl NamePattern {
    /// True if the pattern matches `name`.
    pub fn matches(&self, name: &[u8]) -> bool {
        (self.dot || !name.starts_with(b".")) && fast_glob::glob_match(&self.glob, name)
    }
}

/// Splits `path` at its slashes. Returns `None` if it contains no pattern. An absolute path begins
/// with an empty name.
pub fn parse(path: &[u8]) -> Option<Vec<PathComponent>> {
    let components: Vec<PathComponent> = path.split(|b| *b == b'/').map(component).collect();
    components
        .iter()
        .any(|c| matches!(c, PathComponent::Pattern(_)))
        .then_some(components)
}

/// Removes the backslashes that only quote the next character of `path`.
pub fn unescape(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut bytes = path.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => plain.push(*bytes.next().unwrap_or(byte)),
            _ => plain.push(*byte),
        }
    }
    plain
}

fn component(text: &[u8]) -> PathComponent {
    if !is_pattern(text) {
        return PathComponent::Name(unescape(text));
    }
    let mut glob = Vec::with_capacity(text.len() + 4);
    let mut bytes = text.iter().copied().peekable();
    let mut in_class = false;
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => {
                glob.push(b'\\');
                glob.push(bytes.next().unwrap_or(b'\\'));
            }
            // fast_glob's `**` would match across slashes, which names do not have, and is slower.
            b'*' if !in_class => {
                while bytes.next_if_eq(&b'*').is_some() {}
                glob.push(b'*');
            }
            b'[' => {
                in_class = true;
                glob.push(byte);
            }
            b']' => {
                in_class = false;
                glob.push(byte);
            }
            // fast_glob has alternatives and negation, which glob(3) lacks, so quote them.
            b'{' | b'}' if !in_class => glob.extend([b'\\', byte]),
            b'!' if glob.is_empty() => glob.extend([b'\\', byte]),
            byte => glob.push(byte),
        }
    }
    let dot = text.starts_with(b".");
    PathComponent::Pattern(NamePattern { glob, dot })
}

fn is_pattern(text: &[u8]) -> bool {
    let mut open = false;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => {
                bytes.next();
            }
            b'*' | b'?' => return true,
            b'[' => open = true,
            b']' if open => return true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        match component(pattern.as_bytes()) {
            PathComponent::Pattern(pattern) => pattern.matches(name.as_bytes()),
            PathComponent::Name(own) => own == name.as_bytes(),
        }
    }

    #[test]
    fn patterns_are_those_of_glob() {
        for (pattern, name, does) in [
            ("*", "a", true),
            ("*", ".a", false),
            (".*", ".a", true),
            ("**.c", "x.c", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("{a,b}*", "a", false),
            ("{a,b}*", "{a,b}c", true),
            ("!*", "a", false),
            ("!*", "!a", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("a[1", "a[1", true),
            ("\\[*", "[x", true),
        ] {
            assert_eq!(matches(pattern, name), does, "{pattern} {name}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_match() {
        let PathComponent::Pattern(pattern) = component(b"\xff*") else {
            panic!("a pattern");
        };
        assert!(pattern.matches(b"\xff\xfe"));
        assert!(!pattern.matches(b"\xfe"));
    }

    #[test]
    fn a_plain_path_is_no_pattern() {
        assert_eq!(parse(b"/a/b\\*c"), None);
        assert_eq!(unescape(b"/a/b\\*c\\"), b"/a/b*c\\");
        assert_eq!(parse(b"/a/*").map(|c| c.len()), Some(3));
    }
}
