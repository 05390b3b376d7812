//! The command line as given: parsed, with nothing looked up.

mod benching;
mod diagnosing;
mod dialing;
mod planning;
mod relaying;
mod selecting;
mod serving;
mod syncing;
mod wrapping;

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use lab::path::Dscp;
use ssh::transport::DisabledProtection;
use transfer::connect::RemoteLonghaulPolicy;
use transfer::copy::DeltaUse;
use transfer::operand::SshDestination;
use transfer::sums::WantedDigest;

pub(crate) use self::benching::{BenchArgs, BenchStorageChoice};
pub(crate) use self::diagnosing::DoctorArgs;
pub(crate) use self::dialing::{DialArgs, SshConfigArgs};
pub(crate) use self::planning::{PlanAction, PlanArgs};
pub(crate) use self::relaying::{RelayAction, RelayArgs, RelayRulesAction, relay_usage};
pub(crate) use self::selecting::{SelectionArgs, UncompiledFilterRule};
pub(crate) use self::serving::ServeArgs;
pub(crate) use self::syncing::{SyncArgs, wrong as sync_usage};
pub(crate) use self::wrapping::{ReportDestination, WrapArgs, wrong as wrap_usage};
use crate::flags::argument_error::ArgumentError;
use crate::flags::command::{COMMAND, OPERANDS, REMOVE, SHORT_HELP, command};
use crate::flags::flag::{Flag, FlagInput, FlagValueKind};
use crate::flags::foreign;
use crate::flags::rate::RateLimitArg;
use crate::flags::table::{bootstrap_rows, lab_rows, rows};

/// Result of parsing the command line: the arguments of the subcommand, or a text to print.
#[derive(Clone, Debug)]
pub(crate) enum ParsedCommandLine {
    /// `longhaul cp`.
    Copy(Box<CopyArgs>),
    /// `longhaul sync`.
    Sync(Box<SyncArgs>),
    /// `longhaul plan`.
    Plan(Box<PlanArgs>),
    /// `longhaul bootstrap`.
    Bootstrap {
        /// The flags for reaching the host.
        args: Box<CopyArgs>,
        /// Remove the program from the host.
        remove: bool,
    },
    /// `longhaul lab`.
    Lab(Box<LabArgs>),
    /// `longhaul serve`.
    Serve(ServeArgs),
    /// `longhaul dial`.
    Dial(Box<DialArgs>),
    /// `longhaul ssh-config`.
    SshConfig(Box<SshConfigArgs>),
    /// `longhaul relay`.
    Relay(Box<RelayArgs>),
    /// `longhaul bench`.
    Bench(Box<BenchArgs>),
    /// `longhaul doctor`.
    Doctor(Box<DoctorArgs>),
    /// `longhaul wrap`.
    Wrap(Box<WrapArgs>),
    /// `longhaul completions SHELL`.
    Completions(clap_complete::Shell),
    /// `longhaul man [COMMAND]`: print a man page, or write all generated documents to a folder.
    Man {
        /// The subcommand; the main page if `None`.
        command: Option<String>,
        /// Write all documents below this folder instead.
        write: Option<PathBuf>,
    },
    /// The text that `--help` or `--version` prints.
    Show(String),
}

