//! `longhaul wrap`: programs behave as without it, and what is refused is said.

mod filtered;
mod library;
mod near_and_far;
mod probes;
mod programs;
mod refused;
mod routes;
