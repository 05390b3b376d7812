//! TLS on a leg.
//!
//! Two stores of bytes that the kernel knows nothing of are here, and no event tells of them: what
//! was received and not decrypted, and what was decrypted and not read. Whoever asks whether the
//! leg is readable is told of these as well.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};

use crate::tls::{TlsClient, TlsServer, has_name};

/// What is taken from the kernel at once: two records.
const CIPHER: usize = 33 << 10;
/// Plaintext of one record (RFC 8446 section 5.1).
const RECORD: usize = 16 << 10;

/// TLS on a leg.
#[derive(Debug)]
pub(super) struct Tls {
    connection: Connection,
    /// Received, and not given to the library yet.
    cipher: Vec<u8>,
    /// How much of it was.
    given: usize,
    /// There may be something that is decrypted.
    plain: bool,
    /// To be sent in the next record.
    open: Vec<u8>,
    /// Names of which the other end's certificate has to have one.
    names: Arc<[ServerName<'static>]>,
    checked: bool,
    closing: bool,
}

/// What reading came to.
pub(super) enum Plain {
    Bytes(usize),
    /// close_notify.
    End,
    /// More has to be received.
    Empty,
}

impl Tls {
    pub(super) fn server(server: &TlsServer) -> io::Result<Self> {
        let connection = ServerConnection::new(Arc::clone(&server.config)).map_err(wrong)?;
        Ok(Self::new(connection.into(), Arc::clone(&server.names)))
    }

    pub(super) fn client(client: &TlsClient, host: &str) -> io::Result<Self> {
        let name = client.name_for(host).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(&client.config), name).map_err(wrong)?;
        Ok(Self::new(connection.into(), Arc::new([])))
    }

    fn new(mut connection: Connection, names: Arc<[ServerName<'static>]>) -> Self {
        // Nothing is written while something waits to be sent: that is the bound.
        connection.set_buffer_limit(None);
        Self {
            connection,
            cipher: Vec::new(),
            given: 0,
            plain: false,
            open: Vec::new(),
            names,
            checked: false,
            closing: false,
        }
    }

    /// Whether something may be read that no event tells of.
    pub(super) fn holds(&self) -> bool {
        self.plain || self.given < self.cipher.len()
    }

    /// Whether more may be written: the handshake is over, and what was written is on its way.
    pub(super) fn takes(&self) -> bool {
        !self.connection.is_handshaking() && !self.connection.wants_write()
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Reads what is decrypted, and decrypts what is there until there is something.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<Plain> {
        loop {
            match self.connection.reader().read(into) {
                Ok(0) => return Ok(Plain::End),
                Ok(n) => {
                    self.plain = true;
                    return Ok(Plain::Bytes(n));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.plain = false,
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    let why = "it ended without close_notify, and may be cut off";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
                Err(e) => return Err(e),
            }
            if !self.decrypt()? {
                return Ok(Plain::Empty);
            }
        }
    }

    /// Gives the library some of what was received; false if there is nothing.
    pub(super) fn decrypt(&mut self) -> io::Result<bool> {
        let mut rest = self.cipher.get(self.given..).unwrap_or_default();
        if rest.is_empty() {
            // An idle connection needs no memory for it.
            (self.cipher, self.given) = (Vec::new(), 0);
            return Ok(false);
        }
        let before = rest.len();
        self.connection.read_tls(&mut rest)?;
        self.given += before - rest.len();
        self.connection.process_new_packets().map_err(wrong)?;
        if !self.checked && !self.connection.is_handshaking() {
            self.check()?;
        }
        Ok(true)
    }

    fn check(&mut self) -> io::Result<()> {
        self.checked = true;
        if self.names.is_empty() {
            return Ok(());
        }
        let certificates = self.connection.peer_certificates().unwrap_or_default();
        match certificates
            .first()
            .is_some_and(|own| has_name(own, &self.names))
        {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "its certificate has none of the names of --client-name",
            )),
        }
    }

    /// Memory to receive into; only when all that was received before is decrypted.
    pub(super) fn space(&mut self) -> &mut [u8] {
        self.given = 0;
        self.cipher.resize(CIPHER, 0);
        &mut self.cipher
    }

    /// These have come before anybody thought of TLS.
    pub(super) fn begin_with(&mut self, bytes: &[u8]) {
        (self.cipher, self.given) = (bytes.to_vec(), 0);
    }

    /// So much was received into it.
    pub(super) fn received(&mut self, n: usize) {
        self.cipher.truncate(n);
    }

    /// The other end has closed its socket.
    pub(super) fn hung_up(&mut self) -> io::Result<()> {
        self.received(0);
        self.connection.read_tls(&mut io::empty())?;
        self.connection.process_new_packets().map_err(wrong)?;
        Ok(())
    }

    /// Takes bytes to be sent; all of them.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.open.extend_from_slice(bytes);
        if self.open.len() >= RECORD {
            self.seal()?;
        }
        Ok(())
    }

    /// Makes records of what was written.
    pub(super) fn seal(&mut self) -> io::Result<()> {
        if !self.open.is_empty() {
            self.connection.writer().write_all(&self.open)?;
            self.open = Vec::new();
        }
        Ok(())
    }

    /// Says that nothing more comes, behind all that was written.
    pub(super) fn close(&mut self) -> io::Result<()> {
        self.seal()?;
        if !self.closing {
            self.closing = true;
            self.connection.send_close_notify();
        }
        Ok(())
    }

    /// Writes records as long as `to` takes them; whether all are gone.
    pub(super) fn flush(&mut self, to: &mut impl io::Write) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(to) {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// What the other end has shown of itself, its certificate or its key.
    pub(super) fn peer(&self) -> Option<&[u8]> {
        let shown = self.connection.peer_certificates()?;
        shown.first().map(AsRef::as_ref)
    }

    /// What the two agreed upon, for the log.
    pub(super) fn shown(&self) -> String {
        let version = self.connection.protocol_version();
        version.map_or_else(String::new, |version| format!("{version:?}"))
    }
}

fn wrong(e: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {e}"))
}
