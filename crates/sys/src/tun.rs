//! TUN devices: network interfaces whose packets a process reads and writes
//! (Documentation/networking/tuntap.rst).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Offload flags of if_tun.h, which libc does not define for every target.
const TUN_F_CSUM: libc::c_ulong = 0x01;
const TUN_F_TSO4: libc::c_ulong = 0x02;
const TUN_F_TSO6: libc::c_ulong = 0x04;
const TUN_F_TSO_ECN: libc::c_ulong = 0x08;

/// Creates the TUN device `name` in the network namespace of the calling thread. The device
/// disappears when the descriptor is closed.
///
/// Each read and write is one packet behind a virtio_net_hdr of 10 bytes: checksums may be left to
/// the receiver, and TCP segments of up to 64 KiB pass in one piece. Reads and writes do not block.
///
/// # Errors
/// /dev/net/tun is missing or cannot be opened, or the kernel does not permit the device.
#[allow(unsafe_code, reason = "the ioctls of TUN devices have no safe wrapper")]
pub fn open_tun(name: &str) -> io::Result<OwnedFd> {
    let tun: File = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    // SAFETY: ifreq is integers, arrays and unions of them, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() || !name.is_ascii() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which outlives the call.
    if unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let offload = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    if unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD, offload) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(tun.into())
}
