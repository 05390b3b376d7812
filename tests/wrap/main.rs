//! `longhaul wrap`: programs behave as without it, and refusals are reported.

mod filtered;
mod library;
mod near_and_far;
mod probes;
mod programs;
mod refused;
mod routes;
