//! The command line: one table of flags, and everything derived from it.

pub(crate) mod argument_error;
pub(crate) mod command;
pub(crate) mod docs;
pub(crate) mod flag;
mod foreign;
pub(crate) mod high;
pub(crate) mod low;
pub(crate) mod point_in_time;
pub(crate) mod rate;
pub(crate) mod table;
pub(crate) mod volume;
