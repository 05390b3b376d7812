//! One file and many files over several lanes, in virtual time.

#[path = "../lane/disk.rs"]
#[allow(dead_code, reason = "the lane's own tests use the rest")]
mod disk;
mod files;
mod left;
mod losses;
mod one_handle;
mod pieces;
mod settings;
mod slow;
mod sources;
mod world;
