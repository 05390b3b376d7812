//! Measurements as data: samples and their spread, results that are kept and compared, and the
//! tables, plots and pages made of them.
//!
//! Everything but [`keep`] is pure. What was measured is a [`Race`], whose members are described
//! in docs/results.md; [`page::page`] and [`table::table`] show it, [`compare::compare`] sets two
//! side by side.

pub mod bench;
pub mod benchmarks;
pub mod compare;
pub mod html;
pub mod keep;
pub mod page;
pub mod plot;
pub mod result;
pub mod shown;
pub mod stats;
pub mod table;

pub use result::{
    Bar, Case, Ending, Entry, Machine, Measure, Payload, Point, Race, RoundTrips, SCHEMA, Sample,
    Scenario, Tool, Way,
};
pub use stats::Spread;
