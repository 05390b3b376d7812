//! Files at the server that a load writes and reads without touching its disk.

use sftp::{Handle, OpenFlags, Reply, Request};

use super::budget::answer_deadline;
use super::connection::{ChannelIndex, ProbeConnections, REQUEST};
use super::files::new_file_path;
use super::path::IDLE;
use super::request_error::RequestError;

/// /dev/null and /dev/zero of the server. Where the account sees no devices, a small file in the
/// user's directory takes their place: each request writes or reads its first bytes again.
pub(super) struct LoadTestFiles {
    /// Directory that the user named.
    directory: Option<Vec<u8>>,
    /// File in the user's directory that takes the place of missing devices.
    stand_in: Option<Vec<u8>>,
    /// The server refused the last device, and answers other requests.
    refused: bool,
}

impl LoadTestFiles {
    pub(super) fn new(directory: Option<Vec<u8>>) -> Self {
        Self {
            directory,
            stand_in: None,
            refused: false,
        }
    }

    /// Returns true if the server refused the last device, and answers other requests.
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Takes the path of the file that took the place of missing devices, to be removed.
    pub(super) fn take_stand_in(&mut self) -> Option<Vec<u8>> {
        self.stand_in.take()
    }

    /// Opens a device on a channel, for writing if `up`.
    pub(super) fn open(
        &mut self,
        connections: &mut ProbeConnections,
        at: ChannelIndex,
        up: bool,
    ) -> Result<Handle, RequestError> {
        let opened = self.device_or_stand_in(connections, at, up);
        let refused = matches!(&opened, Err(error) if !error.is_no_answer());
        self.refused = refused && connections.is_usable(at);
        opened
    }

    fn device_or_stand_in(
        &mut self,
        connections: &mut ProbeConnections,
        at: ChannelIndex,
        up: bool,
    ) -> Result<Handle, RequestError> {
        if self.stand_in.is_none() {
            match connections.device(at, up, answer_deadline()) {
                Err(silence) if silence.is_no_answer() => return Err(silence),
                Err(refused) => {
                    let Some(directory) = self.directory.clone() else {
                        return Err(refused.with(
                            "name a directory (HOST:PATH), and a small file there is used in its \
                             place",
                        ));
                    };
                    let created = self.create_stand_in(connections, &directory);
                    created.map_err(|error| match error.is_no_answer() {
                        true => error,
                        false => refused.with(&error.to_string()),
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
        let shown = crate::escape::name(&path).to_string();
        let opened = connections.open_file(at, &path, flags, answer_deadline());
        opened.map_err(|error| error.at_step(&shown))
    }

    fn create_stand_in(
        &mut self,
        connections: &mut ProbeConnections,
        directory: &[u8],
    ) -> Result<(), RequestError> {
        let path = new_file_path(directory);
        let named =
            |error: RequestError| error.at_step(&crate::escape::name(directory).to_string());
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
            Reply::Status(status) if !status.is_ok() => Err(named(status.to_string().into())),
            _ => Ok(()),
        }
    }
}
