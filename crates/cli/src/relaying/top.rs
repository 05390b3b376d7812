//! `longhaul relay top`: the content of the status page in a terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use relay::status::{ConnectionStatus, StatusReport};
use rustix::termios::tcgetwinsize;
use wire::escape;

use crate::command_error::CommandError;
use crate::exit::Exit;
use crate::output::units::{counted, duration, size};
use crate::{failed, signals};

/// Interval between updates.
const PERIOD: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest accepted status, in bytes.
const LONGEST: u64 = 16 << 20;
/// Switches to the alternate screen without a cursor, and back.
const BEGIN: &str = "\x1b[?1049h\x1b[?25l";
const END: &str = "\x1b[?25h\x1b[?1049l";
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Seconds covered by a chart.
const SHOWN: usize = 20;

/// Shows the status until it is interrupted; once if standard output is not a terminal.
pub(super) fn run(address: &str) -> Exit {
    let Ok(address) = address.parse() else {
        let shown = escape::name(address.as_bytes());
        return failed(format!(
            "{shown} is not ADDRESS:PORT; use the address of the relay's --status"
        ));
    };
    let told = match io::stdout().is_terminal() {
        true => watch(address),
        false => status(address).map(|status| show(&text(&status, usize::MAX, usize::MAX))),
    };
    match told {
        Ok(()) => Exit::Done,
        Err(why) => failed(&why),
    }
}

