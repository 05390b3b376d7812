//! System calls: every unsafe one behind a safe function, and what tunes a socket.

mod tune;

pub use tune::Tuning;
