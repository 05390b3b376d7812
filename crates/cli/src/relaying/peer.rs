//! The keys of facing relays: our own and those of peers.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use relay::peer::{KnownPeers, PairRelaySettings, StripeCount, is_fingerprint, new_key};
use zeroize::Zeroizing;

use super::paths::LearnedStripeCounts;
use crate::command_error::CommandError;
use crate::flags::table::PairArgs;

/// Builds the configuration of a pair from the arguments.
///
/// # Errors
/// A key cannot be read or created, or no peer would be admitted.
pub(super) fn settle(args: &PairArgs) -> Result<PairRelaySettings, CommandError> {
    let (file, key) = own_key(args.key.as_deref())?;
    let mut known = KnownPeers::default();
    for text in &args.allow {
        add(&mut known, text)?;
    }
    let file_of_known = known_pairs();
    if let Some(path) = &file_of_known {
        match fs::read_to_string(path) {
            Ok(text) => known
                .add(&text)
                .map_err(|why| format!("{}: {why}", path.display()))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(format!("{}: {e}", path.display()).into()),
        }
    }
    let is_empty = known.is_empty();
    if args.accept_new {
        let path = file_of_known
            .as_ref()
            .ok_or("cannot find the home directory, which holds known_pairs: use --pair-allow")?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        known.learn(path.clone());
    }
    let facing = PairRelaySettings::new(key.as_bytes(), known);
    let mut facing = facing.map_err(|why| format!("{}: {why}", file.display()))?;
    if is_empty && !args.accept_new {
        let path = file_of_known
            .as_deref()
            .unwrap_or_else(|| Path::new("known_pairs"));
        return Err(format!(
            "no relay at the other end is trusted yet: add its fingerprint, which it logs at its \
             start (SHA256:...), to {}, or give it to longhaul relay as --pair-allow. The other \
             relay needs this one's: {}",
            path.display(),
            facing.fingerprint()
        )
        .into());
    }
    if let Some(stripes) = args.stripes {
        facing.stripes = StripeCount::Fixed(stripes);
    }
    if let Some(buffer) = args.buffer {
        facing.most = buffer;
    }
    facing.zstd = !args.plain;
    facing.explain = args.explain;
    facing.paths = Some(Arc::new(LearnedStripeCounts::new()));
    Ok(facing)
}

/// Our key, created if missing.
fn own_key(named: Option<&Path>) -> Result<(PathBuf, Zeroizing<String>), CommandError> {
    let usual = || {
        transfer::LonghaulDirKind::State
            .path()
            .map(|folder| folder.join("pair_key"))
    };
    let file = named.map(Path::to_owned).or_else(usual);
    let file = file.ok_or("cannot find the home directory for a key: use --pair-key FILE")?;
    if !file.exists() {
        let made = serve::sshd::keep_new(&file, new_key()?.as_bytes());
        made.map_err(|e| {
            format!(
                "{}: cannot create a key for this relay: {e}; use --pair-key for another file",
                file.display()
            )
        })?;
    }
    let wrong = |e: io::Error| format!("{}: {e}", file.display());
    let mode = fs::metadata(&file).map_err(wrong)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(format!(
            "{}: other users can read this key: run chmod 600 on it",
            file.display()
        )
        .into());
    }
    let text = fs::read_to_string(&file).map_err(wrong)?;
    Ok((file, Zeroizing::new(text)))
}

/// Adds a fingerprint, or a file of them.
fn add(known: &mut KnownPeers, text: &str) -> Result<(), CommandError> {
    if is_fingerprint(text) {
        return Ok(known.add(text)?);
    }
    let lines = fs::read_to_string(text).map_err(|e| {
        format!(
            "--pair-allow: '{text}' is neither a fingerprint (SHA256:...) nor a readable file: \
             {e}"
        )
    })?;
    known.add(&lines).map_err(|why| format!("{text}: {why}"))?;
    Ok(())
}

/// The path `$XDG_CONFIG_HOME/longhaul/known_pairs`, or the one below `~/.config`.
fn known_pairs() -> Option<PathBuf> {
    Some(
        transfer::LonghaulDirKind::Config
            .path()?
            .join("known_pairs"),
    )
}
