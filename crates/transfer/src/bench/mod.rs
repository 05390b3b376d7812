//! What `longhaul bench` needs of the engine: its primitives with a clock beside them, data of known
//! kinds, and what the far end says of its processor.

pub mod data;
pub mod primitives;
pub mod remote_probe;
