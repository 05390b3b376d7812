//! Formats a race as one self-contained HTML page, without scripts or external images.

mod figures;
mod plots;

use std::fmt::Write as _;

use crate::html::escaped;
use crate::plot::Svg;
use crate::result::{MachineProperties, ProgramComparisonResult, Scenario};
use crate::shown;
use crate::table::shown_case;

use figures::{commands, figures, path_figures};
use plots::{bars, rates};

pub(crate) const STYLE: &str = "\
    body{font:15px/1.5 system-ui,'Segoe UI','DejaVu Sans',sans-serif;color:#222;max-width:820px;\
    margin:2.5em auto;padding:0 1.2em}\
    h1{font-size:1.7em;margin:0 0 .2em}h2{font-size:1.2em;margin:2.4em 0 .2em;padding-top:.6em;\
    border-top:1px solid #ccc}h3{font-size:1em;margin:1.4em 0 .3em}p{margin:.3em 0 .7em}\
    table{border-collapse:collapse;font-size:13px;margin:.6em 0}\
    th,td{text-align:right;padding:.18em .7em .18em 0;border-bottom:1px solid #e4e4e4;\
    vertical-align:top}th{font-weight:600;border-bottom-color:#999}\
    th:first-child,td:first-child,.left{text-align:left}tr.ours td{font-weight:600}\
    tr.bad td{color:#7a2d12}code{font:12px/1.45 ui-monospace,'DejaVu Sans Mono',monospace;\
    overflow-wrap:anywhere}dl.commands{font-size:12.5px;margin:.3em 0;\
    display:grid;grid-template-columns:max-content 1fr;gap:.15em 1em}dl.commands dt{font-weight:600}\
    dl.commands dd{margin:0}\
    svg{max-width:100%;height:auto;display:block;margin:.5em 0}.note{color:#555;font-size:13px}\
    nav ul{columns:2;padding-left:1.2em;font-size:13px;margin:.5em 0}a{color:#0b5c8a}\
    @media print{body{margin:0;max-width:none;font-size:11pt}svg,table{break-inside:avoid}\
    h2,h3{break-after:avoid}nav{display:none}}";

/// The page as HTML.
pub fn page(race: &ProgramComparisonResult) -> String {
    let mut html = String::new();
    let _ = write!(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>longhaul race, {date}</title><style>{STYLE}{}</style></head><body>\n\
         <svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\">{}</svg>\n\
         <h1>The race of {date}</h1>\n",
        Svg::STYLE,
        Svg::PATTERNS,
        date = escaped(&race.date),
    );
    let runs = match race.runs {
        1 => "One run of each tool.".to_owned(),
        runs => format!("Medians of {runs} runs, tools in turn; whiskers from least to most."),
    };
    let _ = writeln!(
        html,
        "<p>{runs} 1 MB is 10<sup>6</sup> bytes. Every copy was compared with its original. \
         Preset: {}.</p>\n<p class=\"note\">{}</p>",
        escaped(&race.preset),
        escaped(&machine(&race.machine))
    );
    tools(&mut html, race);
    if race.scenarios.len() > 3 {
        html.push_str("<nav><ul>");
        for (number, scenario) in race.scenarios.iter().enumerate() {
            let name = escaped(&scenario.name);
            let _ = write!(html, "<li><a href=\"#s{number}\">{name}</a></li>");
        }
        html.push_str("</ul></nav>\n");
    }
    asked(&mut html, race);
    for (number, scenario) in race.scenarios.iter().enumerate() {
        section(&mut html, number, scenario);
    }
    round_trips(&mut html, race);
    cases(&mut html, race);
    html.push_str("</body></html>\n");
    html
}

fn machine(machine: &MachineProperties) -> String {
    format!(
        "Machine: {} cores{}, {} of memory, {}. longhaul at commit {}.",
        machine.cores,
        machine
            .cpu
            .as_ref()
            .map_or(String::new(), |cpu| format!(" ({cpu})")),
        shown::bytes(machine.memory_bytes >> 28 << 28),
        machine.kernel,
        machine.commit,
    )
}

