//! File trees: created from a seed, and compared.

mod compare;
mod generate;

pub use compare::{Compare, Snapshot, assert_same, differences};
pub use generate::{Tree, write_file};
