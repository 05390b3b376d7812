//! Letters to the process that carries bytes. Each goes by a connection of its own, which is open
//! for that moment: nothing is held. Where nobody answers, things are as without that process.

use core::ffi::c_int;
use core::mem::offset_of;

use crate::ipc::{DONE, IpcMessage, Kind, NOWHERE};
use crate::{c, init, real};

/// The longest name of an abstract socket (unix(7)).
const NAME: usize = 108;
/// How long an answer may take. It comes from this machine, and waits for nobody longer than for
/// those who write letters and do not end them.
const PATIENCE: Timeval = Timeval { sec: 30, us: 0 };

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

/// A connection to it.
pub(crate) struct Carrier(c_int);

impl Carrier {
    /// `None` where it is not there, or not in this network.
    pub(crate) fn reach() -> Option<Self> {
        let name = init::rules()?.carrier?.name.as_bytes();
        let mut address = [0; 2 + NAME];
        for (to, from) in address.iter_mut().zip(c::AF_UNIX.to_ne_bytes()) {
            *to = from;
        }
        // Abstract names begin with a zero.
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

    /// Names of this kind are anybody's: sockets are handed to this user's own process only.
    fn is_own(&self) -> bool {
        // `struct ucred`: process, user, group.
        let mut other = [0; 12];
        real::option(self.0, c::SOL_SOCKET, c::SO_PEERCRED, &mut other) == Some(other.len())
            && other.get(4..8) == Some(&c::user().to_ne_bytes()[..])
    }

    /// Sends a letter, with its text and what follows it.
    pub(crate) fn tell(&self, letter: &IpcMessage, text: &[u8], with: &[c_int]) -> bool {
        real::send(self.0, &letter.bytes())
            && (text.is_empty() || real::send(self.0, text))
            && with.iter().all(|fd| real::send_descriptor(self.0, *fd))
    }

    /// What it answers; `None` where it does not.
    fn answer(&self) -> Option<(u8, Option<c_int>)> {
        real::receive_descriptor(self.0)
    }

    /// Whether it does what it is told.
    pub(crate) fn agrees(&self) -> bool {
        matches!(self.answer(), Some((DONE, None)))
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        real::close(self.0);
    }
}

/// A letter about a connection, of this kind alone.
pub(crate) fn letter(kind: Kind, key: u64, text: &[u8]) -> IpcMessage {
    IpcMessage {
        kind,
        key,
        port: 0,
        peer: NOWHERE,
        via: NOWHERE,
        text: text.len(),
    }
}

/// The socket of a connection that was taken, for a moment.
pub(crate) struct Lent(c_int);

impl Lent {
    /// The number of an error where the connection has ended with one; `None` where it ended well
    /// and is not there any more.
    pub(crate) fn get(key: u64) -> Result<Option<Self>, c_int> {
        let carrier = Carrier::reach().ok_or(c::ECONNRESET)?;
        let letter = letter(Kind::Lend, key, &[]);
        let asked = carrier.tell(&letter, &[], &[]);
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

impl Drop for Lent {
    fn drop(&mut self) {
        real::close(self.0);
    }
}