fn tools(html: &mut String, race: &ProgramComparisonResult) {
    html.push_str("<table><tr><th>Tool</th><th class=\"left\">Version</th></tr>\n");
    for tool in &race.tools {
        let (class, text) = match (&tool.missing, &tool.version) {
            (Some(missing), _) => (" class=\"bad\"", format!("missing: {missing}")),
            (None, version) => ("", version.clone().unwrap_or_else(|| "unknown".to_owned())),
        };
        let _ = writeln!(
            html,
            "<tr{class}><td>{}</td><td class=\"left\">{}</td></tr>",
            escaped(&tool.name),
            escaped(&text)
        );
    }
    html.push_str("</table>\n");
}

fn asked(html: &mut String, race: &ProgramComparisonResult) {
    if race
        .scenarios
        .iter()
        .all(|scenario| scenario.bars.is_empty())
    {
        return;
    }
    html.push_str(
        "<h2>What was asked of longhaul</h2>\n<table><tr><th>Scenario</th><th class=\"left\">What\
         </th><th>Measured</th><th>Bar</th><th></th></tr>\n",
    );
    for scenario in &race.scenarios {
        for bar in &scenario.bars {
            let class = if bar.met { "" } else { " class=\"bad\"" };
            let met = bar.shown();
            let _ = writeln!(
                html,
                "<tr{class}><td>{}</td><td class=\"left\">{}</td><td>{}</td><td>{}</td>\
                 <td>{met}</td></tr>",
                escaped(&scenario.name),
                escaped(&bar.what),
                bar.measured.map_or_else(|| "-".to_owned(), shown::number),
                shown::number(bar.bar)
            );
        }
    }
    html.push_str("</table>\n");
}

fn section(html: &mut String, number: usize, scenario: &Scenario) {
    let path = if scenario.path.is_empty() {
        "loopback".to_owned()
    } else {
        format!("longhaul lab {}", scenario.path.join(" "))
    };
    let _ = writeln!(
        html,
        "<h2 id=\"s{number}\">{}</h2>\n<p>{}</p>\n<p class=\"note\">{}, {}. Path: <code>{}</code>. \
         A run is ended after {} s.</p>",
        escaped(&scenario.name),
        escaped(&scenario.about),
        escaped(&shown::payload(scenario.payload)),
        scenario.way,
        escaped(&path),
        shown::number(scenario.limit_seconds)
    );
    html.push_str(&bars(scenario).draw().element());
    html.push('\n');
    if let Some(lines) = rates(scenario) {
        html.push_str(&lines.draw().element());
        html.push('\n');
    }
    figures(html, scenario);
    path_figures(html, scenario);
    commands(html, scenario);
}

fn round_trips(html: &mut String, race: &ProgramComparisonResult) {
    if race.round_trips.is_empty() {
        return;
    }
    html.push_str(
        "<h2>Round trips for a file of 1 KiB</h2>\n<p>Counted as the difference between a long \
         path and one of no length, divided by the round trip.</p>\n\
         <table><tr><th>Tool</th><th class=\"left\">Before</th><th>Round trips</th></tr>\n",
    );
    for row in &race.round_trips {
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td class=\"left\">{}</td><td>{:.1}</td></tr>",
            escaped(&row.tool),
            escaped(&row.when),
            row.number
        );
    }
    html.push_str("</table>\n");
}

fn cases(html: &mut String, race: &ProgramComparisonResult) {
    if race.cases.is_empty() {
        return;
    }
    html.push_str(
        "<h2>The reports this answers</h2>\n<table><tr><th>Case</th><th class=\"left\">About</th>\
         <th class=\"left\">Scenarios</th></tr>\n",
    );
    for case in &race.cases {
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td class=\"left\">{}</td><td class=\"left\">{}</td></tr>",
            case.number,
            escaped(&case.title),
            escaped(&shown_case(case))
        );
    }
    html.push_str("</table>\n");
}
