//! The status page of a relay. It is complete without scripts; its own script, if allowed, updates
//! it each second. Text from peers is escaped.

use std::fmt::Write as _;
use std::time::Duration;

use measure::html::escaped;
use relay::status::{
    ConnectionStatus, LegStatus, RelayStatus, SECONDS, StatusMonitor, StatusReport,
};

use super::operating::figures;
use crate::http::HttpResponse;
use crate::output::units::{duration, size};

const WIDTH: usize = 120;
const HEIGHT: usize = 24;

/// The answer for a path of the status server.
pub(super) fn answer(watch: &StatusMonitor, path: &str) -> Option<HttpResponse> {
    let answer = |kind, body: String| Some(HttpResponse { kind, body });
    match path {
        "/" => answer("text/html; charset=utf-8", page(&watch.status())),
        "/page.css" => answer("text/css", include_str!("page.css").to_owned()),
        "/page.js" => answer("text/javascript", include_str!("page.js").to_owned()),
        "/status.json" => {
            let json = serde_json::to_string(&watch.status()).unwrap_or_default();
            let json = wire::escape::json(json);
            answer("application/json", json)
        }
        "/metrics" => Some(figures(watch)),
        _ => None,
    }
}

fn page(status: &StatusReport) -> String {
    let mut relays = String::new();
    for relay in &status.relays {
        relays.push_str(&relay_row(relay));
    }
    let mut connections = String::new();
    for connection in &status.listed {
        connections.push_str(&connection_row(connection));
    }
    let all = match status.connections.checked_sub(status.listed.len()) {
        None | Some(0) => String::new(),
        Some(more) => format!("<p class=quiet>and {more} more with lower rates</p>"),
    };
    let since = duration(Duration::from_secs_f64(status.seconds.max(0.0)));
    format!(
        "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n\
         <meta name=viewport content=\"width=device-width\">\n<title>longhaul relay</title>\n\
         <link rel=icon href=\"data:,\">\n\
         <link rel=stylesheet href=/page.css>\n<script src=/page.js defer></script>\n\
         <noscript><meta http-equiv=refresh content=5></noscript>\n</head>\n<body>\n\
         <p id=stale>The relay does not answer; this is its last report.</p>\n<main>\n\
         <h1>longhaul relay {}</h1>\n<p class=quiet>watched for {since}; rates are those of the \
         last {SECONDS} s, <span class=up>up</span> to servers and <span class=down>down</span> to \
         clients</p>\n<h2>Relays</h2>\n<div class=wide><table>\n<tr><th>Listens at<th>Targets<th>Rates\
         <th class=number>Up<th class=number>Down<th class=number>Open<th class=number>Accepted\
         <th class=number>Refused<th>Retransmitted (client, server)\
         <th>Abnormal closes\n{relays}</table></div>\n\
         <h2>Connections: {}</h2>\n<div class=wide><table id=connections>\n<tr><th class=number>No.\
         <th>Client<th>Server<th>Rates<th class=number>Up<th class=number>Down<th class=number>Age\
         <th class=number>RTT (client, server)<th class=number>Sent again<th class=number>\
         Leg of the client<th class=number>Leg of the server\n{connections}</table></div>\n{all}\n\
         </main>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
        status.connections,
    )
}

fn relay_row(relay: &RelayStatus) -> String {
    let targets = relay.targets.iter().map(|target| {
        let name = escaped(&target.target);
        match target.answers {
            true => name,
            false => format!("<span class=bad>{name} does not answer</span>"),
        }
    });
    let well = ["closed", "joined"];
    let ends = relay.ends.iter();
    let ends = ends.filter(|(how, count)| **count > 0 && !well.contains(&how.as_str()));
    let ends = ends.map(|(how, count)| format!("{count} {}", escaped(how)));
    let [up, down] = relay.bytes.map(size);
    let [client, server] = relay.retransmissions;
    format!(
        "<tr><td>{}<td>{}<td>{}<td class=number>{up}<td class=number>{down}\
         <td class=number>{}<td class=number>{}<td class=number>{}\
         <td>{client}, {server}<td>{}\n",
        escaped(&relay.relay),
        targets.collect::<Vec<_>>().join("<br>"),
        sparkline(&relay.rates),
        relay.connections,
        relay.accepted,
        relay.turned_away,
        ends.collect::<Vec<_>>().join(", "),
    )
}

