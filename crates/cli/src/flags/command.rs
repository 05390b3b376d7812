use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, Command};

use crate::exit;
use crate::flags::flag::{Flag, FlagValueKind, ScpCompatibility};
use crate::flags::table::{
    bench_rows, bootstrap_rows, dial_rows, doctor_rows, lab_rows, plan_copy_rows, plan_rows,
    relay_rows, rows, serve_rows, ssh_config_rows, sync_copy_rows, sync_rows, wrap_rows,
};

/// Name under which clap stores sources and destination.
pub(crate) const OPERANDS: &str = "OPERANDS";
/// Name under which clap stores `--remove`.
pub(crate) const REMOVE: &str = "remove";
/// Name under which clap stores `-h` of `longhaul cp` and `longhaul sync`.
pub(crate) const SHORT_HELP: &str = "h";
/// Name under which clap stores the words of a command to run.
pub(crate) const COMMAND: &str = "COMMAND";

/// Builds the clap command of the whole program.
pub(crate) fn command() -> Command {
    Command::new("longhaul")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Copy files over SSH as fast as the path allows")
        .long_about(
            "Copy files over SSH as fast as the path and the machines allow, to and from \
             unmodified servers.",
        )
        .after_long_help(exit::help())
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .infer_subcommands(false)
        .subcommand(cp())
        .subcommand(sync())
        .subcommand(plan())
        .subcommand(bootstrap())
        .subcommand(lab())
        .subcommand(serve())
        .subcommand(dial())
        .subcommand(ssh_config())
        .subcommand(relay())
        .subcommand(bench())
        .subcommand(doctor())
        .subcommand(wrap())
        .subcommand(
            Command::new("completions")
                .about("Print completions for a shell")
                .disable_version_flag(true)
                .arg(
                    Arg::new("SHELL")
                        .help("The shell")
                        .required(true)
                        .value_parser(clap::value_parser!(clap_complete::Shell)),
                ),
        )
        .subcommand(
            Command::new("man")
                .about("Print a man page")
                .disable_version_flag(true)
                .arg(Arg::new("COMMAND").help(
                    "The subcommand to document; without it, longhaul \
                                               itself",
                ))
                .arg(
                    Arg::new("write")
                        .long("write")
                        .value_name("DIR")
                        .hide(true)
                        .help("Write all generated documents below this folder")
                        .value_parser(clap::value_parser!(PathBuf)),
                ),
        )
}

fn cp() -> Command {
    let command = Command::new("cp")
        .about("Copy files and directories to, from and between hosts, as scp does")
        .long_about(
            "Copy files and directories between this machine and hosts with an SSH server, or \
             between two such hosts through this machine.\n\n\
             SRC and DST are local paths, [user@]host:path, [user@][address]:path for an IPv6 \
             address, or URIs: scp://[user@]host[:port][/path], sftp://... A path is local if it \
             has a slash before the first colon. With several sources, DST must be a directory, \
             and sources that would get the same name in it are refused. DIR/. stands for the \
             contents of DIR. Patterns (* ? [...]) in a remote source are expanded on the \
             server.\n\n\
             A file appears under its final name only when it is complete: it is written to a \
             temporary file next to it and then renamed. A file that fails does not stop the \
             others.\n\n\
             Sizes and rates are decimal: 1 MB is 1,000,000 bytes.",
        )
        .override_usage(
            "longhaul cp [flags] SRC... DST\n       longhaul cp [flags] --plan DIR --shard N",
        )
        .after_help("More: longhaul cp --help, or man longhaul-cp")
        .after_long_help(exit::help())
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(
            // Our own parser counts operands, since its message is a single line.
            Arg::new(OPERANDS)
                .value_names(["SRC"])
                .num_args(0..)
                .help("Sources, then the destination")
                .value_hint(clap::ValueHint::AnyPath)
                .value_parser(ValueParser::os_string()),
        );
    let command = rows().fold(command, |command, flag| command.arg(arg(flag)));
    with_help(command)
}

