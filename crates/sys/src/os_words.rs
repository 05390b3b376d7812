//! Error texts of the operating system as parts of a sentence.

use std::io;

/// Returns the system's error text without the number: `permission denied`.
pub fn os_words(error: &io::Error) -> String {
    let text = error.to_string();
    let text = match text.find(" (os error") {
        Some(at) => &text[..at],
        None => &text,
    };
    let mut chars = text.chars();
    match chars.next() {
        // Lower-cases "Is a directory", but keeps "input/output error" as it is.
        Some(first)
            if chars
                .as_str()
                .starts_with(|c: char| c.is_lowercase() || c == ' ') =>
        {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}

/// Returns why a name cannot be resolved, without the introduction that Rust adds to the words of
/// getaddrinfo(3).
pub fn lookup_words(error: &io::Error) -> String {
    let words = error.to_string();
    let why = words.strip_prefix("failed to lookup address information: ");
    why.unwrap_or(&words).to_owned()
}

/// Kind of an address at which a program listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenAddressKind {
    /// A port of an IP address.
    Port,
    /// The path of a UNIX socket.
    Path,
}

/// Returns why a program cannot listen at an address of this kind, and what to do.
pub fn listen_words(kind: ListenAddressKind, error: &io::Error) -> String {
    use ListenAddressKind::{Path, Port};
    let words = os_words(error);
    let advice = match (error.kind(), kind) {
        (io::ErrorKind::AddrInUse, Port) => {
            "another program listens there: end it, or choose another port"
        }
        (io::ErrorKind::AddrInUse, Path) => {
            "another program listens there: end it, or choose another path"
        }
        (io::ErrorKind::AddrNotAvailable, Port) => "name an address of this machine",
        (io::ErrorKind::PermissionDenied, Port) => {
            "ports below 1024 need root or CAP_NET_BIND_SERVICE"
        }
        (io::ErrorKind::PermissionDenied, Path) => {
            "this user needs write permission on its directory"
        }
        (io::ErrorKind::NotFound, Path) => {
            return "its directory does not exist: create it".to_owned();
        }
        _ => return words,
    };
    format!("{words}: {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn errors_read_as_part_of_a_sentence() {
        assert_eq!(os_words(&Errno::ACCESS.into()), "permission denied");
        assert_eq!(os_words(&Errno::ISDIR.into()), "is a directory");
        assert_eq!(os_words(&Errno::IO.into()), "input/output error");
        assert_eq!(os_words(&io::Error::other("Own words")), "own words");
    }

    /// Bug: a directory without write permission for a UNIX socket was explained with ports below 1024.
    #[test]
    fn the_path_of_a_socket_was_explained_with_ports() {
        for errno in [Errno::ACCESS, Errno::ADDRINUSE, Errno::NOENT] {
            let said = listen_words(ListenAddressKind::Path, &errno.into());
            assert!(!said.contains("port"), "{said}");
        }
        let said = listen_words(ListenAddressKind::Path, &Errno::NOENT.into());
        assert_eq!(said, "its directory does not exist: create it");
        let said = listen_words(ListenAddressKind::Port, &Errno::ACCESS.into());
        assert!(said.contains("below 1024"), "{said}");
    }
}
