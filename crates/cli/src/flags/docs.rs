//! Generates documents from the tables: man pages, completions and docs/flags.md.

mod conf;

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::exit;
use crate::flags::command::{command, stands_for};
use crate::flags::flag::{Flag, FlagGroup, ScpCompatibility};
use crate::flags::table::{
    bench_rows, dial_rows, doctor_rows, lab_rows, plan_rows, relay_rows, rows, serve_rows,
    ssh_config_rows, sync_rows, wrap_rows,
};

/// The subcommands with a man page of their own.
const PAGES: &[&str] = &[
    "cp",
    "sync",
    "plan",
    "bootstrap",
    "lab",
    "relay",
    "bench",
    "doctor",
    "serve",
    "dial",
    "ssh-config",
    "wrap",
];

/// Returns the man page of longhaul, or of a subcommand; `None` if there is none.
pub(crate) fn man(subcommand: Option<&str>) -> Option<Vec<u8>> {
    match subcommand {
        Some("serve.conf") => return Some(conf::serve()),
        Some("relay.conf") => return Some(conf::relay()),
        _ => {}
    }
    let mut all = command();
    all.build();
    let (page, name) = match subcommand {
        None => (all.clone(), "longhaul".to_owned()),
        Some(sub) => {
            let found = PAGES.iter().find(|page| **page == sub)?;
            (
                all.find_subcommand(found)?.clone(),
                format!("longhaul-{found}"),
            )
        }
    };
    render(page, &name, subcommand).ok()
}

