//! Flags and commands of rsync, scp, rclone and cp that longhaul lacks, with the alternative here.

/// Spellings of a flag or command, and the alternative.
struct OtherToolSpelling {
    spellings: &'static [&'static str],
    advice: &'static str,
}

const fn row(spellings: &'static [&'static str], advice: &'static str) -> OtherToolSpelling {
    OtherToolSpelling { spellings, advice }
}

const NO_DELETE: &str = "longhaul cp never removes files at the target that the source does not have: use longhaul sync";
const ALWAYS_RESUMES: &str =
    "an interrupted copy is kept and resumed by the same command; --no-resume starts over";
const NOT_SKIPPED: &str = "longhaul cp copies every named file: use longhaul sync to compare first";
const SYMLINKS: &str = "-r follows symlinks, -a keeps them";
const PROCESSES: &str = "use --connections and --channels";

/// Flags of other programs for `longhaul cp`.
const FLAGS: &[OtherToolSpelling] = &[
    row(
        &[
            "-z",
            "--compress-level",
            "--zc",
            "--compress-choice",
            "--zl",
        ],
        "use -C to compress",
    ),
    row(
        &["--bwlimit"],
        "use --limit RATE, such as --limit 10MB for 10 MB/s",
    ),
    row(
        &[
            "--partial",
            "--partial-dir",
            "--append",
            "--append-verify",
            "--continue",
            "--resume",
        ],
        ALWAYS_RESUMES,
    ),
    row(
        &[
            "--delete",
            "--del",
            "--delete-before",
            "--delete-during",
            "--delete-delay",
            "--delete-after",
            "--delete-excluded",
            "--delete-missing-args",
            "--max-delete",
        ],
        NO_DELETE,
    ),
    row(
        &["--remove-source-files", "--move"],
        "longhaul cp never removes sources",
    ),
    row(
        &["--exclude-from", "--include-from", "--filter"],
        "use --filter-from FILE, a file in the syntax of .gitignore",
    ),
    row(
        &["--cvs-exclude"],
        "use --exclude, or --gitignore for the .gitignore files of a local source",
    ),
    row(&["--max-age"], "use --newer TIME, such as --newer 7d"),
    row(&["--min-age"], "use --older TIME, such as --older 7d"),
    row(
        &["--max-depth"],
        "use --exclude '/*/*/' to go two levels deep",
    ),
    row(
        &["--from0"],
        "leave it out: --files-from reads lines and names that end in a zero byte",
    ),
    row(
        &["-n", "--dry-run", "--list-only", "--no-clobber"],
        "longhaul cp has no dry run, and replaces existing files: use longhaul sync",
    ),
    row(
        &[
            "-u",
            "--update",
            "--ignore-existing",
            "--existing",
            "--size-only",
            "--ignore-times",
            "-I",
            "--checksum",
            "--modify-window",
        ],
        NOT_SKIPPED,
    ),
    row(
        &["-x", "--one-file-system"],
        "longhaul cp crosses file systems: use longhaul sync to stay on one",
    ),
    row(
        &["-e", "--rsh"],
        "longhaul reads ssh_config: use -P PORT, -i KEY, -J HOST, -o OPTION, or -S PROGRAM",
    ),
    row(
        &["--rsync-path"],
        "use --far-end to choose the program at the far end",
    ),
    row(
        &["--stats", "--itemize-changes"],
        "use --explain, -v or --json",
    ),
    row(
        &["--info", "--debug", "--log-level"],
        "use -v, or -vv for more",
    ),
    row(
        &["--human-readable", "--no-human-readable"],
        "sizes are always shown in kB, MB and GB; --json gives bytes",
    ),
    row(
        &["--log-file", "--log-file-format"],
        "use --json and redirect standard output",
    ),
    row(&["--no-progress", "--no-motd"], "use --progress=never"),
    row(&["--whole-file", "-W"], "use --no-delta"),
    row(&["--no-whole-file"], "use --delta"),
    row(
        &["--times", "--perms", "--no-times", "--no-perms"],
        "use -p to keep times and permissions",
    ),
    row(&["-H"], "use --hard-links"),
    row(
        &["--links", "-L", "--copy-links", "-k", "--copy-dirlinks"],
        SYMLINKS,
    ),
    row(
        &[
            "-g",
            "--group",
            "--owner",
            "--chown",
            "--no-owner",
            "--no-group",
        ],
        "use -a to keep owners",
    ),
    row(
        &["--chmod", "--executability", "-E"],
        "use -p to keep permissions",
    ),
    row(
        &["--relative", "--no-relative"],
        "each source is copied under the last component of its path",
    ),
    row(
        &["--mkpath"],
        "the parent directories of the target must exist",
    ),
    row(
        &["-b", "--backup", "--backup-dir", "--suffix"],
        "longhaul cp keeps no backup of the files that it replaces: use longhaul sync",
    ),
    row(
        &["--timeout", "--contimeout"],
        "use -o ConnectTimeout=N and -o ServerAliveInterval=N",
    ),
    row(
        &[
            "--transfers",
            "--checkers",
            "--multi-thread-streams",
            "--parallel",
            "-j",
        ],
        PROCESSES,
    ),
    row(
        &["--preallocate", "--fuzzy", "-y", "--inc-recursive"],
        "longhaul cp has no such option: leave it out",
    ),
    row(
        &["--force"],
        "longhaul cp always replaces files: leave it out",
    ),
    row(
        &["--ignore-errors"],
        "files that fail are named and the others are copied: leave it out",
    ),
    row(
        &["--out-format"],
        "use -v for a line per file, or --json for all figures",
    ),
    row(&["--dereference"], "-r follows symlinks: leave it out"),
    row(&["--no-dereference"], "use -a, which keeps symlinks"),
    row(
        &["--no-preserve"],
        "leave -p and -a out: nothing is kept without them",
    ),
    row(
        &["--prune-empty-dirs"],
        "longhaul cp copies empty directories too: exclude them with --exclude",
    ),
    row(
        &["--skip-compress"],
        "blocks that do not become smaller are never compressed: leave it out",
    ),
    row(
        &["--usermap", "--groupmap", "--super", "--fake-super"],
        "owners are mapped by name, or by number with --numeric-ids",
    ),
    row(
        &[
            "--block-size",
            "--checksum-choice",
            "--checksum-seed",
            "--protocol",
        ],
        "longhaul does not speak rsync's protocol: leave it out",
    ),
    row(
        &["--iconv"],
        "names are copied byte for byte: leave it out; longhaul sync --unicode=nfc composes the \
         decomposed names of macOS",
    ),
    row(&["--immutable", "--metadata"], "use -a to keep metadata"),
    row(
        &["--password-file", "--password"],
        "use a key, or SSH_ASKPASS",
    ),
    row(&["--ipv4-only", "--inet"], "use -4"),
    row(&["--inet6"], "use -6"),
];

