//! `longhaul relay` between the tests' own clients and servers on loopback.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up ends it")]

mod asking;
mod ends;
mod entrances;
mod limits;
mod operating;
mod over_ssh;
mod pair;
mod plain;
mod soak;
#[cfg(target_os = "linux")]
mod space;
mod ssh;
mod status;
mod tls;
#[cfg(target_os = "linux")]
mod transparent;
#[cfg(target_os = "linux")]
mod uplinks;
mod world;
