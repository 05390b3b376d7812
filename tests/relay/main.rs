//! `longhaul relay` between clients and servers of the tests' own, on loopback.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up ends it")]

mod asking;
mod ends;
mod entrances;
mod limits;
mod pair;
mod plain;
mod ssh;
mod tls;
mod world;
