//! Files at the server that a load writes and reads without touching its disk.

use sftp::{Handle, OpenFlags, Reply, Request};

use super::budget::answer_deadline;
use super::connection::{ChannelIndex, ProbeConnections, REQUEST};
use super::files::new_file_path;
use super::measurement_error::{MeasurementError, MeasurementFailure};
use super::path::IDLE;

/// /dev/null and /dev/zero of the server. Where the account sees no devices, a small file in the
/// user's directory takes their place: each request writes or reads its first bytes again.
pub(super) struct LoadTestFiles {
    /// Directory that the user named.
    directory: Option<Vec<u8>>,
    /// File in the user's directory that takes the place of missing devices.
    stand_in: Option<Vec<u8>>,
}

impl LoadTestFiles {
    pub(super) fn new(directory: Option<Vec<u8>>) -> Self {
        Self {
            directory,
            stand_in: None,
        }
    }

    /// Takes the path of the file that took the place of missing devices, to be removed.
    pub(super) fn take_stand_in(&mut self) -> Option<Vec<u8>> {
        self.stand_in.take()
    }

    /// Opens a device on a channel, for writing if `up`.
    ///
    /// # Errors
    /// The cause is [`MeasurementFailure::DeviceRefused`] if the server answers other requests.
    pub(super) fn open(
        &mut self,
        connections: &mut ProbeConnections,
        at: ChannelIndex,
        up: bool,
    ) -> Result<Handle, MeasurementError> {
        let opened = self.device_or_stand_in(connections, at, up);
        opened.map_err(|error| match error.is_refusal() {
            true => error.of_cause(MeasurementFailure::DeviceRefused),
            false => error,
        })
    }

    fn device_or_stand_in(
        &mut self,
        connections: &mut ProbeConnections,
        at: ChannelIndex,
        up: bool,
    ) -> Result<Handle, MeasurementError> {
        if self.stand_in.is_none() {
            match connections.device(at, up, answer_deadline()) {
                Err(refused) if refused.is_refusal() => {
                    let Some(directory) = self.directory.clone() else {
                        return Err(refused.with(
                            "name a directory that you may write (HOST:PATH): a small file is created \
                             there, used in its place, and removed",
                        ));
                    };
                    let created = self.create_stand_in(connections, &directory);
                    created.map_err(|error| match error.is_refusal() {
                        true => refused.with(error),
                        false => error,
                    })?;
                }
                opened => return opened,
            }
        }
        let flags = match up {
            true => OpenFlags::WRITE,
            false => OpenFlags::READ,
        };
        let path = self.stand_in.clone().unwrap_or_default();
        let opened = connections.open_file(at, &path, flags, answer_deadline());
        opened.map_err(|error| error.at_step(crate::escape::name(&path)))
    }

    fn create_stand_in(
        &mut self,
        connections: &mut ProbeConnections,
        directory: &[u8],
    ) -> Result<(), MeasurementError> {
        let path = new_file_path(directory);
        let named = |error: MeasurementError| error.at_step(crate::escape::name(directory));
        let until = answer_deadline();
        let flags = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL;
        let opened = connections.open_file(IDLE, &path, flags, until);
        let file = opened.map_err(named)?;
        self.stand_in = Some(path);
        let handle = file.as_bytes();
        let write = Request::Write {
            handle,
            offset: 0,
            data: &[0xa5; REQUEST as usize],
        };
        let written = connections.ask(IDLE, &write, until)?.0;
        connections.ask(IDLE, &Request::Close { handle }, until)?;
        match written {
            Reply::Status(status) if !status.is_ok() => Err(named(status.into())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::test_support::connections;

    /// Bug: a connection that broke at the OPEN was told as a refusal, with the advice to name a
    /// directory.
    #[test]
    fn a_lost_connection_was_taken_for_a_server_without_devices() {
        let (mut all, [_, load]) = connections();
        load.lose_with_request();
        let mut devices = LoadTestFiles::new(None);
        let error = devices.open(&mut all, (1, 0), true).unwrap_err();
        assert!(error.is_lost());
        assert_eq!(error.cause(), MeasurementFailure::ConnectionLost);
        let said = "cannot open /dev/null on the server: the connection was reset";
        assert_eq!(error.to_string(), said);
    }
}
