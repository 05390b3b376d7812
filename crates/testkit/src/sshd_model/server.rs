use std::collections::VecDeque;
use std::time::Instant;

use bytes::BytesMut;
use ssh::channel::{ChannelId, Channels, ChannelsConfig};
use ssh::msg::{ChannelData, Unimplemented};
use ssh::transport::{KexGuess, Transport, TransportConfig, TransportEvent};
use ssh::{EndpointRole, Error, PeerMisbehaved};
use wire::{PacketBuf, PacketPool};

use super::auth::Auth;
use super::{SshdModelSettings, Step};
use crate::sftp_model::SftpModel;
use crate::sim::Seeded;

/// Model of sshd with one connection. Input goes to [`SshdModel::handle_input`], and output comes
/// from [`SshdModel::poll_write`].
pub struct SshdModel {
    pub(super) config: SshdModelSettings,
    pub(super) transport: Transport,
    pub(super) channels: Channels,
    /// SFTP server behind the subsystem.
    pub sftp: SftpModel,
    pub(super) session: Option<ChannelId>,
    pub(super) auth: Auth,
    /// TCP_NODELAY has been set.
    pub(super) nodelay: bool,
    input: BytesMut,
    identified: bool,
    keyed: bool,
    packets: usize,
    key_exchanges: usize,
    write: Vec<u8>,
    writes: VecDeque<Vec<u8>>,
    error: Option<Error>,
    log: Vec<u8>,
    early_data: Vec<u8>,
}

impl SshdModel {
    /// Creates sshd in its state after accept(2): the identification is written, and KEXINIT waits
    /// for the client's identification.
    pub fn new(config: SshdModelSettings, sftp: SftpModel, seed: u64) -> Self {
        let transport = TransportConfig {
            software: config.software.clone(),
            proposal: config.proposal.clone(),
            guess: KexGuess::Never,
            rekey_bytes: config.rekey_bytes,
            rekey_time: None,
            host_keys: vec![config.host_key.clone()],
        };
        let mut rng = Seeded::new(seed);
        let random = Box::new(move |to: &mut [u8]| rng.fill(to));
        let mut transport =
            Transport::new(EndpointRole::Server, transport, random).expect("a sound setup");
        transport.hear_early();
        let pool = PacketPool::new(32 << 10, 64);
        let mut model = Self {
            transport,
            channels: Channels::new(EndpointRole::Server, ChannelsConfig::default(), pool),
            sftp,
            session: None,
            auth: Auth::default(),
            nodelay: false,
            input: BytesMut::new(),
            identified: false,
            keyed: false,
            packets: 0,
            key_exchanges: 0,
            write: Vec::new(),
            writes: VecDeque::new(),
            error: None,
            log: Vec::new(),
            early_data: Vec::new(),
            config,
        };
        model.take_output();
        model.end_write();
        model
    }

    /// Takes bytes of the client.
    pub fn handle_input(&mut self, now: Instant, bytes: &[u8]) {
        if self.error.is_some() {
            return;
        }
        self.input.extend_from_slice(bytes);
        let result = self.run(now);
        self.take_output();
        self.end_write();
        self.error = result.err();
    }

    /// Returns the bytes of the next write(2).
    pub fn poll_write(&mut self) -> Option<Vec<u8>> {
        self.writes.pop_front()
    }

    /// Reports if Nagle's algorithm is off: sshd disables it when a program starts
    /// (ssh_packet_set_interactive), and held bytes leave then.
    pub fn nodelay(&self) -> bool {
        self.nodelay
    }

    /// Returns the error for which the connection was closed.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Returns the numbers of the messages received for the layers above the transport.
    pub fn log(&self) -> &[u8] {
        &self.log
    }

    /// Returns channel data that arrived before authentication.
    pub fn early_data(&self) -> &[u8] {
        &self.early_data
    }

    /// Returns the number of completed key exchanges.
    pub fn key_exchanges(&self) -> usize {
        self.key_exchanges
    }

    /// Reports if the user has authenticated.
    pub fn is_authenticated(&self) -> bool {
        self.auth.done
    }

    /// Starts a key exchange.
    pub fn rekey(&mut self) {
        self.transport.rekey().expect("KEXINIT is sent");
        self.take_output();
        self.end_write();
    }

    /// Sends any message, regardless of the state.
    pub fn send(&mut self, payload: &[u8]) {
        self.transport
            .send(PacketBuf::from_payload(payload))
            .expect("it is sealed");
        self.take_output();
        self.end_write();
    }

    fn run(&mut self, now: Instant) -> Result<(), Error> {
        loop {
            let payload = self.transport.next_payload(now, &mut self.input)?;
            while let Some(event) = self.transport.poll_event() {
                match event {
                    TransportEvent::Identified(_) => self.identified = true,
                    TransportEvent::Keys { .. } => self.key_exchanges += 1,
                    _ => {}
                }
            }
            self.take_output();
            if !self.keyed && self.transport.may_send() {
                self.keyed = true;
                self.reach(Step::Keys)?;
            }
            let Some(payload) = payload else { break };
            let number = payload.first().copied().unwrap_or_default();
            self.log.push(number);
            match number {
                50 if self.config.impatient && !self.input.is_empty() => {
                    return Err(PeerMisbehaved::Unexpected(90).into());
                }
                5 | 50..=79 => self.handle_auth(&payload)?,
                // The client's refusals of injected messages.
                92 => {}
                // Corresponds to dispatch_protocol_error of auth2.c.
                80..=127 if !self.auth.done => {
                    if let Ok(data) = ChannelData::decode(&payload) {
                        self.early_data.extend_from_slice(data.data);
                    }
                    let answer = Unimplemented { sequence: 0 };
                    self.transport
                        .send(PacketBuf::from_payload(&answer.to_bytes()))?;
                }
                80..=127 => {
                    let payload = self.renumber(payload);
                    self.channels.handle(now, payload)?;
                    self.handle_channels(now)?;
                }
                number => return Err(PeerMisbehaved::Unexpected(number).into()),
            }
            // ssh_packet_read_seqnr writes pending output before it reads; after authentication,
            // the loop reads everything and then writes.
            if !self.auth.done {
                self.take_output();
                self.end_write();
            }
        }
        self.transport.handle_timeout(now)?;
        self.send_channels(now)
    }

    /// Sends the messages to be injected at `step`.
    pub(super) fn reach(&mut self, step: Step) -> Result<(), Error> {
        let slips = std::mem::take(&mut self.config.slips);
        let (now, later) = slips.into_iter().partition(|(at, _)| *at == step);
        self.config.slips = later;
        let now: Vec<(Step, Vec<Vec<u8>>)> = now;
        for payload in now.into_iter().flat_map(|(_, payloads)| payloads) {
            self.transport.send(PacketBuf::from_payload(&payload))?;
        }
        Ok(())
    }

    /// Takes the output of the transport; KEXINIT waits for the client's identification.
    pub(super) fn take_output(&mut self) {
        while self.packets == 0 || self.identified {
            let Some(output) = self.transport.poll_output() else {
                return;
            };
            let mut bytes = output
                .seal()
                .expect("it is sealed")
                .to_vec()
                .expect("in memory");
            for (number, edit) in &self.config.edits {
                if *number == self.packets {
                    edit.apply(&mut bytes);
                }
            }
            self.packets += 1;
            self.write.extend(bytes);
        }
    }

    fn end_write(&mut self) {
        if !self.write.is_empty() {
            self.writes.push_back(std::mem::take(&mut self.write));
        }
    }
}
