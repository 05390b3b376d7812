use transfer::copy::DeltaUse;
use transfer::sync::UnicodeForm;

use crate::flags::argument_error::ArgumentError;
use crate::flags::flag::{Flag, FlagGroup, FlagValueKind, ScpCompatibility};
use crate::flags::low::{SyncArgs, TerminalSetting};
use crate::flags::rate::RateLimitArg;

/// A row with a letter, which scp has none of.
const fn lettered(short: char, row: Flag<SyncArgs>) -> Flag<SyncArgs> {
    Flag {
        short: Some(short),
        ..row
    }
}

/// A spelling of rsync's with the same meaning here.
const fn spelling(
    name: (&'static str, FlagValueKind),
    (help, doc): (&'static str, &'static str),
    set: fn(&mut SyncArgs, crate::flags::flag::FlagInput) -> Result<(), ArgumentError>,
) -> Flag<SyncArgs> {
    Flag {
        // Left out of the short help.
        scp: ScpCompatibility::NoEffect(help),
        ..Flag::ours(FlagGroup::Syncing, name, help, doc, set)
    }
}

/// A flag of rsync for what a sync always does.
const fn no_effect(short: char, long: &'static str, why: &'static str) -> Flag<SyncArgs> {
    lettered(
        short,
        spelling((long, FlagValueKind::Nothing), (why, NO_EFFECT), |_, _| {
            Ok(())
        }),
    )
}

const NO_EFFECT: &str = "Accepted from rsync without effect, since a sync always does this.";

/// A name of rsync for `--delete` that asks for a time of deletion.
const fn deletes(long: &'static str) -> Flag<SyncArgs> {
    let help = (
        "Delete at the end: rsync's name for --delete",
        "Delete at the end, as --delete always does here.",
    );
    spelling((long, FlagValueKind::Nothing), help, |args, _| {
        args.delete = true;
        Ok(())
    })
}

/// Flags of `longhaul sync` about what is compared, changed and deleted.
pub(super) const ROWS: &[Flag<SyncArgs>] = &[
    lettered(
        'n',
        Flag::ours(
            FlagGroup::Syncing,
            ("dry-run", FlagValueKind::Nothing),
            "Show what would be done, and change nothing",
            "Show what would be done, and change nothing: one line for each path, with + for new, \
             ~ for changed, > for moved and - for deleted. The comparison is that of a real run.",
            |args, _| {
                args.dry_run = true;
                Ok(())
            },
        ),
    ),
    lettered(
        'i',
        Flag::ours(
            FlagGroup::Syncing,
            ("itemize", FlagValueKind::Nothing),
            "Show one line for each path that is changed",
            "Show one line for each path that is changed, as --dry-run does, and change it. A key \
             file is named with --identity: -i has rsync's meaning in this command.",
            |args, _| {
                args.itemize = true;
                Ok(())
            },
        ),
    ),
    Flag::ours(
        FlagGroup::Syncing,
        ("delete", FlagValueKind::Nothing),
        "Delete at DST what SRC does not have",
        "Delete entries of DST that SRC does not have, after everything was copied. Files that \
         were moved or renamed in SRC are renamed in DST instead of copied. Nothing is deleted if \
         anything could not be listed or copied, if DST is a whole home directory or /, if SRC is \
         empty, if it lies on another file system than in the last sync, or if more than half of \
         DST and more than 100 entries would go. --yes confirms all but the first, and a number \
         with --max-delete the last one. \
         Excluded entries are never deleted.",
        |args, _| {
            args.delete = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Syncing,
        ("max-delete", FlagValueKind::Value("N")),
        "Delete nothing if more than N entries would go",
        "Delete nothing if more than N entries would go. They are counted before the first is \
         deleted.",
        |args, given| {
            let most = given.text()?.parse();
            args.max_delete = Some(most.map_err(|_| "is not a number of entries".to_owned())?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Syncing,
        ("yes", FlagValueKind::Nothing),
        "Confirm the deletion of most of DST",
        "Confirm deletions that --delete would refuse because DST is a whole home directory or /, \
         or SRC is empty, lies on another file system than before, or lacks most of what DST has.",
        |args, _| {
            args.yes = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Syncing,
        ("backup-dir", FlagValueKind::Value("PATH")),
        "Keep what is replaced or deleted in this folder of DST",
        "Keep files that are replaced or deleted in this folder, under their paths. A relative \
         PATH begins at DST. A folder in DST takes no part in the sync. It must be on the same \
         file system, and must not be DST, contain it, or overlap SRC.",
        |args, given| args.keep_backups(given.os()),
    ),
    Flag::ours(
        FlagGroup::Syncing,
        ("link-dest", FlagValueKind::Values("DIR")),
        "Link new files to equal ones of an earlier copy in DIR",
        "Link new files to equal ones of an earlier copy in DIR, as rsync does: a file whose \
         counterpart below DIR has the same size, time and permissions becomes a further name of \
         it, and nothing is sent. A relative DIR is relative to DST. A file that cannot be linked, \
         because the file system or the server has no hard links, is copied, and a warning says so.",
        |args, given| args.link_to(given),
    ),
    Flag::ours(
        FlagGroup::Syncing,
        ("unicode", FlagValueKind::Value("FORM")),
        "Give names in DST this Unicode form: nfc",
        "Compare names of SRC in this Unicode form, and give it to their copies: nfc, composed \
         characters. Use it for a SRC on macOS, whose names may have decomposed characters. Two \
         names of SRC that become one are an error. By default names are bytes and stay as they are.",
        |args, given| {
            args.names = match given.text()?.to_ascii_lowercase().as_str() {
                "nfc" => UnicodeForm::Nfc,
                _ => return Err("is no form of names: nfc is the only one".into()),
            };
            Ok(())
        },
    ),
    lettered(
        'c',
        Flag::ours(
            FlagGroup::Syncing,
            ("checksum", FlagValueKind::Nothing),
            "Compare contents even if size and time are equal",
            "Compare files of equal size by checksum instead of by their times. Only the checksums \
             cross the path: a longhaul at the far end computes them, or a program such as \
             sha256sum. Where neither is possible, such files are copied again. A cipher is named with --cipher: -c has rsync's meaning in this command.",
            |args, _| {
                args.comparison.checksum = true;
                Ok(())
            },
        ),
    ),
    Flag::ours(
        FlagGroup::Syncing,
        ("size-only", FlagValueKind::Nothing),
        "Compare sizes alone",
        "Copy no file of equal size. A different modification time is set without a copy.",
        |args, _| {
            args.comparison.size_only = true;
            Ok(())
        },
    ),
    lettered(
        'u',
        Flag::ours(
            FlagGroup::Syncing,
            ("update", FlagValueKind::Nothing),
            "Leave files alone that are newer in DST",
            "Leave files alone whose modification time in DST is newer than in SRC.",
            |args, _| {
                args.comparison.skipped.newer = true;
                Ok(())
            },
        ),
    ),
    Flag::ours(
        FlagGroup::Syncing,
        ("existing", FlagValueKind::Nothing),
        "Create nothing new in DST",
        "Update entries that exist in DST, and create nothing new.",
        |args, _| {
            args.comparison.skipped.missing = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Syncing,
        ("ignore-existing", FlagValueKind::Nothing),
        "Leave everything alone that exists in DST",
        "Create what is new, and leave everything alone that exists in DST.",
        |args, _| {
            args.comparison.skipped.existing = true;
            Ok(())
        },
    ),
    lettered(
        'x',
        Flag::ours(
            FlagGroup::Syncing,
            ("one-file-system", FlagValueKind::Nothing),
            "Leave out directories on other file systems than SRC",
            "Leave out directories on other file systems than SRC, at both ends. On the host of a \
             remote SRC this needs longhaul.",
            |args, _| {
                args.one_file_system = true;
                Ok(())
            },
        ),
    ),
    lettered(
        'z',
        spelling(
            ("compress-transfer", FlagValueKind::Nothing),
            (
                "Compress: rsync's letter for -C",
                "Compress: rsync's letter for -C.",
            ),
            |args, _| {
                args.copy.compress = Some(TerminalSetting::Always);
                Ok(())
            },
        ),
    ),
    spelling(
        ("bwlimit", FlagValueKind::Value("RATE")),
        (
            "Limit the rate: rsync's name for --limit",
            "Limit the rate: rsync's name for --limit. A bare number means KiB a second.",
        ),
        |args, given| {
            let text = given.text()?;
            let bare = text.parse::<f64>().is_ok();
            let text = if bare { format!("{text}KiB") } else { text };
            args.copy.limit = Some(text.parse::<RateLimitArg>()?);
            Ok(())
        },
    ),
    no_effect('a', "archive", "a sync copies trees with their metadata"),
    no_effect('r', "recursive", "a sync is recursive"),
    no_effect('t', "times", "a sync keeps modification times"),
    no_effect('p', "perms", "a sync keeps permissions"),
    no_effect('l', "links", "a sync copies symbolic links as links"),
    Flag {
        // -h is the command's own.
        short: None,
        ..no_effect(
            '_',
            "human-readable",
            "sizes are always shown in kB, MB and GB",
        )
    },
    Flag {
        short: None,
        ..no_effect(
            '_',
            "partial",
            "what an interrupted run has sent is always kept",
        )
    },
    spelling(
        ("stats", FlagValueKind::Nothing),
        (
            "rsync's flag; the closing lines always have the figures",
            "Accepted from rsync without effect: the closing lines have the numbers of files, \
             bytes and deletions, and the rate. --json gives more.",
        ),
        |_, _| Ok(()),
    ),
    spelling(
        ("itemize-changes", FlagValueKind::Nothing),
        ("rsync's name for --itemize", "rsync's name for --itemize."),
        |args, _| {
            args.itemize = true;
            Ok(())
        },
    ),
    spelling(
        ("whole-file", FlagValueKind::Nothing),
        (
            "rsync's name for --no-delta",
            "rsync's name for --no-delta.",
        ),
        |args, _| {
            args.copy.delta = DeltaUse::Never;
            Ok(())
        },
    ),
    deletes("del"),
    deletes("delete-during"),
    deletes("delete-delay"),
    deletes("delete-after"),
];
