use crate::flags::flag::{Flag, Group, Scp, ValueKind};
use crate::flags::low::When;

/// Values of the flag; without a value it means the first.
const PROGRESS: &[&str] = &["always", "auto", "never"];
const COLOR: &[&str] = &["auto", "always", "never"];

/// Flags about output.
pub(super) const ROWS: &[Flag] = &[
    Flag {
        short: Some('q'),
        long: Some("quiet"),
        takes: ValueKind::Nothing,
        help: "Show nothing but errors",
        doc: "Show nothing but errors: no progress, no closing line, no warnings.",
        scp: Scp::Same,
        group: Group::Output,
        overrides: &[],
        set: |args, _| {
            args.quiet = true;
            Ok(())
        },
    },
    Flag {
        short: Some('v'),
        long: Some("verbose"),
        takes: ValueKind::Repeats,
        help: "Name each file as it is copied; -vv adds what the engine does",
        doc: "Name each file on standard error as it is copied, as SOURCE -> TARGET, and say what else \
              is worth knowing. -vv adds what the engine does, -vvv its measurements. Secrets are never \
              shown.",
        scp: Scp::Same,
        group: Group::Output,
        overrides: &[],
        set: |args, given| {
            args.verbose = given.times;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("progress"),
        takes: ValueKind::OptionalChoice("WHEN", PROGRESS),
        help: "Show progress: auto, always (a line a second in a log) or never",
        doc: "Show progress. auto, the default, shows a bar when standard error is a terminal and \
              the copy takes longer than a second. always, or no value, also writes a line a \
              second when it is not a terminal. never shows none.",
        scp: Scp::Ours,
        group: Group::Output,
        overrides: &[],
        set: |args, given| {
            args.progress = When::of(&given.text()?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("json"),
        takes: ValueKind::Nothing,
        help: "Write events as JSON, one a line, on standard output",
        doc: "Write events as JSON, one a line, on standard output, for programs. docs/json.md \
              lists them. Progress and closing line are then not shown as text.",
        scp: Scp::Ours,
        group: Group::Output,
        overrides: &[],
        set: |args, _| {
            args.json = true;
            Ok(())
        },
    },
    Flag::ours(
        Group::Output,
        ("explain", ValueKind::Nothing),
        "Say at the end what was chosen, and why",
        "Say at the end what was chosen and why, a line each on standard error: cipher, key \
         exchange, compression, what served at the far end, connections and channels, marks on \
         packets, congestion control, how files were cut or gathered, delta, how files were \
         verified. Each line says what it rests on and where it came from: a flag, ssh_config, \
         what is remembered of the host and for how long, what was seen in this run. With --json \
         they are events.",
        |args, _| {
            args.explain = true;
            Ok(())
        },
    ),
    Flag {
        short: None,
        long: Some("color"),
        takes: ValueKind::Choice("WHEN", COLOR),
        help: "Use colours: auto, always or never",
        doc: "Use colours: auto, the default, does on a terminal unless the environment has \
              NO_COLOR or TERM is dumb.",
        scp: Scp::Ours,
        group: Group::Output,
        overrides: &[],
        set: |args, given| {
            args.color = When::of(&given.text()?);
            Ok(())
        },
    },
];
