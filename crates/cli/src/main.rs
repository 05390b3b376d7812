//! (story)
mod exit;
mod flags;
fn main() { }
