//! Formats the library's report lines (crates/shim, `line`) for people.

use lab::path::Dscp;
use serde::Deserialize;

use wire::escape;

use super::events::{CarriedConnectionReason, CarriedWaits};
use crate::output::units;

/// The fields of a report line that are shown.
#[derive(Deserialize)]
struct WrapReportEntry {
    program: String,
    pid: u32,
    peer: std::net::SocketAddr,
    via: Option<std::net::SocketAddr>,
    lasted_us: u64,
    tcp: Option<ReportedTcp>,
    dscp: Option<u8>,
    kept_off: u32,
    changed: Vec<String>,
    waits: ProgramIoWaits,
    /// Set if longhaul has carried the connection.
    carried: Option<CarriedWaits>,
}

/// Fields of TCP_INFO in a report line; times are in microseconds.
#[derive(Deserialize)]
struct ReportedTcp {
    sent: u64,
    received: u64,
    rtt_us: u32,
    min_rtt_us: u32,
    retransmitted: u32,
}

/// Waits of the program in read and in write calls.
#[derive(Deserialize)]
struct ProgramIoWaits {
    reading: ReportedWait,
    writing: ReportedWait,
}

/// Waits of one kind: their sum and the longest in microseconds, and counts by length.
#[derive(Deserialize)]
struct ReportedWait {
    total_us: u64,
    longest_us: u64,
    from_10ms: u32,
    from_20ms: u32,
    from_50ms: u32,
    from_100ms: u32,
    from_200ms: u32,
    from_500ms: u32,
}

/// Formats each line. Invalid ones are skipped: the last may be cut if a program was killed.
pub(super) fn shown(lines: &[u8]) -> String {
    let lines = lines.split(|b| *b == b'\n');
    let read = lines.filter_map(|line| serde_json::from_slice::<WrapReportEntry>(line).ok());
    let text: String = read.map(|line| line.shown() + "\n").collect();
    match text.is_empty() {
        true => "longhaul wrap: no connections seen\n".to_owned(),
        false => text,
    }
}

impl WrapReportEntry {
    fn shown(&self) -> String {
        let Self {
            program, pid, peer, ..
        } = self;
        let program = escape::name(program.as_bytes());
        let mut text = format!("{program}[{pid}] {peer}");
        if let Some(via) = self.via {
            text.push_str(&format!(" via {via}"));
        }
        let lasted = seconds(self.lasted_us);
        match &self.tcp {
            None => text.push_str(&format!(
                ": {lasted}, closed by exit or exec, so its data is unknown"
            )),
            Some(tcp) if tcp.rtt_us == 0 && tcp.sent == 0 && tcp.received == 0 => {
                text.push_str(&format!(": not connected after {lasted}"));
            }
            Some(tcp) => text.push_str(&format!(
                ": {} sent, {} received in {lasted}, round trip {} (lowest {}), {} retransmitted",
                units::size(tcp.sent),
                units::size(tcp.received),
                ms(tcp.rtt_us.into()),
                ms(tcp.min_rtt_us.into()),
                units::counted(tcp.retransmitted.into(), "segment", "segments")
            )),
        }
        if let Some(dscp) = self.dscp {
            let dscp = Dscp::new(dscp).to_string();
            // A value without a name is shown as "DSCP 2".
            let dscp = dscp.strip_prefix("DSCP ").unwrap_or(&dscp);
            text.push_str(&format!("; the program requested DSCP {dscp}"));
            if self.kept_off > 0 {
                let times = units::counted(self.kept_off.into(), "time", "times");
                text.push_str(&format!(" (suppressed {times})"));
            }
        }
        match self.changed.is_empty() {
            true => text.push_str("; unchanged"),
            false => text.push_str(&format!("; changed {}", self.changed.join(", "))),
        }
        for (waited, what) in [
            (&self.waits.reading, "read"),
            (&self.waits.writing, "write"),
        ] {
            text.push_str(&waited.shown(what));
        }
        if let Some(carried) = &self.carried {
            text.push_str(&carried.shown());
        }
        text
    }
}

impl CarriedWaits {
    fn shown(&self) -> String {
        let how = match self.how {
            CarriedConnectionReason::Filter => "filtered",
            CarriedConnectionReason::Socks => "redirected to the proxy",
            CarriedConnectionReason::Direct => "refused by the proxy",
        };
        let waited = [
            ("the program to write data", self.program_wrote),
            ("the network to accept data", self.network_took),
            ("data from the network", self.network_sent),
            ("the program to read data", self.program_read),
        ];
        let waited = waited.map(|(what, waited)| {
            let (total, longest) = (seconds(waited.total_us), ms(waited.longest_us));
            format!("{total} for {what} (longest {longest})")
        });
        format!("; {how}: waited {}", waited.join(", "))
    }
}

impl ReportedWait {
    fn shown(&self, what: &str) -> String {
        let classes = [
            ("10", self.from_10ms),
            ("20", self.from_20ms),
            ("50", self.from_50ms),
            ("100", self.from_100ms),
            ("200", self.from_200ms),
            ("500", self.from_500ms),
        ];
        let there = classes.iter().filter(|(_, times)| *times > 0);
        let times: Vec<String> = there
            .map(|(from, times)| format!("{times} from {from} ms"))
            .collect();
        match times.is_empty() {
            true => String::new(),
            false => format!(
                "; waited {} to {what}, longest {} ({})",
                seconds(self.total_us),
                ms(self.longest_us),
                times.join(", ")
            ),
        }
    }
}

fn ms(us: u64) -> String {
    format!("{:.1} ms", us as f64 / 1e3)
}

fn seconds(us: u64) -> String {
    format!("{:.1} s", us as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shim::line::{ConnectionReport, TcpCounters as Counted, changed};

    #[test]
    fn what_the_library_writes_is_read_and_what_is_cut_is_left_out() {
        let record = ConnectionReport {
            program: "ssh",
            pid: 7,
            peer: "[2001:db8::1]:22".parse().unwrap(),
            via: Some("127.0.0.1:9".parse().unwrap()),
            lasted_us: 2_500_000,
            tcp: Some(Counted {
                sent: 12_000_000,
                received: 3_000,
                rtt_us: 20_400,
                min_rtt_us: 20_000,
                retransmitted: 3,
            }),
            dscp: Some(8),
            kept_off: 2,
            changed: changed::DSCP | changed::CONGESTION,
            reading: Default::default(),
            writing: Default::default(),
        };
        let mut lines = record.line().bytes().to_vec();
        lines.extend_from_slice(&record.line().bytes()[..40]);
        let text = shown(&lines);
        assert_eq!(text.lines().count(), 1, "{text}");
        for part in [
            "ssh[7] [2001:db8::1]:22 via 127.0.0.1:9: 12 MB sent",
            "in 2.5 s, round trip 20.4 ms (lowest 20.0 ms), 3 segments",
            "requested DSCP CS1 (suppressed 2 times); changed dscp, congestion",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(shown(b"").contains("no connections seen"));
    }
}
