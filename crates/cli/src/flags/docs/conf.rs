//! Man pages of configuration files: longhaul-serve.conf(5) from its table of options, and
//! longhaul-relay.conf(5) from the table of flags.

use clap_mangen::roff::{Roff, roman};

use super::{item, see_also_section};
use crate::flags::flag::{Flag, ValueKind};
use crate::flags::low::RelayArgs;
use crate::flags::table::relay_rows;
use crate::relaying::config::{OPERANDS, is_for_file};
use crate::serving::options::{KeyOptions, OptionDoc, Options};

/// The man page longhaul-serve.conf(5).
pub(super) fn serve() -> Vec<u8> {
    let mut roff = begun(
        "LONGHAUL-SERVE.CONF",
        "longhaul-serve.conf - what longhaul serve --config is told",
    );
    section(
        &mut roff,
        "DESCRIPTION",
        "A file in TOML. longhaul serve check FILE tells what is wrong with it, with the line; what \
         is not in this page is refused. SIGHUP has the server read it again: who comes from then \
         on meets what it says now, who is there keeps what was. A file that makes no sense \
         changes nothing. listen and metrics are read at the start alone. A new version of longhaul takes a \
         restart: with the units of the package systemd lets what is being transferred go on for 90 \
         seconds, cuts off what takes longer, and whoever comes meanwhile waits in the socket.",
    );
    roff.control("SH", ["OPTIONS"]);
    rows(&mut roff, Options::ROWS);
    section(
        &mut roff,
        "KEYS",
        "Each [[key]] says what is different for whoever has logged in with one key. What it does \
         not say is as for everybody.",
    );
    rows(&mut roff, KeyOptions::ROWS);
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
        "longhaul-relay.conf - what longhaul relay --config is told",
    );
    section(
        &mut roff,
        "DESCRIPTION",
        "A file in TOML, with a [[relay]] for each relay. longhaul relay check FILE tells what is \
         wrong with it, with the line; what is not in this page is refused. SIGHUP has it read \
         again: relays that are new are begun, those that are gone let nobody in any more, and \
         who comes to the others meets what it says now; who is connected stays so, with what was \
         said before. A file that makes no sense, or an entrance that cannot be listened at, \
         changes nothing. Of what is said of all relays, SIGHUP changes nothing. Paths that are not \
         absolute are those of the folder that the relay was started in.",
    );
    section(
        &mut roff,
        "RELAYS",
        "Each [[relay]] has these. But for listen and targets, what stands above the first \
         [[relay]] counts for all that do not say otherwise.",
    );
    for (name, takes, doc) in OPERANDS {
        item(&mut roff, &format!("{name} = {takes}"), doc);
    }
    flags(&mut roff, false);
    section(
        &mut roff,
        "ALL",
        "These stand above the first [[relay]]; flags go before them.",
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

fn rows(roff: &mut Roff, rows: &[OptionDoc]) {
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
        ValueKind::Nothing | ValueKind::Repeats => "true or false".to_owned(),
        ValueKind::Value("N") => "N".to_owned(),
        ValueKind::Value(name) | ValueKind::OptionalValue(name) => format!("\"{name}\""),
        ValueKind::Values(name) => format!("[\"{name}\", ...]"),
        ValueKind::Choice(_, choices) | ValueKind::OptionalChoice(_, choices) => {
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