/// Writes to standard output. A closed pipe is not an error.
fn show(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn watch(address: SocketAddr) -> Result<(), CommandError> {
    static OVER: AtomicBool = AtomicBool::new(false);
    // The signal wakes the loop below.
    let waiting = thread::current();
    let first = move || {
        OVER.store(true, Ordering::Release);
        waiting.unpark();
    };
    signals::watch(first, || show(END)).map_err(|e| format!("cannot handle signals: {e}"))?;
    let mut last = status(address)?;
    let mut gone: Option<String> = None;
    show(BEGIN);
    while !OVER.load(Ordering::Acquire) {
        let (columns, rows) = tcgetwinsize(io::stdout()).map_or((80, 24), |window| {
            (window.ws_col.into(), window.ws_row.into())
        });
        let mut screen = String::from("\x1b[H");
        let note = gone.as_deref().unwrap_or_default();
        for line in (note.to_owned() + &text(&last, columns, rows)).lines() {
            screen.push_str(line);
            screen.push_str("\x1b[K\r\n");
        }
        screen.push_str("\x1b[J");
        show(&screen);
        thread::park_timeout(PERIOD);
        match status(address) {
            Ok(status) => (last, gone) = (status, None),
            Err(why) => gone = Some(format!("{why}\n")),
        }
    }
    show(END);
    Ok(())
}

/// Fetches the status from the relay.
fn status(address: SocketAddr) -> Result<StatusReport, CommandError> {
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let request = format!("GET /status.json HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut told = String::new();
        stream.take(LONGEST).read_to_string(&mut told)?;
        Ok(told)
    };
    let told = ask().map_err(|e| {
        format!(
            "cannot get the status of a relay from {address}: {}: give the address of the relay's \
             --status",
            sys::os_words(&e)
        )
    })?;
    let body = told.split_once("\r\n\r\n").map(|(_, body)| body);
    let body = body.filter(|_| told.starts_with("HTTP/1.1 200 "));
    let status = body.and_then(|body| serde_json::from_str(body).ok());
    status.ok_or_else(|| {
        format!(
            "{address} does not serve the status of a longhaul relay of this version: give the \
             address of its --status, and use the same version"
        )
        .into()
    })
}

/// Formats the status within a number of columns and rows.
fn text(status: &StatusReport, columns: usize, rows: usize) -> String {
    let mut lines = Vec::new();
    for relay in &status.relays {
        let [up, down] = relay.bytes.map(size);
        let targets = relay.targets.iter().map(|target| match target.answers {
            true => target.target.clone(),
            false => format!("{} (does not answer)", target.target),
        });
        let targets = targets.collect::<Vec<_>>().join(", ");
        lines.push(format!(
            "{} > {targets}: {}, {} so far, {} refused, {up} up, {down} down  {}",
            relay.relay,
            counted(relay.connections, "connection", "connections"),
            relay.accepted,
            relay.turned_away,
            rates(&relay.rates)
        ));
    }
    lines.push(String::new());
    lines.push(format!(
        "{:>6} {:<24} {:<32} {:>12} {:>8} {:>8} {:>13} {:>9}  RATES",
        "No.", "CLIENT", "SERVER", "AGE", "UP", "DOWN", "RTT ms", "RETRANS"
    ));
    lines.extend(status.listed.iter().map(line));
    let left = rows.saturating_sub(2);
    let unlisted = status.connections.saturating_sub(status.listed.len());
    let more = lines.len().saturating_sub(left).saturating_add(unlisted);
    lines.truncate(left);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    let cut = lines.iter().map(|line| {
        // A relay sends addresses only, but this server may not be a relay.
        let plain = escape::name(line.as_bytes()).to_string();
        plain
            .chars()
            .take(columns)
            .chain(['\n'])
            .collect::<String>()
    });
    cut.collect()
}

fn line(connection: &ConnectionStatus) -> String {
    let server = connection.server.as_ref();
    let peer = server.map_or(connection.stage.as_str(), |server| server.peer.as_str());
    let legs = [Some(&connection.client), server];
    let tcp = legs.map(|leg| leg.and_then(|leg| leg.tcp.as_ref()));
    let rtt = tcp.map(|tcp| tcp.map_or_else(|| "-".to_owned(), |tcp| format!("{:.1}", tcp.rtt_ms)));
    let again = tcp.map(|tcp| tcp.map_or(0, |tcp| tcp.retransmissions));
    let [up, down] = connection.bytes.map(size);
    format!(
        "{:>6} {:<24} {peer:<32} {:>12} {up:>8} {down:>8} {:>13} {:>9}  {}",
        connection.connection,
        connection.client.peer,
        duration(Duration::try_from_secs_f64(connection.seconds).unwrap_or_default()),
        rtt.join(" "),
        format!("{} {}", again[0], again[1]),
        rates(&connection.rates)
    )
}

/// Charts of both directions for the last seconds, with current rates.
fn rates(rates: &[Vec<u64>; 2]) -> String {
    let most = rates.iter().flatten().copied().max().unwrap_or(0);
    let mut shown = String::new();
    for (way, name) in rates.iter().zip(["up", "down"]) {
        if most == 0 {
            continue;
        }
        let bars = way
            .iter()
            .skip(way.len().saturating_sub(SHOWN))
            .map(|rate| {
                let nth = (*rate as f64 / most as f64 * (BARS.len() - 1) as f64).round() as usize;
                BARS.get(nth).copied().unwrap_or(' ')
            });
        let bars: String = bars.collect();
        let now = way.last().copied().unwrap_or(0);
        // Writing to a String cannot fail.
        let _ = write!(shown, "{name} {bars} {}/s  ", size(now));
    }
    shown.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use relay::status::LegStatus;

    #[test]
    fn a_screen_holds_what_fits() {
        let listed = (0..50).map(|connection| ConnectionStatus {
            connection,
            client: LegStatus {
                peer: "127.0.0.1:1\x1b[2J".to_owned(),
                ..LegStatus::default()
            },
            rates: [vec![0, 7, 70], vec![]],
            ..ConnectionStatus::default()
        });
        let status = StatusReport {
            connections: 60,
            listed: listed.collect(),
            ..StatusReport::default()
        };
        let screen = text(&status, 60, 24);
        assert!(screen.lines().count() <= 23, "{screen}");
        assert!(screen.lines().all(|line| line.chars().count() <= 60) && !screen.contains('\x1b'));
        assert!(screen.ends_with("and 40 more\n"), "{screen}");
        let whole = text(&status, usize::MAX, usize::MAX);
        assert!(
            whole.contains("up ▁▂█ 70 B/s") && whole.ends_with("and 10 more\n"),
            "{whole}"
        );
    }
}
