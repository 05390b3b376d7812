//! Number of lanes reached on paths of all kinds, and the time for it, in virtual time.

mod evidence;
mod named;
mod path;
mod paths;
mod refusals;
