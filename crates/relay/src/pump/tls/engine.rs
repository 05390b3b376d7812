//! Common interface to rustls' unbuffered server and client connections, which are distinct types.

use std::fmt;
use std::io;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{CommonState, Error};

/// Server or client side of a TLS connection.
pub(super) enum TlsEngine {
    Server(Box<UnbufferedServerConnection>),
    Client(Box<UnbufferedClientConnection>),
}

impl fmt::Debug for TlsEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server(_) => "Server",
            Self::Client(_) => "Client",
        })
    }
}

/// Result of passing received ciphertext to rustls once.
#[derive(PartialEq, Eq)]
pub(super) enum TlsReceiveResult {
    /// Another step may be possible.
    Continue,
    /// close_notify has been received.
    Ended,
    /// More ciphertext has to be received, or sealed records sent.
    Blocked,
}

impl TlsEngine {
    pub(super) fn state(&self) -> &CommonState {
        match self {
            Self::Server(server) => server,
            Self::Client(client) => client,
        }
    }

    /// Processes received ciphertext. Returns how many bytes of it are consumed, and the result.
    pub(super) fn step(
        &mut self,
        cipher: &mut [u8],
        sealed: &mut Vec<u8>,
        plain: &mut impl FnMut(&[u8]),
    ) -> (usize, Result<TlsReceiveResult, Error>) {
        match self {
            Self::Server(server) => step(server.process_tls_records(cipher), sealed, plain),
            Self::Client(client) => step(client.process_tls_records(cipher), sealed, plain),
        }
    }

    /// Seals the payload into a record, behind those that the library has queued itself, and
    /// returns their length in bytes. `part` is received ciphertext that is not a complete record.
    pub(super) fn seal(
        &mut self,
        what: RecordPayload<'_>,
        part: &mut [u8],
        into: &mut [u8],
    ) -> io::Result<usize> {
        let mut end = 0;
        loop {
            let room = into.get_mut(end..).unwrap_or_default();
            let (made, is_all) = match self {
                Self::Server(server) => seal(server.process_tls_records(part), what, room)?,
                Self::Client(client) => seal(client.process_tls_records(part), what, room)?,
            };
            end += made;
            if is_all {
                return Ok(end);
            }
        }
    }
}

/// Content of the next record: application data, or the alert that ends the stream.
#[derive(Clone, Copy)]
pub(super) enum RecordPayload<'a> {
    Bytes(&'a [u8]),
    CloseNotify,
}

fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    sealed: &mut Vec<u8>,
    plain: &mut impl FnMut(&[u8]),
) -> (usize, Result<TlsReceiveResult, Error>) {
    let mut discard = status.discard;
    let state = match status.state {
        Ok(state) => state,
        Err(e) => return (discard, Err(e)),
    };
    let step = match state {
        ConnectionState::ReadTraffic(mut traffic) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    discard += record.discard;
                    plain(record.payload);
                }
                Some(Err(e)) => break Err(e),
                None => break Ok(TlsReceiveResult::Continue),
            }
        },
        ConnectionState::EncodeTlsData(mut data) => {
            let begin = sealed.len();
            if let Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) =
                data.encode(&mut [])
            {
                sealed.resize(begin + required_size, 0);
            }
            let room = sealed.get_mut(begin..).unwrap_or_default();
            let encoded = data.encode(room);
            encoded
                .map(|_| TlsReceiveResult::Continue)
                .map_err(|e| Error::General(e.to_string()))
        }
        // Records that were queued are sent before anything written later.
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(TlsReceiveResult::Continue)
        }
        ConnectionState::PeerClosed => Ok(TlsReceiveResult::Ended),
        ConnectionState::Closed
        | ConnectionState::WriteTraffic(_)
        | ConnectionState::BlockedHandshake => Ok(TlsReceiveResult::Blocked),
        _ => Err(Error::General(
            "the client sent TLS early data, which this relay did not offer".to_owned(),
        )),
    };
    (discard, step)
}

/// Returns the number of bytes made, and if the payload is among them.
fn seal<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    what: RecordPayload<'_>,
    into: &mut [u8],
) -> io::Result<(usize, bool)> {
    match status.state.map_err(wrong)? {
        ConnectionState::WriteTraffic(mut traffic) => {
            let made = match what {
                RecordPayload::Bytes(bytes) => traffic.encrypt(bytes, into),
                RecordPayload::CloseNotify => traffic.queue_close_notify(into),
            };
            made.map(|made| (made, true)).map_err(|e| match e {
                EncryptError::InsufficientSize(_) => {
                    io::Error::other("the peer sent a TLS record that is too long")
                }
                e => io::Error::other(format!("TLS: {e}")),
            })
        }
        ConnectionState::EncodeTlsData(mut data) => match data.encode(into) {
            Ok(made) => Ok((made, false)),
            Err(e) => Err(io::Error::other(format!("TLS: {e}"))),
        },
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok((0, false))
        }
        _ => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// Converts a TLS error into an I/O error, which `tls_error` describes with the side it concerns.
pub(super) fn wrong(e: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}
