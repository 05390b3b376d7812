//! Client that sends any message at any time: longhaul's SSH transport without the layers above it.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use ssh::EndpointRole;
use ssh::cipher::{MACS, preferred_order};
use ssh::key::PrivateKey;
use ssh::msg::{ServiceRequest, UserauthRequest, UserauthSuccess};
use ssh::transport::{AlgorithmProposal, KexGuess, Transport, TransportConfig, TransportEvent};
use wire::{Field as _, PacketBuf, RemainingBytes};

/// Time limit for answers of the server.
const PATIENCE: Duration = Duration::from_secs(20);

/// Reason for the end of a connection.
#[derive(Debug)]
pub enum End {
    /// The server has disconnected with a message, or violated the protocol.
    Ssh(ssh::Error),
    /// The socket has ended.
    Socket(io::Error),
}

impl End {
    /// Returns the server's disconnect message; empty if it sent none.
    pub fn words(&self) -> &str {
        match self {
            Self::Ssh(ssh::Error::Disconnected { description, .. }) => description,
            _ => "",
        }
    }
}

impl From<ssh::Error> for End {
    fn from(e: ssh::Error) -> Self {
        Self::Ssh(e)
    }
}

impl From<io::Error> for End {
    fn from(e: io::Error) -> Self {
        Self::Socket(e)
    }
}

/// Connection of such a client.
pub struct Stranger {
    /// Socket of the connection.
    pub stream: TcpStream,
    /// Transport with its keys.
    pub transport: Transport,
    received: BytesMut,
    key: PrivateKey,
}

impl Stranger {
    /// Connects to a loopback port, and completes the first key exchange.
    ///
    /// # Errors
    /// Returns an error if the server has disconnected.
    pub fn connect(port: u16) -> Result<Self, End> {
        let names = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect();
        let config = TransportConfig {
            software: "longhaul_stranger".to_owned(),
            proposal: AlgorithmProposal {
                kex: names(vec!["mlkem768x25519-sha256"]),
                host_key: names(vec!["ssh-ed25519"]),
                ciphers: names(preferred_order(true)),
                macs: names(MACS.iter().map(|mac| mac.name).collect()),
                compress: false,
            },
            guess: KexGuess::Never,
            rekey_bytes: None,
            rekey_time: None,
            host_keys: Vec::new(),
        };
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let transport = Transport::new(EndpointRole::Client, config, Box::new(|to| to.fill(5)))?;
        let mut new = Self {
            stream,
            transport,
            received: BytesMut::new(),
            key: PrivateKey::from_ed25519_seed(&[21; 32]).map_err(io::Error::other)?,
        };
        while !new.transport.may_send() {
            new.flush()?;
            new.read()?;
        }
        new.flush()?;
        Ok(new)
    }

    /// Returns the line of authorized_keys for the client's key.
    pub fn public_line() -> String {
        let key = PrivateKey::from_ed25519_seed(&[21; 32]).expect("a key");
        format!("ssh-ed25519 {}\n", STANDARD.encode(key.public_blob()))
    }

    /// Logs in.
    ///
    /// # Errors
    /// Returns an error if the server has disconnected.
    ///
    /// # Panics
    /// Panics if the login is refused.
    pub fn log_in(&mut self, user: &str) -> Result<(), End> {
        let service = ServiceRequest {
            name: b"ssh-userauth",
        };
        self.say(&service.to_bytes())?;
        self.hear()?;
        let (mut data, mut covered) = (Vec::new(), Vec::new());
        true.write(&mut data);
        b"ssh-ed25519".as_slice().write(&mut data);
        self.key.public_blob().write(&mut data);
        let session = self.transport.session_id().cloned().unwrap_or_default();
        session.as_ref().write(&mut covered);
        entry(user, &data).encode(&mut covered);
        let signature = self.key.sign("ssh-ed25519", &covered);
        signature
            .map_err(io::Error::other)?
            .as_slice()
            .write(&mut data);
        self.say(&entry(user, &data).to_bytes())?;
        let answer = self.hear()?;
        assert_eq!(answer.first(), Some(&UserauthSuccess::NUMBER), "let in");
        self.transport.set_authenticated();
        Ok(())
    }

