use crate::flags::flag::{Flag, FlagGroup, FlagValueKind, ScpCompatibility};
use crate::flags::low::TerminalSetting;

/// Values of the flag; without a value it means the first.
const PROGRESS: &[&str] = &["always", "auto", "never"];
const COLOR: &[&str] = &["auto", "always", "never"];
const EXPLAIN: &[&str] = &["choices", "timeline"];

/// Flags about output.
pub(super) const ROWS: &[Flag] = &[
    Flag {
        short: Some('q'),
        long: Some("quiet"),
        takes: FlagValueKind::Nothing,
        help: "Print only errors",
        doc: "Print only errors: no progress, no closing line and no warnings.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Output,
        overrides: &[],
        set: |args, _| {
            args.quiet = true;
            Ok(())
        },
    },
    Flag {
        short: Some('v'),
        long: Some("verbose"),
        takes: FlagValueKind::Repeats,
        help: "List each file as it is copied; -vv also shows decisions of the engine",
        doc: "List each file on standard error as it is copied, as SOURCE -> TARGET; a sync lists its \
              plan instead. -vv adds the decisions of the engine, -vvv its measurements. Secrets are never shown.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Output,
        overrides: &[],
        set: |args, given| {
            args.verbose = given.times;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("progress"),
        takes: FlagValueKind::OptionalChoice("WHEN", PROGRESS),
        help: "Show progress: auto, always (in a log, a line per second) or never",
        doc: "Show progress. auto, the default, shows a progress bar if standard error is a \
              terminal and the copy takes longer than a second. always, or the flag without a \
              value, also writes a line per second if it is not a terminal. never shows none.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Output,
        overrides: &[],
        set: |args, given| {
            args.progress = TerminalSetting::of(&given.text()?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("json"),
        takes: FlagValueKind::Nothing,
        help: "Write events as JSON, one per line, on standard output",
        doc: "Write events as JSON, one per line, on standard output, for programs. docs/json.md \
              lists them. The progress and the closing line are then not shown as text.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Output,
        overrides: &[],
        set: |args, _| {
            args.json = true;
            Ok(())
        },
    },
    Flag::ours(
        FlagGroup::Output,
        ("explain", FlagValueKind::OptionalChoice("WHAT", EXPLAIN)),
        "Explain at the end what was chosen, and why",
        "Explain at the end what was chosen and why, one line each on standard error: cipher, key \
         exchange, compression, the server at the far end, connections and channels, DSCP, \
         congestion control, how files were split or batched, delta, and how files were verified. \
         Each line gives the reason and its source: a flag, ssh_config, the host memory and how \
         long it is kept, or an observation in this run. With --json these are events. \
         --explain=timeline also prints the steps of each connection with their times: login, first \
         data, growth of the congestion window, waits by cause, and the states of the files.",
        |args, given| {
            args.explain = true;
            args.timeline = given.text()? == "timeline";
            Ok(())
        },
    ),
    Flag {
        short: None,
        long: Some("color"),
        takes: FlagValueKind::Choice("WHEN", COLOR),
        help: "Use colours: auto, always or never",
        doc: "Use colours: auto, always or never. auto, the default, uses them on a terminal \
              unless NO_COLOR is set or TERM is dumb.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Output,
        overrides: &[],
        set: |args, given| {
            args.color = TerminalSetting::of(&given.text()?);
            Ok(())
        },
    },
];
