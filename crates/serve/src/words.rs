//! Splits a command into words where a shell would do nothing else.

use std::fmt;

/// Characters with a meaning to a shell anywhere.
const SPECIAL: &[u8] = b"$`{}()<>;&|!\n";
/// Characters with a meaning at the start of a word.
const SPECIAL_IN_FRONT: &[u8] = b"#";
/// Characters of file name patterns.
const WILD: &[u8] = b"*?[]";
/// Characters that a backslash quotes between double quotes (POSIX, 2.2.3); before others it is
/// literal.
const KEPT_IN_DOUBLE: &[u8] = b"$`\"\\";
/// Maximum number of words of a command.
const MOST: usize = 4096;

/// Reason why a command needs a shell, or cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandSplitError {
    /// The command has a zero byte.
    ZeroByte,
    /// The command ends behind a backslash.
    CutWord,
    /// The command has quotes that do not end.
    OpenQuotes,
    /// The command has a character with a meaning to a shell.
    ShellCharacter,
    /// The command has a word with a meaning to a shell.
    ShellWord,
    /// The command has more words than this server splits.
    TooManyWords,
}

/// Continues a sentence about the command.
impl fmt::Display for CommandSplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroByte => "has a NUL byte",
            Self::CutWord => "ends with a backslash, or has one before a newline or NUL byte",
            Self::OpenQuotes => "has unbalanced quotes",
            Self::ShellCharacter => "has a shell metacharacter",
            Self::ShellWord => "has a shell keyword",
            Self::TooManyWords => "has too many words",
        })
    }
}

impl std::error::Error for CommandSplitError {}

/// A word of a client's command after quotes are removed, with the places that are still subject to
/// expansion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandWord {
    /// The text without quotes.
    text: Vec<u8>,
    /// Offsets of unquoted pattern characters in the text.
    wild: Vec<usize>,
    /// The word begins with an unquoted `~`.
    home: bool,
}

impl CommandWord {
    /// The text without quotes.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Takes the word apart: its text, the offsets of unquoted pattern characters in it, and true
    /// if it begins with an unquoted `~`.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Vec<usize>, bool) {
        (self.text, self.wild, self.home)
    }
}

/// Splits at blanks, as [`split_command`] does, and also marks patterns and home directories.
///
/// # Errors
/// A shell would do more than split.
pub(crate) fn words(command: &[u8]) -> Result<Vec<CommandWord>, CommandSplitError> {
    let mut words: Vec<CommandWord> = Vec::new();
    let mut word: Option<CommandWord> = None;
    let mut bytes = command.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            0 => return Err(CommandSplitError::ZeroByte),
            b' ' | b'\t' => words.extend(word.take()),
            b'\\' => match bytes.next() {
                None | Some(0 | b'\n') => return Err(CommandSplitError::CutWord),
                Some(kept) => word.get_or_insert_default().text.push(kept),
            },
            quote @ (b'\'' | b'"') => {
                quoted(quote, &mut bytes, &mut word.get_or_insert_default().text)?;
            }
            byte if SPECIAL.contains(&byte) => {
                return Err(CommandSplitError::ShellCharacter);
            }
            byte if word.is_none() && SPECIAL_IN_FRONT.contains(&byte) => {
                return Err(CommandSplitError::ShellWord);
            }
            byte => {
                let first = word.is_none();
                let word = word.get_or_insert_default();
                word.home |= first && byte == b'~';
                if WILD.contains(&byte) {
                    word.wild.push(word.text.len());
                }
                word.text.push(byte);
            }
        }
        if words.len() > MOST {
            return Err(CommandSplitError::TooManyWords);
        }
    }
    words.extend(word);
    Ok(words)
}