fn render(page: Command, name: &str, subcommand: Option<&str>) -> io::Result<Vec<u8>> {
    // The man page has its own section of exit codes, so the copy from `--help` is left out.
    let page = page
        .after_help(None::<&'static str>)
        .after_long_help(None::<&'static str>)
        .display_name(name.to_owned());
    let man = Man::new(page)
        .title(name.to_uppercase())
        .source(concat!("longhaul ", env!("CARGO_PKG_VERSION")))
        .manual("User Commands");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    let mut rest = Roff::new();
    match subcommand {
        Some("lab") => {
            named_paths_section(&mut rest);
            examples_section(&mut rest, LAB_EXAMPLES);
            codes_section(&mut rest, exit::LAB);
            lab_environment_section(&mut rest);
            see_also_section(
                &mut rest,
                "longhaul(1), longhaul-cp(1), network_namespaces(7), user_namespaces(7)",
            );
        }
        Some("relay") => {
            examples_section(&mut rest, RELAY_EXAMPLES);
            certificates_section(&mut rest);
            codes_section(&mut rest, exit::RELAY);
            see_also_section(
                &mut rest,
                "longhaul(1), longhaul-relay.conf(5), tcp(7), socket(7), splice(2)",
            );
        }
        Some("bench") => {
            examples_section(&mut rest, BENCH_EXAMPLES);
            codes_section(&mut rest, exit::BENCH);
            see_also_section(&mut rest, "longhaul(1), longhaul-cp(1), ssh_config(5)");
        }
        Some("doctor") => {
            examples_section(&mut rest, DOCTOR_EXAMPLES);
            codes_section(&mut rest, exit::DOCTOR);
            see_also_section(
                &mut rest,
                "longhaul(1), longhaul-cp(1), longhaul-bench(1), ssh_config(5), tcp(7)",
            );
        }
        Some("serve") => {
            examples_section(&mut rest, SERVE_EXAMPLES);
            codes_section(&mut rest, exit::SERVE);
            see_also_section(
                &mut rest,
                "longhaul(1), longhaul-serve.conf(5), sftp-server(8), sshd_config(5)",
            );
        }
        Some("dial") => {
            examples_section(&mut rest, DIAL_EXAMPLES);
            codes_section(&mut rest, exit::DIAL);
            see_also_section(
                &mut rest,
                "longhaul(1), longhaul-ssh-config(1), ssh_config(5)",
            );
        }
        Some("ssh-config") => {
            examples_section(&mut rest, SSH_CONFIG_EXAMPLES);
            codes_section(&mut rest, exit::SSH_CONFIG);
            see_also_section(&mut rest, "longhaul(1), longhaul-dial(1), ssh_config(5)");
        }
        Some("wrap") => {
            examples_section(&mut rest, WRAP_EXAMPLES);
            codes_section(&mut rest, exit::WRAP);
            wrap_environment_section(&mut rest);
            see_also_section(
                &mut rest,
                "longhaul(1), longhaul-dial(1), longhaul-relay(1), ld.so(8), tcp(7)",
            );
        }
        Some("sync") => {
            examples_section(&mut rest, SYNC_EXAMPLES);
            exit_section(&mut rest);
            environment_section(&mut rest);
            see_also_section(
                &mut rest,
                "longhaul(1), longhaul-cp(1), gitignore(5), rsync(1), ssh_config(5)",
            );
        }
        Some("plan") => {
            examples_section(&mut rest, PLAN_EXAMPLES);
            exit_section(&mut rest);
            environment_section(&mut rest);
            see_also_section(
                &mut rest,
                "longhaul(1), longhaul-cp(1), longhaul-sync(1), sbatch(1), parallel(1)",
            );
        }
        Some("bootstrap") => {
            exit_section(&mut rest);
            environment_section(&mut rest);
            see_also_section(&mut rest, "longhaul(1), longhaul-cp(1)");
        }
        Some(_) => {
            scp_section(&mut rest);
            examples_section(&mut rest, CP_EXAMPLES);
            exit_section(&mut rest);
            environment_section(&mut rest);
            see_also_section(&mut rest, "longhaul(1), scp(1), ssh(1), ssh_config(5)");
        }
        None => {
            man.render_subcommands_section(&mut out)?;
            exit_section(&mut rest);
            environment_section(&mut rest);
            see_also_section(
                &mut rest,
                "longhaul-cp(1), longhaul-sync(1), longhaul-plan(1), longhaul-bench(1), longhaul-doctor(1), longhaul-lab(1), longhaul-relay(1), \
                 longhaul-serve(1), longhaul-dial(1), longhaul-ssh-config(1), longhaul-wrap(1), \
                 scp(1), ssh(1), ssh_config(5)",
            );
        }
    }
    rest.to_writer(&mut out)?;
    Ok(out)
}

fn scp_section(roff: &mut Roff) {
    roff.control("SH", ["DIFFERENCES FROM SCP"]);
    for flag in rows() {
        let note = match flag.scp {
            ScpCompatibility::Differs(note) => format!("{note}."),
            ScpCompatibility::NoEffect(reason) => format!("Has no effect: {reason}."),
            ScpCompatibility::Refused(reason) => format!("Refused: {reason}."),
            ScpCompatibility::Same | ScpCompatibility::Ours => continue,
        };
        item(roff, &flag.spelled(), &capital(&note));
    }
    item(
        roff,
        "flags after operands",
        "Are flags; scp stops at the first operand. -- ends the flags.",
    );
    item(
        roff,
        "temporary files",
        "A file appears under its final name only when it is complete.",
    );
}

/// Example commands with a sentence each.
type Examples = &'static [(&'static str, &'static str)];

const CP_EXAMPLES: Examples = &[
    ("longhaul cp big.iso host:/srv/", "Upload a file."),
    (
        "longhaul cp -a host:results .",
        "Download a tree unchanged.",
    ),
    (
        "longhaul cp --json -q a b host: | jq .",
        "Upload two files and read the events.",
    ),
];

const SYNC_EXAMPLES: Examples = &[
    (
        "longhaul sync -n --delete photos host:photos",
        "Show what would be copied and deleted.",
    ),
    (
        "longhaul sync --delete photos host:photos",
        "Make the folder on host equal to the one here.",
    ),
    (
        "longhaul sync --exclude '*.o' --exclude /build/ host:src src",
        "Fetch changes, without object files and the folder build at the top.",
    ),
    (
        "longhaul sync --delete --backup-dir .old site host:/srv/site",
        "Keep what is replaced or deleted in /srv/site/.old.",
    ),
];

const PLAN_EXAMPLES: Examples = &[
    (
        "longhaul plan /data host:/srv/data --shards 20 -o ~/plan",
        "Cut a directory into 20 shards.",
    ),
    (
        "longhaul cp --plan ~/plan --shard 3",
        "Copy one of them, on any machine that shares ~/plan.",
    ),
    (
        "seq 0 19 | parallel -j 4 longhaul cp --plan ~/plan --shard",
        "Copy all of them with GNU parallel, four at a time.",
    ),
    (
        "longhaul plan verify ~/plan",
        "Compare every entry of the plan with the target.",
    ),
];

const LAB_EXAMPLES: Examples = &[
    (
        "longhaul lab --path transatlantic --sshd -- scp big far:/tmp/",
        "Show how long scp takes across the Atlantic.",
    ),
    (
        "longhaul lab --rtt 80ms --rate 200Mbit --far 'iperf3 -s -1' -- iperf3 -c far",
        "Measure TCP on an emulated path.",
    ),
    (
        "longhaul lab --path policed-uplink --sshd --shell",
        "Try commands by hand.",
    ),
];

const SERVE_EXAMPLES: Examples = &[
    (
        "longhaul serve --listen :2222",
        "Run an SSH server for your own files, with your authorized_keys.",
    ),
    (
        "longhaul serve --listen :2222 --authorized-keys friends --root ~/public --read-only",
        "Let the holders of these keys download the files in ~/public.",
    ),
    (
        "Subsystem sftp /usr/local/bin/longhaul serve --stdio",
        "In sshd_config: replace sftp-server.",
    ),
    (
        "command=\"longhaul serve --stdio --root drop --write-only\",restrict ssh-ed25519 AAAA...",
        "In authorized_keys: let this key add new files to drop, and do nothing else.",
    ),
    (
        "sftp -D \"longhaul serve --stdio --root /srv --read-only\"",
        "Try the server without a network.",
    ),
];

const DIAL_EXAMPLES: Examples = &[
    (
        "scp -o ProxyUseFdpass=yes -o ProxyCommand='longhaul dial %h %p' -o IPQoS=none big host:",
        "Upload through a socket that is tuned for the path.",
    ),
    (
        "ssh -o ProxyCommand='longhaul dial --congestion bbr %h %p' host",
        "Without ProxyUseFdpass the bytes are relayed.",
    ),
    (
        "scp -o ProxyCommand='longhaul dial --via gate %h %p' big host:",
        "Go through a pair of relays, one of which is started on gate over ssh.",
    ),
];

const SSH_CONFIG_EXAMPLES: Examples = &[
    (
        "longhaul ssh-config 'hpc*' backup",
        "Print the lines for these hosts.",
    ),
    (
        "longhaul ssh-config --write backup",
        "Append them to ~/.ssh/config, after asking.",
    ),
];

const DOCTOR_EXAMPLES: Examples = &[
    (
        "longhaul doctor backup",
        "Measure the path to a host for 30 seconds, and name its limit.",
    ),
    (
        "longhaul doctor --time 2m --html doctor.html backup:/srv/data dump.sql",
        "Measure for longer, with the disks of both ends, and write a page of plots.",
    ),
    (
        "longhaul doctor --from copy.json",
        "Explain a copy that was made with longhaul cp --json >copy.json.",
    ),
];

const BENCH_EXAMPLES: Examples = &[
    (
        "longhaul bench backup",
        "Measure for three minutes, and show what to use for which data.",
    ),
    (
        "longhaul bench --time 20m --file dump.sql --html bench.html backup",
        "Measure for longer, with your own data, and write a page of plots.",
    ),
    (
        "longhaul bench --local --json >before.json",
        "Measure this processor, to compare it with another one, or before and after an update.",
    ),
];

const WRAP_EXAMPLES: Examples = &[
    (
        "longhaul wrap scp big host:",
        "Upload without the DSCP that scp sets on its packets.",
    ),
    (
        "longhaul wrap --report rsync -a data rsync://host/module",
        "Report on each connection at the end.",
    ),
    (
        "longhaul wrap --route host:80=localhost:9080 curl -T big http://host/",
        "Go through a relay: longhaul relay 9080 host:80, or a pair of relays.",
    ),
    (
        "longhaul wrap --check /usr/local/bin/some-program",
        "Check whether a program can load the library, and see what to use if it cannot.",
    ),
];

const RELAY_EXAMPLES: Examples = &[
    (
        "longhaul relay 9022 host:22",
        "Make port 9022 of this machine lead to port 22 of host: scp -P 9022 file localhost:",
    ),
    (
        "ProxyCommand longhaul relay - %h:%p",
        "In ssh_config: relay every connection of ssh, scp, rsync and git, with host keys under \
         their right names.",
    ),
    (
        "longhaul relay *:9022 host:22 other:22 --allow 192.0.2.0/24",
        "Accept clients from a network, with a second target if the first does not answer.",
    ),
    (
        "longhaul relay --config /etc/longhaul/relay.toml --status 127.0.0.1:9090",
        "Run the relays in a file, with a status page.",
    ),
    (
        "longhaul relay 9022 host:22 --sockopt buffsize:1024kic+1024kos",
        "Set buffers as for DeleGate's tcprelay.",
    ),
    (
        "longhaul relay 9022 ssh://far/localhost:22",
        "Use several connections to a second relay, which is started on far over ssh, and from \
         there port 22 of far.",
    ),
    (
        "longhaul relay 9022 jp1:22 --via tokyo,osaka",
        "Go through two hosts in the middle, each with a relay that is started over ssh.",
    ),
];

fn examples_section(roff: &mut Roff, examples: Examples) {
    roff.control("SH", ["EXAMPLES"]);
    for (typed, meaning) in examples {
        item(roff, typed, meaning);
    }
}

/// Commands of openssl(1) that create certificates for relays, with a sentence each. A test runs
/// them.
const CERTIFICATES: Examples = &[
    (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj \
         /CN=relay.example -addext subjectAltName=DNS:relay.example -keyout relay.key -out relay.pem",
        "Create a self-signed certificate for a relay at relay.example. Start that relay with \
         --cert relay.pem --key relay.key, and pass relay.pem as --ca to relays that connect to it.",
    ),
    (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj \
         /CN=relays -keyout ca.key -out ca.pem",
        "Create a certificate authority for several relays. Pass ca.pem as --ca to relays that \
         connect, and as --client-ca to those that require client certificates. Do not distribute \
         ca.key.",
    ),
    (
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=relay.example \
         -addext subjectAltName=DNS:relay.example -keyout host.key -out host.csr",
        "Create a key for a relay or a client, and a request for its certificate. The name must be \
         in subjectAltName, as DNS:NAME or IP:ADDRESS; CN is ignored.",
    ),
    (
        "openssl x509 -req -in host.csr -CA ca.pem -CAkey ca.key -CAcreateserial -copy_extensions \
         copy -days 365 -out host.pem",
        "Sign the certificate with the authority. -copy_extensions needs OpenSSL 3.",
    ),
];

fn certificates_section(roff: &mut Roff) {
    roff.control("SH", ["CERTIFICATES"]);
    for (typed, meaning) in CERTIFICATES {
        item(roff, typed, meaning);
    }
}

fn named_paths_section(roff: &mut Roff) {
    roff.control("SH", ["PATHS"]);
    for path in lab::path::NAMED {
        let about = format!("{}. Stands for {}.", path.about, stands_for(path));
        item(roff, path.name, &about);
    }
}

fn codes_section(roff: &mut Roff, codes: &[(&str, &str)]) {
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in codes {
        item(roff, code, &format!("{}.", capital(meaning)));
    }
}

fn lab_environment_section(roff: &mut Roff) {
    roff.control("SH", ["ENVIRONMENT"]);
    item(roff, "SHELL", "The shell that --shell runs.");
    item(
        roff,
        "TMPDIR",
        "Folder in which the lab stores its keys and generated files.",
    );
    item(
        roff,
        "LONGHAUL_LAB",
        "Set to near for the command, so that it can detect the lab.",
    );
    item(
        roff,
        "LONGHAUL_LAB_KEY, LONGHAUL_LAB_KNOWN_HOSTS, LONGHAUL_LAB_USER, LONGHAUL_LAB_PORT, \
         LONGHAUL_LAB_CONFIG",
        "Set for the command with --sshd: the private key, the known_hosts file, the user, the \
         port, and an ssh_config file that contains all of these.",
    );
}

fn wrap_environment_section(roff: &mut Roff) {
    roff.control("SH", ["ENVIRONMENT"]);
    item(
        roff,
        "LONGHAUL_OFF",
        "If it is set and not empty, the library does nothing.",
    );
    item(
        roff,
        "LONGHAUL_WRAP",
        "The rules, which this command sets for the program: words separated by commas, from \
         always, no-tune, dscp=N, congestion=NAME, route=DEST=VIA with addresses, and, as the last \
         one, report=FILE. With these and LD_PRELOAD the library works without this command, \
         except for --filter and routes through a proxy: longhaul wrap does those itself and stays \
         for them. Rules with a filter are refused without this command, and the program then runs \
         unchanged.",
    );
    item(
        roff,
        "LONGHAUL_WRAP_LIB",
        "The library to use, instead of the built-in one that this program stores below \
         XDG_CACHE_HOME or ~/.cache.",
    );
    item(
        roff,
        "LD_PRELOAD",
        "If it is set, existing words in it are kept.",
    );
}

fn exit_section(roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    for exit in exit::ALL {
        item(
            roff,
            &exit.code().to_string(),
            &format!("{}.", capital(exit.meaning())),
        );
    }
}

fn environment_section(roff: &mut Roff) {
    roff.control("SH", ["ENVIRONMENT"]);
    item(roff, "SSH_AUTH_SOCK", "The socket of the SSH agent.");
    item(
        roff,
        "SSH_ASKPASS, SSH_ASKPASS_REQUIRE, DISPLAY",
        "The program that asks for secrets if there is no terminal, as in ssh(1).",
    );
    item(
        roff,
        "NO_COLOR",
        "If it is set and not empty, no colours are used.",
    );
    item(
        roff,
        "XDG_CACHE_HOME",
        "Folder in which longhaul/ holds what is remembered of each host; ~/.cache by default. No \
         secrets are stored there.",
    );
    item(
        roff,
        "XDG_CONFIG_HOME",
        "Folder in which longhaul/config.toml lists the candidates of --via auto; ~/.config by \
         default.",
    );
    item(
        roff,
        "XDG_STATE_HOME",
        "Folder in which longhaul/ holds keys and the journals of interrupted copies; \
         ~/.local/state by default. Only this user may have write access.",
    );
    item(
        roff,
        "HOME",
        "Folder that holds ~/.cache and ~/.local/state. The default is the home in the password \
         file.",
    );
}

fn see_also_section(roff: &mut Roff, pages: &str) {
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(pages)]);
}