    /// Sends a message, allowed or not.
    ///
    /// # Errors
    /// Returns an error if the server has disconnected.
    pub fn say(&mut self, payload: &[u8]) -> Result<(), End> {
        self.say_often(payload, 1)
    }

    /// Sends a message `times` times at once.
    ///
    /// # Errors
    /// Returns an error if the server has disconnected.
    pub fn say_often(&mut self, payload: &[u8], times: usize) -> Result<(), End> {
        for _ in 0..times {
            self.transport.send(PacketBuf::from_payload(payload))?;
        }
        self.flush()
    }

    /// Writes the pending output.
    ///
    /// # Errors
    /// Returns an error if the server has disconnected.
    pub fn flush(&mut self) -> Result<(), End> {
        let all = self.output()?;
        Ok(self.stream.write_all(&all)?)
    }

    /// Returns the pending output for the caller to write.
    ///
    /// # Errors
    /// Returns an error if the transport has failed.
    pub fn output(&mut self) -> Result<Vec<u8>, End> {
        let mut all = Vec::new();
        while let Some(output) = self.transport.poll_output() {
            all.extend(output.seal()?.to_vec().expect("it is in memory"));
        }
        Ok(all)
    }

    /// Returns the next message for a layer above the transport.
    ///
    /// # Errors
    /// Returns an error if the connection ends before one arrives.
    pub fn hear(&mut self) -> Result<Bytes, End> {
        loop {
            if let Some(payload) = self.take()? {
                return Ok(payload);
            }
            self.flush()?;
            self.read()?;
        }
    }

    /// Sends a message `times` times, and reads the answers meanwhile, until the server
    /// disconnects.
    ///
    /// # Errors
    /// Returns an error if the transport fails before everything was queued.
    ///
    /// # Panics
    /// Panics if the server does not disconnect.
    pub fn flood(mut self, payload: &[u8], times: usize) -> Result<End, End> {
        for _ in 0..times {
            self.transport.send(PacketBuf::from_payload(payload))?;
        }
        let (all, mut stream) = (self.output()?, self.stream.try_clone()?);
        Ok(std::thread::scope(|scope| {
            // The server may disconnect before it has read everything.
            scope.spawn(move || stream.write_all(&all));
            self.end()
        }))
    }

    /// Waits for the server to disconnect, and returns the reason.
    ///
    /// # Panics
    /// Panics if the server does not disconnect within the time limit.
    pub fn end(mut self) -> End {
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < until, "the server goes on");
            if let Err(end) = self.hear() {
                return end;
            }
        }
    }

    fn take(&mut self) -> Result<Option<Bytes>, ssh::Error> {
        loop {
            let payload = self
                .transport
                .next_payload(Instant::now(), &mut self.received)?;
            let mut approved = false;
            while let Some(event) = self.transport.poll_event() {
                if matches!(event, TransportEvent::HostKey(_)) {
                    self.transport.accept_host_key()?;
                    approved = true;
                }
            }
            if payload.is_some() || !approved {
                return Ok(payload);
            }
        }
    }

    /// Reads once from the socket.
    ///
    /// # Errors
    /// Returns an error at the end of the stream, or after the time limit.
    pub fn read(&mut self) -> Result<(), End> {
        let mut segment = [0; 32 << 10];
        let n = self.stream.read(&mut segment)?;
        if n == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.received.extend_from_slice(&segment[..n]);
        if !self.transport.may_send() {
            // The only message that may come before the server's own KEXINIT announces host keys.
            while self.take()?.is_some() {}
        }
        Ok(())
    }
}

fn entry<'a>(user: &'a str, data: &'a [u8]) -> UserauthRequest<'a> {
    UserauthRequest {
        user: user.as_bytes(),
        service: b"ssh-connection",
        method: b"publickey",
        data: RemainingBytes(data),
    }
}
