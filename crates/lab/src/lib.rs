//! An emulated long path on this machine: two network namespaces joined by TUN devices, with a
//! process between them that delays, limits and loses packets as asked.
//!
//! [`path`] says what the path is like, [`emulator`] makes it so, [`packet`] is the memory and
//! the headers of what crosses it, [`figures`] counts. These four are pure: time is an argument,
//! randomness comes from the path's seed.

pub mod emulator;
pub mod figures;
pub mod packet;
pub mod path;

pub use emulator::Emulator;
pub use figures::Figures;
pub use packet::{Frame, MAX_FRAME};
pub use path::{Direction, PathError, PathSpec};