/// Appends the text up to the closing `quote`.
fn quoted(
    quote: u8,
    bytes: &mut impl Iterator<Item = u8>,
    text: &mut Vec<u8>,
) -> Result<(), CommandSplitError> {
    loop {
        match bytes.next() {
            None => return Err(CommandSplitError::OpenQuotes),
            Some(0) => return Err(CommandSplitError::ZeroByte),
            Some(byte) if byte == quote => return Ok(()),
            Some(b'\\') if quote == b'"' => match bytes.next() {
                None | Some(0 | b'\n') => return Err(CommandSplitError::OpenQuotes),
                Some(byte) if KEPT_IN_DOUBLE.contains(&byte) => text.push(byte),
                Some(byte) => text.extend([b'\\', byte]),
            },
            Some(b'$' | b'`') if quote == b'"' => {
                return Err(CommandSplitError::ShellCharacter);
            }
            Some(byte) => text.push(byte),
        }
    }
}

/// Splits a command at blanks. Backslashes and quotes work as in a shell (POSIX, 2.2), which is how
/// rsync quotes names.
///
/// # Errors
/// A shell would do more than split.
pub fn split_command(command: &[u8]) -> Result<Vec<Vec<u8>>, CommandSplitError> {
    let plain = |word: CommandWord| match (word.wild.is_empty(), word.home) {
        (false, _) => Err(CommandSplitError::ShellCharacter),
        (true, true) => Err(CommandSplitError::ShellWord),
        (true, false) => Ok(word.text),
    };
    words(command)?.into_iter().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_a_shell_or_none() {
        for (command, wanted) in [
            ("", Some(&[][..])),
            ("rsync", Some(&["rsync"])),
            (
                "rsync --server -vlogDtprze.iLsfxCIvu --log-format=%i . /a/b~",
                Some(&[
                    "rsync",
                    "--server",
                    "-vlogDtprze.iLsfxCIvu",
                    "--log-format=%i",
                    ".",
                    "/a/b~",
                ]),
            ),
            ("  a \t b  ", Some(&["a", "b"])),
            (r"a b\ c\*\$x \~ \#d", Some(&["a", "b c*$x", "~", "#d"])),
            (r"'a b'c '' '$x*\'", Some(&["a bc", "", r"$x*\"])),
            (r"a\\", Some(&[r"a\"])),
            (r"a\", None),
            ("a\\\nb", None),
            ("a 'b", None),
            ("a;b", None),
            ("a & b", None),
            ("a|b", None),
            ("a $HOME", None),
            ("a `id`", None),
            (r#"a "b c"d "" "\$\x""#, Some(&["a", "b cd", "", r"$\x"])),
            ("a \"b", None),
            ("a \"$b\"", None),
            ("a \"`b`\"", None),
            ("a \"b\\", None),
            ("a *.txt", None),
            ("a b?", None),
            ("a [x]", None),
            ("a {b,c}", None),
            ("a (b)", None),
            ("a >b", None),
            ("a <b", None),
            ("a ~/b", None),
            ("a #b", None),
            ("a\nb", None),
            ("a !b", None),
            ("a b\0", None),
            ("a 'b\0'", None),
        ] {
            let words = split_command(command.as_bytes()).ok();
            let wanted = wanted.map(|w| w.iter().map(|w| w.as_bytes().to_vec()).collect());
            assert_eq!(words, wanted, "{command:?}");
        }
        assert!(split_command("a ".repeat(MOST + 2).as_bytes()).is_err());
    }

    #[test]
    fn patterns_and_homes_are_told_from_what_is_quoted() {
        for (word, wild, home) in [
            ("a*b?[c]", &[1, 3, 4, 6][..], false),
            (r"\*'?'*", &[2], false),
            ("~/x", &[], true),
            (r"\~/x", &[], false),
            ("'~'/x", &[], false),
            ("a~", &[], false),
        ] {
            let words = words(word.as_bytes()).unwrap();
            let [found] = words.as_slice() else {
                panic!("{words:?}");
            };
            assert_eq!((&found.wild[..], found.home), (wild, home), "{word}");
        }
    }
}
