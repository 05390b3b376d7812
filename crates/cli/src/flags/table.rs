//! Every flag of each subcommand, one row each. The parser, both help texts, the man page, the
//! completions and docs/flags.md come from these rows.

mod bench;
mod connection;
mod copying;
mod dial;
mod doctor;
mod keeping;
mod lab;
mod operating;
mod output;
mod pairing;
mod plan;
mod refused;
mod relay;
mod selecting;
mod serve;
mod several;
mod sync;
mod wrap;

use std::sync::LazyLock;

use crate::flags::flag::Flag;
use crate::flags::low::{
    BenchArgs, DialArgs, DoctorArgs, LabArgs, PlanArgs, RelayArgs, ServeArgs, SshConfigArgs,
    SyncArgs, WrapArgs,
};

/// Returns the flags of `longhaul cp`: those that the help lists, by heading, then the refused
/// ones.
pub(crate) fn rows() -> impl Iterator<Item = &'static Flag> {
    [
        copying::ROWS,
        several::ROWS,
        selecting::ROWS,
        keeping::ROWS,
        plan::CP_ROWS,
        connection::ROWS,
        output::ROWS,
        refused::ROWS,
    ]
    .into_iter()
    .flatten()
}

/// Returns the flags of `longhaul plan`, without those of [`plan_copy_rows`].
pub(crate) fn plan_rows() -> impl Iterator<Item = &'static Flag<PlanArgs>> {
    plan::ROWS.iter()
}

/// Returns the flags of `longhaul cp` that `longhaul plan` has as well, which concern the
/// connection to the host.
pub(crate) fn plan_copy_rows() -> impl Iterator<Item = &'static Flag> {
    // Its own -o names the folder; ssh's options are given as in the configuration.
    bootstrap_rows().filter(|flag| flag.short != Some('o'))
}

/// Returns the flags of `longhaul sync` that `longhaul cp` does not have.
pub(crate) fn sync_rows() -> impl Iterator<Item = &'static Flag<SyncArgs>> {
    sync::ROWS.iter()
}

/// Returns the flags of `longhaul cp` that `longhaul sync` has as well, with rsync's letters.
pub(crate) fn sync_copy_rows() -> impl Iterator<Item = &'static Flag> {
    static ROWS: LazyLock<Vec<Flag>> = LazyLock::new(|| {
        let kept = rows().filter(|flag| {
            // Rows without a long name are letters of scp.
            let left_out = |long| NOT_IN_SYNC.contains(&long);
            flag.long.is_some_and(|long| !left_out(long)) && flag.refused().is_none()
        });
        kept.map(|flag| Flag {
            short: letter_in_sync(flag),
            ..*flag
        })
        .collect()
    });
    ROWS.iter()
}

/// Flags of `longhaul cp` that a sync, which is recursive and keeps metadata, does not have.
const NOT_IN_SYNC: &[&str] = &[
    "recursive",
    "preserve",
    "archive",
    "inplace",
    "keep-dirlinks",
    "manifest",
    "hash",
    "through",
    "by-host",
    "hosts",
    "fan-out",
    "program",
    "sftp-server",
    "plan",
    "shard",
    "lease",
];

/// Returns the letter of one of `longhaul cp`'s flags in `longhaul sync`: scp's, unless rsync has
/// the letter for something that `longhaul sync` does too.
fn letter_in_sync(flag: &Flag) -> Option<char> {
    match flag.long {
        // -i, -c and -A are --itemize, --checksum and --acls.
        Some("identity" | "cipher" | "forward-agent") => None,
        Some("hard-links") => Some('H'),
        Some("acls") => Some('A'),
        Some("xattrs") => Some('X'),
        Some("sparse") => Some('S'),
        Some("no-delta") => Some('W'),
        _ => flag.short,
    }
}

/// Returns the flags of `longhaul bootstrap`, which are those of `longhaul cp` that concern the
/// connection to the host.
pub(crate) fn bootstrap_rows() -> impl Iterator<Item = &'static Flag> {
    let of_login = ["F", "i", "J", "o", "P", "4", "6", "B", "q", "v"];
    let all = [connection::ROWS, output::ROWS].into_iter().flatten();
    all.filter(move |flag| {
        let letter = flag.short.map(String::from).unwrap_or_default();
        of_login.contains(&letter.as_str())
    })
}

/// Returns the flags of `longhaul bench`, without those of [`bootstrap_rows`].
pub(crate) fn bench_rows() -> impl Iterator<Item = &'static Flag<BenchArgs>> {
    bench::ROWS.iter()
}

/// Returns the flags of `longhaul doctor`, without those of [`bootstrap_rows`].
pub(crate) fn doctor_rows() -> impl Iterator<Item = &'static Flag<DoctorArgs>> {
    doctor::ROWS.iter()
}

