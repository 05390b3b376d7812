//! Client connection and lane against the sshd model, over the seeded path in virtual time: round
//! trips, failures, and known attacks.

mod attacks;
mod client;
mod compression;
#[path = "../../../schedule/tests/lane/disk.rs"]
#[allow(
    dead_code,
    reason = "shared with the lane tests, which look at more of it"
)]
mod disk;
mod failures;
mod rekeys;
mod round_trips;
mod world;
