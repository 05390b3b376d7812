//! Generates documents from the tables: man pages, completions and docs/flags.md.

mod conf;
mod pages;

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

use pages::{CERTIFICATES, CommandExamples, ManPage, ManPageSection};

/// Returns the man page of longhaul, or of a subcommand; `None` if there is none.
pub(crate) fn man(subcommand: Option<&str>) -> Option<Vec<u8>> {
    match subcommand {
        Some("serve.conf") => return Some(conf::serve_conf_page()),
        Some("relay.conf") => return Some(conf::relay()),
        _ => {}
    }
    let mut all = command();
    all.build();
    match subcommand {
        None => render(all, "longhaul", &pages::LONGHAUL).ok(),
        Some(sub) => {
            let page = pages::SUBCOMMANDS.iter().find(|page| page.name == sub)?;
            let command = all.find_subcommand(sub)?.clone();
            render(command, &format!("longhaul-{sub}"), page).ok()
        }
    }
}

fn render(command: Command, name: &str, page: &ManPage) -> io::Result<Vec<u8>> {
    // The man page has its own section of exit codes, so the copy from `--help` is left out.
    let command = command
        .after_help(None::<&'static str>)
        .after_long_help(None::<&'static str>)
        .display_name(name.to_owned());
    let man = Man::new(command)
        .title(name.to_uppercase())
        .source(concat!("longhaul ", env!("CARGO_PKG_VERSION")))
        .manual("User Commands");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if page.lists_subcommands {
        man.render_subcommands_section(&mut out)?;
    }
    let mut rest = Roff::new();
    for section in page.sections() {
        match section {
            ManPageSection::Scp => scp_section(&mut rest),
            ManPageSection::NamedPaths => named_paths_section(&mut rest),
            ManPageSection::Examples(examples) => items_section(&mut rest, "EXAMPLES", examples),
            ManPageSection::Certificates => items_section(&mut rest, "CERTIFICATES", CERTIFICATES),
            ManPageSection::ExitStatus => exit_section(&mut rest),
            ManPageSection::ExitStatusOf(codes) => codes_section(&mut rest, codes),
            ManPageSection::Environment => environment_section(&mut rest),
            ManPageSection::LabEnvironment => lab_environment_section(&mut rest),
            ManPageSection::WrapEnvironment => wrap_environment_section(&mut rest),
        }
    }
    see_also_section(&mut rest, page.see_also);
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

fn items_section(roff: &mut Roff, heading: &str, items: CommandExamples) {
    roff.control("SH", [heading]);
    for (typed, meaning) in items {
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
    cp_flags_markdown(&mut text);
    text.push_str("\n## Exit codes\n\n| Code | Meaning |\n|---|---|\n");
    for exit in exit::ALL {
        text.push_str(&format!("| {} | {} |\n", exit.code(), exit.meaning()));
    }
    text.push_str(
        "\n# Flags of `longhaul sync`\n\n\
         Also accepted, as in `longhaul cp`: all flags of Connection and Output except -S and -D, \
         of Selecting all, and of Copying and Keeping --fsync, --delta, --no-delta, --no-resume, --verify, \
         --hard-links, --xattrs, --acls, --sparse, --numeric-ids, --safe-links and \
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

/// The flags of `longhaul cp`, each with its difference from scp's flag.
fn cp_flags_markdown(text: &mut String) {
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
    let subcommands = pages::SUBCOMMANDS.iter().map(|page| Some(page.name));
    for page in [None].into_iter().chain(subcommands) {
        let name = page.map_or_else(String::new, |page| format!("-{page}"));
        all.push((
            format!("man/longhaul{name}.1"),
            man(page).unwrap_or_default(),
        ));
    }
    all.push((
        "man/longhaul-serve.conf.5".to_owned(),
        conf::serve_conf_page(),
    ));
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
