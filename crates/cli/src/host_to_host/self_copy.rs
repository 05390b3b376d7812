//! Compares the paths of a copy between two names that may lead to one machine.

/// True if `target`, a path as it is written in an operand, may lie in the directory `source` or be
/// it. Symlinks are not followed. Paths that cannot be compared without the host may overlap: an
/// absolute and a relative one, those with `..`, and those in the home of another account (`~NAME`).
pub(super) fn may_hold(source: &[u8], target: &[u8]) -> bool {
    let (source, target) = (OperandPath::of(source), OperandPath::of(target));
    let is_unknown = |path: &OperandPath<'_>| path.climbs() || path.is_of_another();
    if source.absolute != target.absolute || is_unknown(&source) || is_unknown(&target) {
        return true;
    }
    let mut inner = target.components.iter();
    source.components.iter().all(|component| {
        let is_pattern = component.iter().any(|byte| b"*?[\\".contains(byte));
        inner
            .next()
            .is_some_and(|other| is_pattern || other == component)
    })
}

/// Components of an operand's path.
struct OperandPath<'a> {
    absolute: bool,
    components: Vec<&'a [u8]>,
}

impl<'a> OperandPath<'a> {
    fn of(path: &'a [u8]) -> Self {
        let rest = match path {
            b"~" => b"",
            path => path.strip_prefix(b"~/").unwrap_or(path),
        };
        let components = rest.split(|byte| *byte == b'/');
        Self {
            absolute: rest.starts_with(b"/"),
            components: components
                .filter(|part| !part.is_empty() && *part != b".")
                .collect(),
        }
    }

    fn climbs(&self) -> bool {
        self.components.contains(&&b".."[..])
    }

    /// True for a path in the home of another account.
    fn is_of_another(&self) -> bool {
        self.components
            .first()
            .is_some_and(|part| part.starts_with(b"~"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_in_a_source_is_found_and_one_beside_it_is_not() {
        for (source, target) in [
            ("/srv/d", "/srv/d/sub"),
            ("/srv/d/", "/srv//./d"),
            ("d", "~/d/sub"),
            ("", "sub"),
            ("~", ""),
            ("/srv/*", "/srv/d/sub"),
            ("/srv/d", "d/sub"),
            ("d/../e", "/x"),
            ("d", "~alice/d/sub"),
            ("/", "/x"),
        ] {
            assert!(
                may_hold(source.as_bytes(), target.as_bytes()),
                "{source} {target}"
            );
        }
        for (source, target) in [
            ("/srv/d", "/srv"),
            ("/srv/d", "/srv/dd"),
            ("d", "e/d"),
            ("/srv/*", "/srv"),
        ] {
            assert!(
                !may_hold(source.as_bytes(), target.as_bytes()),
                "{source} {target}"
            );
        }
    }
}
