//! Fuzzes the splitting of commands that clients ask a server to run, with a shell as the oracle.

use std::process::Command;

use fuzz::{mutate, parse, some_bytes};
use serve::sshd::split_command;

/// Parts of commands. A shell can do nothing with them outside its directory.
const PIECES: &[&str] = &[
    "a", "b c", "~", "#", "\\", "'", "\"", "$a", "`", "*", "?", "=", " ", "\t", "\n", ";", "&",
    "|", "%i", "--x=", ".", "{a,b}", "!", "^", ":~", "-", "\u{e9}",
];

#[test]
fn words_are_those_of_a_shell() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut split = 0;
    parse(512, |u| {
        let pieces: Vec<&str> = (0..u.int_in_range(0..=6)?)
            .map(|_| u.choose(PIECES).copied())
            .collect::<Result<_, _>>()?;
        let command = pieces.concat();
        let Ok(words) = split_command(command.as_bytes()) else {
            return Ok(());
        };
        split += 1;
        let shell = Command::new("sh")
            .args(["-c", &format!("printf '<%s>' . {command}")])
            .current_dir(folder.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", "/nowhere")
            .output()
            .expect("a shell");
        let mut wanted = b"<.>".to_vec();
        for word in words {
            wanted.extend([b"<", word.as_slice(), b">"].concat());
        }
        assert_eq!(shell.stdout, wanted, "{command:?}");
        Ok(())
    });
    assert!(split > 20, "{split} of them were split");
}

#[test]
fn any_bytes_are_split_or_refused() {
    parse(512, |u| {
        let bytes = match u.arbitrary()? {
            true => some_bytes(u)?,
            false => mutate(u, b"rsync --server -vlogDtpre.iLsfxCIvu . 'it'\\''s' a\\ b")?,
        };
        if let Ok(words) = split_command(&bytes) {
            let kept: usize = words.iter().map(Vec::len).sum();
            assert!(kept <= bytes.len());
            assert!(words.iter().all(|word| !word.contains(&0)));
        }
        Ok(())
    });
}