/// The flags and operands of `longhaul cp`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyArgs {
    pub(crate) recursive: bool,
    pub(crate) preserve: bool,
    pub(crate) archive: bool,
    pub(crate) inplace: bool,
    pub(crate) temp_dir: Option<OsString>,
    pub(crate) fsync: bool,
    pub(crate) numeric_ids: bool,
    pub(crate) xattrs: bool,
    pub(crate) acls: bool,
    pub(crate) hard_links: bool,
    pub(crate) sparse: bool,
    /// Ask remote ends on which file systems directories lie.
    pub(crate) devices: bool,
    /// Ask remote ends which files have several hard links.
    pub(crate) links: bool,
    pub(crate) keep_dirlinks: bool,
    pub(crate) safe_links: bool,
    pub(crate) preserve_setuid: bool,
    pub(crate) no_resume: bool,
    pub(crate) delta: DeltaUse,
    pub(crate) verify: bool,
    pub(crate) manifest: Option<PathBuf>,
    pub(crate) hash: Option<ManifestHash>,
    pub(crate) selection: SelectionArgs,
    /// Folder of a plan, the shard to copy, and the seconds of its lease.
    pub(crate) plan: Option<PathBuf>,
    pub(crate) shard: Option<u32>,
    pub(crate) lease: Option<u64>,
    pub(crate) port: Option<u16>,
    pub(crate) identities: Vec<PathBuf>,
    pub(crate) jump: Option<String>,
    pub(crate) via: Option<ViaHosts>,
    pub(crate) config: Option<PathBuf>,
    pub(crate) options: Vec<String>,
    pub(crate) ciphers: Option<String>,
    /// `None` if the flag was not given.
    pub(crate) compress: Option<TerminalSetting>,
    pub(crate) limit_kbit: Option<u64>,
    pub(crate) limit: Option<RateLimitArg>,
    pub(crate) connections: Option<u32>,
    pub(crate) channels: Option<u32>,
    /// From `-X nrequests=` and `-X buffer=`.
    pub(crate) requests: Option<u64>,
    pub(crate) buffer: Option<u32>,
    pub(crate) family: AddressFamilyArg,
    pub(crate) batch: bool,
    pub(crate) forward_agent: bool,
    pub(crate) program: Option<OsString>,
    pub(crate) sftp_server: Option<OsString>,
    pub(crate) dscp: Dscp,
    pub(crate) congestion: Option<String>,
    pub(crate) renounced: DisabledProtection,
    pub(crate) no_window_poll: bool,
    pub(crate) far: RemoteLonghaulPolicy,
    /// Send this program to hosts that have none.
    pub(crate) bootstrap: bool,
    pub(crate) background: bool,
    /// Copy between two hosts through this machine.
    pub(crate) through_here: bool,
    /// Keep the files of each source host in a directory of its own.
    pub(crate) by_host: bool,
    /// File of target hosts.
    pub(crate) hosts_file: Option<PathBuf>,
    /// Remote operands behind local ones are targets.
    pub(crate) fan_out: bool,
    pub(crate) quiet: bool,
    pub(crate) verbose: u8,
    pub(crate) progress: TerminalSetting,
    pub(crate) json: bool,
    pub(crate) explain: bool,
    /// Record and print the steps of the copy (`--explain=timeline`).
    pub(crate) timeline: bool,
    pub(crate) color: TerminalSetting,
    pub(crate) sources: Vec<OsString>,
    pub(crate) destination: OsString,
}

impl CopyArgs {
    /// Returns true if a flag needs a longhaul at the far end, beyond SFTP and its servers.
    pub(crate) fn wants_longhaul(&self) -> bool {
        let rebuilds = self.delta == DeltaUse::Always;
        let tells = self.xattrs || self.acls || self.hard_links || self.devices;
        tells || self.sparse || rebuilds
    }
}

/// Hosts of `--via`, through which the SSH connections to the far end are relayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ViaHosts {
    /// The best of the configured ones, or none.
    Auto,
    /// These, in this order.
    Through(Vec<SshDestination>),
}

/// The flags of `longhaul lab`, and its command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabArgs {
    /// Size of a copy of which the time is predicted, instead of running a command.
    pub(crate) estimate: Option<u64>,
    pub(crate) path: Option<String>,
    /// Options of the path: (long name, value).
    pub(crate) options: Vec<(&'static str, String)>,
    pub(crate) list: bool,
    pub(crate) sshd: bool,
    /// Settings of sshd_config: (name, value).
    pub(crate) sshd_options: Vec<(String, String)>,
    pub(crate) far: Option<OsString>,
    pub(crate) far_port: Option<u16>,
    pub(crate) far_start: Option<Duration>,
    /// Percent of the time.
    pub(crate) far_cpu: Option<u8>,
    /// Bytes per second.
    pub(crate) far_disk: Option<u64>,
    pub(crate) allow_cc: Vec<String>,
    pub(crate) shell: bool,
    pub(crate) quiet: bool,
    pub(crate) figures: Option<PathBuf>,
    pub(crate) command: Vec<OsString>,
}

