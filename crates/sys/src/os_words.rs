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