/// Returns the flags of `longhaul lab`.
pub(crate) fn lab_rows() -> impl Iterator<Item = &'static Flag<LabArgs>> {
    [lab::NAMED_ROWS, lab::path_rows(), lab::ROWS]
        .into_iter()
        .flatten()
}

/// Returns the flags of `longhaul serve`.
pub(crate) fn serve_rows() -> impl Iterator<Item = &'static Flag<ServeArgs>> {
    serve::ROWS.iter()
}

/// Returns the flags of `longhaul dial`.
pub(crate) fn dial_rows() -> impl Iterator<Item = &'static Flag<DialArgs>> {
    dial::ROWS.iter()
}

/// Returns the flags of `longhaul ssh-config`.
pub(crate) fn ssh_config_rows() -> impl Iterator<Item = &'static Flag<SshConfigArgs>> {
    dial::SSH_CONFIG.iter()
}

pub(crate) use pairing::PairArgs;
pub(crate) use relay::time as relay_time;

/// Returns the flags of `longhaul relay`.
pub(crate) fn relay_rows() -> impl Iterator<Item = &'static Flag<RelayArgs>> {
    relay::ROWS
        .iter()
        .chain(pairing::ROWS)
        .chain(operating::ROWS)
}

/// Returns the flags of `longhaul wrap`.
pub(crate) fn wrap_rows() -> impl Iterator<Item = &'static Flag<WrapArgs>> {
    wrap::ROWS.iter()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::flags::flag::{FlagGroup, ScpCompatibility};

    #[test]
    fn clap_accepts_the_table() {
        crate::flags::command::command().debug_assert();
    }

    #[test]
    fn names_are_valid_and_unique() {
        unique(rows());
        unique(sync_rows());
        unique(sync_copy_rows());
        unique(plan_rows());
        unique(lab_rows());
        unique(serve_rows());
        unique(dial_rows());
        unique(ssh_config_rows());
        unique(relay_rows());
        unique(bench_rows());
        unique(doctor_rows());
        unique(wrap_rows());
    }

    fn unique<Args: 'static>(rows: impl Iterator<Item = &'static Flag<Args>>) {
        let mut seen = BTreeSet::new();
        for flag in rows {
            assert!(flag.short.is_some() || flag.long.is_some());
            for name in flag
                .short
                .map(String::from)
                .into_iter()
                .chain(flag.long.map(String::from))
            {
                assert!(seen.insert(name.clone()), "{name} is there twice");
                let valid = |c: char| c.is_ascii_alphanumeric() || c == '-';
                assert!(name.chars().all(valid) && !name.starts_with('-'), "{name}");
            }
            if let Some(long) = flag.long {
                assert!(long.len() > 1 && long.to_lowercase() == long, "{long}");
            }
        }
    }

    #[test]
    fn every_flag_is_documented() {
        documented(rows());
        documented(sync_rows());
        documented(plan_rows());
        documented(lab_rows());
        documented(serve_rows());
        documented(dial_rows());
        documented(ssh_config_rows());
        documented(relay_rows());
        documented(bench_rows());
        documented(doctor_rows());
        documented(wrap_rows());
    }

    fn documented<Args: 'static>(rows: impl Iterator<Item = &'static Flag<Args>>) {
        let rows: Vec<_> = rows.collect();
        for flag in &rows {
            let name = flag.spelled();
            assert!(
                !flag.help.is_empty() && !flag.help.ends_with('.'),
                "{name}: help"
            );
            // Rows of the path have their form and default in the line.
            let longest = if flag.group == FlagGroup::Path {
                90
            } else {
                76
            };
            assert!(
                flag.help.len() <= longest,
                "{name}: help is longer than a line"
            );
            if flag.refused().is_none() {
                assert!(
                    flag.doc.ends_with('.') && flag.doc.len() > flag.help.len() / 2,
                    "{name}: doc"
                );
            }
            for other in flag.overrides {
                assert!(
                    rows.iter().any(|flag| flag.long == Some(other)),
                    "{name} overrides {other}"
                );
            }
        }
    }

    /// The option string of scp's getopt in OpenSSH 9.2, with -1, -2, -M of older versions.
    const SCP: &str = "12346ABCTdfOpqRrstvDFJMPSciloX";

    #[test]
    fn every_flag_of_scp_is_there_or_refused_with_a_reason() {
        for letter in SCP.chars() {
            let flag = rows().find(|flag| flag.short == Some(letter));
            let flag = flag.unwrap_or_else(|| panic!("-{letter} of scp is missing"));
            assert!(flag.scp != ScpCompatibility::Ours, "-{letter} is scp's");
            if let Some(reason) = flag.refused() {
                assert!(reason.len() > 20, "-{letter} needs a reason");
            }
        }
        for flag in rows().filter(|flag| flag.scp != ScpCompatibility::Ours) {
            let letter = flag.short.unwrap_or('?');
            assert!(SCP.contains(letter), "-{letter} is not scp's");
        }
    }
}
