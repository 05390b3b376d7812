use std::time::Duration;

use transfer::cancel::CancelToken;
use transfer::config::HostConfig;
use transfer::connect::{
    self, ConnectError, RemoteCommand, RemoteRole, SecurityProposal, SharedSettings,
};
use transfer::copy::HostId;
use transfer::session::SessionOptions;

use super::Hosts;
use super::waiting::wait_for;
use crate::flags::low::CopyArgs;

impl Hosts {
    /// Returns what a measurement of the path to a host connects with. No host memory is used, so
    /// that the login has all its steps.
    ///
    /// # Errors
    /// One sentence with the host.
    pub(crate) fn for_probe(
        &self,
        host: HostId,
    ) -> Result<(HostConfig, SharedSettings), ConnectError> {
        let (config, around) = self.prepare(self.host(host)?)?;
        let settings = SharedSettings {
            memories: None,
            direct: false,
            ..around
        };
        Ok((config, settings))
    }

    /// Starts one half of a relay pair at a host.
    ///
    /// # Errors
    /// One sentence with the host.
    pub(crate) fn start_half(&self, host: HostId) -> Result<RemoteCommand, ConnectError> {
        self.start_role(host, RemoteRole::Half, &CancelToken::default(), None)
    }

    /// Starts longhaul at a host. Gives up after a cancel, and without a login within `patience`.
    ///
    /// # Errors
    /// One sentence with the host.
    pub(crate) fn start_role(
        &self,
        host: HostId,
        role: RemoteRole,
        cancel: &CancelToken,
        patience: Option<Duration>,
    ) -> Result<RemoteCommand, ConnectError> {
        // Prompts share the terminal.
        let _hold = self.output.console().hold();
        let destination = self.host(host)?;
        let (config, around) = self.prepare(destination)?;
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
    pub(crate) fn algorithms(&self, host: HostId) -> Result<SecurityProposal, ConnectError> {
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
