//! The words of a command, which no shell has to take apart.

/// What means something to a shell wherever it stands.
const SPECIAL: &[u8] = b"\"$`*?[]{}()<>;&|!\n";
/// What does at the front of a word.
const SPECIAL_IN_FRONT: &[u8] = b"~#";
/// No command has more.
const MOST: usize = 4096;

/// Splits at blanks. A backslash and single quotes keep what they keep in a shell (POSIX, 2.2.1 and
/// 2.2.2), which is how rsync writes names.
///
/// # Errors
/// A shell would do more than split; the reason is said of the command.
pub fn split_command(command: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = command.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            0 => return Err("has a zero byte"),
            b' ' | b'\t' => words.extend(word.take()),
            b'\\' => match bytes.next() {
                None | Some(0 | b'\n') => return Err("ends in the middle of a word"),
                Some(kept) => word.get_or_insert_default().push(kept),
            },
            b'\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match bytes.next() {
                        None => return Err("has quotes that do not end"),
                        Some(0) => return Err("has a zero byte"),
                        Some(b'\'') => break,
                        Some(kept) => word.push(kept),
                    }
                }
            }
            byte if SPECIAL.contains(&byte) => {
                return Err("has a character that is for a shell");
            }
            byte if word.is_none() && SPECIAL_IN_FRONT.contains(&byte) => {
                return Err("has a word that is for a shell");
            }
            byte => word.get_or_insert_default().push(byte),
        }
        if words.len() > MOST {
            return Err("has too many words");
        }
    }
    words.extend(word);
    Ok(words)
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
            ("a \"b\"", None),
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
}