/// Replaces clap's `-h`, which would show help for the h of rsync's `-avh` too and copy nothing.
fn with_help(command: Command) -> Command {
    command
        .disable_help_flag(true)
        .arg(
            Arg::new(SHORT_HELP)
                .short('h')
                .action(ArgAction::SetTrue)
                .help("Print a short help"),
        )
        .arg(
            Arg::new("help")
                .long("help")
                .action(ArgAction::HelpLong)
                .help("Print the whole help"),
        )
}

fn sync() -> Command {
    let command = Command::new("sync")
        .about("Make a directory equal to another one, and send only what differs")
        .long_about(
            "Make the directory DST equal to the directory SRC, and send only what differs. One \
             of the two, or both, are on hosts with an SSH server. A slash at the end means \
             nothing: sync A B makes B equal to A, and the first line of output shows both.\n\n\
             Files whose size and modification time are equal count as equal, in the unit in \
             which both ends report times. If only the fractions of a second differ, checksums \
             decide. What is copied keeps permissions, times, symbolic links and what else \
             longhaul cp -a keeps. Where longhaul is at the far end, only the changed parts of \
             large files are sent.\n\n\
             Entries that only DST has stay there unless --delete is given.",
        )
        .override_usage("longhaul sync [flags] SRC DST")
        .after_help("More: longhaul sync --help, or man longhaul-sync")
        .after_long_help(exit::help())
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(operands(
            "SRC DST",
            "The directory to read, and the one to make equal to it",
            clap::ValueHint::AnyPath,
        ));
    let command = sync_rows().fold(command, |command, flag| command.arg(arg(flag)));
    let command = sync_copy_rows().fold(command, |command, flag| command.arg(arg(flag)));
    with_help(command)
}

