//! Metrics in Prometheus' text format 0.0.4. Pure.

use std::fmt::Write as _;

use relay::status::{RelayStatus, StatusReport};
use wire::escape::{name, steers_terminal};

/// The text of all metrics.
pub(super) fn text(status: &StatusReport) -> String {
    let mut text = MetricsText::default();
    let relays = &status.relays;
    text.family("accepted_total", "counter", "Connections accepted.");
    text.each(relays, &[], |relay| relay.accepted);
    text.family("turned_away_total", "counter", "Connections refused.");
    text.each(relays, &[], |relay| relay.turned_away);
    text.family("connections", "gauge", "Connections open now.");
    text.each(relays, &[], |relay| relay.connections);
    text.family(
        "bytes_total",
        "counter",
        "Bytes moved to servers (up) and clients (down).",
    );
    text.each(relays, &[("way", "up")], |relay| relay.bytes[0]);
    text.each(relays, &[("way", "down")], |relay| relay.bytes[1]);
    text.family(
        "retransmissions_total",
        "counter",
        "Segments retransmitted on connections that have ended.",
    );
    text.each(relays, &[("leg", "client")], |relay| {
        relay.retransmissions[0]
    });
    text.each(relays, &[("leg", "server")], |relay| {
        relay.retransmissions[1]
    });
    text.family(
        "ended_total",
        "counter",
        "Connections that have ended, by outcome.",
    );
    for relay in relays {
        for (how, count) in &relay.ends {
            text.sample(relay, &[("how", how)], *count);
        }
    }
    text.family(
        "target_up",
        "gauge",
        "1 if the target answered the last check, else 0.",
    );
    for relay in relays {
        for target in &relay.targets {
            text.sample(relay, &[("target", &target.target)], target.answers.into());
        }
    }
    text.out
}

/// Text under construction, and the family that the next samples belong to.
#[derive(Default)]
struct MetricsText {
    out: String,
    family: &'static str,
}

/// Writes samples of the family that was begun last.
impl MetricsText {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        // Writing to a String cannot fail.
        let _ = write!(
            self.out,
            "# HELP longhaul_relay_{name} {help}\n# TYPE longhaul_relay_{name} {kind}\n"
        );
    }

    fn each(
        &mut self,
        relays: &[RelayStatus],
        labels: &[(&str, &str)],
        value: impl Fn(&RelayStatus) -> u64,
    ) {
        for relay in relays {
            self.sample(relay, labels, value(relay));
        }
    }

    fn sample(&mut self, relay: &RelayStatus, labels: &[(&str, &str)], value: u64) {
        let (name, relay) = (self.family, quoted(&relay.relay));
        let _ = write!(self.out, "longhaul_relay_{name}{{relay=\"{relay}\"");
        for (label, text) in labels {
            let _ = write!(self.out, ",{label}=\"{}\"", quoted(text));
        }
        let _ = writeln!(self.out, "}} {value}");
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    for c in text.chars() {
        match c {
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            '\n' => quoted.push_str("\\n"),
            // The backslash of an escape sequence must be escaped too.
            c if steers_terminal(c) => {
                let shown = name(c.encode_utf8(&mut [0; 4]).as_bytes()).to_string();
                quoted.push_str(&shown.replace('\\', "\\\\"));
            }
            c => quoted.push(c),
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use relay::status::TargetStatus;

    #[test]
    fn every_sample_follows_its_family() {
        let status = StatusReport {
            relays: vec![RelayStatus {
                relay: "unix:/run/\"a\"\n".to_owned(),
                accepted: 3,
                bytes: [7, 8],
                ends: [("closed".to_owned(), 2)].into(),
                targets: vec![TargetStatus {
                    target: "h:22".to_owned(),
                    answers: true,
                }],
                ..RelayStatus::default()
            }],
            ..StatusReport::default()
        };
        let text = text(&status);
        for line in [
            "longhaul_relay_accepted_total{relay=\"unix:/run/\\\"a\\\"\\n\"} 3",
            "longhaul_relay_bytes_total{relay=\"unix:/run/\\\"a\\\"\\n\",way=\"down\"} 8",
            "longhaul_relay_ended_total{relay=\"unix:/run/\\\"a\\\"\\n\",how=\"closed\"} 2",
            "longhaul_relay_target_up{relay=\"unix:/run/\\\"a\\\"\\n\",target=\"h:22\"} 1",
            "# TYPE longhaul_relay_connections gauge",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} in {text}");
        }
        let mut family = "";
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => family = rest.split(' ').next().unwrap(),
                None => assert!(
                    line.starts_with("# HELP ") || line.starts_with(family),
                    "{line}"
                ),
            }
        }
    }
}
