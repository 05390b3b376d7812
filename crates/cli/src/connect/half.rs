use transfer::connect::{ConnectError, RemoteCommand};
use transfer::copy::HostId;

use super::Hosts;

impl Hosts {
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