/// Hash function of `--manifest`, from `--hash`; it also decides which program can check the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManifestHash {
    /// BLAKE3, as checked by b3sum.
    Blake3,
    /// SHA-256, as checked by sha256sum.
    Sha256,
}

/// Address families that connections may use, from `-4` and `-6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AddressFamilyArg {
    /// IPv4 and IPv6.
    #[default]
    Any,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// When to do something: only on a terminal, always or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TerminalSetting {
    /// Only on a terminal.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// An invalid command line: the message, ready for the terminal.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl TerminalSetting {
    /// Converts a value that the table allows.
    pub(crate) fn of(text: &str) -> Self {
        match text {
            "always" => Self::Always,
            "never" => Self::Never,
            _ => Self::Auto,
        }
    }
}

/// Parses the command line. Pure: reads neither files nor the environment.
///
/// # Errors
/// An unknown or refused flag, an invalid value, or missing operands.
pub(crate) fn parse(
    args: impl IntoIterator<Item = OsString>,
    color: clap::ColorChoice,
) -> Result<ParsedCommandLine, UsageError> {
    let args = help_and_version(args.into_iter().collect());
    let subcommand = args
        .get(1)
        .and_then(|word| word.to_str())
        .map(str::to_owned);
    if let Some(error) = port_of_ssh(&args) {
        return Err(error);
    }
    let help_alone = args.iter().any(|word| word == "-h");
    let matches = match command().color(color).try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => {
            if let Some(error) = foreign_word(&error, subcommand.as_deref()) {
                return Err(error);
            }
            let is_error = error.use_stderr();
            let text = render(error, color);
            return if is_error {
                Err(UsageError(text))
            } else {
                Ok(ParsedCommandLine::Show(text))
            };
        }
    };
    if let Some((name @ ("cp" | "sync"), matches)) = matches.subcommand()
        && matches.get_flag(SHORT_HELP)
    {
        // Beside operands of sync it is rsync's letter, which must not look like a success.
        let is_rsync = name == "sync" && matches.contains_id(OPERANDS);
        if help_alone && !is_rsync {
            return Ok(ParsedCommandLine::Show(short_help(name, color)));
        }
        // rsync's -avh: the letter asks for sizes with units, which are always shown.
        if name == "cp" {
            return Err(usage(
                "-h: cannot be joined with other flags: -h alone shows help; sizes are always \
                 shown in kB, MB and GB",
            ));
        }
    }
    match matches.subcommand() {
        Some(("cp", matches)) => Ok(ParsedCommandLine::Copy(Box::new(copy_args(matches)?))),
        Some(("sync", matches)) => Ok(ParsedCommandLine::Sync(Box::new(syncing::sync(matches)?))),
        Some(("plan", matches)) => Ok(ParsedCommandLine::Plan(Box::new(planning::plan(matches)?))),
        Some(("bootstrap", matches)) => bootstrap_args(matches),
        Some(("lab", matches)) => Ok(ParsedCommandLine::Lab(Box::new(lab_args(matches)?))),
        Some(("serve", matches)) => Ok(ParsedCommandLine::Serve(serving::serve_args(matches)?)),
        Some(("dial", matches)) => Ok(ParsedCommandLine::Dial(Box::new(dialing::dial(matches)?))),
        Some(("ssh-config", matches)) => Ok(ParsedCommandLine::SshConfig(Box::new(
            dialing::ssh_config(matches)?,
        ))),
        Some(("relay", matches)) => Ok(ParsedCommandLine::Relay(Box::new(relaying::relay_args(
            matches,
        )?))),
        Some(("bench", matches)) => Ok(ParsedCommandLine::Bench(Box::new(benching::bench(
            matches,
        )?))),
        Some(("doctor", matches)) => Ok(ParsedCommandLine::Doctor(Box::new(diagnosing::doctor(
            matches,
        )?))),
        Some(("wrap", matches)) => Ok(ParsedCommandLine::Wrap(Box::new(wrapping::wrap(matches)?))),
        Some(("completions", matches)) => match matches.get_one("SHELL") {
            Some(shell) => Ok(ParsedCommandLine::Completions(*shell)),
            None => Err(UsageError(
                "error: no shell given: use bash, zsh, fish, elvish or powershell\n".to_owned(),
            )),
        },
        Some(("man", matches)) => Ok(ParsedCommandLine::Man {
            command: matches.get_one::<String>("COMMAND").cloned(),
            write: matches.get_one::<PathBuf>("write").cloned(),
        }),
        _ => Err(UsageError(command().render_help().to_string())),
    }
}

