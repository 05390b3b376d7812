//! Recognizes a longhaul that was started over SSH by a marker line before the first byte of SFTP.
//!
//! The parser skips the output of a shell, its start-up files or a restricted account before that
//! line, and detects an SFTP server that is not ours. See docs/PROTOCOL.md, "A longhaul at the far
//! end".

use bytes::{Buf as _, Bytes};

/// Version of the protocol behind the marker: SFTP 3 with the extensions that VERSION names.
pub const MARKER_PROTOCOL: u32 = 1;

/// Start of the marker line of a serving longhaul.
const SERVES: &[u8] = b"longhaul-serves ";
/// Starts of the line that reports that there is no longhaul to start.
const ABSENT: [(&[u8], RemoteBinaryAbsence); 3] = [
    (b"longhaul-absent ", RemoteBinaryAbsence::NoneSent),
    (b"longhaul-gone ", RemoteBinaryAbsence::Gone),
    (b"longhaul-altered ", RemoteBinaryAbsence::Altered),
];
/// Maximum number of bytes before the marker line.
const MOST: usize = 64 * 1024;
/// Maximum length of the marker line in bytes.
const LONGEST_LINE: usize = 200;
/// Message number of VERSION.
const VERSION: u8 = 2;

/// Returns the marker line, with a newline in front, since preceding output may lack one.
pub fn marker(protocol: u32, software: &str) -> Vec<u8> {
    format!("\nlonghaul-serves {protocol} {software}\n").into_bytes()
}

/// Marker line that the remote command printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkerLine {
    /// SFTP from a longhaul follows.
    Serves {
        /// Protocol version behind the marker ([`MARKER_PROTOCOL`]).
        protocol: u32,
        /// Version of the remote longhaul, printable.
        software: String,
    },
    /// The remote host has no longhaul that may be started.
    Absent {
        /// State of the copy that was sent there earlier.
        sent: RemoteBinaryAbsence,
        /// Output of `uname -sm` on the remote host, printable; empty if it printed nothing.
        platform: String,
    },
}

/// Reason why the longhaul that an earlier run sent cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteBinaryAbsence {
    /// None was sent, as far as the client remembers.
    NoneSent,
    /// The file no longer exists.
    Gone,
    /// The file has another checksum, so another program has its name.
    Altered,
}

/// Reason why the peer is taken for something other than longhaul: its marker line did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LonghaulMarkerError {
    /// An SFTP server answered without a marker, such as the one of a ForceCommand.
    PlainSftp,
    /// 64 KiB arrived without a marker.
    TooMuch,
}

/// Searches a channel's data for the marker line.
#[derive(Debug, Default)]
pub struct MarkerSearch {
    /// The first five bytes, which are enough to recognize VERSION.
    head: Vec<u8>,
    line: Vec<u8>,
    /// Bytes consumed.
    taken: usize,
    /// True if the current line is too long to be the marker.
    long: bool,
}

impl MarkerSearch {
    /// Consumes `input` up to the end of the marker line; what follows stays there. Returns `None`
    /// if all of `input` was consumed and the line has not arrived yet.
    ///
    /// # Errors
    /// The marker will not come.
    pub fn take(&mut self, input: &mut Bytes) -> Result<Option<MarkerLine>, LonghaulMarkerError> {
        let head = input.len().min(5 - self.head.len());
        self.head.extend_from_slice(&input[..head]);
        // VERSION is shorter than 64 KiB, so its length starts with two zero bytes, which no text
        // does.
        if matches!(self.head[..], [0, 0, _, _, VERSION]) {
            return Err(LonghaulMarkerError::PlainSftp);
        }
        while !input.is_empty() {
            let end = input.iter().position(|b| *b == b'\n');
            let len = end.unwrap_or(input.len());
            let room = LONGEST_LINE.saturating_sub(self.line.len());
            self.long |= len > room;
            self.line.extend_from_slice(&input[..len.min(room)]);
            let all = len + usize::from(end.is_some());
            self.taken += all;
            input.advance(all);
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                let long = std::mem::take(&mut self.long);
                if let Some(greeting) = read(&line).filter(|_| !long) {
                    return Ok(Some(greeting));
                }
            }
            if self.taken > MOST {
                return Err(LonghaulMarkerError::TooMuch);
            }
        }
        Ok(None)
    }
}

fn read(line: &[u8]) -> Option<MarkerLine> {
    // A terminal set up by a start-up file may have turned the newline into CR LF.
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    for (opens, sent) in ABSENT {
        if let Some(rest) = line.strip_prefix(opens) {
            let platform = printable(rest)?;
            return Some(MarkerLine::Absent { sent, platform });
        }
    }
    let words = printable(line.strip_prefix(SERVES)?)?;
    let (protocol, software) = words.split_once(' ')?;
    let digits = protocol.bytes().all(|b| b.is_ascii_digit());
    let protocol = protocol.parse().ok().filter(|_| digits)?;
    Some(MarkerLine::Serves {
        protocol,
        software: software.to_owned(),
    })
}

