//! (story)
mod exit;
mod flags;
mod output;
mod signals;
fn main() { }
