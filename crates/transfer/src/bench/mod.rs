//! The engine's part of `longhaul bench`: timed primitives, test data of known kinds, and queries
//! about the far end's processor.

pub mod data;
pub mod primitives;
pub mod remote_shell_probe;
