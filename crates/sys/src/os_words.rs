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

/// Returns why a program cannot listen at an address, and what to do.
pub fn listen_words(error: &io::Error) -> String {
    let words = os_words(error);
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => "another program listens there: end it, or choose another port",
        io::ErrorKind::AddrNotAvailable => "name an address of this machine",
        io::ErrorKind::PermissionDenied => "ports below 1024 need root or CAP_NET_BIND_SERVICE",
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
}
