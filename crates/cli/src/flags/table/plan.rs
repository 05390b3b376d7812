use crate::flags::flag::{Flag, FlagGroup, FlagValueKind, ScpCompatibility};
use crate::flags::low::PlanArgs;
use crate::flags::volume;

/// Longest time of a lease in seconds.
const LONGEST_LEASE: u64 = 24 * 3600;

/// Flags of `longhaul cp` about the shards of a plan.
pub(super) const CP_ROWS: &[Flag] = &[
    Flag::ours(
        FlagGroup::Shards,
        ("plan", FlagValueKind::Value("DIR")),
        "Copy one shard of the plan in this folder",
        "Copy one shard of the plan that longhaul plan wrote into DIR, instead of SRC and DST on \
         the command line. It is an --archive copy. Files that DST has with the planned size and \
         time are not sent again; files that have changed since the plan was made are named and \
         not copied. DIR must belong to this user, with no write permission for others.",
        |args, given| {
            args.plan = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Shards,
        ("shard", FlagValueKind::Value("N")),
        "The number of the shard to copy, from 0",
        "The number of the shard to copy, from 0. One worker at a time copies a shard: another one \
         ends with exit code 75. A complete shard ends with 0 at once.",
        |args, given| {
            let shard = given.text()?.parse();
            args.shard = Some(shard.map_err(|_| "is not the number of a shard".to_owned())?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Shards,
        ("lease", FlagValueKind::Value("SECONDS")),
        "Seconds after which another worker may take the shard (default 30)",
        "The time after which another worker may take the shard if this one does not renew its \
         lease; 30 seconds by default. A worker stops when it could not renew its lease for half \
         of that time.",
        |args, given| {
            let seconds = given.text()?.parse().ok();
            let seconds = seconds.filter(|seconds| (2..=LONGEST_LEASE).contains(seconds));
            args.lease = Some(seconds.ok_or("is not a number of seconds from 2 to 86400")?);
            Ok(())
        },
    ),
];

/// Flags of `longhaul plan`.
pub(super) const ROWS: &[Flag<PlanArgs>] = &[
    Flag::ours(
        FlagGroup::Shards,
        ("shards", FlagValueKind::Value("N")),
        "The number of shards",
        "The number of shards, at most 100000. Each shard has about the same size and number of \
         files. Files larger than the fair share of a shard are split (see --range-size).",
        |args, given| {
            let shards = given.text()?.parse().ok();
            let shards = shards.filter(|n| (1..=transfer::shards::MOST_SHARDS).contains(n));
            args.shards = Some(shards.ok_or("is not a number from 1 to 100000")?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Shards,
        ("range-size", FlagValueKind::Value("SIZE")),
        "The least size of a range of a split file (default 256M)",
        "The least size of a range of a split file, with an optional suffix K, M or G; 256M by \
         default. A file larger than this and than the fair share of a shard is split into ranges \
         that several shards write into one temporary beside the final name. The last of these \
         shards sets its attributes and renames it. Files are split if exactly one of SRC and DST \
         is remote.",
        |args, given| {
            let size = volume::bytes(&given.text()?)?;
            if size == 0 {
                return Err("is not a size above 0".into());
            }
            args.range_size = Some(size);
            Ok(())
        },
    ),
    Flag {
        short: Some('o'),
        long: Some("output"),
        takes: FlagValueKind::Value("DIR"),
        help: "The folder for the plan",
        doc: "The folder for the plan, on a file system that all workers share. It is created if it \
              does not exist, and must belong to this user, with no write permission for others.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Shards,
        overrides: &[],
        set: |args, given| {
            args.folder = Some(given.os().into());
            Ok(())
        },
    },
    Flag::ours(
        FlagGroup::Shards,
        ("checksum", FlagValueKind::Nothing),
        "With verify: compare the contents by checksum",
        "With verify: compare the contents of all files with their sources by checksum. A \
         host needs a longhaul or a program such as sha256sum for that. Without this flag, types, \
         sizes and modification times are compared.",
        |args, _| {
            args.checksum = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Output,
        ("json", FlagValueKind::Nothing),
        "Print the status, or the events of verify, as JSON",
        "Print the status as one JSON object, or the events of the walk or of verify as lines of \
         JSON.",
        |args, _| {
            args.json = true;
            Ok(())
        },
    ),
];
