use crate::{Field, FieldReader, WireError};

/// A comma-separated list of names in printable ASCII (RFC 4251 sections 5 and 6).
///
/// Names are not empty, but a list may end in a comma, since libssh 0.10 ends its list of ciphers
/// that way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameList<'a>(&'a str);

impl<'a> NameList<'a> {
    /// Creates a list from names already joined by commas.
    ///
    /// Fails if a name is empty or not printable ASCII.
    pub fn new(joined: &'a str) -> Result<Self, WireError> {
        let ok = joined.is_empty()
            || (joined.bytes().all(|b| (0x21..0x7f).contains(&b))
                && joined
                    .strip_suffix(',')
                    .unwrap_or(joined)
                    .split(',')
                    .all(|name| !name.is_empty()));
        if ok {
            Ok(Self(joined))
        } else {
            Err(WireError::BadNameList)
        }
    }

    /// Iterates over the names in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.0.split(',').filter(|name| !name.is_empty())
    }

    /// Returns the first name, which is the sender's preferred one.
    pub fn first(&self) -> Option<&'a str> {
        self.iter().next()
    }

    /// Returns true if the list has `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.iter().any(|n| n == name)
    }

    /// Returns the list as encoded on the wire.
    pub fn as_str(&self) -> &'a str {
        self.0
    }
}

impl<'a> Field<'a> for NameList<'a> {
    fn read(r: &mut FieldReader<'a>) -> Result<Self, WireError> {
        let joined = std::str::from_utf8(r.string()?).map_err(|_| WireError::BadNameList)?;
        Self::new(joined)
    }
    fn write(&self, out: &mut Vec<u8>) {
        self.0.as_bytes().write(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_names_and_control_bytes_are_refused() {
        assert!(NameList::new("a,,b").is_err());
        assert!(NameList::new(",a").is_err());
        assert!(NameList::new("a,,").is_err());
        assert!(NameList::new(",").is_err());
        assert!(NameList::new("a\x1b[2J").is_err());
        assert_eq!(NameList::new("").map(|l| l.iter().count()), Ok(0));
        assert_eq!(NameList::new("a,b").map(|l| l.first()), Ok(Some("a")));
        assert_eq!(NameList::new("a,b,").map(|l| l.iter().count()), Ok(2));
    }
}
