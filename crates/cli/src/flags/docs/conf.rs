//! longhaul-serve.conf(5), from the table of options.

use clap_mangen::roff::{Roff, roman};

use super::{item, see_also_section};
use crate::serving::options::{KeyOptions, Options, Row};

/// The page.
pub(super) fn page() -> Vec<u8> {
    let mut roff = Roff::new();
    roff.control(
        "TH",
        [
            "LONGHAUL-SERVE.CONF",
            "5",
            "",
            concat!("longhaul ", env!("CARGO_PKG_VERSION")),
            "File Formats",
        ],
    );
    section(
        &mut roff,
        "NAME",
        "longhaul-serve.conf - what longhaul serve --config is told",
    );
    section(
        &mut roff,
        "DESCRIPTION",
        "A file in TOML. longhaul serve check FILE tells what is wrong with it, with the line; what \
         is not in this page is refused. SIGHUP has the server read it again: who comes from then \
         on meets what it says now, who is there keeps what was. A file that makes no sense \
         changes nothing. listen and metrics are read at the start alone.",
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
    roff.control("SH", ["EXAMPLE"]);
    roff.control("nf", []);
    for line in include_str!("../../../../../packaging/serve.toml").lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    see_also_section(&mut roff, "longhaul-serve(1), sshd_config(5), toml");
    roff.render().into_bytes()
}

fn section(roff: &mut Roff, name: &str, text: &str) {
    roff.control("SH", [name]);
    roff.text([roman(text)]);
}

fn rows(roff: &mut Roff, rows: &[Row]) {
    for row in rows {
        item(roff, &format!("{} = {}", row.name, row.takes), row.doc);
    }
}