fn connection_row(connection: &ConnectionStatus) -> String {
    let source = connection.source.as_deref();
    let source = source.map_or_else(String::new, |ip| format!("<br>for {}", escaped(ip)));
    let server = match &connection.server {
        Some(server) => named(server),
        None => escaped(&connection.stage),
    };
    let legs = [Some(&connection.client), connection.server.as_ref()];
    let tcp = legs.map(|leg| leg.and_then(|leg| leg.tcp.as_ref()));
    let each = |shown: &dyn Fn(&relay::status::TcpStatus) -> String| {
        tcp.map(|tcp| tcp.map_or_else(|| "-".to_owned(), shown))
    };
    let rtt = each(&|tcp| format!("{:.1} ms", tcp.rtt_ms)).join(", ");
    let again = each(&|tcp| tcp.retransmissions.to_string()).join(", ");
    let [near, far] = each(&|tcp| {
        let [sent, received] = [tcp.bytes_acked, tcp.bytes_received].map(size);
        format!("{sent} out, {received} in")
    });
    let [up, down] = connection.bytes.map(size);
    let seconds = |seconds: f64| duration(Duration::from_secs_f64(seconds.max(0.0)));
    format!(
        "<tr><td class=number>{}<td>{}{source}<td>{server}<td>{}\
         <td class=number>{up}<td class=number>{down}<td class=number>{}<td class=number>{rtt}\
         <td class=number>{again}<td class=number>{near}<td class=number>{far}\n",
        connection.connection,
        named(&connection.client),
        sparkline(&connection.rates),
        seconds(connection.seconds),
    )
}

fn named(leg: &LegStatus) -> String {
    let tls = leg.tls.as_deref();
    let tls = tls.map_or_else(String::new, |version| {
        // The facts about a pair are separated by semicolons: one line for each.
        let lines: Vec<String> = version.split("; ").map(escaped).collect();
        format!(" <span class=quiet>{}</span>", lines.join("<br>"))
    });
    escaped(&leg.peer) + &tls
}

/// Both directions of the last minute in one picture; empty if nothing moved.
fn sparkline(rates: &[Vec<u64>; 2]) -> String {
    let most = rates.iter().flatten().copied().max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let last = rates.each_ref().map(|way| way.last().copied().unwrap_or(0));
    let [up, down] = last.map(|rate| format!("{}/s", size(rate)));
    let mut lines = String::new();
    for (way, name) in rates.iter().zip(["up", "down"]) {
        let first = SECONDS.saturating_sub(way.len());
        let mut points = String::new();
        for (nth, rate) in way.iter().enumerate() {
            let x = (first + nth) * WIDTH / SECONDS.saturating_sub(1).max(1);
            let y = HEIGHT as f64 - 1.0 - *rate as f64 / most as f64 * (HEIGHT - 2) as f64;
            // Writing to a String cannot fail.
            let _ = write!(points, "{x},{y:.1} ");
        }
        let _ = write!(
            lines,
            "<polyline class={name} points=\"{}\"/>",
            points.trim_end()
        );
    }
    format!(
        "<svg width={WIDTH} height={HEIGHT} viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img>\
         <title>up {up}, down {down}, at most {}/s</title>{lines}</svg>{up}, {down}",
        size(most)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use relay::status::{TargetStatus, TcpStatus};

    fn status(text: &str) -> StatusReport {
        let leg = || LegStatus {
            peer: text.to_owned(),
            tls: Some(text.to_owned()),
            tcp: Some(TcpStatus {
                rtt_ms: 12.34,
                retransmissions: 17,
                bytes_acked: 4_200_000,
                ..TcpStatus::default()
            }),
        };
        StatusReport {
            seconds: 3.0,
            connections: 300,
            relays: vec![RelayStatus {
                relay: text.to_owned(),
                targets: vec![TargetStatus {
                    target: text.to_owned(),
                    answers: false,
                }],
                ends: [(text.to_owned(), 1)].into(),
                rates: [vec![1, 2], vec![3, 0]],
                ..RelayStatus::default()
            }],
            listed: vec![ConnectionStatus {
                stage: text.to_owned(),
                client: leg(),
                server: Some(leg()),
                source: Some(text.to_owned()),
                ..ConnectionStatus::default()
            }],
        }
    }

    #[test]
    fn nothing_that_others_say_is_markup() {
        let hostile = "<img src=x onerror=alert(1)>\"'&</main>";
        let page = page(&status(hostile));
        assert!(
            !page.contains("<img") && page.contains("&lt;img src=x"),
            "{page}"
        );
        assert_eq!(page.matches("</main>").count(), 1);
    }

    #[test]
    fn figures_are_on_the_page() {
        let page = page(&status("h:22"));
        for text in [
            "12.3 ms, 12.3 ms",
            "17, 17",
            "4.2 MB out",
            "and 299 more",
            "does not answer",
        ] {
            assert!(page.contains(text), "{text} in {page}");
        }
        assert!(page.contains("<polyline class=up points=\"117,"), "{page}");
    }

    #[test]
    fn what_does_not_move_has_no_picture() {
        assert_eq!(sparkline(&[vec![], vec![]]), "");
        assert_eq!(sparkline(&[vec![0, 0], vec![0, 0]]), "");
    }
}