/// Flags of other programs for `longhaul sync`, where the advice differs from that for
/// `longhaul cp`.
const SYNC_FLAGS: &[OtherToolSpelling] = &[
    row(
        &["--delete-before"],
        "use --delete, which deletes after everything was copied",
    ),
    row(
        &["--delete-excluded"],
        "excluded entries are never deleted: leave their --exclude out to delete them",
    ),
    row(
        &["--delete-missing-args"],
        "use --delete, which deletes what SRC does not have",
    ),
    row(
        &["--remove-source-files", "--move"],
        "longhaul sync never removes sources",
    ),
    row(&["--list-only"], "use -n, or ssh HOST ls"),
    row(&["--no-clobber"], "use --ignore-existing"),
    row(
        &["--ignore-times", "-I"],
        "use --checksum to look at contents, or longhaul cp -a to copy everything",
    ),
    row(
        &["--modify-window", "-@"],
        "leave it out: times are compared in the unit in which both ends report them",
    ),
    row(
        &["-e", "--rsh"],
        "longhaul reads ssh_config: use -P PORT, --identity KEY, -J HOST or -o OPTION",
    ),
    row(
        &["--ignore-errors"],
        "nothing is deleted after an error: exclude what cannot be read with --exclude, and sync \
         again",
    ),
    row(
        &["--force"],
        "use --delete, which replaces a directory that stands in the way of a file",
    ),
    row(
        &["-m", "--prune-empty-dirs"],
        "a sync copies empty directories too: exclude them with --exclude",
    ),
    row(
        &["-d", "--dirs", "--no-dirs"],
        "a sync is recursive: use --exclude '/*/*' to leave out what directories contain",
    ),
    row(
        &["-K", "--keep-dirlinks"],
        "a symbolic link of DST is replaced where SRC has a directory: leave it out",
    ),
    row(
        &["--no-implied-dirs"],
        "directories that lead to a listed name get their attributes from SRC: leave it out",
    ),
    row(
        &["--iconv"],
        "use --unicode=nfc for names of a Mac; other names are copied byte for byte",
    ),
    row(
        &["--dereference"],
        "a sync copies symbolic links as links; longhaul cp -r follows them",
    ),
    row(
        &["--no-dereference"],
        "a sync copies symbolic links as links: leave it out",
    ),
    row(
        &["--no-preserve"],
        "a sync keeps times and permissions; longhaul cp -r does not",
    ),
    row(
        &["--out-format"],
        "use --itemize for a line per change, or --json for all figures",
    ),
    row(
        &["--info", "--debug", "--log-level"],
        "use --progress, -v or -vv",
    ),
    row(
        &["-L", "--copy-links", "-k", "--copy-dirlinks"],
        "a sync copies symbolic links as links; longhaul cp -r follows them",
    ),
    row(
        &["-g", "--group", "--owner"],
        "leave it out: owners and groups are kept where the target permits it",
    ),
    row(
        &["--chown", "--no-owner", "--no-group", "--no-o", "--no-g"],
        "owners and groups are kept where the target permits it, and cannot be changed",
    ),
    row(
        &[
            "--no-times",
            "--no-perms",
            "--no-links",
            "--no-recursive",
            "--no-t",
            "--no-p",
            "--no-l",
            "--no-r",
        ],
        "a sync keeps times, permissions and links; longhaul cp -r does not",
    ),
    row(
        &["--chmod", "--executability", "-E"],
        "a sync keeps the permissions of SRC",
    ),
    row(
        &["-D", "--devices", "--specials"],
        "devices, sockets and FIFOs are skipped: leave it out",
    ),
    row(
        &["-R", "--relative", "--no-relative"],
        "DST gets the contents of SRC: append the path to DST",
    ),
    row(
        &["-b", "--backup", "--suffix"],
        "use --backup-dir PATH, which keeps what is replaced or deleted",
    ),
    row(
        &["--copy-dest", "--compare-dest"],
        "use --link-dest DIR, which links equal files of an earlier copy",
    ),
    row(
        &["--inplace", "--append", "--append-verify"],
        "sync writes to a temporary file and renames it when it is complete: leave out this flag",
    ),
    row(
        &[
            "--delay-updates",
            "--fuzzy",
            "-y",
            "--preallocate",
            "--inc-recursive",
            "--no-inc-recursive",
            "--omit-dir-times",
            "-O",
            "--omit-link-times",
            "--atimes",
            "-U",
            "--crtimes",
            "-N",
            "--ignore-missing-args",
            "--copy-unsafe-links",
            "--munge-links",
            "--open-noatime",
            "--stop-after",
            "--stop-at",
            "--time-limit",
            "--max-alloc",
            "--outbuf",
            "-8",
            "--8-bit-output",
        ],
        "longhaul sync has no such option: leave it out",
    ),
    row(
        &["-s", "--protect-args", "--secluded-args"],
        "leave it out: names are never read by a shell",
    ),
    row(
        &["-0", "--old-args"],
        "leave it out: names are never read by a shell",
    ),
];