/// The text that `longhaul NAME -h` shows.
fn short_help(name: &str, color: clap::ColorChoice) -> String {
    let mut all = command().color(color);
    all.build();
    let help = all
        .find_subcommand_mut(name)
        .map(clap::Command::render_help);
    shown(&help.unwrap_or_default(), color)
}

/// Rewrites `longhaul help [COMMAND]` and `longhaul version` as the flags that they stand for.
fn help_and_version(mut words: Vec<OsString>) -> Vec<OsString> {
    match words.get(1).and_then(|word| word.to_str()) {
        Some("help") => {
            words.remove(1);
            words.truncate(2);
            words.push("--help".into());
        }
        Some("version") if words.len() == 2 => words[1] = "--version".into(),
        _ => {}
    }
    words
}

/// The error for `-p2222`, which is a port in ssh and several letters here.
fn port_of_ssh(args: &[OsString]) -> Option<UsageError> {
    let refuse = match args.get(1)?.to_str()? {
        "cp" => usage,
        "sync" => sync_usage,
        _ => return None,
    };
    let flags = args.iter().skip(2).take_while(|word| *word != "--");
    let port = flags.filter_map(|word| word.to_str()).find_map(|word| {
        let digits = word.strip_prefix("-p")?;
        let is_number = digits.len() > 1 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some(digits)
    })?;
    Some(refuse(&format!(
        "-p{port}: the port is -P {port}; -p keeps times and permissions"
    )))
}

/// The advice for a flag or command that another program has.
fn foreign_word(error: &clap::Error, subcommand: Option<&str>) -> Option<UsageError> {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::TooManyValues => {
            // clap names the flag with its value's place, such as "--preserve".
            let flag = word(ContextKind::InvalidArg)?;
            let flag = flag.split([' ', '=']).next().unwrap_or(flag);
            let what = match flag.trim_start_matches('-') {
                "preserve" => {
                    "--preserve: takes no value: use -p (times and permissions) or -a (owners and \
                     links too); modes alone cannot be chosen"
                        .to_owned()
                }
                _ => format!("{flag}: takes no value: leave out what follows the ="),
            };
            match subcommand {
                Some("cp") => Some(usage(&what)),
                Some("sync") => Some(sync_usage(&what)),
                _ => None,
            }
        }
        ErrorKind::UnknownArgument => {
            let flag = word(ContextKind::InvalidArg)?;
            let said = |advice| format!("{flag}: no such flag: {advice}");
            match subcommand {
                Some("cp") => foreign::for_copy(flag).map(said).as_deref().map(usage),
                Some("sync") => foreign::for_sync(flag).map(said).as_deref().map(sync_usage),
                _ => None,
            }
        }
        ErrorKind::InvalidSubcommand => {
            let command = word(ContextKind::InvalidSubcommand)?;
            let advice = foreign::for_command(command)?;
            Some(UsageError(format!(
                "error: {command}: no such command: {advice}\n\n\
                 For more information, try 'longhaul --help'.\n"
            )))
        }
        _ => None,
    }
}

