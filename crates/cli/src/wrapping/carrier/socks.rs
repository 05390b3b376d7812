//! Connects to a SOCKS 5 proxy, or directly to the destination if the proxy refuses.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use shim::ipc::IpcMessageHeader;
use shim::socks::{GREETING, REST, SocksRequest, WELCOME, rest};
use sys::SocketTuning;
use transfer::config::ConnectTimeout;
use transfer::connect::TcpConnectSettings;

use super::CarriedConnectionReason;
use crate::dialing::suit_the_path;

/// Time limit for connecting, and for each answer of a proxy.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connects. The result also says if the proxy was used.
///
/// # Errors
/// Neither proxy nor destination accepts the connection.
pub(super) fn connect(
    header: &IpcMessageHeader,
    tuning: &SocketTuning,
    tunes: bool,
) -> io::Result<(TcpStream, CarriedConnectionReason)> {
    let dial = TcpConnectSettings {
        timeout: Some(ConnectTimeout::Fixed(PATIENCE)),
        attempts: 1,
        tuning: tuning.clone(),
        ..TcpConnectSettings::default()
    };
    let to = |address| {
        let dialled = dial.connect_to(&[address]);
        let stream = dialled.map_err(|why| io::Error::other(why.to_string()))?;
        if tunes && tuning.congestion.is_none() {
            suit_the_path(&stream);
        }
        io::Result::Ok(stream)
    };
    match to(header.via).and_then(|proxy| led_on(proxy, header)) {
        Ok(stream) => Ok((stream, CarriedConnectionReason::Socks)),
        Err(_) => Ok((to(header.peer)?, CarriedConnectionReason::Direct)),
    }
}

/// Names the destination to the proxy.
fn led_on(mut proxy: TcpStream, header: &IpcMessageHeader) -> io::Result<TcpStream> {
    proxy.set_nonblocking(false)?;
    proxy.set_read_timeout(Some(PATIENCE))?;
    proxy.set_write_timeout(Some(PATIENCE))?;
    proxy.write_all(&GREETING)?;
    let mut welcome = [0; WELCOME.len()];
    proxy.read_exact(&mut welcome)?;
    if welcome != WELCOME {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    proxy.write_all(SocksRequest::new(header.peer).bytes())?;
    let mut head = [0; 5];
    proxy.read_exact(&mut head)?;
    let rest = rest(head).ok_or(io::ErrorKind::ConnectionRefused)?;
    proxy.read_exact(&mut [0; REST][..rest])?;
    Ok(proxy)
}