/// Commands of other programs.
const COMMANDS: &[OtherToolSpelling] = &[
    row(
        &[
            "copy", "scp", "sftp", "get", "put", "upload", "download", "push", "pull",
        ],
        "to copy files use: longhaul cp SRC... DST",
    ),
    row(
        &["rsync", "mirror"],
        "to copy files use longhaul cp SRC... DST; to make directories equal, longhaul sync SRC DST",
    ),
    row(
        &["move", "mv"],
        "longhaul cp never removes sources: use longhaul cp and then rm; at a host, ssh HOST mv",
    ),
    row(
        &["ls", "dir", "list"],
        "longhaul copies files: use ssh HOST ls",
    ),
    row(
        &["rm", "rmdir", "delete", "remove"],
        "longhaul copies files: use ssh HOST rm",
    ),
    row(&["mkdir"], "longhaul copies files: use ssh HOST mkdir"),
    row(&["cat"], "longhaul copies files: use ssh HOST cat"),
    row(&["ssh"], "longhaul opens no shell: use ssh HOST"),
    row(&["mount"], "longhaul does not mount: use sshfs"),
    row(
        &["benchmark", "test", "speedtest"],
        "use: longhaul bench HOST",
    ),
    row(&["diagnose", "why", "check"], "use: longhaul doctor HOST"),
    row(
        &["server", "sshd", "daemon", "listen"],
        "use: longhaul serve --listen ADDRESS:PORT",
    ),
    row(
        &["proxy", "forward", "tunnel"],
        "use: longhaul relay LISTEN TARGET",
    ),
    row(&["connect"], "use: longhaul dial HOST PORT"),
    row(&["completion"], "use: longhaul completions SHELL"),
];

/// The alternative in `longhaul cp` to a flag of another program, given as typed.
pub(crate) fn for_copy(flag: &str) -> Option<&'static str> {
    find(FLAGS, name(flag))
}

/// The alternative in `longhaul sync` to a flag of another program, given as typed.
pub(crate) fn for_sync(flag: &str) -> Option<&'static str> {
    find(SYNC_FLAGS, name(flag)).or_else(|| find(FLAGS, name(flag)))
}

/// The flag without the value after `=`.
fn name(flag: &str) -> &str {
    flag.split('=').next().unwrap_or(flag)
}

