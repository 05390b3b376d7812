//! How many lanes there come to be on paths of all kinds, and how fast, in virtual time.

mod evidence;
mod named;
mod path;
mod paths;
mod refusals;
