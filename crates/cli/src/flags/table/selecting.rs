use sync::RuleOrigin;

use crate::flags::flag::{Flag, FlagGroup, FlagValueKind};
use crate::flags::point_in_time::PointInTime;
use crate::flags::volume;

/// Flags about the entries of the sources that take part.
pub(super) const ROWS: &[Flag] = &[
    Flag::ours(
        FlagGroup::Selecting,
        ("exclude", FlagValueKind::Values("PATTERN")),
        "Leave out what matches, in gitignore's syntax",
        "Leave out entries that match; a sync leaves them alone at both ends. PATTERN has gitignore's syntax: *.o matches \
         everywhere, /build only at the top, cache/ only directories, and !PATTERN includes. Of \
         all --exclude, --include and --filter-from the last that matches decides. What lies in an \
         excluded directory cannot be included.",
        |args, given| {
            args.selection
                .rules(given, RuleOrigin::Flag("--exclude"), "")
        },
    ),
    Flag::ours(
        FlagGroup::Selecting,
        ("include", FlagValueKind::Values("PATTERN")),
        "Include what matches an earlier --exclude",
        "Include entries that match and that an earlier --exclude or --filter-from leaves out.",
        |args, given| {
            args.selection
                .rules(given, RuleOrigin::Flag("--include"), "!")
        },
    ),
    Flag::ours(
        FlagGroup::Selecting,
        ("filter-from", FlagValueKind::Values("FILE")),
        "Read patterns from a file, one a line",
        "Read patterns from a file with the syntax of a .gitignore file.",
        |args, given| {
            args.selection.filter_files(given);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Selecting,
        ("gitignore", FlagValueKind::Nothing),
        "Leave out what the .gitignore files in SRC ignore",
        "Leave out what the .gitignore files in SRC ignore, each for its own directory. SRC must \
         be on this machine. Patterns of --exclude and --include decide before them.",
        |args, _| {
            args.selection.gitignore = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Selecting,
        ("files-from", FlagValueKind::Value("FILE")),
        "Copy only the names that FILE lists",
        "Copy only the names below SRC that FILE lists, one a line or each with a zero byte \
         behind it; - is standard input. A directory stands for everything in it.",
        |args, given| {
            args.selection.files_from = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Selecting,
        ("max-size", FlagValueKind::Value("SIZE")),
        "Copy no file that is larger, such as 100MB",
        "Copy no file of SRC that is larger than SIZE, such as 100MB or 4GiB. In a sync its \
         counterpart in DST stays as it is.",
        |args, given| {
            args.selection.max_size = Some(volume::bytes(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Selecting,
        ("min-size", FlagValueKind::Value("SIZE")),
        "Copy no file that is smaller",
        "Copy no file of SRC that is smaller than SIZE. In a sync its counterpart in DST \
         stays as it is.",
        |args, given| {
            args.selection.min_size = Some(volume::bytes(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Selecting,
        ("newer", FlagValueKind::Value("TIME")),
        "Copy no file that was not modified since TIME",
        "Copy no file of SRC that was last modified before TIME: an age such as 36h or 7d, or a \
         date such as 2026-11-27 or 2026-11-27T18:00.",
        |args, given| {
            args.selection.newer = Some(PointInTime::parse(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Selecting,
        ("older", FlagValueKind::Value("TIME")),
        "Copy no file that was modified since TIME",
        "Copy no file of SRC that was modified after TIME, which is an age or a date as for \
         --newer.",
        |args, given| {
            args.selection.older = Some(PointInTime::parse(&given.text()?)?);
            Ok(())
        },
    ),
];
