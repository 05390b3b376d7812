//! Measurements as data: samples and their spread, stored and compared results, and tables, plots
//! and pages of them.
//!
//! Everything except [`keep`] is pure. The result of a race is a [`ProgramComparisonResult`], whose members are
//! described in docs/results.md; [`page::page`] and [`table::table`] format it, and
//! [`compare::compare`] compares two.

pub mod bench;
pub mod benchmarks;
pub mod compare;
pub mod doctor;
pub mod html;
pub mod keep;
pub mod page;
pub mod plot;
pub mod result;
pub mod shown;
pub mod stats;
pub mod table;

pub use result::{
    BenchmarkProgram, CopyDirection, GoalResult, MachineProperties, PayloadSize,
    ProgramComparisonResult, ProgressPoint, PublishedReport, RunOutcome, SCHEMA, Scenario,
    ScenarioMetric, ScenarioRun, ToolResult, ToolRoundTrips,
};
pub use stats::RunStatistics;