fn plan() -> Command {
    let command = Command::new("plan")
        .about("Cut a large copy into shards for many machines")
        .long_about(
            "Walk the directory SRC and write a plan of N shards into the folder DIR. Each shard \
             has about the same size and number of files. longhaul cp --plan DIR --shard N copies \
             one shard to the directory DST, on any machine that reaches SRC, DST and DIR, and a \
             scheduler such as Slurm, Kubernetes or GNU parallel runs all of them. DST gets the \
             contents of SRC, as with longhaul sync. SRC and DST may both be on this machine's \
             file systems.\n\n\
             The same command with an unchanged SRC finds the plan up to date. If SRC has changed \
             and no shard was begun, the plan is replaced; if shards were begun, another folder is \
             needed, and what was copied is not sent again.\n\n\
             plan status shows how many shards are done, and which ones failed. plan verify \
             compares every entry of the plan with DST.",
        )
        .override_usage(
            "longhaul plan [flags] SRC DST --shards N -o DIR\n       \
             longhaul plan status [--json] DIR\n       \
             longhaul plan verify [flags] DIR",
        )
        .after_help("More: longhaul plan --help, or man longhaul-plan")
        .after_long_help(exit::help())
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(operands(
            "SRC DST",
            "The directory to read, and the one that gets its contents",
            clap::ValueHint::AnyPath,
        ));
    let command = plan_rows().fold(command, |command, flag| command.arg(arg(flag)));
    plan_copy_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn bootstrap() -> Command {
    let command = Command::new("bootstrap")
        .about("Install this program on a host, so that copies use it there")
        .long_about(
            "Install this program on a host of the same platform, in a private folder of the \
             account (~/.cache/longhaul/bin, mode 0700), so that copies from this machine use it \
             there instead of the host's SFTP server. Its checksum is verified each time before it \
             is started. --remove removes it.",
        )
        .override_usage("longhaul bootstrap [flags] HOST\n       longhaul bootstrap --remove HOST")
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(
            Arg::new(REMOVE)
                .long("remove")
                .action(ArgAction::SetTrue)
                .help("Remove the installed program from the host"),
        )
        .arg(
            Arg::new(OPERANDS)
                .value_name("HOST")
                .required(true)
                .help("[user@]host, or scp://[user@]host[:port]")
                .value_hint(clap::ValueHint::Hostname)
                .value_parser(ValueParser::os_string()),
        );
    bootstrap_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn lab() -> Command {
    let command = Command::new("lab")
        .about("Run a command on an emulated long path on this machine")
        .long_about(
            "Create two hosts on this machine, near and far, with an emulated path between them, \
             and run a command on the near one. There the name far (or far4 and far6 for IPv4 and \
             IPv6 only) refers to the other host. Everything is removed when the command ends.\n\n\
             The hosts are network namespaces; an ordinary user gets them through a user \
             namespace. Both hosts see the files of this machine.\n\n\
             Rates and sizes are decimal, and rates count IP packets with their headers.",
        )
        .override_usage("longhaul lab [flags] [--] COMMAND...")
        .after_help("More: longhaul lab --help, or man longhaul-lab")
        .after_long_help(lab_after_help())
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(
            Arg::new(COMMAND)
                .value_names(["COMMAND"])
                .num_args(0..)
                .trailing_var_arg(true)
                .help("The command and its arguments")
                .value_hint(clap::ValueHint::CommandWithArguments)
                .value_parser(ValueParser::os_string()),
        );
    lab_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn serve() -> Command {
    let command = Command::new("serve")
        .about("Serve files to SFTP clients, as an SSH server or in place of sftp-server")
        .long_about(
            "Serve files to any SFTP client, as a separate SSH server or behind an sshd in place \
             of sftp-server. Clients may reach all files of the account or only those below a \
             directory, with full access, read-only access or a drop box. The protocol is SFTP \
             version 3 with all extensions of OpenSSH 9.1.\n\n\
             The server admits the user it runs as or, as root, every account of the machine, with \
             the keys in authorized_keys. It offers no shell, and runs no command except the \
             programs of --allow. It serves the old scp protocol (scp -O, and scp before OpenSSH \
             9.0) itself.\n\n\
             A sandboxed process handles all input until the login is complete. After that, if the \
             server runs as root, a process of the client's account handles it.\n\n\
             On SIGHUP the server reads its configuration and host keys again, for new \
             connections. On SIGTERM it stops listening and finishes running transfers.",
        )
        .override_usage(
            "longhaul serve --stdio [flags]\n       longhaul serve --once [flags]\n       \
             longhaul serve --listen ADDR [flags]\n       \
             longhaul serve --config FILE [flags]\n       longhaul serve check FILE",
        )
        .after_help("More: longhaul serve --help, or man longhaul-serve")
        .after_long_help(serve_after_help())
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(
            Arg::new(OPERANDS)
                .value_names(["check FILE"])
                .num_args(0..)
                .help("Check a configuration file instead of serving")
                .value_hint(clap::ValueHint::FilePath)
                .value_parser(ValueParser::os_string()),
        );
    serve_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn relay() -> Command {
    let command = Command::new("relay")
        .about("Relay TCP connections of other programs")
        .long_about(
            "Accept TCP connections at LISTEN and relay each to the first TARGET that answers. The \
             connection on each side has its own windows, loss recovery and packet marks. This \
             helps if a path handles the socket settings of a program badly, or if a program's \
             buffers are too small for the path.\n\n\
             LISTEN is a port of this machine alone (9022), HOST:PORT, *:PORT for all addresses, \
             unix:PATH, or - for standard input and output. TARGET is HOST:PORT, a port of this \
             machine, or unix:PATH. Names are resolved again for each connection, addresses of \
             both families are tried a quarter of a second apart, and targets are tried in \
             order.\n\n\
             Two relays form a pair if one has a TARGET such as far:7000/pair and the other, on \
             host far, the LISTEN *:7000/pair. Between them each connection is spread over several \
             TCP connections, encrypted, and compressed if that pays. Each relay has a key and \
             reports its fingerprint at the start; pass it to the other one with --pair-allow. \
             With a TARGET such as ssh://far/localhost:22, or with --via far, the other relay is \
             started on host far over ssh and needs no key of its own, but longhaul must be \
             installed there (longhaul bootstrap far). It ends with this relay, or with the ssh \
             connection. If its port cannot be reached, data goes over the ssh connection, and a \
             message says so.\n\n\
             An end of file is passed on after the last byte, and the other direction continues. \
             If a connection breaks, the other side is reset as well, and if the relay is killed, \
             all connections are reset: truncated data never looks complete. On SIGTERM the relay \
             stops listening and finishes the existing connections; a second SIGTERM ends them. On \
             SIGHUP it reads the configuration, keys and certificates again; changed keys and \
             certificates are also noticed without it. Each connection is logged as one line on \
             standard error when it ends.\n\n\
             LISTEN/socks5 and LISTEN/http let clients choose their target. With LISTEN/redirect \
             and LISTEN/tproxy (Linux), nftables rules redirect connections that were on their way \
             to other hosts to this relay, which connects them to their original destination if \
             --to allows it. longhaul relay rules print shows those rules for a LISTEN and its \
             flags, add installs them, and remove deletes them. A running relay needs the rules, \
             but does not install them itself.\n\n\
             longhaul relay check reports errors in a configuration file. longhaul relay top shows \
             in a terminal the status of a relay that runs with --status.",
        )
        .override_usage(
            "longhaul relay [flags] LISTEN TARGET...\n       \
             longhaul relay [flags] --config FILE\n       longhaul relay check FILE\n       \
             longhaul relay top ADDRESS:PORT\n       \
             longhaul relay rules print|add|remove [flags] LISTEN",
        )
        .after_help("More: longhaul relay --help, or man longhaul-relay")
        .after_long_help(codes("Exit codes:\n", exit::RELAY))
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(
            Arg::new(OPERANDS)
                .value_names(["LISTEN"])
                .num_args(0..)
                .help("The address to listen on, then the targets")
                .value_hint(clap::ValueHint::Hostname)
                .value_parser(ValueParser::os_string()),
        );
    relay_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn bench() -> Command {
    let command = Command::new("bench")
        .about("Measure which cipher to use with a host, and whether compression pays")
        .long_about(
            "Copy between this machine and HOST with every cipher and MAC that both support, with \
             and without compression, for several kinds of data, over several connections and \
             channels, from memory to memory and from disk to disk. The result says what to use \
             for which data, with lines for ssh_config, and lists the ciphers that only the host \
             supports. It is remembered for copies to and from HOST.\n\n\
             The settings run in turn, so that a temporary slowdown of the machine affects all of \
             them. Each figure is a median with its confidence interval, which assumes no \
             particular distribution. The output says if a machine was busy, throttled or \
             noisy.\n\n\
             bench --local measures only this processor. bench compare A B compares two results of \
             --json side by side.",
        )
        .override_usage(
            "longhaul bench [flags] HOST\n       longhaul bench --local [flags]\n       \
             longhaul bench compare A B",
        )
        .after_help("More: longhaul bench --help, or man longhaul-bench")
        .after_long_help(codes("Exit codes:\n", exit::BENCH))
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(operands(
            "HOST",
            "[user@]host, or scp://[user@]host[:port]",
            clap::ValueHint::Hostname,
        ));
    let command = bench_rows().fold(command, |command, flag| command.arg(arg(flag)));
    bootstrap_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn doctor() -> Command {
    let command = Command::new("doctor")
        .about("Find out why the path to a host is slow, and say it in one sentence")
        .long_about(
            "Measure the path to HOST through its SSH server, without changing anything there, and \
             name what limits it, how much faster it could be, and the change that helps most. \
             Uploads go to /dev/null and downloads come from /dev/zero over one, two, four and \
             eight connections; the login, the idle and the loaded round trip, TCP's counters, \
             DSCP classes and, where the account may run commands, the server's settings are \
             compared.\n\n\
             With PATH, a folder at HOST, the server's disk is measured with a temporary file \
             there. With LOCAL, a file, this machine's disk is measured by reading it.\n\n\
             --from FILE explains a finished transfer from what longhaul cp --json wrote, or shows \
             the result of an earlier doctor --json again.",
        )
        .override_usage(
            "longhaul doctor [flags] HOST[:PATH] [LOCAL]\n       longhaul doctor --from FILE [flags]",
        )
        .after_help("More: longhaul doctor --help, or man longhaul-doctor")
        .after_long_help(codes("Exit codes:\n", exit::DOCTOR))
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(operands(
            "HOST",
            "[user@]host[:path], or scp://[user@]host[:port][/path], then a local file",
            clap::ValueHint::Hostname,
        ));
    let command = doctor_rows().fold(command, |command, flag| command.arg(arg(flag)));
    bootstrap_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn serve_after_help() -> String {
    codes("Exit codes:\n", exit::SERVE)
}

fn dial() -> Command {
    let command = Command::new("dial")
        .about("Connect for ssh and pass it a tuned socket: ProxyCommand longhaul dial %h %p")
        .long_about(
            "Connect to HOST and set the socket options that help on a long path: no DSCP, a \
             congestion control that tolerates loss (if the kernel permits it and the host is far \
             away), little unsent data in the kernel, and pacing. With ProxyUseFdpass, ssh \
             receives the socket itself and this program exits. Nothing is relayed then, and \
             nothing is loaded into ssh, so this works for every program that uses ssh. Without \
             ProxyUseFdpass the bytes are relayed.\n\n\
             longhaul ssh-config prints the lines for ssh_config. ProxyCommand cannot be combined \
             with ProxyJump.",
        )
        .override_usage("longhaul dial [flags] HOST PORT")
        .after_help("More: longhaul dial --help, or man longhaul-dial")
        .after_long_help(codes("Exit codes:\n", exit::DIAL))
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(operands(
            "HOST PORT",
            "The host and port to connect to",
            clap::ValueHint::Hostname,
        ));
    dial_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn ssh_config() -> Command {
    let command = Command::new("ssh-config")
        .about("Print or write the ssh_config lines that make ssh use longhaul dial")
        .long_about(
            "Print the ssh_config lines that make ssh, scp, sftp, rsync, git and everything else \
             that uses ssh connect through longhaul dial, or append them to ~/.ssh/config after \
             asking. HOST is a host pattern of ssh_config; the default is every host. The lines \
             include IPQoS none, because ssh would otherwise mark the packets again.",
        )
        .override_usage("longhaul ssh-config [flags] [HOST...]")
        .after_help("More: longhaul ssh-config --help, or man longhaul-ssh-config")
        .after_long_help(codes("Exit codes:\n", exit::SSH_CONFIG))
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(operands("HOST", "Host patterns", clap::ValueHint::Hostname));
    ssh_config_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn wrap() -> Command {
    let command = Command::new("wrap")
        .about("Run an unmodified program with its long-distance TCP connections tuned")
        .long_about(
            "Run PROGRAM with a small preloaded library (LD_PRELOAD) that sees where the program \
             connects to and sets the socket options that help on a long path. Connections within \
             this machine and its network are left alone. On other connections packets are not \
             marked, whatever the program requests (OpenSSH has marked them since 7.8, and some \
             networks slow such packets down to a trickle), and after 4 MiB have been written, \
             congestion control and the amount of unsent data are set for bulk transfer. The same \
             applies to programs that PROGRAM starts.\n\n\
             Programs that are static, setuid or written in Go cannot load the library: they are \
             not run, and the message says what to use instead. ssh, and every program that uses \
             it, does not need the library: use longhaul dial.\n\n\
             LONGHAUL_OFF=1 turns it off. LD_PRELOAD=$(longhaul wrap --library) with the rules in \
             LONGHAUL_WRAP does the same without this command (docs/design/0015-wrap.md).",
        )
        .override_usage(
            "longhaul wrap [flags] [--] PROGRAM [ARGS...]\n       \
             longhaul wrap --check PROGRAM\n       longhaul wrap --library",
        )
        .after_help("More: longhaul wrap --help, or man longhaul-wrap")
        .after_long_help(codes("Exit codes:\n", exit::WRAP))
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(
            Arg::new(COMMAND)
                .value_names(["PROGRAM"])
                .num_args(0..)
                .trailing_var_arg(true)
                .help("The program and its arguments")
                .value_hint(clap::ValueHint::CommandWithArguments)
                .value_parser(ValueParser::os_string()),
        );
    wrap_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

/// The positional arguments of a subcommand.
fn operands(name: &'static str, help: &'static str, hint: clap::ValueHint) -> Arg {
    Arg::new(OPERANDS)
        .value_names([name])
        .num_args(0..)
        .help(help)
        .value_hint(hint)
        .value_parser(ValueParser::os_string())
}

fn codes(heading: &str, codes: &[(&str, &str)]) -> String {
    let lines = codes
        .iter()
        .map(|(code, meaning)| format!("  {code:<4} {meaning}\n"));
    heading.to_owned() + &lines.collect::<String>()
}

/// The end of the lab's help: named paths and exit codes.
fn lab_after_help() -> String {
    named_paths() + &codes("\nExit codes:\n", exit::LAB)
}

/// The table of named paths.
pub(crate) fn named_paths() -> String {
    let mut text = String::from("Paths for --path, and the flags that each one stands for:\n");
    for path in lab::path::NAMED {
        text.push_str(&format!(
            "  {:<16} {}\n  {:<16}   {}\n",
            path.name,
            path.about,
            "",
            stands_for(path)
        ));
    }
    text
}

/// The flags that a named path stands for, as they would be typed.
pub(crate) fn stands_for(path: &lab::path::NamedNetworkPath) -> String {
    let words: Vec<String> = path
        .options
        .iter()
        .map(|(name, value)| format!("--{name} {value}").trim_end().to_owned())
        .collect();
    words.join(" ")
}

fn arg<Args: 'static>(flag: &'static Flag<Args>) -> Arg {
    let mut arg = Arg::new(flag.id())
        .help(flag.help)
        .help_heading(flag.group.heading())
        .hide(flag.refused().is_some())
        .hide_short_help(matches!(flag.scp, ScpCompatibility::NoEffect(_)))
        .overrides_with_all(flag.overrides);
    // `--help` and the man page show `doc`; `-h` shows the one line.
    arg = arg.long_help(flag.doc);
    if let Some(short) = flag.short {
        arg = arg.short(short);
    }
    if let Some(long) = flag.long {
        arg = arg.long(long);
    }
    if let Some(name) = flag.takes.value_name() {
        arg = arg.value_name(name);
    }
    match flag.takes {
        FlagValueKind::Nothing => arg.action(ArgAction::SetTrue),
        FlagValueKind::Repeats => arg.action(ArgAction::Count),
        // As with getopt, the next word is the value even if it begins with a hyphen.
        FlagValueKind::Value(name) => arg
            .action(ArgAction::Set)
            .allow_hyphen_values(true)
            .value_hint(hint(name))
            .value_parser(ValueParser::os_string()),
        FlagValueKind::Values(name) => arg
            .action(ArgAction::Append)
            .allow_hyphen_values(true)
            .value_hint(hint(name))
            .value_parser(ValueParser::os_string()),
        FlagValueKind::Choice(_, choices) => {
            // The text names the choices already.
            arg.action(ArgAction::Set)
                .hide_possible_values(true)
                .value_parser(PossibleValuesParser::new(choices))
        }
        FlagValueKind::OptionalValue(name) => arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("")
            .value_hint(hint(name))
            .value_parser(ValueParser::os_string()),
        FlagValueKind::OptionalChoice(_, choices) => arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .hide_possible_values(true)
            .default_missing_value(choices.first().copied().unwrap_or_default())
            .value_parser(PossibleValuesParser::new(choices)),
    }
}

/// The kind of completion that shells offer for a value.
fn hint(value_name: &str) -> clap::ValueHint {
    match value_name {
        "FILE" | "PATH" => clap::ValueHint::FilePath,
        "PROGRAM" => clap::ValueHint::CommandName,
        "HOSTS" => clap::ValueHint::Hostname,
        _ => clap::ValueHint::Other,
    }
}
