//! Connections to a model of an SFTP server, for tests of measurements.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::{Registry, Token};
use sftp::{ClientOutput, StatusCode};
use ssh::transport::DisabledProtection;
use testkit::sftp_model::{Fs, SftpModel, SftpServerProfile};
use wire::PacketPool;

use super::budget::ProbeBudget;
use super::connection::ProbeConnections;
use super::path::ProbedConnections;
use super::{ProbeOptions, ProbeSettings};
use crate::cancel::CancelToken;
use crate::config::test_support::host_without_files;
use crate::connect::{
    AttemptSettings, BulkDirection, ConnectionFacts, RemoteLonghaulPolicy, SharedConnectSettings,
};
use crate::prompt::NoPrompt;
use crate::session::{
    ConnectionOpener, FurtherConnectionError, InitialServerFacts, Link, LinkChannelId, LinkError,
    LinkEvent,
};

/// State of one connection to the model, which a test may change while it is measured.
#[derive(Default)]
struct ModelConnectionState {
    channels: Vec<SftpModel>,
    refused: BTreeMap<&'static str, StatusCode>,
    /// Connections that are lost once this one has that many channels.
    cuts: Option<(usize, ModelConnection)>,
    /// The connection is lost by the first request that comes now.
    ends_with_request: bool,
    lost: bool,
}

/// Control of one connection to the model.
#[derive(Clone, Default)]
pub(super) struct ModelConnection(Arc<Mutex<ModelConnectionState>>);

impl ModelConnection {
    fn state(&self) -> MutexGuard<'_, ModelConnectionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses requests of this kind on channels that are opened from now on.
    pub(super) fn refuse(&self, kind: &'static str) {
        let denied = StatusCode::PERMISSION_DENIED;
        self.state().refused.insert(kind, denied);
    }

    /// Loses the connection.
    pub(super) fn lose(&self) {
        self.state().lost = true;
    }

    /// Loses the connection with the next request.
    pub(super) fn lose_with_request(&self) {
        self.state().ends_with_request = true;
    }

    /// Loses `other` once this connection has so many channels.
    pub(super) fn lose_other_at(&self, channels: usize, other: &Self) {
        self.state().cuts = Some((channels, other.clone()));
    }
}

impl Link for ModelConnection {
    fn register(&mut self, _: &Registry, _: Token) -> io::Result<()> {
        Ok(())
    }

    fn peer(&self) -> Option<InitialServerFacts> {
        None
    }

    fn pool(&self) -> PacketPool {
        PacketPool::new(32 * 1024, 64)
    }

    fn open_channel(&mut self) -> Option<LinkChannelId> {
        let mut on = self.state();
        let mut profile = SftpServerProfile::openssh();
        profile.restrictions.refused = on.refused.clone();
        on.channels.push(SftpModel::new(Fs::default(), profile));
        if let Some((channels, other)) = &on.cuts
            && on.channels.len() >= *channels
        {
            other.lose();
        }
        Some(LinkChannelId(on.channels.len() as u32 - 1))
    }

    /// Runs a command that never ends.
    fn open_exec(&mut self, _: &[u8]) -> Option<LinkChannelId> {
        let mut on = self.state();
        on.lost |= on.ends_with_request;
        Some(LinkChannelId(u32::MAX))
    }

    fn close_channel(&mut self, _: LinkChannelId) {}

    fn ready(&mut self, _: Token, _: bool, _: bool) {}

    fn receive(&mut self, _: Instant, events: &mut Vec<LinkEvent>) -> Result<bool, LinkError> {
        let mut on = self.state();
        if on.lost {
            return Err(LinkError::Lost("the connection was reset".to_owned()));
        }
        for (number, model) in on.channels.iter_mut().enumerate() {
            let bytes = model.take_output();
            if !bytes.is_empty() {
                let id = LinkChannelId(number as u32);
                events.push(LinkEvent::Data(id, Bytes::from(bytes)));
            }
        }
        Ok(false)
    }

    fn limit_receive(&mut self, _: usize) {}

    fn room(&self, _: LinkChannelId) -> usize {
        256 * 1024
    }

    fn send(&mut self, channel: LinkChannelId, output: ClientOutput) {
        let mut on = self.state();
        if on.ends_with_request {
            on.lost = true;
            return;
        }
        let bytes = match output {
            ClientOutput::Bytes(bytes) => bytes,
            ClientOutput::Block(block) => block.to_vec(),
        };
        if let Some(model) = on.channels.get_mut(channel.0 as usize) {
            model.handle_input(&bytes);
        }
    }

    fn flush(&mut self, _: Instant) -> Result<bool, LinkError> {
        Ok(false)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _: Instant) -> Result<(), LinkError> {
        Ok(())
    }

    fn finish(self: Box<Self>) {}
}

impl ConnectionOpener for ModelConnection {
    fn is_open(&self) -> bool {
        false
    }

    fn another(&self, _: bool) -> Result<Box<dyn Link>, FurtherConnectionError> {
        let why = "no further connection".to_owned();
        Err(FurtherConnectionError::Connection(why))
    }
}

/// Returns the settings of a measurement of 3 s.
pub(super) fn settings() -> ProbeSettings {
    let config = host_without_files();
    let hop = config.clone();
    ProbeSettings {
        config,
        settings: SharedConnectSettings {
            prompt: Arc::new(Mutex::new(NoPrompt)),
            memories: None,
            forward_agent: false,
            dscp: 0,
            congestion: None,
            renounced: DisabledProtection::Nothing,
            window_poll: false,
            opened: Arc::new(|_| {}),
            direct: false,
            hop: Arc::new(move |_| Ok(hop.clone())),
            far: RemoteLonghaulPolicy::Stock,
            absolute: true,
            look: None,
            bulk: BulkDirection::Neither,
            sends: None,
            beside: None,
            attempt: AttemptSettings::default(),
            timeline: None,
            masters: Arc::default(),
        },
        cancel: CancelToken::default(),
        start: Instant::now(),
        master: None,
    }
}

/// Returns the options of a measurement of 3 s.
pub(super) fn options() -> ProbeOptions {
    ProbeOptions {
        time: Some(Duration::from_secs(3)),
        data: 1 << 40,
        remote_path: None,
        local_disk: None,
        expected: None,
        progress: Arc::new(|_, _, _| {}),
    }
}

/// Returns an idle connection and one for load, each with an open channel, and their controls.
pub(super) fn connections() -> (ProbeConnections, [ModelConnection; 2]) {
    let controls = [ModelConnection::default(), ModelConnection::default()];
    let mut all = ProbeConnections::new().expect("a poll");
    for control in &controls {
        let number = all.add(Box::new(control.clone())).expect("a connection");
        let until = Instant::now() + Duration::from_secs(5);
        all.open(number, until).expect("a channel");
    }
    (all, controls)
}

/// Returns [`connections`] as the path that is measured.
pub(super) fn path<'a>(
    target: &'a ProbeSettings,
    options: &'a ProbeOptions,
) -> (ProbedConnections<'a>, [ModelConnection; 2]) {
    let (all, controls) = connections();
    let budget = ProbeBudget::new(target, options);
    let facts = ConnectionFacts {
        banner: Some("SSH-2.0-OpenSSH_9.9".to_owned()),
        ..ConnectionFacts::default()
    };
    let factory = Arc::new(controls[0].clone());
    let path = ProbedConnections::new(budget, all, factory, facts, None);
    (path, controls)
}
