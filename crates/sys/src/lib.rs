//! Every system call that needs `unsafe`, each behind one safe function, and the few others that
//! have no home in a library we use.

mod receive;
mod umask;

pub use receive::read_spare;
pub use umask::umask;
