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
use crate::flags::flag::{Flag, Group, Scp};
use crate::flags::table::{
    bench_rows, dial_rows, lab_rows, relay_rows, rows, serve_rows, ssh_config_rows, wrap_rows,
};

/// The subcommands with a man page of their own.
const PAGES: &[&str] = &[
    "cp",
    "bootstrap",
    "lab",
    "relay",
    "bench",
    "serve",
    "dial",
    "ssh-config",
    "wrap",
];

/// The man page of longhaul, or of a subcommand; `None` if there is none.
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
                "longhaul-cp(1), longhaul-bench(1), longhaul-lab(1), longhaul-relay(1), \
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
            Scp::Differs(note) => format!("{note}."),
            Scp::NoEffect(reason) => format!("Changes nothing: {reason}."),
            Scp::Refused(reason) => format!("Refused: {reason}."),
            Scp::Same | Scp::Ours => continue,
        };
        item(roff, &flag.spelled(), &capital(&note));
    }
    item(
        roff,
        "flags after operands",
        "Are flags; scp stops at the first operand. -- ends flags.",
    );
    item(
        roff,
        "temporary files",
        "A file appears under its final name only when it is whole.",
    );
}

/// Example commands with a sentence each.
type Examples = &'static [(&'static str, &'static str)];

const CP_EXAMPLES: Examples = &[
    ("longhaul cp big.iso host:/srv/", "Upload a file."),
    ("longhaul cp -a host:results .", "Download a tree as it is."),
    (
        "longhaul cp --json -q a b host: | jq .",
        "Upload two files and read the events.",
    ),
];

const LAB_EXAMPLES: Examples = &[
    (
        "longhaul lab --path transatlantic --sshd -- scp big far:/tmp/",
        "How long scp takes across the Atlantic.",
    ),
    (
        "longhaul lab --rtt 80ms --rate 200Mbit --far 'iperf3 -s -1' -- iperf3 -c far",
        "What TCP makes of a path.",
    ),
    (
        "longhaul lab --path policed-uplink --sshd --shell",
        "Try things by hand.",
    ),
];

const SERVE_EXAMPLES: Examples = &[
    (
        "longhaul serve --listen :2222",
        "An SSH server for your own files, with your authorized_keys.",
    ),
    (
        "longhaul serve --listen :2222 --authorized-keys friends --root ~/public --read-only",
        "Whoever has one of these keys may fetch what is in ~/public.",
    ),
    (
        "Subsystem sftp /usr/local/bin/longhaul serve --stdio",
        "In sshd_config: in place of sftp-server.",
    ),
    (
        "command=\"longhaul serve --stdio --root drop --write-only\",restrict ssh-ed25519 AAAA...",
        "In authorized_keys: whoever has this key may put new files into drop, and nothing else.",
    ),
    (
        "sftp -D \"longhaul serve --stdio --root /srv --read-only\"",
        "Look at it without a network.",
    ),
];

const DIAL_EXAMPLES: Examples = &[
    (
        "scp -o ProxyUseFdpass=yes -o ProxyCommand='longhaul dial %h %p' -o IPQoS=none big host:",
        "Upload with a socket that is tuned for the path.",
    ),
    (
        "ssh -o ProxyCommand='longhaul dial --congestion bbr %h %p' host",
        "Without ProxyUseFdpass the bytes are carried.",
    ),
    (
        "scp -o ProxyCommand='longhaul dial --via gate %h %p' big host:",
        "Through facing relays, of which one is started at gate over ssh.",
    ),
];

const SSH_CONFIG_EXAMPLES: Examples = &[
    (
        "longhaul ssh-config 'hpc*' backup",
        "The lines for these hosts, to look at.",
    ),
    (
        "longhaul ssh-config --write backup",
        "Append them to ~/.ssh/config, after asking.",
    ),
];

