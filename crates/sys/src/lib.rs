//! Every system call that needs `unsafe`, each behind one safe function, and what tunes a socket.

mod receive;
mod tcp_info;
mod tune;
mod umask;

pub use receive::read_spare;
pub use tcp_info::{TcpInfo, tcp_info};
pub use tune::Tuning;
pub use umask::umask;
