//! A session with a host: a loop on its own thread that drives lanes over a link.

/// A session with a host. Everything ends when it is dropped.
#[derive(Debug)]
pub struct Session {}
