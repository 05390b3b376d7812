//! Lanes against a model of the server, in virtual time.

mod bounds;
mod delta;
mod disk;
mod durable;
mod expected;
mod get_delta;
mod gets;
mod holes;
mod hostile;
mod injected;
mod lists;
mod packing;
mod puts;
mod refusing;
mod round_trips;
mod stages;
mod sums;
mod surprises;
mod trees;
mod whole;
mod world;