fn item(roff: &mut Roff, term: &str, text: &str) {
    roff.control("TP", []);
    roff.text([bold(term)]);
    roff.text([roman(text)]);
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// Returns the completion script of a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> Vec<u8> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut command(), "longhaul", &mut out);
    out
}

/// Returns the content of docs/flags.md.
pub(crate) fn flags_markdown() -> String {
    let mut text = String::from(
        "# Flags of `longhaul cp`\n\n\
         Generated from the tables in crates/cli/src/flags/table by `make man`; do not edit.\n",
    );
    for group in FlagGroup::ALL {
        if !rows().any(|flag| flag.group == group && flag.refused().is_none()) {
            continue;
        }
        text.push_str(&format!(
            "\n## {}\n\n| Flag | Meaning | scp |\n|---|---|---|\n",
            group.heading()
        ));
        for flag in rows().filter(|flag| flag.group == group && flag.refused().is_none()) {
            let scp = match flag.scp {
                ScpCompatibility::Same => "the same".to_owned(),
                ScpCompatibility::Differs(note) => format!("differs: {note}"),
                ScpCompatibility::NoEffect(reason) => format!("no effect: {reason}"),
                ScpCompatibility::Refused(_) | ScpCompatibility::Ours => "-".to_owned(),
            };
            text.push_str(&format!(
                "| {} | {} | {scp} |\n",
                cell(flag),
                flag.doc.replace('|', "\\|")
            ));
        }
    }
    text.push_str(
        "\n## Flags of scp that are refused\n\n\
                   | Flag | Reason |\n|---|---|\n",
    );
    for flag in rows() {
        if let Some(reason) = flag.refused() {
            text.push_str(&format!("| {} | {reason} |\n", cell(flag)));
        }
    }
    text.push_str("\n## Exit codes\n\n| Code | Meaning |\n|---|---|\n");
    for exit in exit::ALL {
        text.push_str(&format!("| {} | {} |\n", exit.code(), exit.meaning()));
    }
    text.push_str(
        "\n# Flags of `longhaul sync`\n\n\
         Also accepted, as in `longhaul cp`: all flags of Connection and Output except -S and -D, \
         of Selecting all, and of Copying and Keeping --fsync, --delta, --no-delta, --no-resume, --verify, \
         --hard-links, --xattrs, --acls, --sparse, --numeric-ids, --keep-dirlinks, --safe-links and \
         --preserve-setuid.\n",
    );
    groups_markdown(&mut text, sync_rows);
    text.push_str(
        "\n# Flags of `longhaul plan`\n\n\
         Also accepted, as in `longhaul cp`: -4, -6, -B, -F, -i, -J, -P, -q and -v.\n",
    );
    groups_markdown(&mut text, plan_rows);
    lab_flags_markdown(&mut text);
    text.push_str("\n# Flags of `longhaul serve`\n");
    groups_markdown(&mut text, serve_rows);
    codes_markdown(&mut text, exit::SERVE);
    text.push_str("\n# Flags of `longhaul dial`\n");
    groups_markdown(&mut text, dial_rows);
    codes_markdown(&mut text, exit::DIAL);
    text.push_str("\n# Flags of `longhaul ssh-config`\n");
    groups_markdown(&mut text, ssh_config_rows);
    codes_markdown(&mut text, exit::SSH_CONFIG);
    text.push_str("\n# Flags of `longhaul relay`\n");
    groups_markdown(&mut text, relay_rows);
    codes_markdown(&mut text, exit::RELAY);
    text.push_str(
        "\n# Flags of `longhaul bench`\n\n\
         Also accepted, as in `longhaul cp`: -F, -i, -J, -o, -P, -4, -6, -B, -q and -v.\n",
    );
    groups_markdown(&mut text, bench_rows);
    codes_markdown(&mut text, exit::BENCH);
    text.push_str(
        "\n# Flags of `longhaul doctor`\n\n\
         Also accepted, as in `longhaul cp`: -F, -i, -J, -o, -P, -4, -6, -B, -q and -v.\n",
    );
    groups_markdown(&mut text, doctor_rows);
    codes_markdown(&mut text, exit::DOCTOR);
    text.push_str("\n# Flags of `longhaul wrap`\n");
    groups_markdown(&mut text, wrap_rows);
    codes_markdown(&mut text, exit::WRAP);
    text
}

