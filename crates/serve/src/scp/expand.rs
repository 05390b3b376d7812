//! What a shell makes of the words of `scp -f`: homes, and patterns of names.

use sftp::Request;

use super::{Files, joined};
use crate::words::Word;

/// So many names come of a word at most.
const MOST: usize = 100_000;

/// The paths that a word stands for, in their order; itself where there are none, as in a shell.
pub(super) fn expand(word: &Word, files: &mut Files<'_>) -> Vec<Vec<u8>> {
    let slash = word.text.iter().position(|byte| *byte == b'/');
    let (text, from) = match (word.home, slash.unwrap_or(word.text.len())) {
        (false, _) => (word.text.clone(), 0),
        (true, end) => {
            let path = &word.text[..end];
            match files.names(Request::ExpandPath { path }).as_deref() {
                Ok([home]) if end == word.text.len() => (home.clone(), home.len()),
                Ok([home]) => (joined(home, &word.text[end + 1..]), end + 1),
                _ => (word.text.clone(), 0),
            }
        }
    };
    if word.wild.is_empty() {
        return vec![text];
    }
    // Where what stood behind the home has gone.
    let moved = text.len() - (word.text.len() - from);
    let wild: Vec<usize> = word.wild.iter().map(|at| at - from + moved).collect();
    let mut found = matching(&text, &wild, files);
    found.sort();
    match found.is_empty() {
        true => vec![text],
        false => found,
    }
}

/// Paths there are, `wild` of whose bytes stand for others.
fn matching(text: &[u8], wild: &[usize], files: &mut Files<'_>) -> Vec<Vec<u8>> {
    let root = text.starts_with(b"/");
    let mut found: Vec<Vec<u8>> = vec![if root { b"/".to_vec() } else { Vec::new() }];
    let mut at = 0;
    for part in text.split(|byte| *byte == b'/') {
        let start = at;
        at += part.len() + 1;
        if part.is_empty() {
            continue;
        }
        let wild: Vec<usize> = wild
            .iter()
            .filter(|n| (start..start + part.len()).contains(n))
            .map(|n| n - start)
            .collect();
        found = match wild.is_empty() {
            true => found.iter().map(|path| joined(path, part)).collect(),
            false => {
                let pattern = pattern(part, &wild);
                let mut next = Vec::new();
                for path in &found {
                    for name in listed(path, files) {
                        let hidden = name.starts_with(b".") && part[0] != b'.';
                        if !hidden && next.len() < MOST && fast_glob::glob_match(&pattern, &name) {
                            next.push(joined(path, &name));
                        }
                    }
                }
                next
            }
        };
    }
    found.retain(|path| files.attrs(Request::Lstat { path }).is_ok());
    found
}

/// A part of a path as fast-glob has patterns: what is no pattern to a shell is quoted.
fn pattern(part: &[u8], wild: &[usize]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(part.len());
    for (at, byte) in part.iter().enumerate() {
        if !wild.contains(&at) && b"*?[]{}!\\".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern
}

/// The names in a directory, none where it cannot be listed.
fn listed(path: &[u8], files: &mut Files<'_>) -> Vec<Vec<u8>> {
    let path = if path.is_empty() { b"." } else { path };
    let Ok(handle) = files.handle(Request::Opendir { path }) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    while let Ok(mut names) = files.names(Request::Readdir { handle: &handle })
        && !names.is_empty()
        && all.len() < MOST
    {
        all.append(&mut names);
    }
    // It was only read.
    let _ = files.done(Request::Close { handle: &handle });
    all.retain(|name| name != b"." && name != b"..");
    all
}
