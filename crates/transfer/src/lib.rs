//! Connects sockets and files to the pure machines below: sessions over links, the local disk,
//! trees, and the copy that is made of them.

pub mod cancel;
pub mod copy;
pub mod disk;
pub mod escape;
pub mod operand;
pub mod report;
pub mod session;
pub mod walk;
