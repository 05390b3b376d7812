use serde::{Deserialize, Serialize};
use wire::{FieldReader, WireError};

/// Version, extensions and limits of a server; can be stored to predict them for the next
/// connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// The protocol version, 3.
    pub version: u32,
    /// Extension names and data, in the server's order.
    pub extensions: Vec<(Vec<u8>, Vec<u8>)>,
    /// Reply to limits@openssh.com, if it was sent.
    pub limits: Option<ServerLimits>,
}

/// Reply to limits@openssh.com (OpenSSH's PROTOCOL section 4.8); 0 means no known limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLimits {
    /// Maximum length of a message in bytes.
    pub packet: u64,
    /// Maximum bytes in the reply to a READ.
    pub read: u64,
    /// Maximum bytes of data in a WRITE.
    pub write: u64,
    /// Maximum number of open handles.
    pub handles: u64,
}

/// Extensions of OpenSSH's sftp-server in the order of its VERSION (sftp-server.c, process_init):
/// five since 7.0, then one or two more with 8.0, 8.5, 8.7, 9.0 and 9.1.
pub const OPENSSH_EXTENSIONS: [(&str, &str); 11] = [
    ("posix-rename@openssh.com", "1"),
    ("statvfs@openssh.com", "2"),
    ("fstatvfs@openssh.com", "2"),
    ("hardlink@openssh.com", "1"),
    ("fsync@openssh.com", "1"),
    ("lsetstat@openssh.com", "1"),
    ("limits@openssh.com", "1"),
    ("expand-path@openssh.com", "1"),
    ("copy-data", "1"),
    ("home-directory", "1"),
    ("users-groups-by-id@openssh.com", "1"),
];
const OPENSSH_SINCE_7_0: usize = 5;

/// Extensions that `longhaul serve` announces after OpenSSH's eleven (docs/PROTOCOL.md).
pub const OUR_EXTENSIONS: [(&str, &str); 17] = [
    ("put-file@longhaul", "1"),
    ("get-file@longhaul", "1"),
    ("list-tree@longhaul", "1"),
    ("hash@longhaul", "1"),
    ("write-zstd@longhaul", "1"),
    ("read-zstd@longhaul", "1"),
    ("attributes@longhaul", "1"),
    ("get-xattrs@longhaul", "1"),
    ("set-metadata@longhaul", "1"),
    ("ids-by-name@longhaul", "1"),
    ("read-sparse@longhaul", "1"),
    ("put-file-zstd@longhaul", "1"),
    ("get-file-zstd@longhaul", "1"),
    ("fsync-set@longhaul", "1"),
    ("hold-root@longhaul", "1"),
    ("expect@longhaul", "1"),
    ("expect-listed@longhaul", "1"),
];
/// Suffix of our extensions' names, future versions included.
const OURS: &[u8] = b"@longhaul";

/// Maximum number of extensions, more than any real server has; each pair takes at least eight
/// bytes on the wire.
const MAX_EXTENSIONS: usize = 256;

/// Names and data of extensions.
type Extensions = Vec<(Vec<u8>, Vec<u8>)>;

impl ServerInfo {
    /// Returns what `longhaul serve` of this version announces.
    pub fn of_longhaul() -> Self {
        let all = OPENSSH_EXTENSIONS.iter().chain(&OUR_EXTENSIONS);
        let pairs = all.map(|(name, data)| (name.as_bytes().to_vec(), data.as_bytes().to_vec()));
        Self {
            version: 3,
            extensions: pairs.collect(),
            limits: None,
        }
    }

    pub(crate) fn read_extensions(bytes: &[u8]) -> Result<Extensions, WireError> {
        let mut r = FieldReader::new(bytes);
        let mut extensions = Vec::new();
        while r.left() > 0 && extensions.len() < MAX_EXTENSIONS {
            extensions.push((r.string()?.to_vec(), r.string()?.to_vec()));
        }
        r.finish()?;
        Ok(extensions)
    }

    /// Returns the data of extension `name`, if it is announced.
    pub fn extension(&self, name: &str) -> Option<&[u8]> {
        self.extensions
            .iter()
            .find(|(n, _)| n == name.as_bytes())
            .map(|(_, data)| data.as_slice())
    }

    /// Returns true if extension `name` is announced in the version that this crate implements.
    pub fn has(&self, name: &str) -> bool {
        let mut known = OPENSSH_EXTENSIONS.iter().chain(&OUR_EXTENSIONS);
        let known = known.find(|(n, _)| *n == name);
        match (known, self.extension(name)) {
            (Some((_, version)), Some(data)) => data == version.as_bytes(),
            _ => false,
        }
    }