/// The alternative to a command of another program.
pub(crate) fn for_command(command: &str) -> Option<&'static str> {
    find(COMMANDS, command)
}

fn find(rows: &'static [OtherToolSpelling], spelling: &str) -> Option<&'static str> {
    let row = rows.iter().find(|row| row.spellings.contains(&spelling));
    row.map(|row| row.advice)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsString;

    use super::*;
    use crate::flags::low::{ParsedCommandLine, parse};
    use crate::flags::table::{rows, sync_rows};

    fn said(words: &[&str]) -> String {
        let words = std::iter::once("longhaul").chain(words.iter().copied());
        match parse(words.map(OsString::from), clap::ColorChoice::Never) {
            Err(error) => error.0,
            Ok(ParsedCommandLine::Show(text)) => text,
            Ok(other) => panic!("{other:?}"),
        }
    }

    /// Regression: `--delete` was answered with `--delta`.
    #[test]
    fn every_foreign_flag_is_answered_with_what_to_use() {
        let mut seen = BTreeSet::new();
        for row in FLAGS {
            for flag in row.spellings {
                assert!(seen.insert(*flag), "{flag} is there twice");
                for words in [&["cp", flag, "a", "b"], &["cp", "a", "b", flag]] {
                    let said = said(words);
                    let first = said.lines().next().unwrap_or_default();
                    assert_eq!(
                        first,
                        format!("error: {flag}: no such flag: {}", row.advice)
                    );
                    assert!(!said.contains("tip:"), "{said}");
                }
            }
        }
        let said = said(&["cp", "--exclude-from=f", "a", "b"]);
        assert!(
            said.starts_with("error: --exclude-from: no such flag: "),
            "{said}"
        );
    }

    /// Regression: rsync's flags were answered with tips about flags of similar spelling.
    #[test]
    fn every_foreign_flag_of_a_sync_is_answered_with_what_to_use() {
        for flag in SYNC_FLAGS.iter().chain(FLAGS).flat_map(|row| row.spellings) {
            // A sync has some of the flags that a copy lacks.
            if command_has(flag) {
                continue;
            }
            let said = said(&["sync", flag, "a", "h:b"]);
            let Some(advice) = for_sync(flag) else {
                panic!("{flag}")
            };
            let first = said.lines().next().unwrap_or_default();
            assert_eq!(first, format!("error: {flag}: no such flag: {advice}"));
            assert!(!advice.contains("use longhaul sync"), "{flag}: {advice}");
        }
    }

    fn command_has(flag: &str) -> bool {
        let mut all = crate::flags::command::command();
        let sync = all.find_subcommand_mut("sync").unwrap();
        sync.get_arguments().any(|arg| {
            arg.get_short().map(|short| format!("-{short}")).as_deref() == Some(flag)
                || arg.get_long().map(|long| format!("--{long}")).as_deref() == Some(flag)
        })
    }

    #[test]
    fn every_foreign_command_is_answered_with_what_to_use() {
        for row in COMMANDS {
            for command in row.spellings {
                let said = said(&[command, "a", "b"]);
                let first = format!("error: {command}: no such command: {}", row.advice);
                assert!(said.starts_with(&first), "{said}");
            }
        }
    }

    /// Every flag that an answer names exists.
    #[test]
    fn what_is_advised_is_there() {
        for row in FLAGS.iter().chain(SYNC_FLAGS) {
            for word in row.advice.split([' ', ',', ';', '(', ')', ':', '=']) {
                let known = |name: &str| {
                    rows().any(|flag| {
                        flag.long.map(|long| format!("--{long}")).as_deref() == Some(name)
                            || flag.short.map(|short| format!("-{short}")).as_deref() == Some(name)
                    }) || sync_rows().any(|flag| {
                        flag.long.map(|long| format!("--{long}")).as_deref() == Some(name)
                            || flag.short.map(|short| format!("-{short}")).as_deref() == Some(name)
                    }) || ["-vv", "-al"].contains(&name)
                };
                if word.starts_with('-') {
                    assert!(known(word), "{word} in {:?}", row.advice);
                }
            }
        }
    }

    #[test]
    fn a_flag_that_nobody_has_is_still_an_error() {
        let said = said(&["cp", "--nosuch", "a", "b"]);
        assert!(said.contains("--nosuch"), "{said}");
    }

    #[test]
    fn help_and_version_are_commands_too() {
        assert_eq!(said(&["help"]), said(&["--help"]));
        assert_eq!(said(&["help", "cp"]), said(&["cp", "--help"]));
        assert_eq!(said(&["version"]), said(&["--version"]));
        assert!(said(&["help", "nosuch"]).contains("nosuch"));
    }
}
