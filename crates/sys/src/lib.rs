//! Every system call that needs `unsafe`, each behind one safe function, and what tunes a socket.

mod receive;
mod tcp_info;
mod tune;
mod umask;
mod usage;

pub use receive::read_spare;
pub use tcp_info::tcp_rtt;
pub use tune::Tuning;
pub use umask::umask;
pub use usage::{ChildrenUsage, children_usage};
