use std::ffi::{OsStr, OsString};

use super::{Session, SftpProgramLink};
use crate::cancel::CancelToken;
use crate::connect::{ConnectError, ConnectStep};
use crate::copy::{HostId, SessionConnector, TransferEstimate};
use crate::session::SessionOptions;

/// A host to which a program's standard input and output carry the SFTP session.
#[derive(Clone, Debug)]
pub struct ProgramConnectedHost {
    /// Host name as the user wrote it.
    pub name: String,
    /// Program whose standard input and output carry the SFTP session.
    pub program: OsString,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
}

/// Connects by running programs: an SFTP server itself (`-D`), or an ssh (`-S`).
#[derive(Clone, Debug)]
pub struct ProgramConnector {
    /// Hosts, indexed by [`HostId`].
    pub hosts: Vec<ProgramConnectedHost>,
    /// Options for every session.
    pub options: SessionOptions,
}

impl SessionConnector for ProgramConnector {
    fn connect(
        &self,
        host: HostId,
        _: Option<TransferEstimate>,
        _: &CancelToken,
    ) -> Result<Session, ConnectError> {
        let unknown =
            || ConnectError::configuration(format!("internal error: no host number {}", host.0));
        let host = self.hosts.get(host.0).ok_or_else(unknown)?;
        let link = SftpProgramLink::spawn(host.program.clone(), host.arguments.clone());
        let link =
            link.map_err(|e| ConnectError::this_machine(ConnectStep::Reach, e.into_words()))?;
        Session::start(Box::new(link), self.options.clone()).map_err(|e| {
            let why = format!(
                "this machine cannot start the threads of a connection: {e}; check its limits \
                 (ulimit -n and -u)"
            );
            ConnectError::this_machine(ConnectStep::Session, why)
        })
    }

    fn name(&self, host: HostId) -> String {
        match self.hosts.get(host.0) {
            Some(host) => host.name.clone(),
            None => format!("host {}", host.0),
        }
    }
}

/// Arguments for an ssh that carries an SFTP session to `host`, as scp passes them. The user's own
/// `options` (`-F`, `-i`, `-o`, ...) come first, since ssh uses the first value.
pub fn ssh_arguments(
    options: &[OsString],
    user: Option<&OsStr>,
    port: Option<u16>,
    host: &OsStr,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = options.to_vec();
    for fixed in [
        "-x",
        "-oPermitLocalCommand=no",
        "-oClearAllForwardings=yes",
        "-oRemoteCommand=none",
        "-oRequestTTY=no",
    ] {
        arguments.push(fixed.into());
    }
    if let Some(port) = port {
        arguments.extend(["-p".into(), port.to_string().into()]);
    }
    if let Some(user) = user {
        arguments.extend(["-l".into(), user.to_owned()]);
    }
    arguments.extend(["-s".into(), "--".into(), host.to_owned(), "sftp".into()]);
    arguments
}