/// Appends the section of docs/flags.md about `longhaul lab`.
fn lab_flags_markdown(text: &mut String) {
    text.push_str("\n# Flags of `longhaul lab`\n");
    groups_markdown(text, lab_rows);
    text.push_str("\n## Named paths\n\n| Name | Path | Stands for |\n|---|---|---|\n");
    for path in lab::path::NAMED {
        text.push_str(&format!(
            "| `{}` | {} | `{}` |\n",
            path.name,
            path.about,
            stands_for(path)
        ));
    }
    codes_markdown(text, exit::LAB);
}

/// Appends the flags, by heading, of a subcommand that is not compared with scp.
fn groups_markdown<Args: 'static, Rows: Iterator<Item = &'static Flag<Args>>>(
    text: &mut String,
    rows: impl Fn() -> Rows,
) {
    for group in FlagGroup::ALL {
        let rows: Vec<_> = rows().filter(|flag| flag.group == group).collect();
        if rows.is_empty() {
            continue;
        }
        text.push_str(&format!(
            "\n## {}\n\n| Flag | Meaning |\n|---|---|\n",
            group.heading()
        ));
        for flag in rows {
            text.push_str(&format!(
                "| {} | {} |\n",
                cell(flag),
                flag.doc.replace('|', "\\|")
            ));
        }
    }
}