const BENCH_EXAMPLES: Examples = &[
    (
        "longhaul bench backup",
        "Three minutes, and what to use for which data.",
    ),
    (
        "longhaul bench --time 20m --file dump.sql --html bench.html backup",
        "More of it, with data of one's own and a page of plots.",
    ),
    (
        "longhaul bench --local --json >before.json",
        "This processor, to be compared with another one, or with itself after an update.",
    ),
];

const WRAP_EXAMPLES: Examples = &[
    (
        "longhaul wrap scp big host:",
        "Upload without the mark that scp puts on its packets.",
    ),
    (
        "longhaul wrap --report rsync -a data rsync://host/module",
        "With a word on each connection at the end.",
    ),
    (
        "longhaul wrap --route host:80=localhost:9080 curl -T big http://host/",
        "By a relay: longhaul relay 9080 host:80, or a pair of relays.",
    ),
    (
        "longhaul wrap --check /usr/local/bin/some-program",
        "Whether it takes the library, and what to use where it does not.",
    ),
];

const RELAY_EXAMPLES: Examples = &[
    (
        "longhaul relay 9022 host:22",
        "Port 9022 of this machine is port 22 of host: scp -P 9022 file localhost:",
    ),
    (
        "ProxyCommand longhaul relay - %h:%p",
        "In ssh_config: every connection of ssh, scp, rsync and git, with host keys under their \
         right names.",
    ),
    (
        "longhaul relay *:9022 host:22 other:22 --allow 192.0.2.0/24",
        "For a network, with a second target for when the first does not answer.",
    ),
    (
        "longhaul relay --config /etc/longhaul/relay.toml --status 127.0.0.1:9090",
        "The relays of a file, and a page of what goes on in them.",
    ),
    (
        "longhaul relay 9022 host:22 --sockopt buffsize:1024kic+1024kos",
        "With buffers as DeleGate's tcprelay was given them.",
    ),
    (
        "longhaul relay 9022 ssh://far/localhost:22",
        "Over several connections to a facing relay that is started at far over ssh, to the port 22 \
         there.",
    ),
    (
        "longhaul relay 9022 jp1:22 --via tokyo,osaka",
        "Through two hosts in the middle, each with a half that is started over ssh.",
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
        "One certificate that vouches for itself, for a relay at relay.example. That relay is given \
         --cert relay.pem --key relay.key; whoever connects to it is given relay.pem as --ca.",
    ),
    (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj \
         /CN=relays -keyout ca.key -out ca.pem",
        "An authority for several relays. ca.pem is given as --ca to relays that connect, and as \
         --client-ca to those that ask clients for a certificate; ca.key stays where it is.",
    ),
    (
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=relay.example \
         -addext subjectAltName=DNS:relay.example -keyout host.key -out host.csr",
        "A key for a relay or a client, and a request for its certificate. The name has to be in \
         subjectAltName, as DNS:NAME or IP:ADDRESS; CN does not count.",
    ),
    (
        "openssl x509 -req -in host.csr -CA ca.pem -CAkey ca.key -CAcreateserial -copy_extensions \
         copy -days 365 -out host.pem",
        "The certificate, signed by the authority. -copy_extensions needs OpenSSL 3.",
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
    item(roff, "SHELL", "What --shell runs.");
    item(
        roff,
        "TMPDIR",
        "Where the lab keeps its keys and generated files.",
    );
    item(
        roff,
        "LONGHAUL_LAB",
        "Set to near for the command, so that it can tell that it runs in a lab.",
    );
    item(
        roff,
        "LONGHAUL_LAB_KEY, LONGHAUL_LAB_KNOWN_HOSTS, LONGHAUL_LAB_USER, LONGHAUL_LAB_PORT, \
         LONGHAUL_LAB_CONFIG",
        "Set for the command with --sshd: the private key, the known_hosts file, the user, the \
         port, and an ssh_config file with all of these.",
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
        "The rules, which this command sets for the program: words with commas between them, of \
         always, no-tune, dscp=N, congestion=NAME, route=DEST=VIA with addresses, and at the end \
         report=FILE. With them and LD_PRELOAD the library works without this command, but for --filter \
         and routes by way of a proxy: this command carries out those itself, and stays for it. Rules \
         with a filter and without this command are refused, and the program runs as it is.",
    );
    item(
        roff,
        "LONGHAUL_WRAP_LIB",
        "The library, in place of the one that this program holds and keeps below \
         XDG_CACHE_HOME or ~/.cache.",
    );
    item(roff, "LD_PRELOAD", "What is there already is kept.");
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
    item(roff, "SSH_AUTH_SOCK", "The agent's socket.");
    item(
        roff,
        "SSH_ASKPASS, SSH_ASKPASS_REQUIRE, DISPLAY",
        "The program that asks for secrets where there is no terminal, as ssh(1) uses it.",
    );
    item(
        roff,
        "NO_COLOR",
        "If it is set and not empty, no colours are used.",
    );
    item(
        roff,
        "XDG_CACHE_HOME",
        "Where longhaul/ remembers what each host preferred, ~/.cache without it. No secrets are \
         kept there.",
    );
    item(
        roff,
        "XDG_STATE_HOME",
        "Where longhaul/ has the journals of interrupted copies and keys, ~/.local/state without \
         it. Only this user may be able to write there.",
    );
    item(
        roff,
        "HOME",
        "Where ~/.cache and ~/.local/state are; the home in the password file if it is not set.",
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

/// The completion script of a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> Vec<u8> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut command(), "longhaul", &mut out);
    out
}

/// The content of docs/flags.md.
pub(crate) fn flags_markdown() -> String {
    let mut text = String::from(
        "# Flags of `longhaul cp`\n\n\
         Made from the tables in crates/cli/src/flags/table; do not edit. `make man` writes it \
         anew.\n",
    );
    for group in Group::ALL {
        if !rows().any(|flag| flag.group == group && flag.refused().is_none()) {
            continue;
        }
        text.push_str(&format!(
            "\n## {}\n\n| Flag | Meaning | scp |\n|---|---|---|\n",
            group.heading()
        ));
        for flag in rows().filter(|flag| flag.group == group && flag.refused().is_none()) {
            let scp = match flag.scp {
                Scp::Same => "the same".to_owned(),
                Scp::Differs(note) => format!("differs: {note}"),
                Scp::NoEffect(reason) => format!("no effect: {reason}"),
                Scp::Refused(_) | Scp::Ours => "-".to_owned(),
            };
            text.push_str(&format!(
                "| {} | {} | {scp} |\n",
                cell(flag),
                flag.doc.replace('|', "\\|")
            ));
        }
    }
    text.push_str("\n## scp's flags that are refused\n\n| Flag | Why |\n|---|---|\n");
    for flag in rows() {
        if let Some(reason) = flag.refused() {
            text.push_str(&format!("| {} | {reason} |\n", cell(flag)));
        }
    }
    text.push_str("\n## Exit codes\n\n| Code | Meaning |\n|---|---|\n");
    for exit in exit::ALL {
        text.push_str(&format!("| {} | {} |\n", exit.code(), exit.meaning()));
    }
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
        "\n# Flags of `longhaul bench`\n\nBeside these, of those of `longhaul cp`: -F, -i, -J, -o, -P, \
         -4, -6, -B, -q and -v.\n",
    );
    groups_markdown(&mut text, bench_rows);
    codes_markdown(&mut text, exit::BENCH);
    text.push_str("\n# Flags of `longhaul wrap`\n");
    groups_markdown(&mut text, wrap_rows);
    codes_markdown(&mut text, exit::WRAP);
    text
}

/// The section about `longhaul lab`.
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

/// The flags, by heading, of a subcommand that is not compared with scp.
fn groups_markdown<Args: 'static, Rows: Iterator<Item = &'static Flag<Args>>>(
    text: &mut String,
    rows: impl Fn() -> Rows,
) {
    for group in Group::ALL {
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
