//! The journal: its bytes, and copies that lose power.

mod bytes;
mod power;
