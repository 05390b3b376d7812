//! A session with a host: a loop on its own thread that drives lanes over a link.

mod link;
mod raw;
mod segments;
mod send_queue;

pub use link::{ChannelId, Link, LinkError, LinkEvent, Peer};
pub use raw::RawLink;
pub use segments::Segments;
pub use send_queue::SendQueue;

/// A session with a host. Everything ends when it is dropped.
#[derive(Debug)]
pub struct Session {}
