//! Formats a connection as a line of JSON in memory of fixed size: lines are written inside close()
//! and at the end of a program.

use core::net::{IpAddr, SocketAddr};

use crate::waits::WaitSnapshot;

/// The properties of a connection that the library may change.
pub mod changed {
    /// The DSCP.
    pub const DSCP: u32 = 1;
    /// The congestion control.
    pub const CONGESTION: u32 = 2;
    /// The limit of unsent data in the kernel.
    pub const NOTSENT_LOWAT: u32 = 4;
    /// Names of the bits in the line.
    pub(super) const NAMES: [(u32, &str); 3] = [
        (DSCP, "dscp"),
        (CONGESTION, "congestion"),
        (NOTSENT_LOWAT, "notsent_lowat"),
    ];
}

/// Facts about one connection of a wrapped program, which become a line of the report when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionReport<'a> {
    /// The program's name.
    pub program: &'a str,
    /// Process ID.
    pub pid: u32,
    /// The program's destination.
    pub peer: SocketAddr,
    /// The relay that was connected to instead.
    pub via: Option<SocketAddr>,
    /// From connect() to the end, in microseconds.
    pub lasted_us: u64,
    /// Counters of the kernel; `None` if the socket is gone.
    pub tcp: Option<TcpCounters>,
    /// The DSCP that the program set last.
    pub dscp: Option<u8>,
    /// Number of times that the program set a DSCP without effect.
    pub kept_off: u32,
    /// The changed properties, as bits of [`changed`].
    pub changed: u32,
    /// Waits for reading.
    pub reading: WaitSnapshot,
    /// Waits for writing.
    pub writing: WaitSnapshot,
}

/// Counters of a connection from TCP_INFO (tcp(7)) at the time of its report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpCounters {
    /// Bytes that the peer has acknowledged.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// The round trip, in microseconds.
    pub rtt_us: u32,
    /// The shortest round trip, in microseconds.
    pub min_rtt_us: u32,
    /// Retransmitted segments.
    pub retransmitted: u32,
}

impl ConnectionReport<'_> {
    /// Formats the line, with its newline.
    pub fn line(&self) -> ReportLine {
        let mut line = ReportLine::new();
        line.text("{\"program\":\"");
        line.name(self.program);
        line.text("\",\"pid\":");
        line.number(self.pid.into());
        line.text(",\"peer\":");
        line.address(self.peer);
        line.text(",\"via\":");
        match self.via {
            Some(via) => line.address(via),
            None => line.text("null"),
        }
        line.text(",\"lasted_us\":");
        line.number(self.lasted_us);
        line.text(",\"tcp\":");
        match self.tcp {
            None => line.text("null"),
            Some(tcp) => line.object(&[
                ("sent", tcp.sent),
                ("received", tcp.received),
                ("rtt_us", tcp.rtt_us.into()),
                ("min_rtt_us", tcp.min_rtt_us.into()),
                ("retransmitted", tcp.retransmitted.into()),
            ]),
        }
        line.text(",\"dscp\":");
        match self.dscp {
            Some(dscp) => line.number(dscp.into()),
            None => line.text("null"),
        }
        line.text(",\"kept_off\":");
        line.number(self.kept_off.into());
        line.text(",\"changed\":[");
        let mut comma = "";
        for (bit, name) in changed::NAMES {
            if self.changed & bit != 0 {
                line.text(comma);
                line.text("\"");
                line.text(name);
                line.text("\"");
                comma = ",";
            }
        }
        line.text("],\"waits\":{\"reading\":");
        line.waits(&self.reading);
        line.text(",\"writing\":");
        line.waits(&self.writing);
        line.text("}}\n");
        line
    }
}

/// Buffer size; the longest line has some 750 bytes.
const LEN: usize = 1024;

/// A line in a buffer of fixed size. Excess text is cut.
pub struct ReportLine {
    bytes: [u8; LEN],
    len: usize,
}

impl ReportLine {
    const fn new() -> Self {
        Self {
            bytes: [0; LEN],
            len: 0,
        }
    }

