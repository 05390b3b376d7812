//! Checks that the files named in a configuration exist, if a server with these flags needs them.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serve::sshd::{AllowedProgram, unknown_token};

use super::options::Options;
use crate::flags::low::ServeArgs;

/// Lists missing files: the option, its index among options of that name, and a sentence. A file
/// that this process may not access is passed over, since the server may run as another user.
pub(super) fn missing(options: &Options, args: &ServeArgs) -> Vec<(&'static str, usize, String)> {
    let mut all = Vec::new();
    if args.host_keys.is_empty() {
        let files = options.host_keys.iter().flatten();
        let wrongs = files.filter_map(|file| file_or_why("host-keys", file).err());
        all.extend(wrongs.map(|what| ("host-keys", 0, what)));
    }
    if let Some(file) = &options.trusted_user_ca_keys {
        let name = "trusted-user-ca-keys";
        all.extend(file_or_why(name, file).err().map(|what| (name, 0, what)));
    }
    if let (None, Some(file)) = (&args.authorized_keys, &options.authorized_keys) {
        let name = "authorized-keys";
        let wrong = known_tokens(name, file).err();
        all.extend(wrong.map(|what| (name, 0, what)));
    }
    if let (None, Some(root)) = (&args.root, &options.root) {
        all.extend(root_or_why(root).err().map(|what| ("root", 0, what)));
    }
    for (nth, key) in options.key.iter().flatten().enumerate() {
        let wrong = key.root.as_ref().and_then(|root| root_or_why(root).err());
        all.extend(wrong.map(|what| ("[[key]]", nth, what)));
    }
    if args.allow.is_empty() {
        let path = env::var_os("PATH");
        let names = options.allow.iter().flatten();
        let wrongs = names.filter_map(|name| AllowedProgram::find(name, path.as_deref()).err());
        all.extend(wrongs.map(|what| ("allow", 0, what)));
    }
    all
}

/// Checks that the pattern contains only known tokens.
pub(super) fn known_tokens(name: &str, pattern: &Path) -> Result<(), String> {
    match unknown_token(pattern) {
        None => Ok(()),
        Some(token) => Err(format!(
            "{name}: unknown token {} in {}: use %h, %u, or %% for %",
            wire::escape::name(token.as_bytes()),
            pattern.display()
        )),
    }
}

fn root_or_why(root: &Path) -> Result<(), String> {
    known_tokens("root", root)?;
    let wrong = |why: &str| Err(format!("root: {} {why}", root.display()));
    match fs::metadata(root) {
        _ if is_pattern(root) || root.is_relative() => Ok(()),
        Ok(meta) if !meta.is_dir() => wrong("is not a directory"),
        Err(e) if is_missing(e.kind()) => wrong("does not exist"),
        _ => Ok(()),
    }
}

fn file_or_why(name: &str, file: &Path) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("{name}: {} {why}", file.display()));
    match fs::metadata(file) {
        _ if file.is_relative() => Ok(()),
        Ok(meta) if meta.is_dir() => wrong("is a directory"),
        Err(e) if is_missing(e.kind()) => wrong("does not exist"),
        _ => Ok(()),
    }
}

fn is_missing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Returns true if the path has tokens, and so differs between accounts.
pub(super) fn is_pattern(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().contains(&b'%')
}
