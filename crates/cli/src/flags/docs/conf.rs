//! Man pages of configuration files: longhaul-serve.conf(5) from its table of options, and
//! longhaul-relay.conf(5) from the table of flags.

use clap_mangen::roff::{Roff, roman};

use super::{item, see_also_section};
use crate::flags::flag::{Flag, FlagValueKind};
use crate::flags::low::RelayArgs;
use crate::flags::table::relay_rows;
use crate::relaying::config::{OPERANDS, is_for_file};
use crate::serving::options::{Options, ServeOptionDoc, UncheckedKeyOptions};

/// The man page longhaul-serve.conf(5).
pub(super) fn serve_conf_page() -> Vec<u8> {
    let mut roff = begun(
        "LONGHAUL-SERVE.CONF",
        "longhaul-serve.conf - configuration file of longhaul serve",
    );
    section(
        &mut roff,
        "DESCRIPTION",
        "The file is in TOML. longhaul serve check FILE reports errors in it, with line numbers. \
         Options that are not on this page are refused. On SIGHUP the server reads the file again: \
         new connections get the new settings, existing ones keep the old. A file with errors \
         changes nothing. listen and metrics are read only at the start. A new version of longhaul \
         needs a restart. With the units of the package, systemd then gives running transfers 90 \
         seconds and cuts off those that take longer; new connections wait in the socket meanwhile.",
    );
    roff.control("SH", ["OPTIONS"]);
    rows(&mut roff, Options::ROWS);
    section(
        &mut roff,
        "KEYS",
        "Each [[key]] holds the settings that differ for clients that log in with that key. All \
         other settings apply unchanged.",
    );
    rows(&mut roff, UncheckedKeyOptions::ROWS);
    example(
        &mut roff,
        include_str!("../../../../../packaging/serve.toml"),
    );
    see_also_section(&mut roff, "longhaul-serve(1), sshd_config(5), toml");
    roff.render().into_bytes()
}

/// The man page longhaul-relay.conf(5).
pub(super) fn relay() -> Vec<u8> {
    let mut roff = begun(
        "LONGHAUL-RELAY.CONF",
        "longhaul-relay.conf - configuration file of longhaul relay",
    );
    section(
        &mut roff,
        "DESCRIPTION",
        "The file is in TOML, with a [[relay]] table for each relay. longhaul relay check FILE \
         reports errors in it, with line numbers. Options that are not on this page are refused. \
         On SIGHUP the file is read again: new relays are started, removed relays accept no more \
         connections, and new connections to the others get the new settings. Existing connections \
         keep the old settings. A file with errors, or with a LISTEN address that cannot be \
         opened, changes nothing. SIGHUP does not change the settings that concern all relays. \
         Relative paths start in the folder in which the relay was started.",
    );
    section(
        &mut roff,
        "RELAYS",
        "Each [[relay]] has these options. Options above the first [[relay]], other than listen \
         and targets, are the defaults for all relays.",
    );
    for (name, takes, doc) in OPERANDS {
        item(&mut roff, &format!("{name} = {takes}"), doc);
    }
    flags(&mut roff, false);
    section(
        &mut roff,
        "ALL",
        "These options stand above the first [[relay]]; flags take precedence.",
    );
    flags(&mut roff, true);
    example(
        &mut roff,
        include_str!("../../../../../packaging/relay.toml"),
    );
    see_also_section(&mut roff, "longhaul-relay(1), toml");
    roff.render().into_bytes()
}

fn begun(title: &str, name: &str) -> Roff {
    let mut roff = Roff::new();
    let version = concat!("longhaul ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [title, "5", "", version, "File Formats"]);
    section(&mut roff, "NAME", name);
    roff
}

fn section(roff: &mut Roff, name: &str, text: &str) {
    roff.control("SH", [name]);
    roff.text([roman(text)]);
}

fn rows(roff: &mut Roff, rows: &[ServeOptionDoc]) {
    for row in rows {
        item(roff, &format!("{} = {}", row.name, row.takes), row.doc);
    }
}

fn flags(roff: &mut Roff, of_all: bool) {
    for flag in relay_rows().filter(|flag| is_for_file(flag, of_all)) {
        let long = flag.long.unwrap_or_default();
        item(roff, &format!("{long} = {}", takes(flag)), flag.doc);
    }
}

fn takes(flag: &Flag<RelayArgs>) -> String {
    match flag.takes {
        FlagValueKind::Nothing | FlagValueKind::Repeats => "true or false".to_owned(),
        FlagValueKind::Value("N") => "N".to_owned(),
        FlagValueKind::Value(name) | FlagValueKind::OptionalValue(name) => format!("\"{name}\""),
        FlagValueKind::Values(name) => format!("[\"{name}\", ...]"),
        FlagValueKind::Choice(_, choices) | FlagValueKind::OptionalChoice(_, choices) => {
            let choices = choices.iter().map(|choice| format!("\"{choice}\""));
            choices.collect::<Vec<_>>().join(" or ")
        }
    }
}

fn example(roff: &mut Roff, text: &str) {
    roff.control("SH", ["EXAMPLE"]);
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}