fn render(mut error: clap::Error, color: clap::ColorChoice) -> String {
    // clap takes each unknown flag for a value that could be meant.
    if let Some(ContextValue::StyledStrs(tips)) = error.get(ContextKind::Suggested) {
        let mut tips = tips.clone();
        tips.retain(|tip| !tip.to_string().contains("to pass '"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    shown(&error.render(), color)
}

fn shown(text: &clap::builder::StyledStr, color: clap::ColorChoice) -> String {
    if color == clap::ColorChoice::Never {
        text.to_string()
    } else {
        text.ansi().to_string()
    }
}

fn copy_args(matches: &ArgMatches) -> Result<CopyArgs, UsageError> {
    let mut args: CopyArgs = from_rows(rows(), matches).map_err(|what| usage(&what))?;
    args.selection.settle().map_err(|what| usage(&what))?;
    let operands = matches.get_many::<OsString>(OPERANDS).unwrap_or_default();
    args.sources = operands.cloned().collect();
    args.destination = args.sources.pop().unwrap_or_default();
    if let Some(what) = planning::shard_contradiction(&args) {
        return Err(usage(what));
    }
    if args.plan.is_some() {
        return match contradiction(&args) {
            Some(what) => Err(usage(what)),
            None => Ok(args),
        };
    }
    if args.sources.is_empty() {
        return Err(usage(
            "no destination given: name at least one source and a destination",
        ));
    }
    if args
        .sources
        .iter()
        .chain([&args.destination])
        .any(|operand| operand == OsStr::new(""))
    {
        return Err(usage(EMPTY_OPERAND));
    }
    match contradiction(&args) {
        Some(what) => Err(usage(what)),
        None => Ok(args),
    }
}

/// Error text for an empty SRC or DST.
const EMPTY_OPERAND: &str = "SRC or DST is an empty string (\"\"): check for an unset shell \
    variable; HOST: alone means the home directory there";

fn bootstrap_args(matches: &ArgMatches) -> Result<ParsedCommandLine, UsageError> {
    let wrong = |what: &dyn Display| usage_of("bootstrap", "[flags] HOST", what);
    let args = from_rows(bootstrap_rows(), matches);
    let mut args: CopyArgs = args.map_err(|what| wrong(&what))?;
    let host = matches.get_one::<OsString>(OPERANDS).cloned();
    let mut host = host.unwrap_or_default();
    if !host.as_encoded_bytes().windows(3).any(|w| w == b"://") {
        host.push(":");
    }
    if args.program.is_some() || args.sftp_server.is_some() {
        return Err(wrong(
            &"-S and -D cannot be combined with bootstrap, which needs longhaul's own SSH client",
        ));
    }
    args.sources = vec![host];
    args.destination = ".".into();
    let remove = matches.get_flag(REMOVE);
    Ok(ParsedCommandLine::Bootstrap {
        args: Box::new(args),
        remove,
    })
}

/// Finds flags that exclude each other.
fn contradiction(args: &CopyArgs) -> Option<&'static str> {
    let several = |n: Option<u32>| n.is_some_and(|n| n > 1);
    let foreign = args.program.is_some() || args.sftp_server.is_some();
    if args.limit.is_some() && args.limit_kbit.is_some() {
        return Some("-l and --limit cannot be combined: both set the rate");
    }
    if args.inplace && args.temp_dir.is_some() {
        return Some("--inplace creates no temporaries: leave --temp-dir out");
    }
    if args.hash.is_some() && args.manifest.is_none() {
        return Some("--hash needs --manifest: it chooses the checksum of the manifest");
    }
    if foreign && (several(args.connections) || several(args.channels)) {
        return Some(
            "--connections and --channels cannot be combined with -S or -D: such a program is \
             one connection with one channel",
        );
    }
    if foreign && args.via.is_some() {
        return Some(
            "--via cannot be combined with -S or -D: the program makes the connection itself",
        );
    }
    if args.via.is_some() && args.jump.is_some() {
        return Some("--via and -J cannot be combined: both name the hosts on the way; use --via");
    }
    if foreign && args.congestion.is_some() {
        return Some(
            "--congestion cannot be combined with -S or -D: the program opens its own sockets",
        );
    }
    if foreign && args.renounced != DisabledProtection::Nothing {
        return Some(
            "--insecure-none-cipher and --insecure-none-mac cannot be combined with -S or -D: \
             the program encrypts itself",
        );
    }
    if foreign
        && matches!(
            args.far,
            RemoteLonghaulPolicy::Exec | RemoteLonghaulPolicy::Direct
        )
    {
        return Some(
            "--far-end cannot be combined with -S or -D: no command can be run at the far end",
        );
    }
    if foreign && args.bootstrap {
        return Some("--bootstrap cannot be combined with -S or -D");
    }
    if foreign && args.background {
        return Some(
            "--background cannot be combined with -S or -D: longhaul cannot see the queues of \
             the program's sockets",
        );
    }
    if several(args.connections) && args.background {
        return Some("--background cannot be combined with --connections: it uses one connection");
    }
    None
}

impl CopyArgs {
    /// The checksums to compute while copying, if any.
    pub(crate) fn sums(&self) -> Option<WantedDigest> {
        match (&self.manifest, self.hash) {
            (Some(_), Some(ManifestHash::Sha256)) => Some(WantedDigest::Sha256),
            (Some(_), _) => Some(WantedDigest::Blake3),
            (None, _) => self.verify.then_some(WantedDigest::Verify),
        }
    }

    /// The rate limit in bytes a second, if one was set.
    pub(crate) fn limit(&self) -> Option<u64> {
        // scp's kbit has 1024 bits.
        let kbit = self.limit_kbit.map(|kbit| kbit * 1024 / 8);
        self.limit.map(RateLimitArg::bytes).or(kbit)
    }
}

fn lab_args(matches: &ArgMatches) -> Result<LabArgs, UsageError> {
    let mut args: LabArgs = from_rows(lab_rows(), matches).map_err(|what| lab_usage(&what))?;
    let words = matches.get_many::<OsString>(COMMAND).unwrap_or_default();
    args.command = words.cloned().collect();
    let wrong = match &args {
        LabArgs { list: true, .. } => None,
        LabArgs {
            estimate: Some(_),
            command,
            ..
        } if !command.is_empty() => Some("--estimate runs no command"),
        LabArgs {
            estimate: Some(_), ..
        } => None,
        LabArgs { shell, command, .. } if !shell && command.is_empty() => {
            Some("no command given: name one, or use --shell")
        }
        LabArgs { shell, command, .. } if *shell && !command.is_empty() => {
            Some("--shell takes no command")
        }
        LabArgs { sshd: false, .. } if !args.sshd_options.is_empty() => {
            Some("--sshd-option needs --sshd")
        }
        LabArgs {
            far: None,
            far_port: Some(_),
            ..
        } => Some("--far-port needs --far"),
        LabArgs { sshd: false, .. }
            if args.far_start.is_some() || args.far_cpu.is_some() || args.far_disk.is_some() =>
        {
            Some("--far-start, --far-cpu and --far-disk need --sshd")
        }
        _ => None,
    };
    wrong.map_or(Ok(args), |what| Err(lab_usage(what)))
}

/// Builds the arguments from a table's rows. The error is one sentence.
fn from_rows<Args: Default + 'static>(
    rows: impl Iterator<Item = &'static Flag<Args>>,
    matches: &ArgMatches,
) -> Result<Args, ArgumentError> {
    let mut args = Args::default();
    add_rows(&mut args, rows, matches)?;
    Ok(args)
}

/// Adds a table's rows to arguments, as [`from_rows`] does.
fn add_rows<Args: 'static>(
    args: &mut Args,
    rows: impl Iterator<Item = &'static Flag<Args>>,
    matches: &ArgMatches,
) -> Result<(), ArgumentError> {
    for flag in rows {
        let Some(given) = given(flag, matches) else {
            continue;
        };
        if let Some(reason) = flag.refused() {
            return Err(format!("{}: {reason}", flag.spelled()).into());
        }
        if flag.takes.names_a_file() && given.values.iter().any(|value| value.is_empty()) {
            return Err(format!("{}: the name is empty", flag.spelled()).into());
        }
        put(flag, args, given).map_err(|why| format!("{}: {why}", flag.spelled()))?;
    }
    Ok(())
}