fn codes_markdown(text: &mut String, codes: &[(&str, &str)]) {
    text.push_str("\n## Exit codes\n\n| Code | Meaning |\n|---|---|\n");
    for (code, meaning) in codes {
        text.push_str(&format!("| {code} | {meaning} |\n"));
    }
}

fn cell<Args: 'static>(flag: &Flag<Args>) -> String {
    let short = flag.short.map(|short| format!("-{short}"));
    let long = flag.long.map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    match flag.takes.value_name() {
        Some(value) => format!("`{} {value}`", names.join(", ")),
        None => format!("`{}`", names.join(", ")),
    }
}

/// Every generated document: its path below docs/, and its bytes.
pub(crate) fn documents() -> Vec<(String, Vec<u8>)> {
    let mut all = vec![("flags.md".to_owned(), flags_markdown().into_bytes())];
    for page in [None].into_iter().chain(PAGES.iter().copied().map(Some)) {
        let name = page.map_or_else(String::new, |page| format!("-{page}"));
        all.push((
            format!("man/longhaul{name}.1"),
            man(page).unwrap_or_default(),
        ));
    }
    all.push(("man/longhaul-serve.conf.5".to_owned(), conf::serve()));
    all.push(("man/longhaul-relay.conf.5".to_owned(), conf::relay()));
    all
}

/// Writes every generated document below `dir`.
///
/// # Errors
/// A folder or file can't be written.
pub(crate) fn write_documents(dir: &Path) -> io::Result<()> {
    for (name, bytes) in documents() {
        let path = dir.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, bytes)?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "docs_tests.rs"]
mod tests;
