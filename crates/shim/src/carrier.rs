//! Messages to the carrier, the process that carries bytes. Each message uses a connection of its
//! own that is closed right after, so no descriptor is kept. If no carrier answers, the program
//! continues without one.

use core::ffi::c_int;
use core::mem::offset_of;

use crate::ipc::{DONE, IpcMessageHeader, IpcRequestKind, NOWHERE};
use crate::{c, init, real};

/// Size of an abstract socket's name (unix(7)).
const NAME: usize = 108;
/// Time limit for an answer. The carrier is on this machine and reads messages one by one, so it is
/// delayed only by senders that leave theirs unfinished.
const PATIENCE: Timeval = Timeval { sec: 30, us: 0 };

/// `struct timeval`, as SO_RCVTIMEO expects it.
#[repr(C)]
struct Timeval {
    sec: i64,
    us: i64,
}

impl Timeval {
    fn bytes(&self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        let (sec, us) = bytes.split_at_mut(offset_of!(Self, us));
        for (to, from) in sec.iter_mut().zip(self.sec.to_ne_bytes()) {
            *to = from;
        }
        for (to, from) in us.iter_mut().zip(self.us.to_ne_bytes()) {
            *to = from;
        }
        bytes
    }
}

/// Connection to the carrier for one message and its answer, closed when dropped.
pub(crate) struct CarrierConnection(c_int);

impl CarrierConnection {
    /// Connects to the carrier; `None` if there is none, or none in this network namespace.
    pub(crate) fn reach() -> Option<Self> {
        let name = init::rules()?.carrier?.name.as_bytes();
        let mut address = [0; 2 + NAME];
        for (to, from) in address.iter_mut().zip(c::AF_UNIX.to_ne_bytes()) {
            *to = from;
        }
        // An abstract name begins with a zero byte.
        let len = 3 + name.len();
        for (to, from) in address.get_mut(3..len)?.iter_mut().zip(name) {
            *to = *from;
        }
        let carrier = Self(c::local_socket()?);
        let patience = PATIENCE.bytes();
        real::set_option(carrier.0, c::SOL_SOCKET, c::SO_RCVTIMEO, &patience);
        real::set_option(carrier.0, c::SOL_SOCKET, c::SO_SNDTIMEO, &patience);
        let there = real::connect(carrier.0, address.get(..len)?);
        (there && carrier.is_own()).then_some(carrier)
    }

    /// Checks that the carrier runs as this user before sockets are passed to it: any user can bind
    /// an abstract name.
    fn is_own(&self) -> bool {
        // `struct ucred`: process, user, group.
        let mut other = [0; 12];
        real::option(self.0, c::SOL_SOCKET, c::SO_PEERCRED, &mut other) == Some(other.len())
            && other.get(4..8) == Some(&c::user().to_ne_bytes()[..])
    }

    /// Sends a message with its text, and then the descriptors.
    pub(crate) fn tell(&self, header: &IpcMessageHeader, text: &[u8], with: &[c_int]) -> bool {
        real::send(self.0, &header.bytes())
            && (text.is_empty() || real::send(self.0, text))
            && with.iter().all(|fd| real::send_descriptor(self.0, *fd))
    }

    /// Receives the answer; `None` if there is none.
    fn answer(&self) -> Option<(u8, Option<c_int>)> {
        real::receive_descriptor(self.0)
    }

    /// Returns true if the carrier has accepted the message.
    pub(crate) fn agrees(&self) -> bool {
        matches!(self.answer(), Some((DONE, None)))
    }
}

impl Drop for CarrierConnection {
    fn drop(&mut self) {
        real::close(self.0);
    }
}

/// Builds a message about a connection that needs only a kind.
pub(crate) fn header(kind: IpcRequestKind, key: u64, text: &[u8]) -> IpcMessageHeader {
    IpcMessageHeader {
        kind,
        key,
        port: 0,
        peer: NOWHERE,
        via: NOWHERE,
        text: text.len(),
    }
}

/// The network socket of a carried connection, borrowed from the carrier.
pub(crate) struct BorrowedSocket(c_int);

impl BorrowedSocket {
    /// Borrows the socket. `None` means that the connection has ended in an orderly way; the error
    /// is the errno of a failed one.
    pub(crate) fn get(key: u64) -> Result<Option<Self>, c_int> {
        let carrier = CarrierConnection::reach().ok_or(c::ECONNRESET)?;
        let header = header(IpcRequestKind::LendSocket, key, &[]);
        let asked = carrier.tell(&header, &[], &[]);
        let answer = asked.then(|| carrier.answer()).flatten();
        match answer.ok_or(c::ECONNRESET)? {
            (DONE, socket) => Ok(socket.map(Self)),
            (error, _) => Err(error.into()),
        }
    }

    pub(crate) fn fd(&self) -> c_int {
        self.0
    }
}

impl Drop for BorrowedSocket {
    fn drop(&mut self) {
        real::close(self.0);
    }
}
