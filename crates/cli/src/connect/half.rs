use std::ffi::OsString;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use transfer::cancel::CancelToken;
use transfer::config::{HostConfig, ProxyMethod, SshOptionFlags};
use transfer::connect::{
    self, AlgorithmPreferences, ConnectError, RemoteCommand, RemoteLonghaulRole,
    SharedConnectSettings,
};
use transfer::copy::HostId;
use transfer::escape;
use transfer::probe::ControlMasterConnection;
use transfer::prompt::NoPrompt;
use transfer::session::{
    ConnectionOpener, FurtherConnectionError, Link, SessionOptions, SftpProgramLink,
};

use super::waiting::wait_for;
use super::{Hosts, limit_connecting};
use crate::flags::low::CopyArgs;

/// Opens channels over a connection that an `ssh` master process holds; each is an `ssh` program of
/// its own.
struct ControlMasterChannels {
    arguments: Vec<OsString>,
}

impl ConnectionOpener for ControlMasterChannels {
    fn is_open(&self) -> bool {
        true
    }

    fn another(&self, _: bool) -> Result<Box<dyn Link>, FurtherConnectionError> {
        match SftpProgramLink::spawn("ssh".into(), self.arguments.clone()) {
            Ok(link) => Ok(Box::new(link)),
            Err(error) => Err(FurtherConnectionError::Connection(error.into_words())),
        }
    }
}

impl Hosts {
    /// Returns what a measurement of the path to a host connects with. No host memory is used, so
    /// that the login has all its steps. Beside an open connection of ssh, the login asks nothing.
    ///
    /// # Errors
    /// One sentence with the host.
    pub(crate) fn for_probe(
        &self,
        host: HostId,
    ) -> Result<
        (
            HostConfig,
            SharedConnectSettings,
            Option<ControlMasterConnection>,
        ),
        ConnectError,
    > {
        let destination = self.host(host)?;
        let (mut config, around) = self.prepare(destination)?;
        let mut settings = SharedConnectSettings {
            memories: None,
            direct: false,
            ..around
        };
        let socket = config.control_master.take();
        let master = socket.map(|socket| {
            config.switches.insert(SshOptionFlags::BATCH_MODE);
            settings.prompt = Arc::new(Mutex::new(NoPrompt));
            settings.attempt.awaits_login = true;
            ControlMasterConnection {
                name: escape::path(&socket).to_string(),
                channels: Arc::new(ControlMasterChannels {
                    arguments: self.master_arguments(destination),
                }),
            }
        });
        Ok((config, settings, master))
    }

    /// Starts one half of a relay pair at a host.
    ///
    /// # Errors
    /// One sentence with the host.
    pub(crate) fn start_half(&self, host: HostId) -> Result<RemoteCommand, ConnectError> {
        self.start_role(
            host,
            RemoteLonghaulRole::PairHalf,
            &CancelToken::default(),
            None,
        )
    }

    /// Starts longhaul at a host. Gives up after a cancel, and without a login within `patience`.
    ///
    /// # Errors
    /// One sentence with the host.
    pub(crate) fn start_role(
        &self,
        host: HostId,
        role: RemoteLonghaulRole,
        cancel: &CancelToken,
        patience: Option<Duration>,
    ) -> Result<RemoteCommand, ConnectError> {
        let destination = self.host(host)?;
        let (mut config, around) = self.prepare(destination)?;
        if patience.is_some() {
            limit_connecting(&mut config);
        }
        // A ProxyCommand may ask on the terminal without notice.
        let program = matches!(config.proxy, ProxyMethod::Command(_));
        let _held = program.then(|| self.output.console().hold());
        let start = move || RemoteCommand::start(role, config, &around);
        let started = wait_for(cancel, patience, start);
        if started.is_err() {
            // A password prompt may have switched echo off.
            self.output.console().restore();
        }
        started
    }

    /// Returns the reason why no longhaul is looked for at a host, if there is one.
    ///
    /// # Errors
    /// The configuration of the host is invalid.
    pub(crate) fn longhaul_is_absent(
        &self,
        host: HostId,
    ) -> Result<Option<&'static str>, ConnectError> {
        let (config, around) = self.prepare(self.host(host)?)?;
        let memories = around.memories.as_ref();
        Ok(connect::longhaul_is_absent(around.far, &config, memories))
    }

    /// The rate to a host in bytes per second that an earlier copy on this path has shown.
    pub(crate) fn remembered_rate(&self, host: HostId) -> Option<u64> {
        let (config, around) = self.prepare(self.host(host).ok()?).ok()?;
        connect::remembered_rate(&config, around.memories.as_ref()?)
    }

    /// Records that a host has no longhaul.
    pub(crate) fn remember_absent(&self, host: HostId) {
        let Ok((config, around)) = self.host(host).and_then(|host| self.prepare(host)) else {
            return;
        };
        if let Some(memories) = &around.memories {
            connect::remember_absent(&config, memories);
        }
    }

    /// Returns the algorithms that the user allows for connections with a host.
    ///
    /// # Errors
    /// The configuration of the host is invalid.
    pub(crate) fn algorithms(&self, host: HostId) -> Result<AlgorithmPreferences, ConnectError> {
        let (config, around) = self.prepare(self.host(host)?)?;
        connect::algorithms(&config, &around)
    }

    /// The flags for reaching hosts.
    pub(crate) fn flags(&self) -> &CopyArgs {
        &self.flags
    }

    /// The options of sessions.
    pub(crate) fn session_options(&self) -> SessionOptions {
        self.options()
    }
}