/// Stores a flag's input in the arguments. The error names the value and the reason.
pub(crate) fn put<Args: 'static>(
    flag: &Flag<Args>,
    args: &mut Args,
    given: FlagInput,
) -> Result<(), ArgumentError> {
    let quoted = |value: &OsString| format!("'{}'", value.to_string_lossy().escape_debug());
    let shown: Vec<String> = given.values.iter().map(quoted).collect();
    (flag.set)(args, given).map_err(|why| match shown.as_slice() {
        [] => why,
        [value] => format!("{value} {why}").into(),
        // The reason does not tell which of them it is about.
        values => format!("one of {} {why}", values.join(", ")).into(),
    })
}

fn given<Args: 'static>(flag: &Flag<Args>, matches: &ArgMatches) -> Option<FlagInput> {
    let id = flag.id();
    if matches.value_source(&id) != Some(ValueSource::CommandLine) {
        return None;
    }
    let times = match flag.takes {
        FlagValueKind::Repeats => matches.get_count(&id),
        _ => 1,
    };
    let values = match flag.takes {
        FlagValueKind::Nothing | FlagValueKind::Repeats => Vec::new(),
        FlagValueKind::Value(_) | FlagValueKind::Values(_) | FlagValueKind::OptionalValue(_) => {
            matches
                .get_many::<OsString>(&id)
                .unwrap_or_default()
                .cloned()
                .collect()
        }
        FlagValueKind::Choice(..) | FlagValueKind::OptionalChoice(..) => matches
            .get_many::<String>(&id)
            .unwrap_or_default()
            .map(OsString::from)
            .collect(),
    };
    let places = match values.is_empty() {
        true => Vec::new(),
        false => matches.indices_of(&id).into_iter().flatten().collect(),
    };
    Some(FlagInput {
        long: flag.long.unwrap_or_default(),
        times,
        values,
        places,
    })
}

fn usage(what: impl Display) -> UsageError {
    UsageError(format!(
        "error: {what}\n\nUsage: longhaul cp [flags] SRC... DST\n\n\
         For more information, try 'longhaul cp --help'.\n"
    ))
}

/// A usage error of `longhaul lab`.
pub(crate) fn lab_usage(what: impl Display) -> UsageError {
    usage_of("lab", "[flags] [--] COMMAND...", what)
}

fn usage_of(subcommand: &str, line: &str, what: impl Display) -> UsageError {
    UsageError(format!(
        "error: {what}\n\nUsage: longhaul {subcommand} {line}\n\n\
         For more information, try 'longhaul {subcommand} --help'.\n"
    ))
}

/// Parses a line whose words are separated by blanks.
#[cfg(test)]
fn parse_line(line: &str) -> Result<ParsedCommandLine, String> {
    let words = line.split(' ').map(OsString::from);
    parse(words, clap::ColorChoice::Never).map_err(|UsageError(why)| why)
}

#[cfg(test)]
#[path = "low_tests.rs"]
mod tests;
