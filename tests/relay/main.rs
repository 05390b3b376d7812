//! `longhaul relay` between clients and servers of the tests' own, on loopback.

mod ends;
mod entrances;
mod limits;
mod plain;
mod ssh;
mod world;
