//! `longhaul lab --estimate`: the time that a copy should take over a path.

use std::time::Duration;

use lab::NetworkPathSpec;
use lab::path::TcpBufferSettings;
use schedule::{CopyTimeModel, MOST_AT_START, TransferDirection};

use crate::output::units;

/// Share of the bits of a link that are file data: headers of IP, TCP and SSH take the rest.
const PAYLOAD: f64 = 0.936;
/// Share of a socket buffer that holds data; the kernel counts its own structures too.
const USABLE: f64 = 0.6;
/// Bytes of the channel windows that one connection opens: ten channels of 2 MiB.
const WINDOWS: f64 = 20.0 * 1_048_576.0;
/// Time in which a server starts its SFTP server, without start-up files of a shell.
const START_UP: Duration = Duration::from_millis(30);

/// Returns the table of predicted times of a copy of `bytes` over `path`.
pub(super) fn table(path: &NetworkPathSpec, bytes: u64) -> String {
    let mut text = format!(
        "A copy of {} with a round trip of {:.1} ms, {} up and {} down, with {} % of the packets lost.\n\
         The server starts its SFTP server in {} ms, without start-up files of a shell.\n\n\
         {:<6}{:<9}{:>12}{:>9}{:>10}\n",
        units::size(bytes),
        path.rtt.as_secs_f64() * 1e3,
        path.rate[0],
        path.rate[1],
        path.loss.share.get() * 100.0,
        START_UP.as_millis(),
        "way",
        "host",
        "connections",
        "seconds",
        "with one",
    );
    for direction in [TransferDirection::Up, TransferDirection::Down] {
        for known in [false, true] {
            let model = model(path, bytes, direction, known);
            let connections = model.connections(MOST_AT_START);
            text.push_str(&format!(
                "{:<6}{:<9}{connections:>12}{:>9.2}{:>10.2}\n",
                match direction {
                    TransferDirection::Up => "up",
                    TransferDirection::Down => "down",
                },
                match known {
                    true => "known",
                    false => "first",
                },
                model.seconds(connections),
                model.seconds(1),
            ));
        }
    }
    text
}

fn model(
    path: &NetworkPathSpec,
    bytes: u64,
    direction: TransferDirection,
    known: bool,
) -> CopyTimeModel {
    let rate = match direction {
        TransferDirection::Up => path.rate[0],
        TransferDirection::Down => path.rate[1],
    };
    let buffer = match path.tcp {
        Some(TcpBufferSettings::Tuned) => 128.0 * 1_048_576.0,
        Some(TcpBufferSettings::Stock | TcpBufferSettings::StockSince616) | None => {
            4.0 * 1_048_576.0
        }
    };
    CopyTimeModel {
        direction,
        bytes,
        rtt: path.rtt,
        rate: rate.bits() as f64 / 8.0 * PAYLOAD,
        proven: true,
        in_flight: (buffer * USABLE).min(WINDOWS) as u64,
        known,
        start_up: START_UP,
        loss: path.loss.share.get(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: the estimate was that of a path without losses.
    #[test]
    fn losses_take_time() {
        let options = [("rtt", "114ms"), ("rate", "1Gbit"), ("tcp", "stock")];
        let clean = NetworkPathSpec::build(None, options).unwrap();
        let lossy = options.into_iter().chain([("loss", "0.1%")]);
        let lossy = NetworkPathSpec::build(None, lossy).unwrap();
        for direction in [TransferDirection::Up, TransferDirection::Down] {
            let seconds = |path| model(path, 64 << 20, direction, false).seconds(7);
            assert!(seconds(&lossy) > 1.3 * seconds(&clean));
        }
    }

    #[test]
    fn every_way_has_a_line_and_a_known_host_is_not_slower() {
        let options = [("rtt", "114ms"), ("rate", "1Gbit"), ("tcp", "stock")];
        let path = NetworkPathSpec::build(None, options).unwrap();
        let text = table(&path, 64 << 20);
        let seconds = |way: &str, host: &str| -> f64 {
            let begin = format!("{way:<6}{host}");
            let line = text.lines().find(|line| line.starts_with(&begin)).unwrap();
            line.split_whitespace().nth(3).unwrap().parse().unwrap()
        };
        for way in ["up", "down"] {
            assert!(seconds(way, "known") <= seconds(way, "first"), "{text}");
            assert!((1.2..3.0).contains(&seconds(way, "first")), "{text}");
        }
    }
}
