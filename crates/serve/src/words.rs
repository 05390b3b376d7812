//! Splits a command into words where a shell would do nothing else.

/// Characters with a meaning to a shell anywhere.
const SPECIAL: &[u8] = b"$`{}()<>;&|!\n";
/// Characters with a meaning at the start of a word.
const SPECIAL_IN_FRONT: &[u8] = b"#";
/// Characters of file name patterns.
const WILD: &[u8] = b"*?[]";
/// Characters that a backslash quotes between double quotes (POSIX, 2.2.3); before others it is
/// literal.
const KEPT_IN_DOUBLE: &[u8] = b"$`\"\\";
/// Most words of a command.
const MOST: usize = 4096;

/// A word of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    /// The text without quotes.
    pub(crate) text: Vec<u8>,
    /// Offsets of unquoted pattern characters in the text.
    pub(crate) wild: Vec<usize>,
    /// The word begins with an unquoted `~`.
    pub(crate) home: bool,
}

/// Splits at blanks, as [`split_command`] does, and also marks patterns and home directories.
///
/// # Errors
/// A shell would do more; the reason continues a sentence about the command.
pub(crate) fn words(command: &[u8]) -> Result<Vec<Word>, &'static str> {
    let mut words: Vec<Word> = Vec::new();
    let mut word: Option<Word> = None;
    let mut bytes = command.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            0 => return Err("has a zero byte"),
            b' ' | b'\t' => words.extend(word.take()),
            b'\\' => match bytes.next() {
                None | Some(0 | b'\n') => return Err("ends in the middle of a word"),
                Some(kept) => word.get_or_insert_default().text.push(kept),
            },
            quote @ (b'\'' | b'"') => {
                quoted(quote, &mut bytes, &mut word.get_or_insert_default().text)?;
            }
            byte if SPECIAL.contains(&byte) => {
                return Err("has a character that is for a shell");
            }
            byte if word.is_none() && SPECIAL_IN_FRONT.contains(&byte) => {
                return Err("has a word that is for a shell");
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
            return Err("has too many words");
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
) -> Result<(), &'static str> {
    loop {
        match bytes.next() {
            None => return Err("has quotes that do not end"),
            Some(0) => return Err("has a zero byte"),
            Some(byte) if byte == quote => return Ok(()),
            Some(b'\\') if quote == b'"' => match bytes.next() {
                None | Some(0 | b'\n') => return Err("has quotes that do not end"),
                Some(byte) if KEPT_IN_DOUBLE.contains(&byte) => text.push(byte),
                Some(byte) => text.extend([b'\\', byte]),
            },
            Some(b'$' | b'`') if quote == b'"' => {
                return Err("has a character that is for a shell");
            }
            Some(byte) => text.push(byte),
        }
    }
}

/// Splits a command at blanks. Backslashes and quotes work as in a shell (POSIX, 2.2), which is how
/// rsync quotes names.
///
/// # Errors
/// A shell would do more than split; the reason continues a sentence about the command.
pub fn split_command(command: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    let plain = |word: Word| match (word.wild.is_empty(), word.home) {
        (false, _) => Err("has a character that is for a shell"),
        (true, true) => Err("has a word that is for a shell"),
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