    /// Returns true if the extensions are those of OpenSSH's sftp-server: its list in its order,
    /// cut off where an older version ends; after the whole list a newer version may have further
    /// @openssh.com extensions.
    pub fn is_openssh_set(&self) -> bool {
        self.begins_as_openssh()
            && self.extensions.len() >= OPENSSH_SINCE_7_0
            && self
                .newer()
                .iter()
                .all(|(n, _)| n.ends_with(b"@openssh.com"))
    }

    /// Reports OpenSSH's sftp-server with requests switched off (`-P`, `-p`): five or more of its
    /// extensions in its order, and no others. It does not announce what it would refuse.
    pub fn is_restricted_openssh(&self) -> bool {
        let mut known = OPENSSH_EXTENSIONS.iter();
        let mut is_next = |(n, d): &(Vec<u8>, Vec<u8>)| {
            known.any(|(name, data)| n == name.as_bytes() && d == data.as_bytes())
        };
        self.version == 3
            && self.extensions.len() >= OPENSSH_SINCE_7_0
            && self.extensions.iter().all(&mut is_next)
    }

    /// Returns true for `longhaul serve` of any version: OpenSSH's whole list, then only our
    /// extensions.
    pub fn is_ours(&self) -> bool {
        let newer = self.newer();
        self.begins_as_openssh()
            && !newer.is_empty()
            && newer.iter().all(|(n, _)| n.ends_with(OURS))
    }

    /// Returns true for servers known to execute requests one after the other and to answer in that
    /// order: sftp-server.c and ours.
    pub fn answers_in_order(&self) -> bool {
        self.is_openssh_set() || self.is_ours()
    }

    fn begins_as_openssh(&self) -> bool {
        let known = OPENSSH_EXTENSIONS.iter();
        let mut pairs = self.extensions.iter().zip(known);
        self.version == 3
            && pairs.all(|((n, d), (name, data))| n == name.as_bytes() && d == data.as_bytes())
    }

    /// Returns the extensions after OpenSSH's list.
    fn newer(&self) -> &[(Vec<u8>, Vec<u8>)] {
        let newer = self.extensions.get(OPENSSH_EXTENSIONS.len()..);
        newer.unwrap_or_default()
    }

    /// Returns true if version and extensions are equal; limits are ignored.
    pub fn same_set(&self, other: &Self) -> bool {
        self.version == other.version && self.extensions == other.extensions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn openssh(n: usize) -> ServerInfo {
        ServerInfo {
            version: 3,
            extensions: OPENSSH_EXTENSIONS
                .iter()
                .take(n)
                .map(|(a, b)| (a.as_bytes().to_vec(), b.as_bytes().to_vec()))
                .collect(),
            limits: None,
        }
    }

    #[test]
    fn openssh_of_any_age_is_recognised() {
        for n in 0..=11 {
            assert_eq!(openssh(n).is_openssh_set(), n >= 5, "{n}");
        }
        let mut newer = openssh(11);
        newer
            .extensions
            .push((b"new@openssh.com".to_vec(), b"1".to_vec()));
        assert!(newer.is_openssh_set());
    }

    #[test]
    fn ours_is_known_in_any_version_and_taken_for_no_openssh() {
        let mut ours = openssh(11);
        assert!(!ours.is_ours() && ours.answers_in_order());
        for (name, data) in OUR_EXTENSIONS {
            let pair = (name.as_bytes().to_vec(), data.as_bytes().to_vec());
            ours.extensions.push(pair);
            assert!(ours.is_ours() && !ours.is_openssh_set() && ours.answers_in_order());
            assert!(ours.has(name));
        }
        ours.extensions
            .push((b"later@longhaul".to_vec(), b"7".to_vec()));
        assert!(ours.is_ours() && !ours.has("later@longhaul"));
        ours.extensions.push((b"x@example".to_vec(), b"1".to_vec()));
        assert!(!ours.is_ours() && !ours.answers_in_order());
        let mut other = openssh(10);
        other
            .extensions
            .push((b"put-file@longhaul".to_vec(), b"1".to_vec()));
        assert!(!other.is_ours(), "OpenSSH's list is cut short");
    }

    #[test]
    fn a_server_with_some_of_the_extensions_is_not_taken_for_openssh() {
        let mut other = openssh(11);
        other.extensions.swap(1, 3);
        assert!(!other.is_openssh_set() && !other.is_restricted_openssh());
        let mut restricted = openssh(11);
        restricted.extensions.remove(4);
        assert!(!restricted.is_openssh_set() && restricted.is_restricted_openssh());
        restricted.extensions.truncate(4);
        assert!(!restricted.is_restricted_openssh());
        let mut other = openssh(11);
        other
            .extensions
            .push((b"x@example".to_vec(), b"1".to_vec()));
        assert!(!other.is_openssh_set());
        let mut other = openssh(7);
        other.extensions[6] = (b"limits@openssh.com".to_vec(), b"2".to_vec());
        assert!(!other.is_openssh_set() && !other.has("limits@openssh.com"));
    }
}