    /// The text so far.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn byte(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
            self.len += 1;
        }
    }

    fn text(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.byte(byte));
    }

    /// Appends a name, with `?` for characters that JSON would need to escape.
    fn name(&mut self, name: &str) {
        for byte in name.bytes().take(64) {
            let plain = (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
            self.byte(if plain { byte } else { b'?' });
        }
    }

    fn number(&mut self, mut number: u64) {
        let mut digits = [0; 20];
        let mut used = 0;
        for digit in &mut digits {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
            used += 1;
            if number == 0 {
                break;
            }
        }
        digits.iter().take(used).rev().for_each(|d| self.byte(*d));
    }

    fn object(&mut self, fields: &[(&str, u64)]) {
        let mut before = "{\"";
        for (name, number) in fields {
            self.text(before);
            self.text(name);
            self.text("\":");
            self.number(*number);
            before = ",\"";
        }
        self.text("}");
    }

    fn waits(&mut self, waited: &WaitSnapshot) {
        let [ms10, ms20, ms50, ms100, ms200, ms500] = waited.classes;
        self.object(&[
            ("total_us", waited.total_us),
            ("longest_us", waited.longest_us),
            ("from_10ms", ms10.into()),
            ("from_20ms", ms20.into()),
            ("from_50ms", ms50.into()),
            ("from_100ms", ms100.into()),
            ("from_200ms", ms200.into()),
            ("from_500ms", ms500.into()),
        ]);
    }

    /// Appends an address as a JSON string. IPv6 has all eight groups, which every parser accepts.
    fn address(&mut self, address: SocketAddr) {
        self.text("\"");
        match address.ip() {
            IpAddr::V4(ip) => {
                let mut dot = "";
                for octet in ip.octets() {
                    self.text(dot);
                    self.number(octet.into());
                    dot = ".";
                }
            }
            IpAddr::V6(ip) => {
                let mut colon = "[";
                for group in ip.segments() {
                    self.text(colon);
                    self.hex(group);
                    colon = ":";
                }
                self.text("]");
            }
        }
        self.text(":");
        self.number(address.port().into());
        self.text("\"");
    }

    fn hex(&mut self, group: u16) {
        let digits = [group >> 12, group >> 8, group >> 4, group].map(|d| (d & 15) as u8);
        let zeros = digits.iter().take(3).take_while(|d| **d == 0).count();
        for digit in digits.into_iter().skip(zeros) {
            let from = if digit < 10 { b'0' } else { b'a' - 10 };
            self.byte(from + digit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(peer: &str) -> ConnectionReport<'_> {
        ConnectionReport {
            program: "a\"b\\c\u{e9}",
            pid: 42,
            peer: peer.parse().unwrap(),
            via: None,
            lasted_us: 1_000_001,
            tcp: Some(TcpCounters {
                sent: u64::MAX,
                received: 0,
                rtt_us: 10,
                min_rtt_us: 9,
                retransmitted: 1,
            }),
            dscp: Some(8),
            kept_off: 2,
            changed: changed::DSCP | changed::NOTSENT_LOWAT,
            reading: WaitSnapshot::default(),
            writing: WaitSnapshot::default(),
        }
    }

    #[test]
    fn a_line_is_json() {
        let line = record("192.0.2.1:22").line();
        let text = core::str::from_utf8(line.bytes()).unwrap();
        assert!(
            text.starts_with(
                "{\"program\":\"a?b?c??\",\"pid\":42,\"peer\":\"192.0.2.1:22\",\"via\":null,\
                 \"lasted_us\":1000001,\"tcp\":{\"sent\":18446744073709551615,\"received\":0,\
                 \"rtt_us\":10,\"min_rtt_us\":9,\"retransmitted\":1},\"dscp\":8,\"kept_off\":2,\
                 \"changed\":[\"dscp\",\"notsent_lowat\"],\"waits\":{\"reading\":{\"total_us\":0,"
            ),
            "{text}"
        );
        assert!(text.ends_with("\"from_500ms\":0}}}\n"), "{text}");
    }

    #[test]
    fn addresses_are_what_they_were() {
        for text in ["[2001:db8::f0:1]:65535", "[::1]:1", "[::ffff:1.2.3.4]:5"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut line = ReportLine::new();
            line.address(address);
            let said = core::str::from_utf8(line.bytes()).unwrap();
            let read: SocketAddr = said.trim_matches('"').parse().unwrap();
            assert_eq!(read, address, "{}", said);
        }
    }

    #[test]
    fn the_longest_line_is_whole() {
        let long = WaitSnapshot {
            classes: [u32::MAX; 6],
            total_us: u64::MAX,
            longest_us: u64::MAX,
        };
        let peer = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
        let record = ConnectionReport {
            program: "x".repeat(100).leak(),
            pid: u32::MAX,
            via: Some(peer.parse().unwrap()),
            lasted_us: u64::MAX,
            reading: long,
            writing: long,
            changed: 7,
            kept_off: u32::MAX,
            ..record(peer)
        };
        let line = record.line();
        assert!(line.bytes().ends_with(b"}}}\n"), "{}", line.len);
    }
}
