use transfer::config::HostConfig;
use transfer::connect::{ConnectError, RemoteCommand, SharedSettings};
use transfer::copy::HostId;

use super::Hosts;

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
        // Prompts share the terminal.
        let _hold = self.output.console().hold();
        let destination = self.host(host)?;
        let (config, around) = self.prepare(destination)?;
        RemoteCommand::half(config, &around)
    }
}
