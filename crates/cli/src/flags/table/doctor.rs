use std::path::PathBuf;

use super::relay::time;
use crate::flags::flag::{Flag, FlagGroup, FlagValueKind};
use crate::flags::low::DoctorArgs;
use crate::flags::rate::RateLimitArg;
use crate::flags::volume;

/// The flags of `longhaul doctor`, without those for reaching the host.
pub(super) const ROWS: &[Flag<DoctorArgs>] = &[
    Flag::ours(
        FlagGroup::Measuring,
        ("time", FlagValueKind::Value("TIME")),
        "Stop after about TIME, such as 90s or 5m (default 30s)",
        "Stop after about TIME, such as 90s or 5m. The default is 30 seconds, and 450 round trips, \
         at most 75 seconds, where these are longer. A path of more than 160 ms needs more time \
         for the DSCP classes; the result says what was left out.",
        |args, given| {
            args.time = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Measuring,
        ("data", FlagValueKind::Value("SIZE")),
        "Send and receive at most about SIZE (default 4G)",
        "Send and receive at most about SIZE altogether, such as 500M. The default is 4 GB. Each \
         measurement gets its share and ends early when that is used up.",
        |args, given| {
            args.data = match volume::bytes(&given.text()?)? {
                0 => return Err("is not a size above zero".into()),
                bytes => Some(bytes),
            };
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Measuring,
        ("expect", FlagValueKind::Value("RATE")),
        "The link should carry RATE, such as 1Gbit or 100MB",
        "The link should carry RATE, such as 1Gbit or 100MB. A path that carries less is then no \
         longer called healthy.",
        |args, given| {
            args.expected = Some(given.text()?.parse::<RateLimitArg>()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Measuring,
        ("from", FlagValueKind::Value("FILE")),
        "Explain a finished transfer from its --json; measure nothing",
        "Explain a finished transfer from the events that longhaul cp --json or longhaul sync \
         --json wrote to FILE, or show the result of longhaul doctor --json again. Nothing is \
         measured, and no host is needed.",
        |args, given| {
            args.from = Some(PathBuf::from(given.os()));
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Measuring,
        ("watch", FlagValueKind::Value("PID")),
        "Explain the running longhaul cp or sync with this process ID",
        "Explain the longhaul cp or longhaul sync of this user that runs as process PID, from the \
         figures of its last seconds. The transfer is not disturbed, nothing else is measured, and \
         no host is needed. A transfer has figures from its second second on.",
        |args, given| {
            let pid = given.text()?.parse().ok().filter(|pid| *pid > 0);
            args.watch = Some(pid.ok_or("is not the number of a process")?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Output,
        ("json", FlagValueKind::Nothing),
        "Write the result as JSON on standard output",
        "Write the result as JSON on standard output instead of the text. docs/doctor.md describes \
         every field.",
        |args, _| {
            args.json = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Output,
        ("html", FlagValueKind::Value("FILE")),
        "Also write an HTML page with plots to this file",
        "Also write the result to this file, as an HTML page with plots. The page needs no other \
         files and can be printed.",
        |args, given| {
            args.html = Some(PathBuf::from(given.os()));
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Output,
        ("fix", FlagValueKind::Nothing),
        "Offer a Host block for ~/.ssh/config with what helps",
        "Show a Host block for ~/.ssh/config with the settings that help OpenSSH's programs, and \
         append it after a yes. Nothing else is changed, and findings that are unsure add nothing. \
         A block that stands earlier in the file takes precedence.",
        |args, _| {
            args.fix = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Output,
        ("yes", FlagValueKind::Nothing),
        "Write the block of --fix without asking",
        "Write the block of --fix without asking, for scripts.",
        |args, _| {
            args.yes = true;
            Ok(())
        },
    ),
];
