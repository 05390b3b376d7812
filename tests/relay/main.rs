//! `longhaul relay` between clients and servers of the tests' own, on loopback.

mod asking;
mod ends;
mod entrances;
mod limits;
mod plain;
mod ssh;
mod tls;
mod world;