fn printable(bytes: &[u8]) -> Option<String> {
    let plain = bytes.iter().all(|b| matches!(b, b' '..=b'~'));
    let text = plain.then(|| std::str::from_utf8(bytes).ok()).flatten()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result for `bytes` that arrive in pieces of `piece`, and the bytes left over.
    fn found(
        bytes: &[u8],
        piece: usize,
    ) -> (Result<Option<MarkerLine>, LonghaulMarkerError>, Vec<u8>) {
        let mut preamble = MarkerSearch::default();
        let mut pieces = bytes.chunks(piece);
        while let Some(piece) = pieces.next() {
            let mut input = Bytes::copy_from_slice(piece);
            match preamble.take(&mut input) {
                Ok(None) => assert!(input.is_empty()),
                done => {
                    let rest = pieces.flatten().copied();
                    return (done, input.iter().copied().chain(rest).collect());
                }
            }
        }
        (Ok(None), Vec::new())
    }

    fn ours() -> MarkerLine {
        MarkerLine::Serves {
            protocol: 1,
            software: "0.1.0".to_owned(),
        }
    }

    #[test]
    fn the_marker_is_found_behind_whatever_a_shell_prints() {
        let long = vec![b'x'; 5000];
        for noise in [
            &b""[..],
            b"Welcome!\n",
            b"no end of line",
            b"longhaul-serves x\nlonghaul-serves \nlonghaul-servesX 1 2\n",
            &long,
            &[0xff, 0, 2, b'\n', 0x1b, b'['],
        ] {
            let mut bytes = noise.to_vec();
            bytes.extend_from_slice(&marker(1, "0.1.0"));
            bytes.extend_from_slice(b"\0\0\0\x05\x02");
            for piece in [1, 2, 7, 100_000] {
                let (greeting, rest) = found(&bytes, piece);
                assert_eq!(greeting, Ok(Some(ours())), "{noise:?}");
                assert_eq!(rest, b"\0\0\0\x05\x02", "{noise:?}");
            }
        }
    }

    #[test]
    fn an_sftp_server_without_the_marker_is_told_apart() {
        for piece in [1, 5, 100] {
            let (answer, _) = found(b"\0\0\0\x0a\x02\0\0\0\x03", piece);
            assert_eq!(answer, Err(LonghaulMarkerError::PlainSftp));
            // VERSION after other text is not recognized: no client could use such a server.
            let (answer, _) = found(b"motd\n\0\0\0\x0a\x02\0\0\0\x03", piece);
            assert_eq!(answer, Ok(None));
        }
    }

    #[test]
    fn what_has_no_end_is_given_up() {
        for endless in [&b"y\n"[..], b"y", b"longhaul-serves "] {
            let endless = endless.repeat(MOST + 1);
            for piece in [1000, endless.len()] {
                let (answer, _) = found(&endless, piece);
                assert_eq!(answer, Err(LonghaulMarkerError::TooMuch));
            }
        }
    }

    #[test]
    fn a_line_of_ours_is_bounded_and_printable() {
        let long = [b"\nlonghaul-serves 1 ".to_vec(), vec![b'1'; LONGEST_LINE]].concat();
        let bad: [&[u8]; 5] = [
            b"\nlonghaul-serves 1 a\x1b[2J\n",
            b"\nlonghaul-serves +1 a\n",
            b"\nlonghaul-serves 99999999999 a\n",
            b"\nlonghaul-absent \x07\n",
            &[&long[..], b"\n"].concat(),
        ];
        for bytes in bad {
            assert_eq!(found(bytes, 1000).0, Ok(None), "{bytes:?}");
        }
    }

    #[test]
    fn that_there_is_none_is_said_with_the_platform() {
        let said = |platform: &str| MarkerLine::Absent {
            sent: RemoteBinaryAbsence::NoneSent,
            platform: platform.to_owned(),
        };
        let (answer, _) = found(b"\nlonghaul-absent Linux x86_64\n", 3);
        assert_eq!(answer, Ok(Some(said("Linux x86_64"))));
        let (answer, _) = found(b"motd\r\nlonghaul-absent \r\n", 100);
        assert_eq!(answer, Ok(Some(said(""))));
        for (bytes, sent) in [
            (
                &b"\nlonghaul-gone Linux x86_64\n"[..],
                RemoteBinaryAbsence::Gone,
            ),
            (
                b"\nlonghaul-altered Linux x86_64\n",
                RemoteBinaryAbsence::Altered,
            ),
        ] {
            let (answer, _) = found(bytes, 7);
            let platform = "Linux x86_64".to_owned();
            assert_eq!(answer, Ok(Some(MarkerLine::Absent { sent, platform })));
        }
    }
}
