use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, Command};

use crate::exit;
use crate::flags::flag::{Flag, Scp, ValueKind};
use crate::flags::table::{
    bench_rows, bootstrap_rows, dial_rows, lab_rows, relay_rows, rows, serve_rows, ssh_config_rows,
    wrap_rows,
};

/// Name under which clap stores sources and destination.
pub(crate) const OPERANDS: &str = "OPERANDS";
/// Name under which clap stores `--remove`.
pub(crate) const REMOVE: &str = "remove";
/// Name under which clap stores the words of a command to run.
pub(crate) const COMMAND: &str = "COMMAND";

/// Builds the clap command of the whole program.
pub(crate) fn command() -> Command {
    Command::new("longhaul")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Copies files over SSH as fast as the path allows")
        .long_about(
            "Copies files over SSH as fast as the path and the machines allow, to and from \
             servers that nobody changed.",
        )
        .after_long_help(exit::help())
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .infer_subcommands(false)
        .subcommand(cp())
        .subcommand(bootstrap())
        .subcommand(lab())
        .subcommand(serve())
        .subcommand(dial())
        .subcommand(ssh_config())
        .subcommand(relay())
        .subcommand(bench())
        .subcommand(wrap())
        .subcommand(
            Command::new("completions")
                .about("Prints completions for a shell")
                .disable_version_flag(true)
                .arg(
                    Arg::new("SHELL")
                        .help("Which shell")
                        .required(true)
                        .value_parser(clap::value_parser!(clap_complete::Shell)),
                ),
        )
        .subcommand(
            Command::new("man")
                .about("Prints a man page")
                .disable_version_flag(true)
                .arg(Arg::new("COMMAND").help("Of which subcommand; longhaul's own without it"))
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
        .about("Copies files and directories to, from and between hosts, as scp does")
        .long_about(
            "Copies files and directories between this machine and hosts with an SSH server, or \
             between two such hosts through this machine.\n\n\
             SRC and DST are local paths, [user@]host:path, [user@][address]:path for an IPv6 \
             address, or URIs: scp://[user@]host[:port][/path], sftp://... A path is local if it \
             has a slash before the first colon. With several sources, DST is a directory, and \
             sources that would get one name in it are refused; DIR/. stands for what is in DIR. \
             Patterns (* ? [...]) in a remote source are matched on the server.\n\n\
             A file appears under its final name only when it is whole: it is written to a \
             temporary file beside it and renamed. One file that fails does not stop the rest.\n\n\
             Sizes and rates are decimal: 1 MB is 1,000,000 bytes.",
        )
        .override_usage("longhaul cp [flags] SRC... DST")
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
    rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn bootstrap() -> Command {
    let command = Command::new("bootstrap")
        .about("Sends this program to a host, so that copies use it there")
        .long_about(
            "Sends this program to a host of the same platform, into a folder of the account's own \
             (~/.cache/longhaul/bin, mode 0700), so that copies from this machine use it there in \
             place of the server's SFTP server. Its sum is made again each time before it is \
             started. --remove takes it away.",
        )
        .override_usage("longhaul bootstrap [flags] HOST\n       longhaul bootstrap --remove HOST")
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(
            Arg::new(REMOVE)
                .long("remove")
                .action(ArgAction::SetTrue)
                .help("Remove what was sent there"),
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
        .about("Runs a command on an emulated long path on this machine")
        .long_about(
            "Makes two hosts on this machine, near and far, with an emulated path between them, and \
             runs a command on the near one, where the name far (or far4, far6 for IPv4 and IPv6 \
             alone) means the other. Everything is gone when the command ends.\n\n\
             The hosts are network namespaces; an ordinary user gets them by a user namespace. \
             Files are those of this machine on both.\n\n\
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
        .about("Serves files to SFTP clients, as an SSH server or in place of sftp-server")
        .long_about(
            "Serves files to any SFTP client, as an SSH server of its own or behind an sshd in \
             place of sftp-server: all that the account may, or what lies beneath a directory, and \
             there all, nothing but reading, or nothing but putting new files. Version 3 of SFTP \
             with all extensions of OpenSSH 9.1. The server lets in the user it runs as, and as \
             root every account of the machine, with the keys of authorized_keys; there is no \
             shell, and no command is run but those of --allow; scp's old protocol (scp -O, and \
             scp before OpenSSH 9.0) is served without one. What a client sends before it is logged in is read by \
             a confined process, what it sends then, as root, by one of its account. SIGHUP has \
             configuration and host keys read again, for those who come from then on. SIGTERM \
             ends listening, and what is being transferred is served to the end.",
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
                .help("Check a configuration file, and serve nothing")
                .value_hint(clap::ValueHint::FilePath)
                .value_parser(ValueParser::os_string()),
        );
    serve_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn relay() -> Command {
    let command = Command::new("relay")
        .about("Relays TCP connections that other programs make")
        .long_about(
            "Takes TCP connections in at LISTEN and relays each to the first TARGET that answers. \
             A new connection on each side has its own windows, losses and marks: where a path \
             punishes what a program has set on its socket, or a program's buffers are too small \
             for it, the relay's are not.\n\n\
             LISTEN is a port of this machine alone (9022), HOST:PORT, *:PORT for all addresses, \
             unix:PATH, or - for standard input and output. TARGET is HOST:PORT, a port of this \
             machine, or unix:PATH. Names are resolved again for each connection, addresses of \
             both families are tried a quarter of a second apart, and targets in turn.\n\n\
             Two relays face each other where one has a TARGET far:7000/pair and the other, at \
             far, the LISTEN *:7000/pair: between them each connection is spread over several of \
             TCP, encrypted, and compressed where that pays. Each half has a key, and says its \
             fingerprint as it starts; the other is given that with --pair-allow. With a TARGET \
             ssh://far/localhost:22, or --via far, the other half is started at far over ssh, and \
             needs no keys of its own: a longhaul has to be there (longhaul bootstrap far). It ends \
             with this one, or when the ssh connection does. Where its port cannot be reached, data \
             go over the ssh connection, which is said.\n\n\
             An end of file is passed on as an end of file, after the last byte, and the other \
             direction goes on. A connection that breaks is reset on the other side too, and so \
             are all when the relay is killed: what is cut off never looks complete. SIGTERM ends \
             listening, and who is connected is served to the end; a second one ends that. SIGHUP \
             has the configuration, keys and certificates read again; those that change are read \
             again without it too. Each connection is one line on standard error when it has \
             ended.\n\n\
             LISTEN/socks5 and LISTEN/http let clients say where they go; with LISTEN/redirect and \
             LISTEN/tproxy (Linux) rules of nftables lead connections here that were on their way \
             elsewhere, and on they go there, if --to lets them. longhaul relay rules print shows \
             those rules for a LISTEN and its flags, add puts them in place, and remove takes \
             them away; a relay that runs needs them, and is not begun by it.\n\n\
             longhaul relay check tells what is wrong with a configuration file. longhaul relay \
             top shows in a terminal what goes on in a relay that runs with --status.",
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
                .help("Where connections come in, then where they go")
                .value_hint(clap::ValueHint::Hostname)
                .value_parser(ValueParser::os_string()),
        );
    relay_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn bench() -> Command {
    let command = Command::new("bench")
        .about(
            "Measures which cipher, and whether compression pays, between this machine and a host",
        )
        .long_about(
            "Copies between this machine and HOST with every cipher and MAC that both know, with \
             and without compression, for data of several kinds, over several connections and \
             channels, from memory to memory and from disk to disk, and says what to use for \
             which data, with lines for ssh_config. Ciphers that only the host has are named. What \
             was found is kept for copies to and from HOST.\n\n\
             Runs take turns, so that what slows the machine for a while slows all settings; a \
             figure is a median with the interval in which it lies, whatever the distribution. A \
             machine that is busy, throttled or noisy is named.\n\n\
             bench --local measures this processor alone; bench compare A B sets two results of \
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

fn serve_after_help() -> String {
    codes("Exit codes:\n", exit::SERVE)
}

fn dial() -> Command {
    let command = Command::new("dial")
        .about("Connects for ssh and hands it a tuned socket: ProxyCommand longhaul dial %h %p")
        .long_about(
            "Connects to HOST and sets on the socket what helps on a long path: no mark on the \
             packets, a congestion control that bears losses where the kernel permits it and the \
             host is far, little unsent data in the kernel, pacing. With ProxyUseFdpass ssh gets \
             the socket itself and this program is gone: nothing is carried, and it works for \
             every program that uses ssh, since nothing is put into it. Without ProxyUseFdpass \
             the bytes are carried.\n\n\
             longhaul ssh-config prints the lines for ssh_config. With ProxyJump there is no \
             place for a ProxyCommand.",
        )
        .override_usage("longhaul dial [flags] HOST PORT")
        .after_help("More: longhaul dial --help, or man longhaul-dial")
        .after_long_help(codes("Exit codes:\n", exit::DIAL))
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(operands("HOST PORT", "Where to", clap::ValueHint::Hostname));
    dial_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn ssh_config() -> Command {
    let command = Command::new("ssh-config")
        .about("Prints what has ssh reach hosts by longhaul dial, or writes it")
        .long_about(
            "Prints the lines of ssh_config that have ssh, scp, sftp, rsync, git and whatever \
             else uses ssh reach the hosts by longhaul dial, or appends them to ~/.ssh/config \
             after asking. HOST is a pattern of ssh_config; without one it is every host. IPQoS \
             none is among them, since ssh would mark packets again.",
        )
        .override_usage("longhaul ssh-config [flags] [HOST...]")
        .after_help("More: longhaul ssh-config --help, or man longhaul-ssh-config")
        .after_long_help(codes("Exit codes:\n", exit::SSH_CONFIG))
        .disable_version_flag(true)
        .args_override_self(true)
        .arg(operands("HOST", "Which hosts", clap::ValueHint::Hostname));
    ssh_config_rows().fold(command, |command, flag| command.arg(arg(flag)))
}

fn wrap() -> Command {
    let command = Command::new("wrap")
        .about("Runs a program as it is, with its far TCP connections sped up")
        .long_about(
            "Runs PROGRAM with a small library before it (LD_PRELOAD), which sees where it \
             connects to and sets on the sockets what helps on a long path. Connections of this \
             machine and its network are left alone; elsewhere packets are not marked, whatever the \
             program asks for (OpenSSH marks them since 7.8, and some networks hold such packets to \
             a trickle), and once 4 MiB are written, congestion control and the amount of unsent \
             data are chosen for bulk. Programs that it starts have the same.\n\n\
             A program that is static, setuid or made by Go takes no library: it is not run, and the \
             message says what to use. ssh, and all that use it, need none: longhaul dial.\n\n\
             LONGHAUL_OFF=1 switches it off. LD_PRELOAD=$(longhaul wrap --library) with the rules in \
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
    let mut text = String::from("Paths for --path, and the flags that each stands for:\n");
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
pub(crate) fn stands_for(path: &lab::path::NamedPath) -> String {
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
        .hide_short_help(matches!(flag.scp, Scp::NoEffect(_)))
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
        ValueKind::Nothing => arg.action(ArgAction::SetTrue),
        ValueKind::Repeats => arg.action(ArgAction::Count),
        // As with getopt, the next word is the value even if it begins with a hyphen.
        ValueKind::Value(name) => arg
            .action(ArgAction::Set)
            .allow_hyphen_values(true)
            .value_hint(hint(name))
            .value_parser(ValueParser::os_string()),
        ValueKind::Values(name) => arg
            .action(ArgAction::Append)
            .allow_hyphen_values(true)
            .value_hint(hint(name))
            .value_parser(ValueParser::os_string()),
        ValueKind::Choice(_, choices) => {
            // The text names the choices already.
            arg.action(ArgAction::Set)
                .hide_possible_values(true)
                .value_parser(PossibleValuesParser::new(choices))
        }
        ValueKind::OptionalValue(name) => arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("")
            .value_hint(hint(name))
            .value_parser(ValueParser::os_string()),
        ValueKind::OptionalChoice(_, choices) => arg
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
